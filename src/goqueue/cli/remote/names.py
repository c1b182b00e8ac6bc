"""Names as arguments, and what a shell completes them with: those the broker knows, if it answers at once."""

from typing import Annotated, Any, Final

import typer

_PATIENCE_S: Final = "1s"


def _known(operation: str, field: str, incomplete: str, inside: str | None = None, **fields: Any) -> list[str]:
    """What a reply lists; of objects, what each has inside."""
    from goqueue.cli.remote.broker import ask
    from goqueue.cli.remote.chosen import choose, chosen
    from goqueue.model.errors import GoQueueError

    choose(chosen()._replace(timeout=_PATIENCE_S))
    try:
        found = ask(operation, **fields)[field]
        names = found if inside is None else dict.fromkeys([each[inside] for each in found if inside in each])
        return [name for name in names if name.startswith(incomplete)]
    except (GoQueueError, OSError, typer.Exit):
        return []  # a shell that completes has no place for an error


def topics(incomplete: str) -> list[str]:
    return _known("list_topics", "topics", incomplete)


def groups(incomplete: str) -> list[str]:
    return _known("list_groups", "groups", incomplete)


def readers(incomplete: str) -> list[str]:
    return _known("list_readers", "readers", incomplete, "name")


def transactions(incomplete: str) -> list[str]:
    return _known("list_transactions", "transactions", incomplete, "transaction_id")


def open_transactions(incomplete: str) -> list[str]:
    return _known("list_transactions", "transactions", incomplete, "transaction_id", state="ongoing")


def transaction_names(incomplete: str) -> list[str]:
    return _known("list_transactions", "transactions", incomplete, "name")


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
Reader = Annotated[str, _argument("NAME", "The reader's name.", readers)]
NewReader = Annotated[str, _argument("NAME", "Its name: letters, digits, '.', '_', ':' and '-'.", readers)]
Schedule = Annotated[str, _argument("ID", "The schedule's id, as `schedule list` shows it.")]
Redrive = Annotated[str, _argument("ID", "The redrive's id, as `dlq redrive` answered it.")]
Transaction = Annotated[str, _argument("ID", "The transaction's id, as `txn list` shows it.", transactions)]
MaybeTransaction = Annotated[str | None, _argument("[ID]", "Its id, as `txn list` shows it.", open_transactions)]
TransactionName = Annotated[str, _argument("NAME", "The name transactions were begun under.", transaction_names)]
OfTransactions = Annotated[str | None, option("--name", "NAME", "Those begun under this name.", transaction_names)]
Context = Annotated[str, _argument("NAME", "The context.", contexts)]
OfTopic = Annotated[str | None, option("--topic", "TOPIC", "Only of this topic.", topics)]
OfGroup = Annotated[str | None, option("--group", "GROUP", "Only of this group.", groups)]
Limit = Annotated[int, option("--limit", "COUNT", "How many at most.")]
Next = Annotated[str | None, option("--next", "PLACE", "Go on where an answer with `next` ended.")]
