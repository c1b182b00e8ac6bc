"""`goqueue-cli consume`: read a topic without changing anything, or take its messages as a member of a group."""

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from goqueue.cli.failures import FAILED
from goqueue.cli.output import emit, emit_bytes, finish_output, note, print_json, printable, screen, show_count
from goqueue.cli.remote.broker import Broker, run
from goqueue.cli.remote.chosen import OutputFormat, add, output, single
from goqueue.cli.remote.message_rows import MessageTable, Template
from goqueue.cli.remote.names import Topic, groups, option
from goqueue.cli.remote.reading import Range, find_undecided, read
from goqueue.cli.remote.showing import count, hint, print_data, seconds, text
from goqueue.cli.remote.taking import Outcome, Terms, take
from goqueue.cli.remote.typed import check_number, typed_duration, typed_time
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.groups import Mode

app = single()


class Isolation(StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


_TABLE_LIMIT: Final = 50
_WAIT: Final = "2s"
_TEMPLATE_HELP: Final = (
    "Print messages so, like '%k %v': %t topic, %p partition, %o offset, %k key, %v value, %h headers, %T time, "
    "%l lane, %d deliveries, %r receipt handle, %i message id."
)
Message = dict[str, Any]
Show = Callable[[list[Message]], None]


def consume(
    topic: Topic,
    from_offset: Annotated[
        int | None, option("--from-offset", "OFFSET", "Begin here, in the one partition.")
    ] = None,
    from_time: Annotated[
        str | None,
        option("--from-time", "TIME", "Begin here: RFC 3339, Unix milliseconds, or -1h.")
    ] = None,
    to_time: Annotated[str | None, option("--to-time", "TIME", "End before this time.")] = None,
    partition: Annotated[
        int | None, option("--partition", "NUMBER", "Only this partition.")
    ] = None,
    delayed: Annotated[bool, typer.Option("--delayed", help="Also messages that are not due yet.")] = False,
    isolation: Annotated[
        Isolation | None,
        typer.Option("--isolation", help="Whether what is in open or aborted transactions is read (read_committed).")
    ] = None,
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Go on behind messages that are damaged on the broker's disk.")
    ] = False,
    limit: Annotated[
        int | None,
        option("--limit --max -n", "COUNT", "Stop after so many; a table stops at 50.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more messages, until Ctrl-C.")] = False,
    template: Annotated[
        str | None,
        option("--format", "TEMPLATE", _TEMPLATE_HELP),
    ] = None,
    group: Annotated[
        str | None,
        option("--group -g", "GROUP", "Take messages as a member of it.", groups)
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option("--mode", help="How members of a new group share a topic (partition).")
    ] = None,
    start: Annotated[
        str | None, option("--start", "PLACE", "Where a new group begins: earliest, latest, a time.")
    ] = None,
    visibility: Annotated[
        str | None, option("--visibility", "DURATION", "How long messages are this member's alone.")
    ] = None,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Do not settle messages; show their receipt handles instead.")
    ] = False,
    nack: Annotated[bool, typer.Option("--nack", help="Give messages back, to be tried again.")] = False,
    nack_delay: Annotated[
        str | None, option("--nack-delay", "DURATION", "The same, to be tried again after so long.")
    ] = None,
    reject: Annotated[
        str | None, option("--reject", "REASON", "Give messages up, to the dead-letter topic.")
    ] = None,
    wait: Annotated[
        str | None, option("--wait", "DURATION", f"End when nothing comes for so long ({_WAIT}).")
    ] = None,
) -> None:  # fmt: skip
    """Read a topic and change nothing; or, with --group, take its messages and settle them once they are printed.

    Without --follow it ends where the topic ended when it began; a group, when nothing comes for a while.
    """
    check_number("--limit", limit, least=1)
    check_number("--from-offset", from_offset, least=0)
    check_number("--partition", partition, least=0)
    if follow and to_time is not None:
        raise InvalidRequest("--follow goes on for ever, and --to-time is an end; leave one of them out")
    _check_together(
        group,
        plain={"--from-offset": from_offset, "--from-time": from_time, "--to-time": to_time, "--partition": partition,
               "--delayed": delayed or None, "--isolation": isolation, "--skip-damage": skip_damage or None},
        grouped={"--mode": mode, "--start": start, "--visibility": visibility, "--no-ack": no_ack or None,
                 "--nack": nack or None, "--nack-delay": nack_delay, "--reject": reject, "--wait": wait},
    )  # fmt: skip
    shows_handles = no_ack and output() is OutputFormat.TABLE and template is None
    show = _printer(template, with_handles=shows_handles)
    if group is None:
        wanted = Range(
            partition,
            from_offset,
            typed_time("--from-time", from_time),
            typed_time("--to-time", to_time),
            delayed,
            follow,
            isolation is Isolation.READ_UNCOMMITTED,
            skip_damage,
        )
        run(lambda broker: _read(broker, topic, wanted, limit, template, show), patient=follow)
        return
    if visibility is not None:
        typed_duration("--visibility", visibility, least_ms=limits.MIN_VISIBILITY_MS, most_ms=limits.MAX_VISIBILITY_MS)
    settle, fields = _settling(no_ack, nack, nack_delay, reject)
    join = {"mode": mode, "start": _start(start), "visibility": visibility}
    given = {name: value for name, value in join.items() if value is not None}
    wait_s = typed_duration("--wait", wait or _WAIT) / 1000
    _take(group, topic, Terms(given, settle, fields, limit, wait_s, follow), show)


def _check_together(group: str | None, *, plain: dict[str, Any], grouped: dict[str, Any]) -> None:
    wrong = [name for name, value in (grouped if group is None else plain).items() if value is not None]
    if wrong and group is None:
        raise InvalidRequest(f"{wrong[0]} is about a group: give --group, or leave it out")
    if wrong:
        raise InvalidRequest(f"{wrong[0]} is for reading without a group; group reset-offsets moves a group")


def _settling(
    no_ack: bool, nack: bool, nack_delay: str | None, reject: str | None
) -> tuple[str | None, dict[str, Any]]:
    if sum((no_ack, nack or nack_delay is not None, reject is not None)) > 1:
        raise InvalidRequest("--no-ack, --nack and --reject are three ends for a message; choose one")
    if reject is not None:
        return "reject", {"reason": reject}
    if nack_delay is not None:
        typed_duration("--nack-delay", nack_delay, most_ms=limits.MAX_BACKOFF_MS)
        return "nack", {"delay": nack_delay}
    return (None if no_ack else "nack" if nack else "ack"), {}


def _start(typed: str | None) -> str | int | None:
    if typed is None or typed in ("earliest", "latest"):
        return typed
    return int(typed) if typed.isdecimal() and len(typed) < 12 else typed_time("--start", typed)


def _printer(template: str | None, *, with_handles: bool) -> Show:
    if template is not None:
        filled = Template(template)
        to_terminal = sys.stdout.isatty()

        def show_filled(messages: list[Message]) -> None:
            for message in messages:
                data = filled.fill(message)
                if to_terminal:  # other people's bytes: nothing a terminal could act on
                    emit(printable(data.decode("utf-8", "surrogateescape").removesuffix("\n")) + "\n")
                else:
                    emit_bytes(data)

        return show_filled
    if output() is OutputFormat.JSON:
        return lambda messages: print_json(*messages)
    if output() is OutputFormat.YAML:
        return _print_documents
    table = MessageTable(screen(), with_partition=True, with_handles=with_handles)
    return lambda messages: emit(table.page(messages))


def _print_documents(messages: list[Message]) -> None:
    for message in messages:
        print_data(message)


async def _read(broker: Broker, topic: str, wanted: Range, limit: int | None, template: str | None, show: Show) -> None:
    short = limit is None and not wanted.follow and output() is OutputFormat.TABLE and template is None
    most = _TABLE_LIMIT if short else limit
    printed = 0
    async for page in read(broker, topic, wanted):
        if most is not None and printed + len(page) > most:
            kept = page[: most - printed]
            if kept:
                show(kept)
            if short:
                note("there is more: --limit N, --from-time, -o json for everything, or --follow")
            return
        show(page)
        printed += len(page)
        if wanted.follow:
            finish_output()
        if most is not None and printed == most and not short:
            return
    undecided = [] if wanted.uncommitted else await find_undecided(broker, topic, wanted.partition)
    for each in undecided:
        note(each)
    if not printed and not undecided and output() is OutputFormat.TABLE:
        note(f"no messages there in {topic}")
        hint(f"goqueue-cli produce {topic} 'two apples' --key alice")


def _take(group: str, topic: str, terms: Terms, show: Show) -> None:
    outcome, ended = Outcome(), False
    try:
        run(lambda broker: take(broker, group, topic, terms, show, outcome), patient=terms.follow)
        ended = not terms.follow
    finally:
        if output() is OutputFormat.TABLE:
            _conclude(outcome, terms.settle, terms.wait_s if ended else None, group)
    if outcome.refused:
        raise typer.Exit(FAILED)


def _conclude(outcome: Outcome, settle: str | None, wait_s: float | None, group: str) -> None:
    taken = outcome.taken
    done = {"ack": "acked", "nack": "given back", "reject": "rejected", None: "not settled"}[settle]
    if outcome.dead:
        where = "dropped" if outcome.dlq_topic is None else f"in {text(outcome.dlq_topic)}"
        done += (
            f"; {count(outcome.dead)} of them failed too often and {'is' if outcome.dead == 1 else 'are'} {where} now"
        )
    if taken:
        note(f"{show_count(taken, 'message')}, {done}")
    elif wait_s is not None:
        note(f"nothing came within {seconds(wait_s)}")
    if settle is None and taken:
        hint("goqueue-cli message ack HANDLE")
    elif taken:
        hint(f"goqueue-cli group lag {group}")


add(app, consume=consume)
