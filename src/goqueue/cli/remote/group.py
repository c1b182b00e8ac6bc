"""`goqueue-cli group`: list, describe, delete, lag, offsets, reset-offsets."""

from typing import Annotated, Any

import typer

from goqueue.cli.output import note, print_table, say
from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import add, group
from goqueue.cli.remote.names import Group, OfTopic, option, topics
from goqueue.cli.remote.showing import ABSENT, count, hint, print_fields, seconds, show, state, text
from goqueue.cli.remote.typed import typed_duration, typed_time
from goqueue.model.errors import InvalidRequest

app = group("group", "Look at consumer groups, their lag and offsets; reset or delete them.")


def list_groups() -> None:
    """List the groups."""

    def table(reply: dict[str, Any]) -> None:
        for name in reply["groups"]:
            say(text(name))
        if not reply["groups"]:
            note("there are no groups yet")
            hint("goqueue-cli consume TOPIC --group billing")

    show(ask("list_groups"), table)


def describe(group: Group) -> None:
    """Describe a group: its state, its members and what they have."""

    def table(reply: dict[str, Any]) -> None:
        print_fields(
            [
                ("group", (text(reply["group_id"]), "bold")),
                ("state", state(reply["state"])),
                ("mode", reply["mode"]),
                ("assignor", reply["assignor"]),
                ("generation", str(reply["generation"])),
            ]
        )
        say()
        if not reply["members"]:
            note("nobody is in this group now")
            return
        rows = [
            (
                text(member["member_id"]),
                text(member["client_id"]),
                text(member["instance_id"]),
                " ".join(member["assigned_partitions"]) or ABSENT,
                " ".join(member["revoke"]) or ABSENT,
            )
            for member in reply["members"]
        ]
        print_table(("member", "client", "instance", "partitions", "gives up"), rows, optional=("instance", "gives up"))

    show(ask("describe_group", group=group), table)


def delete(group: Group) -> None:
    """Delete a group that has no members: where it was is forgotten."""
    show(ask("delete_group", group=group), lambda reply: say(f"deleted {reply['group_id']}"))


def lag(group: Group) -> None:
    """How far a group is behind, in each partition."""

    def table(reply: dict[str, Any]) -> None:
        rows = [
            (
                text(topic),
                number,
                count(one["committed"]),
                count(one["end"]),
                (count(one["lag"]), "yellow" if one["lag"] else ""),
                seconds(one["lag_seconds"]) if one["lag"] else ABSENT,
                count(one["in_flight"]),
                count(one["delayed"]),
            )
            for topic, partitions in sorted(reply["topics"].items())
            for number, one in sorted(partitions.items(), key=lambda item: int(item[0]))
        ]
        if not rows:
            note("this group has not begun in any topic yet")
            return
        columns = ("topic", "partition", "settled to", "end", "lag", "oldest", "in flight", "delayed")
        print_table(columns, rows, numbers=columns[1:], optional=("delayed", "in flight"))
        say(f"{count(reply['total_lag'])} in all")

    show(ask("group_lag", group=group), table)


def offsets(group: Group, topic: OfTopic = None) -> None:
    """Up to where a group has settled everything."""
    show(ask("group_offsets", group=group, topic=topic), _print_offsets)


def _print_offsets(reply: dict[str, Any]) -> None:
    rows = [
        (text(topic), number, count(offset))
        for topic, partitions in sorted(reply["offsets"].items())
        for number, offset in sorted(partitions.items(), key=lambda item: int(item[0]))
    ]
    if not rows:
        note("this group has not begun anywhere yet")
        return
    print_table(("topic", "partition", "offset"), rows, numbers=("partition", "offset"))


def reset_offsets(
    group: Group,
    topic: Annotated[str, option("--topic", "TOPIC", "In this topic.", topics)],
    to: Annotated[
        str, option("--to", "PLACE", "earliest, latest, an offset, a time (RFC 3339), or so long ago, like -1h.")
    ],
    partition: Annotated[int | None, option("--partition", "NUMBER", "Only in this partition; all without it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say where it would be, and change nothing.")] = False,
) -> None:
    """Move a group to another place in a topic: what lies behind is delivered again, what lies before is not."""
    place = _place(to)
    reply = ask("reset_offsets", group=group, topic=topic, partition=partition, dry_run=dry_run, **place)

    def table(found: dict[str, Any]) -> None:
        _print_offsets(found)
        asked = place.get("value")
        elsewhere = [number for number, at in found["offsets"].get(topic, {}).items() if at != asked]
        if place["to"] == "offset" and elsewhere:
            note(f"offset {asked} is outside of partition {', '.join(elsewhere)}: there it is the nearer end")
        if dry_run:
            note("nothing was changed; leave --dry-run out to do it")

    show(reply, table)


def _place(typed: str) -> dict[str, Any]:
    if typed in ("earliest", "latest"):
        return {"to": typed}
    if typed.isdecimal():
        return {"to": "offset", "value": int(typed)}
    if typed.startswith("-"):
        if typed[1:2].isdecimal() and typed[1:].replace(".", "").isdecimal():
            raise InvalidRequest(
                f"--to: {typed} is no offset, they begin with 0; write earliest or latest, or {typed}s for so long ago"
            )
        typed_duration("--to", typed[1:])
        return {"to": "duration", "value": typed[1:]}
    try:
        return {"to": "timestamp", "value": typed_time("--to", typed)}
    except InvalidRequest:
        raise InvalidRequest(
            f"--to: {typed!r} is no place; write earliest, latest, an offset, a time like 2026-01-31T12:00:00Z, or -1h"
        ) from None


add(app, list=list_groups, describe=describe, delete=delete, lag=lag, offsets=offsets, reset_offsets=reset_offsets)
