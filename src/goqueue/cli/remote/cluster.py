"""`goqueue-cli cluster`: health, live, version, overview."""

from typing import Annotated, Any

import typer

from goqueue.cli.failures import FAILED
from goqueue.cli.output import print_table, say
from goqueue.cli.remote.broker import Broker, ask, run
from goqueue.cli.remote.chosen import OutputFormat, add, group, output
from goqueue.cli.remote.showing import hint, print_data, print_fields, show, state, text
from goqueue.cli.remote.stats import print_broker

app = group("cluster", "Is the broker healthy, which version is it, what is it doing?")


def health(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also say what was checked.")] = False,
) -> None:
    """Whether the broker takes requests; the exit code is 1 if it does not."""
    reply = ask("health", verbose=verbose)
    show(reply, _print_health)
    if reply["status"] != "ok":
        raise typer.Exit(FAILED)


def live() -> None:
    """Whether the process answers, also while it is stopping."""
    show(ask("live"), _print_health)


def _print_health(reply: dict[str, Any]) -> None:
    say(state(reply["status"]))
    if reply.get("checks"):
        print_fields([(name, state(found)) for name, found in reply["checks"].items()])


def version() -> None:
    """What is running."""

    def table(reply: dict[str, Any]) -> None:
        print_fields(
            [
                ("goqueue", (reply["version"], "bold")),
                ("codec", reply["codec"]),
                ("python", reply["python"]),
                ("wire protocol", str(reply["wire_version"])),
            ]
        )

    show(ask("version"), table)


def overview() -> None:
    """The nodes of the cluster, and what this one holds."""

    async def both(broker: Broker) -> tuple[dict[str, Any], dict[str, Any]]:
        return await broker.call("cluster"), await broker.call("stats")

    view, stats = run(both)
    if output() is not OutputFormat.TABLE:
        print_data(view)
        return
    doors = sorted({door for node in view["nodes"] for door in node["endpoints"]})
    rows = [
        (text(node["node_id"]), state(node["state"]), *(text(node["endpoints"].get(door)) for door in doors))
        for node in view["nodes"]
    ]
    print_table(("node", "state", *doors), rows)
    say()
    print_broker(stats)
    hint("goqueue-cli topic list --details")


add(app, health=health, live=live, version=version, overview=overview)
