"""What goes with every command: which broker, how to print, how long to wait. Where it was typed does not matter.

`added` gives a command these options; what stands behind the command counts before what stands in front of it.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import typer

from goqueue.cli.failures import PlainCommand
from goqueue.cli.remote import context_file
from goqueue.cli.remote.typed import typed_duration
from goqueue.model.errors import InvalidRequest

DEFAULT_ADDRESS: Final = "127.0.0.1:9001"
ADDRESS_VARIABLE: Final = "GOQUEUE_ADDRESS"
DEFAULT_TIMEOUT_S: Final = 30.0


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help=f"The broker's wire port; else ${ADDRESS_VARIABLE}, else the context's, else {DEFAULT_ADDRESS}.",
    ),
]
ContextName = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Use the broker of this context, see `context list`.")
]
OutputOption = Annotated[
    OutputFormat | None,
    typer.Option("--output", "-o", help="How to print: a table for people, JSON or YAML for programs."),
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="Wait this long for one answer, like 10s (30s).")
]


class Chosen(NamedTuple):
    address: str | None = None
    context: str | None = None
    output: OutputFormat = OutputFormat.TABLE
    timeout: str | None = None

    @property
    def timeout_s(self) -> float:
        if self.timeout is None:
            return DEFAULT_TIMEOUT_S
        timeout_ms = typed_duration("--timeout", self.timeout)
        if not timeout_ms:
            raise InvalidRequest(f"--timeout: {self.timeout} leaves no time for an answer; write at least 1ms")
        return timeout_ms / 1000


_NOTHING: Final = Chosen()
_CHOSEN: ContextVar[Chosen] = ContextVar("chosen", default=_NOTHING)


def choose(chosen: Chosen) -> None:
    _CHOSEN.set(chosen)


def chosen() -> Chosen:
    return _CHOSEN.get()


def output() -> OutputFormat:
    return _CHOSEN.get().output


def find_address() -> tuple[str, str]:
    """The broker's address, and who said so."""
    picked = chosen()
    if picked.address is not None:
        return picked.address, "--address"
    if picked.context is not None:
        return context_file.load().address_of(picked.context), f"the context {picked.context}"
    in_environment = os.environ.get(ADDRESS_VARIABLE)
    if in_environment:
        return in_environment, f"${ADDRESS_VARIABLE}"
    contexts = context_file.load()
    if contexts.current is not None:
        return contexts.address_of(contexts.current), f"the context {contexts.current}"
    return DEFAULT_ADDRESS, "the default"


# --- commands


def group(name: str, help: str) -> typer.Typer:
    return typer.Typer(name=name, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def single() -> typer.Typer:
    """For a command that is no group."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def add(app: typer.Typer, **commands: Callable[..., None]) -> None:
    """Commands of the group by their names, with the options that all have; _ in a name is typed as -."""
    for name, function in commands.items():
        app.command(name.replace("_", "-"), cls=PlainCommand)(added(function))


def added(function: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of all, which are chosen before it runs."""

    def run(**given: Any) -> None:
        before = chosen()
        typed = {name: given.pop(name) for name in SHARED}
        if typed["context"] is not None:
            before = before._replace(address=None)
        choose(before._replace(**{name: value for name, value in typed.items() if value is not None}))
        function(**given)

    return with_options(function, SHARED, run=run)


def with_options(
    function: Callable[..., None],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any] = {},
    run: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """The command with these options behind its own, in place of its `**rest`; they are None unless `defaults` says."""

    @functools.wraps(function)
    def command(**given: Any) -> None:
        (run or function)(**given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(function, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [one.replace(kind=keyword) for one in own]
    for name, annotation in options.items():
        parameters.append(inspect.Parameter(name, keyword, default=defaults.get(name), annotation=annotation))
    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


SHARED: Final[dict[str, Any]] = {
    "address": Address,
    "context": ContextName,
    "output": OutputOption,
    "timeout": Timeout,
}
