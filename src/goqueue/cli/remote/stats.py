"""`goqueue-cli stats`: priority, delay, reliability, rebalance, broker. Counted since the broker started."""

from typing import Any

from goqueue.cli.output import Part, note, print_table, say, show_size
from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import add, group
from goqueue.cli.remote.names import Limit, OfGroup, OfTopic
from goqueue.cli.remote.showing import ago, count, lane, print_fields, seconds, show, text

app = group("stats", "Counters: lanes, delays, deliveries, rebalances, the broker. All since the broker started.")


def _say_left_out(reply: dict[str, Any]) -> None:
    if reply["left_out"]:
        say((f"{count(reply['left_out'])} more; --limit, --topic or --group shows others", "dim"))


def priority(topic: OfTopic = None, group: OfGroup = None, limit: Limit = 100) -> None:
    """What groups have in each priority lane, and were served of it."""

    def table(reply: dict[str, Any]) -> None:
        columns = ("lane", "ready", "in flight", "served", "waits", "last served")
        lanes = [(lane(name), *_lane(numbers)) for name, numbers in reply["lanes"].items()]
        print_table(columns, lanes, numbers=columns[1:5])
        if reply["partitions"]:
            say()
            detailed = ("group", "topic", "partition", *columns)
            rows = [
                (text(one["group"]), text(one["topic"]), str(one["partition"]), lane(name), *_lane(numbers))
                for one in reply["partitions"]
                for name, numbers in one["lanes"].items()
                if numbers["ready"] or numbers["in_flight"] or numbers["served"]
            ]
            if rows:
                print_table(detailed, rows, numbers=("partition", *columns[1:5]), optional=("last served", "waits"))
        _say_left_out(reply)

    show(ask("priority_stats", topic=topic, group=group, limit=limit), table)


def _lane(numbers: dict[str, Any]) -> tuple[str, str, str, str, str]:
    counts = [count(numbers[name]) for name in ("ready", "in_flight", "served")]
    return counts[0], counts[1], counts[2], seconds(numbers["waited_seconds"]), ago(numbers["last_served"])


def delay(topic: OfTopic = None, limit: Limit = 100) -> None:
    """How many messages are delayed, came due, were cancelled or moved."""

    def table(reply: dict[str, Any]) -> None:
        rows: list[tuple[Part, ...]] = [(("all", "bold"), *_delays(reply))]
        rows += [(text(name), *_delays(one)) for name, one in sorted(reply["topics"].items())]
        columns = ("topic", "pending", "scheduled", "delivered", "cancelled", "moved", "next due")
        print_table(columns, rows, numbers=columns[1:6])
        late = reply["lateness"]
        if late["count"]:
            say(f"came due {seconds(late['sum_seconds'] / late['count'])} late on average")
        _say_left_out(reply)

    show(ask("delay_stats", topic=topic, limit=limit), table)


def _delays(one: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    pending, scheduled, delivered, cancelled, moved = (
        count(one[name]) for name in ("pending", "scheduled", "delivered", "cancelled", "moved")
    )
    return pending, scheduled, delivered, cancelled, moved, ago(one["next_due"])


def reliability(topic: OfTopic = None, group: OfGroup = None, limit: Limit = 100) -> None:
    """How deliveries ended, and what is under way."""

    def table(reply: dict[str, Any]) -> None:
        rows: list[tuple[Part, ...]] = [(("all", "bold"), "", *_deliveries(reply))]
        rows += [(text(one["group"]), text(one["topic"]), *_deliveries(one)) for one in reply["groups"]]
        names = ("acked", "nacked", "rejected", "lapsed", "expired", "again", "in flight", "waiting", "dead")
        columns = ("group", "topic", *names)
        print_table(columns, rows, numbers=names, optional=("expired", "again", "waiting"))
        say(f"{count(reply['dead_letters'])} dead letters written, {count(reply['outbox'])} about to be")
        _say_left_out(reply)

    show(ask("reliability_stats", topic=topic, group=group, limit=limit), table)


def _deliveries(one: dict[str, Any]) -> tuple[str, ...]:
    names = ("acked", "nacked", "rejected", "lapsed", "expired", "redelivered", "in_flight", "waiting")
    return (*(count(one[name]) for name in names), count(sum(one["dead"].values())))


def rebalance() -> None:
    """How often and how long groups rebalanced."""

    def table(reply: dict[str, Any]) -> None:
        rows: list[tuple[Part, ...]] = [(("all", "bold"), *_rebalances(reply))]
        rows += [(text(name), *_rebalances(one)) for name, one in sorted(reply["groups"].items())]
        columns = ("group", "rebalances", "moves", "took", "paused")
        print_table(columns, rows, numbers=columns[1:])
        say(f"{count(reply['waiting_polls'])} polls wait for messages")
        if reply["in_progress"]:
            note(f"rebalancing now: {', '.join(reply['in_progress'])}")

    show(ask("rebalance_stats"), table)


def _rebalances(one: dict[str, Any]) -> tuple[str, str, str, str]:
    took, paused = seconds(one["rebalance_seconds"]), seconds(one["pause_seconds"])
    return count(one["rebalances"]), count(one["moves"]), took, paused


def broker() -> None:
    """What the broker holds and has done."""
    show(ask("stats"), print_broker)


def print_broker(reply: dict[str, Any]) -> None:
    print_fields(
        [
            ("node", (text(reply["node_id"]), "bold")),
            ("cluster", text(reply["cluster_id"])),
            ("up for", seconds(reply["uptime_seconds"])),
            ("holds", f"{count(reply['messages'])} messages in {show_size(reply['size_bytes'])}"),
            ("in", f"{count(reply['topics'])} topics with {count(reply['partitions'])} partitions"),
            ("produced", f"{count(reply['messages_produced'])} messages, {show_size(reply['bytes_produced'])}"),
            ("duplicates", count(reply["duplicates"])),
            ("read", f"{count(reply['messages_read'])} messages"),
            ("in flight", show_size(reply["in_flight_bytes"])),
        ]
    )


add(app, priority=priority, delay=delay, reliability=reliability, rebalance=rebalance, broker=broker)
