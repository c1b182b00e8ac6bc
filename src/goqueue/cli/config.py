"""`goqueue config`: what a broker started now would do, and why. And `configured`, for every command that needs it.

The options come from the table of keys, so that `config show` and `serve` cannot differ.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import typer

from goqueue.cli.failures import WRONG_USE, PlainCommand
from goqueue.cli.output import complain, emit, note, print_json, print_table, printable
from goqueue.config.keys import BY_FLAG, KEYS, Key
from goqueue.config.kinds import Switch
from goqueue.config.loading import DEFAULT, SET, load
from goqueue.config.problems import ConfigProblems
from goqueue.config.settings import Settings

_INDENT: Final = "  "


class ShowFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


# --- options shared by all commands that need a configuration


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --config, every flag of the table of keys and --set in place of its first parameter.

    That one gets the Settings they lead to. Warnings are told first; when there are problems all of them are told,
    and the command does not run.
    """
    _, *own = inspect.signature(command).parameters.values()
    parameters = [*_options(), *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    names = {flag: _identifier(flag) for flag in BY_FLAG}

    @functools.wraps(command)
    def run(*, config: str | None, assignments: list[str] | None, **typed: Any) -> None:
        texts = {flag: typed.pop(name) for flag, name in names.items()}
        flags = {flag: _text(text) for flag, text in texts.items() if text not in (None, False)}
        command(_load(config, flags, assignments or []), **typed)

    # The parser of the command line asks a function for its parameters: it gets those of the table.
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _options() -> Iterator[inspect.Parameter]:
    yield _option("config", str | None, "--config", metavar="FILE", help="A YAML file with settings.")
    for flag, key in BY_FLAG.items():
        if isinstance(key.kind, Switch):
            yield _option(_identifier(flag), bool, flag, help=key.about, default=False)
        else:
            yield _option(_identifier(flag), str | None, flag, metavar=key.kind.metavar, help=_help(key))
    about = "Set any key, like producer.acks=all; may be given again."
    yield _option("assignments", list[str] | None, SET, metavar="KEY=VALUE", help=about)


def _option(name: str, kind: Any, flag: str, *, default: Any = None, **told: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(flag, show_default=False, **told)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(key: Key) -> str:
    return f"{key.about} [default: {key.default_for(is_root=os.geteuid() == 0)}]"


def _identifier(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


def _text(typed: str | bool) -> str:
    return "true" if typed is True else str(typed)


def _load(file: str | None, flags: dict[str, str], assignments: list[str]) -> Settings:
    try:
        settings = load(file=file, environ=os.environ, flags=flags, assignments=assignments, is_root=os.geteuid() == 0)
    except ConfigProblems as found:
        for problem in found.problems:
            complain(str(problem))
        raise typer.Exit(WRONG_USE) from found
    for line in settings.warnings:
        note(line)
    return settings


# --- goqueue config show


@configured
def show(
    settings: Settings,
    output: Annotated[ShowFormat, typer.Option("--output", "-o", help="How to print.")] = ShowFormat.TABLE,
) -> None:
    """Show every setting and where it comes from: a default, a line of the file, the environment or a flag.

    Nothing is started. As YAML it is a file that --config reads back.
    """
    if output is ShowFormat.JSON:
        print_json(
            {
                key.path: {"value": key.kind.plain(_value(settings, key)), "source": _source(settings, key)}
                for key in KEYS
            }
        )
    elif output is ShowFormat.YAML:
        emit("".join(f"{line}\n" for line in _yaml_lines(settings)))
    else:
        rows = [(key.path, key.kind.show(_value(settings, key)), _source(settings, key)) for key in KEYS]
        print_table(
            ("key", "value", "source"),
            [(path, value, (source, "dim" if source == DEFAULT else "bold")) for path, value, source in rows],
        )


def _value(settings: Settings, key: Key) -> Any:
    """Of a key that nothing can use yet: its default, the only value it may have."""
    return key.kind.parse(key.default) if key.field is None else attrgetter(key.field)(settings)


def _source(settings: Settings, key: Key) -> str:
    return printable(settings.sources[key.path])


def _yaml_lines(settings: Settings) -> Iterator[str]:
    above: list[str] = []
    for key in KEYS:
        *sections, name = key.path.split(".")
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                yield f"{_INDENT * depth}{section}:"
        above = sections
        value = key.kind.plain(_value(settings, key))
        written = msgspec.json.encode(value).decode().replace("${", "$${")
        yield f"{_INDENT * len(sections)}{name}: {written}  # {_source(settings, key)}"


app = typer.Typer(
    name="config",
    help="Look at what a broker would be started with.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("show", cls=PlainCommand)(show)
