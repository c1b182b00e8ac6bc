"""Names as arguments, and what a shell completes them with: those the broker knows, if it answers at once."""

from typing import Annotated, Any, Final

import typer

_PATIENCE_S: Final = "1s"


def _known(operation: str, field: str, incomplete: str) -> list[str]:
    from goqueue.cli.remote.broker import ask
    from goqueue.cli.remote.chosen import choose, chosen
    from goqueue.model.errors import GoQueueError

    choose(chosen()._replace(timeout=_PATIENCE_S))
    try:
        return [name for name in ask(operation)[field] if name.startswith(incomplete)]
    except (GoQueueError, OSError, typer.Exit):
        return []  # a shell that completes has no place for an error


def topics(incomplete: str) -> list[str]:
    return _known("list_topics", "topics", incomplete)


def groups(incomplete: str) -> list[str]:
    return _known("list_groups", "groups", incomplete)


def contexts(incomplete: str) -> list[str]:
    from goqueue.cli.remote import context_file
    from goqueue.model.errors import GoQueueError

    try:
        return [name for name in context_file.load().contexts if name.startswith(incomplete)]
    except (GoQueueError, OSError):
        return []


def option(names: str, metavar: str, help: str, complete: Any = None) -> Any:
    """An option that takes a value; its names are words."""
    return typer.Option(*names.split(), metavar=metavar, help=help, autocompletion=complete)


def _argument(metavar: str, help: str, complete: Any = None) -> Any:
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, show_default=False)


Topic = Annotated[str, _argument("TOPIC", "The topic.", topics)]
NewTopic = Annotated[str, _argument("TOPIC", "Its name: letters, digits, '.', '_' and '-'.")]
Group = Annotated[str, _argument("GROUP", "The group.", groups)]
Schedule = Annotated[str, _argument("ID", "The schedule's id, as `schedule list` shows it.")]
Redrive = Annotated[str, _argument("ID", "The redrive's id, as `dlq redrive` answered it.")]
Context = Annotated[str, _argument("NAME", "The context.", contexts)]
OfTopic = Annotated[str | None, option("--topic", "TOPIC", "Only of this topic.", topics)]
OfGroup = Annotated[str | None, option("--group", "GROUP", "Only of this group.", groups)]
Limit = Annotated[int, option("--limit", "COUNT", "How many at most.")]
Next = Annotated[str | None, option("--next", "PLACE", "Go on where an answer with `next` ended.")]
