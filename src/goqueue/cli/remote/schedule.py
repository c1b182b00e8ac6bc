"""`goqueue-cli schedule`: create, list, describe, pause, resume, change, delete."""

from typing import Annotated, Any, Final

import typer

from goqueue.cli.output import note, print_table, say
from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import add, group, with_options
from goqueue.cli.remote.message_options import Headers, Key, Partition, Priority, Ttl, header_pairs, lane_name, ttl_ms
from goqueue.cli.remote.names import Limit, Next, OfTopic, Schedule, Topic, option
from goqueue.cli.remote.showing import ABSENT, ago, count, headers, hint, lane, print_fields, show, state, text, when
from goqueue.cli.remote.typed import typed_duration
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.jobs import Missed

app = group("schedule", "Have messages published again and again.")

OPTIONS: Final[dict[str, Any]] = {
    "cron": Annotated[
        str | None, option("--cron", "WHEN", "Minute, hour, day, month, weekday, like '30 3 * * MON-FRI'; or @daily.")
    ],
    "every": Annotated[str | None, option("--every", "DURATION", "So often, like 5m, instead of a cron.")],
    "time_zone": Annotated[
        str | None, option("--time-zone", "ZONE", "Where the cron's clock is, like Europe/Berlin (UTC).")
    ],
    "missed": Annotated[
        Missed | None, typer.Option("--missed", help="What becomes of runs missed while the broker was down (skip).")
    ],
    "key": Key,
    "header": Headers,
    "priority": Priority,
    "partition": Partition,
    "ttl": Ttl,
}


def _fields(value: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """What the API takes, of the options above: when it runs, and the message if there is anything of one."""
    timing = {name: given[name] for name in ("cron", "every", "time_zone", "missed")}
    if timing["every"] is not None:
        typed_duration("--every", timing["every"], least_ms=limits.MIN_EVERY_MS, most_ms=limits.MAX_EVERY_MS)
    if given["ttl"] is not None:
        ttl_ms(given["ttl"])
    message = {"value": value, **{name: given[name] for name in ("key", "partition", "ttl")}}
    message["priority"] = None if given["priority"] is None else lane_name(given["priority"])
    message["headers"] = header_pairs(given["header"]) or None
    message = {name: part for name, part in message.items() if part is not None}
    return {name: field for name, field in {**timing, "message": message or None}.items() if field is not None}


def create(
    topic: Topic,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What each run publishes.", show_default=False)],
    paused: Annotated[bool, typer.Option("--paused", help="Do not run until it is resumed.")] = False,
    **given: Any,
) -> None:
    """Publish a message at the times of a cron expression, or every so often."""
    fields = _fields(value, given)
    if ("cron" in fields) == ("every" in fields):
        raise InvalidRequest("say when it runs: --cron '30 3 * * MON-FRI' or --every 5m, one of the two")
    reply = ask("create_schedule", topic=topic, paused=paused, **fields)
    show(reply, _print_schedule)
    hint(f"goqueue-cli schedule pause {reply['id']}; goqueue-cli consume {topic} --follow")


def list_schedules(topic: OfTopic = None, limit: Limit = 100, next: Next = None) -> None:
    """List the schedules."""

    def table(reply: dict[str, Any]) -> None:
        rows = [
            (
                one["id"],
                text(one["topic"]),
                _timing(one),
                "paused" if one["paused"] else ago(one["next_run"]),
                count(one["runs"]),
                (count(one["failures"]), "bold red" if one["failures"] else ""),
                text(one["message"]["value"])[:40],
            )
            for one in reply["schedules"]
        ]
        if not rows:
            note("there are no schedules" if next is None else "there are no more")
            return
        columns = ("id", "topic", "runs when", "next", "runs", "failures", "value")
        print_table(columns, rows, numbers=("runs", "failures"), optional=("failures", "runs"))
        if "next" in reply:
            say((f"more with --next {reply['next']}", "dim"))

    show(ask("list_schedules", topic=topic, limit=limit, next=next), table)


def _timing(one: dict[str, Any]) -> str:
    if "every" in one:
        return f"every {one['every']}"
    return f"{text(one['cron'])} {text(one.get('time_zone', 'UTC'))}"


def describe(schedule: Schedule) -> None:
    """Describe a schedule: when it runs next, how it went."""
    show(ask("describe_schedule", schedule=schedule), _print_schedule)


def _print_schedule(one: dict[str, Any]) -> None:
    message, last = one["message"], one["last_run"]
    went = f"{when(last['due'])}, offset {last['offset']} of partition {last['partition']}" if last else ABSENT
    print_fields(
        [
            ("schedule", (one["id"], "bold")),
            ("topic", text(one["topic"])),
            ("runs", _timing(one)),
            ("next run", state("paused") if one["paused"] else when(one["next_run"])),
            ("last run", went),
            (
                "so far",
                f"{count(one['runs'])} runs, {count(one['missed_runs'])} missed, {count(one['failures'])} failed",
            ),
            *([("last error", (text(one["last_error"]), "bold red"))] if one["last_error"] else []),
            ("missed runs", one["missed"]),
            ("created", when(one["created"])),
            ("key", text(message["key"])),
            ("value", text(message["value"])),
            ("headers", headers(message) or ABSENT),
            ("lane", lane(message["priority"])),
        ]
    )


def pause(schedule: Schedule) -> None:
    """Let a schedule rest. Runs that fall into that time are not made up for."""
    reply = ask("change_schedule", schedule=schedule, paused=True)
    show(reply, lambda one: say(f"{one['id']} is paused"))
    hint(f"goqueue-cli schedule resume {schedule}")


def resume(schedule: Schedule) -> None:
    """Go on with a schedule that was paused."""
    reply = ask("change_schedule", schedule=schedule, paused=False)
    show(reply, lambda one: say(f"{one['id']} runs next at {when(one['next_run'])}"))


def change(
    schedule: Schedule,
    value: Annotated[
        str | None, option("--value", "TEXT", "Publish this from now on, with the options of messages here.")
    ] = None,
    **given: Any,
) -> None:
    """Change a schedule; what is not named stays as it is. A new message replaces the old one as a whole."""
    fields = _fields(value, given)
    if "message" in fields and value is None:
        raise InvalidRequest("a message is replaced as a whole: give --value with its key, headers and priority")
    if not fields:
        raise InvalidRequest("say what to change, like --every 5m or --value TEXT")
    show(ask("change_schedule", schedule=schedule, **fields), _print_schedule)


def delete(schedule: Schedule) -> None:
    """Delete a schedule. What it published stays."""
    show(ask("delete_schedule", schedule=schedule), lambda reply: say(f"deleted {reply['id']}"))


add(
    app,
    create=with_options(create, OPTIONS),
    list=list_schedules,
    describe=describe,
    pause=pause,
    resume=resume,
    change=with_options(change, OPTIONS),
    delete=delete,
)
