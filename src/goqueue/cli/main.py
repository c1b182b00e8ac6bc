"""The `goqueue` command: what the installed script runs."""

import typer

from goqueue import __version__, codec
from goqueue.cli import log

app = typer.Typer(
    name="goqueue",
    help="GoQueue: a message queue whose only truth is a log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(log.app)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"goqueue {__version__} ({'compiled' if codec.COMPILED else 'Python'} codec)")
        raise typer.Exit


@app.callback()
def _goqueue(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Say which version this is."
    ),
) -> None:
    """GoQueue: a message queue whose only truth is a log."""


def main() -> None:
    app(prog_name="goqueue")
