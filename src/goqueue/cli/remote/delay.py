"""`goqueue-cli delay`: list, get, cancel, reschedule messages that are not due yet.

A delayed message is named by its partition and offset, as `0:41`; by its offset alone where there is one partition.
"""

from typing import Annotated, Any

import typer

from goqueue.cli.failures import FAILED
from goqueue.cli.output import complain, note, print_table, say, show_count
from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import OutputFormat, add, group, output
from goqueue.cli.remote.names import Limit, Topic, option
from goqueue.cli.remote.showing import count, hint, lane, print_data, print_fields, show, state, text, when
from goqueue.cli.remote.typed import typed_duration, typed_time
from goqueue.model.errors import InvalidRequest

app = group("delay", "List, look at, cancel and reschedule messages that are not due yet.")

_ID_HELP = "PARTITION:OFFSET, or a message id; OFFSET alone if there is one partition."
Id = Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP, show_default=False)]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help=_ID_HELP, show_default=False)]


def split_id(topic: str, typed: str) -> tuple[int | None, int]:
    """Partition and offset; the partition is None where it was left out."""
    parts = typed.removeprefix(f"{topic}:").split(":")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise InvalidRequest(f"{typed!r} names no message of {topic}: write PARTITION:OFFSET, like 0:41")
    return (int(parts[0]) if len(parts) == 2 else None), int(parts[-1])


def _found(topic: str, typed: str) -> tuple[int, int]:
    partition, offset = split_id(topic, typed)
    if partition is None:  # the broker knows whether there is only one
        partition = int(ask("find_delayed", topic=topic, offset=offset)["partition"])
    return partition, offset


def list_delayed(
    topic: Topic,
    limit: Limit = 50,
    skip: Annotated[int, option("--skip", "COUNT", "Leave out so many of the first.")] = 0,
) -> None:
    """List messages that are not due yet."""

    def table(reply: dict[str, Any]) -> None:
        found = reply["messages"]
        if not found:
            note(f"nothing is delayed in {topic}" if not reply["count"] else "there are no more")
            return
        rows = [
            (f"{one['partition']}:{one['offset']}", when(one["deliver_at"]), lane(one["priority"]), text(one["key"]))
            for one in found
        ]
        print_table(("id", "due", "lane", "key"), rows, optional=("lane",))
        if skip + len(found) < reply["count"]:
            say((f"{count(reply['count'])} in all; more with --skip {skip + len(found)}", "dim"))

    show(ask("list_delayed", topic=topic, limit=limit, skip=skip), table)


def get(topic: Topic, message: Id) -> None:
    """Look at a delayed message."""
    partition, offset = split_id(topic, message)
    if partition is None:
        reply = ask("find_delayed", topic=topic, offset=offset)
    else:
        reply = ask("get_delayed", topic=topic, partition=partition, offset=offset)
    show(reply, _print_delayed)


def _print_delayed(reply: dict[str, Any]) -> None:
    print_fields(
        [
            ("message", (text(reply["message_id"]), "bold")),
            ("state", state(reply["state"])),
            ("due", when(reply["deliver_at"])),
            ("lane", lane(reply["priority"])),
            ("key", text(reply["key"])),
        ]
    )


def cancel(topic: Topic, messages: Ids) -> None:
    """Cancel delayed messages: they are never delivered."""
    ids = [_found(topic, message) for message in messages]
    if len(ids) == 1:
        ((partition, offset),) = ids
        reply = ask("cancel_delayed", topic=topic, partition=partition, offset=offset)
        show(reply, lambda _: say(f"cancelled {topic}:{partition}:{offset}"))
        return
    reply = ask("cancel_many_delayed", topic=topic, ids=ids)
    show(reply, lambda done: say(f"cancelled {show_count(done['cancelled'], 'message')}"))
    for partition, offset in reply["failed"]:
        complain(f"{topic}:{partition}:{offset} was not pending")
    if reply["failed"]:
        raise typer.Exit(FAILED)


def reschedule(
    topic: Topic,
    message: Id,
    delay: Annotated[str | None, option("--delay", "DURATION", "Deliver it so long from now, like 5m.")] = None,
    at: Annotated[str | None, option("--at", "TIME", "Deliver it at this time.")] = None,
) -> None:
    """Move a delayed message to another time."""
    if (delay is None) == (at is None):
        raise InvalidRequest("say when it is due: --delay 5m or --at 2026-01-31T12:00:00Z, one of the two")
    if delay is not None:
        typed_duration("--delay", delay)
    partition, offset = _found(topic, message)
    due = typed_time("--at", at)
    reply = ask("move_delayed", topic=topic, partition=partition, offset=offset, delay=delay, deliverAt=due)
    if output() is OutputFormat.TABLE:
        _print_delayed(reply)
    else:
        print_data(reply)
    hint(f"goqueue-cli delay list {topic}")


add(app, list=list_delayed, get=get, cancel=cancel, reschedule=reschedule)
