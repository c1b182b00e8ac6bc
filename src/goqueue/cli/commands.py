"""Everything one can type after `goqueue`."""

import typer

from goqueue import __version__, codec
from goqueue.cli import config, log
from goqueue.cli.failures import PlainCommand, PlainGroup
from goqueue.cli.output import say
from goqueue.cli.serve import serve

app = typer.Typer(
    name="goqueue",
    cls=PlainGroup,
    help="GoQueue: a message queue whose only truth is a log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(config.app)
app.command(cls=PlainCommand)(serve)
app.add_typer(log.app)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"goqueue {__version__} ({'compiled' if codec.COMPILED else 'Python'} codec)")
        raise typer.Exit


@app.callback()
def _goqueue(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Say which version this is."
    ),
) -> None:
    """GoQueue: a message queue whose only truth is a log."""
