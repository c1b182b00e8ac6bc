"""`goqueue serve`: a broker, until a signal asks it to stop."""

import sys
from typing import Final

import typer

from goqueue.cli.config import configured
from goqueue.cli.failures import DISK_FAILED
from goqueue.cli.output import say
from goqueue.config.settings import Settings
from goqueue.server.server import Server, run
from goqueue.telemetry import logs

_TO_TRY: Final = (
    """curl -X POST {http}/topics -d '{{"name": "orders"}}'""",
    """curl -X POST {http}/topics/orders/publish -d '{{"key": "alice", "value": "two apples"}}'""",
    """curl {http}/topics/orders/messages""",
)

_PAGES: Final = {"http": "   the API: /docs", "metrics": "/metrics"}
"""What to open there."""


@configured
def serve(settings: Settings) -> None:
    """Start a broker. It says where it listens, and stops cleanly on Ctrl-C or SIGTERM."""
    logs.configure(settings.log_level, settings.log_format, sys.stderr)
    failure = run(settings, _announce)
    if failure is not None:
        raise typer.Exit(DISK_FAILED)


def _announce(server: Server) -> None:
    """Where the doors are, for a person and for a script that waits for the line."""
    doors = server.endpoints
    say(f"GoQueue is ready, with its data in {server.data_dir}")
    for name, address in doors.items():
        say(f"  {name:<8} {address if name == 'wire' else f'http://{address}'}{_PAGES.get(name, '')}")
    if "http" in doors:
        say("Try, in another terminal:")
        for command in _TO_TRY:
            say(f"  {command.format(http=doors['http'])}")
    say("Ctrl-C stops it.")
    sys.stdout.flush()
