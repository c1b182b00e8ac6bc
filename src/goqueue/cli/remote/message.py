"""`goqueue-cli message`: ack, nack, release, reject, extend by receipt handle, as `consume --no-ack` shows them."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from goqueue.cli.failures import FAILED
from goqueue.cli.output import complain, say
from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import add, group
from goqueue.cli.remote.names import groups, option
from goqueue.cli.remote.showing import show, text, when
from goqueue.cli.remote.typed import typed_duration
from goqueue.model import limits

app = group("message", "Ack, nack, release, reject or extend messages by their receipt handles.")

Handles = Annotated[
    list[str], typer.Argument(metavar="HANDLE", help="As `consume --no-ack` showed it.", show_default=False)
]
OfGroup = Annotated[str | None, option("--group", "GROUP", "Refuse handles of other groups.", groups)]


def _settle(operation: str, handles: list[str], words: Callable[[dict[str, Any]], str], **fields: Any) -> None:
    """One question for all handles; an answer for each."""
    given = {"receipt_handle": handles[0]} if len(handles) == 1 else {"receipt_handles": handles}
    reply = ask(operation, **given, **fields)
    results = reply.get("results", [reply])

    def table(_: dict[str, Any]) -> None:
        for handle, result in zip(handles, results, strict=True):
            if "error" not in result:
                say(f"{text(handle.rpartition(':')[0])} {words(result)}")

    show(reply, table)
    refused = [(handle, one["error"]) for handle, one in zip(handles, results, strict=True) if "error" in one]
    for handle, error in refused:
        complain(f"{handle.rpartition(':')[0]}: {error}")
    if refused:
        raise typer.Exit(FAILED)


def ack(handles: Handles, group: OfGroup = None) -> None:
    """Settle messages: they are done, and do not come again."""
    _settle("ack" if group is None else "group_ack", handles, lambda _: "is done", group=group)


def nack(
    handles: Handles,
    delay: Annotated[
        str | None, option("--delay", "DURATION", "Try again after so long; without it as the topic says.")
    ] = None,
    group: OfGroup = None,
) -> None:
    """Give messages back, to be tried again later."""
    if delay is not None:
        typed_duration("--delay", delay, most_ms=limits.MAX_BACKOFF_MS)
    _settle(
        "nack" if group is None else "group_nack",
        handles,
        lambda done: (
            f"comes again {when(done['visible_at'])}" if done["requeued"] else f"failed too often, {_end(done)}"
        ),
        group=group,
        delay=delay,
    )


def _end(done: dict[str, Any]) -> str:
    return f"went to {text(done.get('dlq_topic', 'nowhere'))}"


def release(handles: Handles) -> None:
    """Give messages back untried: others may have them at once, and the delivery does not count."""
    _settle("release", handles, lambda _: "is given back")


def reject(
    handles: Handles,
    reason: Annotated[str, option("--reason", "TEXT", "Why; it stands in the dead letter.")] = "",
) -> None:
    """Give messages up: they go to the dead-letter topic."""
    _settle("reject", handles, _end, reason=reason)


def extend(
    handles: Handles,
    by: Annotated[str, option("--for", "DURATION", "Keep them so long from now on, like 5m.")],
) -> None:
    """Keep messages for longer before they are given to somebody else."""
    typed_duration("--for", by, least_ms=limits.MIN_VISIBILITY_MS, most_ms=limits.MAX_VISIBILITY_MS)
    _settle("extend_visibility", handles, lambda done: f"is kept until {when(done['new_deadline'])}", timeout=by)


add(app, ack=ack, nack=nack, release=release, reject=reject, extend=extend)
