"""Everything one can type after `goqueue-cli`: a table, whose modules are imported when their command is asked for.

A command's module has its name, and an `app`. What it helps with is said here and nowhere else, so that the list of
commands costs no import.
"""

import importlib
import os
import signal
import sys
from typing import Annotated, Any, Final

import typer

from goqueue import __version__
from goqueue.cli.failures import BY_SIGNAL, PlainGroup
from goqueue.cli.output import say
from goqueue.cli.remote.chosen import (
    Address,
    Chosen,
    ContextName,
    OutputFormat,
    OutputOption,
    Timeout,
    choose,
)
from goqueue.config.nearness import alike

PROGRAM: Final = "goqueue-cli"
COMPLETION_VARIABLE: Final = "_GOQUEUE_CLI_COMPLETE"
"""How a shell asks for completions."""
COMMANDS: Final[dict[str, str]] = {
    "topic": "Create, look at, change and delete topics.",
    "produce": "Publish messages: from the command line, standard input or a file.",
    "consume": "Read a topic, or take its messages as a member of a group.",
    "message": "Ack, nack, release, reject or extend messages by their receipt handles.",
    "group": "Look at consumer groups, their lag and offsets; reset or delete them.",
    "reader": "Where jobs that read without a group began: look at it, set it, forget it.",
    "delay": "List, look at, cancel and reschedule messages that are not due yet.",
    "schedule": "Have messages published again and again.",
    "dlq": "Look at dead letters and publish them again.",
    "txn": "Look at transactions, and abort those that were left open.",
    "stats": "Counters: lanes, delays, deliveries, rebalances, the broker.",
    "cluster": "Is the broker healthy, which version is it, what is it doing?",
    "producer": "Ids for programs that publish without duplicates.",
    "bench": "Measure throughput and latency of a broker.",
    "pipeline": "Archive, replay and reshape topics with Spark.",
    "call": "Call any operation of the API with the fields it takes.",
    "context": "Names for brokers you use often.",
    "completion": "Print a script that completes commands in your shell.",
}
_EPILOG: Final = (
    "Options of this list may also stand behind a command. Exit codes: 0 done, 1 failed, 2 wrong use, 3 done but the "
    "answer could not be printed, 128 + N stopped by signal N."
)


class LazyGroup(PlainGroup):
    """The commands of the table, imported one at a time."""

    def main(self, *args: Any, **settings: Any) -> Any:
        try:
            return super().main(*args, **settings)
        except typer.Abort:  # Ctrl-C where nothing is under way, or the end of input at a question
            sys.exit(BY_SIGNAL + signal.SIGINT)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = alike(cmd_name, COMMANDS)
            if near is not None and not ctx.resilient_parsing:
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {near!r}?")
            return None
        module = importlib.import_module(f"goqueue.cli.remote.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name=PROGRAM,
    cls=LazyGroup,
    help="Talk to a GoQueue broker.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _goqueue_cli(
    address: Address = None,
    context: ContextName = None,
    output: OutputOption = None,
    timeout: Timeout = None,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    choose(Chosen(address, context, output or OutputFormat.TABLE, timeout))


def prepare_completion() -> None:
    """A shell that asks for completions says so in the environment; nothing is loaded for it otherwise."""
    if os.environ.get(COMPLETION_VARIABLE):
        importlib.import_module("typer.completion").completion_init()
