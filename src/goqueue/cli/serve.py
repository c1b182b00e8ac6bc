"""`goqueue serve`: a broker, until a signal asks it to stop."""

import os
import shutil
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
_NO_PAGES: Final = ("wire", "grpc")
_STANDARD_WIRE: Final = "127.0.0.1:9001"


@configured
def serve(settings: Settings) -> None:
    """Start a broker. It says where it listens, and stops cleanly on Ctrl-C or SIGTERM."""
    logs.configure(settings.log_level, settings.log_format, sys.stderr)
    failure = run(settings, _announce)
    if failure is not None:
        raise typer.Exit(DISK_FAILED)


def _name_of_client() -> str:
    """`goqueue-cli`, as it can be typed here."""
    if shutil.which("goqueue-cli"):
        return "goqueue-cli"
    return os.path.relpath(os.path.join(os.path.dirname(sys.executable), "goqueue-cli"))


def _address_of(wire: str) -> str:
    return "" if wire == _STANDARD_WIRE else f" --address {wire}"


def _announce(server: Server) -> None:
    """Where the doors are, for a person and for a script that waits for the line."""
    doors = server.endpoints
    say(f"GoQueue is ready, with its data in {server.data_dir}")
    for name, address in doors.items():
        say(f"  {name:<8} {address if name in _NO_PAGES else f'http://{address}'}{_PAGES.get(name, '')}")
    if "http" in doors:
        say("Try, in another terminal:")
        for command in _TO_TRY:
            say(f"  {command.format(http=doors['http'])}")
    if "wire" in doors:
        say(f"  {_name_of_client()}{_address_of(doors['wire'])} consume orders")
    say("Ctrl-C stops it.")
    sys.stdout.flush()
