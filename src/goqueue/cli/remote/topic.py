"""`goqueue-cli topic`: create, list, describe, alter, delete, add-partitions, offsets."""

import sys
from typing import Annotated, Any

import typer

from goqueue.cli.failures import FAILED
from goqueue.cli.output import note, print_table, say, show_count, show_size
from goqueue.cli.remote.broker import Broker, ask, run
from goqueue.cli.remote.chosen import add, group, with_options
from goqueue.cli.remote.names import NewTopic, Topic, option
from goqueue.cli.remote.showing import count, hint, print_fields, seconds, show, text, when
from goqueue.cli.remote.topic_settings import SETTINGS, asked_settings
from goqueue.cli.remote.typed import check_number, typed_time
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

app = group("topic", "Create, look at, change and delete topics.")


def create(
    topic: NewTopic,
    partitions: Annotated[int | None, option("--partitions -p", "COUNT", "How many partitions (3).")] = None,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="It is fine if the topic is there already; it stays as it is.")
    ] = False,
    **settings: Any,
) -> None:
    """Create a topic."""
    check_number("--partitions", partitions, least=1, most=limits.MAX_PARTITIONS_PER_TOPIC)
    fields = asked_settings(settings)
    if if_missing and topic in ask("list_topics")["topics"]:
        show({"name": topic, "created": False}, lambda _: say(f"{topic} is there already"))
        if partitions is not None:
            _note_partitions(ask("describe_topic", topic=topic)["partitions"], partitions)
        return
    reply = ask("create_topic", name=topic, num_partitions=partitions, **fields)
    show(reply, lambda made: say(f"created {made['name']} with {show_count(made['partitions'], 'partition')}"))
    hint(f"goqueue-cli produce {topic} 'two apples' --key alice")


def _note_partitions(there: int, wanted: int) -> None:
    if there != wanted:
        more = "; topic add-partitions gives it more" if there < wanted else ""
        note(f"it has {show_count(there, 'partition')}, not {wanted}{more}")


def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also the broker's own topics.")] = False,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="Also partitions, messages and sizes: a question for each topic.")
    ] = False,
) -> None:
    """List the topics."""
    if details:
        reply: dict[str, Any] = {"topics": run(lambda broker: _describe_all(broker, internal))}
        show(reply, _print_details)
    else:
        reply = ask("list_topics", internal=internal)
        show(reply, _print_names)
    if not reply["topics"]:
        hint("goqueue-cli topic create orders")


async def _describe_all(broker: Broker, internal: bool) -> list[dict[str, Any]]:
    names = (await broker.call("list_topics", internal=internal))["topics"]
    return [await broker.call("describe_topic", topic=name) for name in names]


def _print_names(reply: dict[str, Any]) -> None:
    for name in reply["topics"]:
        say(text(name))
    if not reply["topics"]:
        note("there are no topics yet")


def _print_details(reply: dict[str, Any]) -> None:
    if not reply["topics"]:
        note("there are no topics yet")
        return
    rows = [
        (text(one["name"]), count(one["partitions"]), count(one["total_messages"]), show_size(one["total_size_bytes"]))
        for one in reply["topics"]
    ]
    print_table(("topic", "partitions", "messages", "size"), rows, numbers=("partitions", "messages", "size"))


def describe(topic: Topic) -> None:
    """Describe a topic: its size, its offsets, its settings."""
    show(ask("describe_topic", topic=topic), print_topic)


def print_topic(reply: dict[str, Any]) -> None:
    print_fields(
        [
            ("topic", (text(reply["name"]), "bold")),
            ("id", reply["topic_id"]),
            ("created", when(reply["created"])),
            ("messages", f"{count(reply['total_messages'])} in {show_size(reply['total_size_bytes'])}"),
        ]
    )
    say()
    unavailable = reply.get("unavailable", {})
    rows = [
        (number, count(ends["earliest"]), count(ends["latest"]), count(ends["latest"] - ends["earliest"]))
        for number, ends in sorted(reply["partition_offsets"].items(), key=lambda one: int(one[0]))
    ]
    columns = ("partition", "earliest", "next", "offsets")
    print_table(columns, rows, numbers=columns)
    for number, reason in unavailable.items():
        is_open = number in reply["partition_offsets"]
        note(f"partition {number} {'is' if is_open else 'could not be opened:'} {reason}")
    say()
    print_fields([(name, _setting(name, value)) for name, value in reply["config"].items()])


def _setting(name: str, value: Any) -> str:
    if value is None:
        return "no limit" if name.startswith("retention") else "none"
    if name.endswith("_bytes"):
        return show_size(value)
    if name == "retention_hours":
        return seconds(value * 3600)
    if name == "backoff":
        return f"{value['base']}, times {value['factor']:g}, at most {value['max']}"
    if name == "lane_weights":
        return ", ".join(map(str, value.values() if isinstance(value, dict) else value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return text(value)


def alter(topic: Topic, **settings: Any) -> None:
    """Change settings of a topic while it is in use; what is not named stays as it is."""
    fields = asked_settings(settings)
    if not fields:
        raise InvalidRequest(
            "say what to change, like --retention 3d; goqueue-cli topic alter --help lists the settings"
        )
    show(ask("change_topic", topic=topic, **fields), print_topic)


def delete(
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether you are sure.")] = False,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Also its dead letters; otherwise they stay and can be read.")
    ] = False,
) -> None:
    """Delete a topic and all its messages, for good."""
    what = "all its messages and dead letters" if dead_letters else "all its messages"
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest(f"deleting {topic} removes {what} for good; say --yes if that is what you want")
        if not typer.confirm(f"Delete {topic} and {what}?", err=True):
            note("nothing was deleted")
            raise typer.Exit(FAILED)
    more = {"dead_letters": True} if dead_letters else {}
    show(
        ask("delete_topic", topic=topic, **more),
        lambda reply: say(f"deleted {reply['name']}" + (f" and {reply['dlq_topic']}" if "dlq_topic" in reply else "")),
    )


def add_partitions(
    topic: Topic,
    total: Annotated[int, typer.Argument(metavar="COUNT", help="How many it is to have in all.", show_default=False)],
) -> None:
    """Give a topic more partitions. Keys may then be in other partitions than before."""
    reply = ask("add_partitions", topic=topic, count=total)
    show(
        reply,
        lambda done: say(
            f"{done['topic_name']} has {show_count(done['new_partition_count'], 'partition')} now, "
            f"{done['old_partition_count']} before"
        ),
    )


def offsets(
    topic: Topic,
    time: Annotated[
        str | None, option("--time", "TIME", "The first offset at or after this time; without it the end.")
    ] = None,
) -> None:
    """Which offset each partition has at a time, or its end."""
    reply = ask("offsets", topic=topic, timestamp=typed_time("--time", time))
    column = "offset" if time is not None else "next"

    def table(found: dict[str, Any]) -> None:
        rows = [(number, count(at)) for number, at in sorted(found["offsets"].items(), key=lambda one: int(one[0]))]
        print_table(("partition", column), rows, numbers=("partition", column))

    show(reply, table)


add(
    app,
    create=with_options(create, SETTINGS),
    list=list_topics,
    describe=describe,
    alter=with_options(alter, SETTINGS),
    delete=delete,
    add_partitions=add_partitions,
    offsets=offsets,
)
