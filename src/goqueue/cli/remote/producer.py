"""`goqueue-cli producer`: ids for programs that publish over HTTP without duplicates."""

from typing import Annotated, Any

import typer

from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import add, group
from goqueue.cli.remote.names import option
from goqueue.cli.remote.showing import print_fields, show

app = group("producer", "Ids for programs that publish without duplicates.")


def init() -> None:
    """Get a producer id and its epoch."""
    show(ask("init_producer"), _print_producer)


def heartbeat(
    producer_id: Annotated[int, typer.Argument(metavar="ID", help="The producer's id.", show_default=False)],
    epoch: Annotated[int, option("--epoch", "NUMBER", "The epoch it was given.")] = 0,
) -> None:
    """Ask whether a producer id is good."""
    show(ask("producer_heartbeat", producer_id=producer_id, epoch=epoch), _print_producer)


def _print_producer(reply: dict[str, Any]) -> None:
    print_fields([("producer", (str(reply["producer_id"]), "bold")), ("epoch", str(reply["epoch"]))])


add(app, init=init, heartbeat=heartbeat)
