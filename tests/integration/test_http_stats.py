"""Statistics over HTTP with a real broker: every number is the one that a client can work out for itself."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.integration.test_http_groups import Member, good
from tests.support.broker import RunningBroker, refusal, running_broker
from tests.support.patience import wait_until
from tests.unit.telemetry.scrapes import Scrape

LANES = ["critical", "high", "normal", "low", "background"]
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("stats")) as running:
        yield running


def topic(broker: RunningBroker, partitions: int = 1, **settings: object) -> str:
    name = f"topic{next(_numbers)}"
    good(broker.request("POST", "/topics", {"name": name, "num_partitions": partitions, **settings}))
    return name


def publish(broker: RunningBroker, name: str, *messages: Mapping[str, object]) -> None:
    body = {"messages": [{"value": "v", "partition": 0, **message} for message in messages]}
    good(broker.request("POST", f"/topics/{name}/messages", body))


def ask(broker: RunningBroker, what: str, **query: object) -> dict[str, Any]:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    return good(broker.request("GET", f"/{what}/stats?{text}"))


def ended(broker: RunningBroker, group: str, name: str) -> dict[str, Any]:
    """Of one group and topic; those that are not zero."""
    (row,) = ask(broker, "reliability", group=group, topic=name)["groups"]
    return {field: value for field, value in row.items() if value and field not in ("group", "topic")}


def lanes(broker: RunningBroker, group: str, name: str, field: str) -> list[Any]:
    found = ask(broker, "priority", group=group, topic=name)["lanes"]
    return [found[lane][field] for lane in LANES]


def settle(broker: RunningBroker, how: str, messages: list[dict[str, Any]], **fields: object) -> None:
    body = {"receipt_handles": [message["receipt_handle"] for message in messages], **fields}
    results = good(broker.request("POST", f"/messages/{how}", body))["results"]
    assert not [result for result in results if "error" in result], results


def scrape(broker: RunningBroker) -> Scrape:
    answer = broker.request("GET", "/metrics")
    assert answer.status == 200
    return Scrape(answer.body.encode())


# --- lanes


def test_lanes_are_exact_after_any_mixture_of_polls_acks_and_nacks(broker: RunningBroker) -> None:
    """A client that keeps books comes to the same numbers as the broker, partition by partition."""
    rng = Random(7)
    name = topic(broker, partitions=3, segment_bytes=4096, visibility_timeout="1h")
    group = f"group{next(_numbers)}"
    member = Member(broker, group, name)
    ready: Counter[tuple[int, str]] = Counter()
    served: Counter[tuple[int, str]] = Counter()
    held: list[dict[str, Any]] = []

    def check() -> None:
        found = ask(broker, "priority", group=group, topic=name)
        out = Counter((message["partition"], message["priority"]) for message in held)
        assert [row["partition"] for row in found["partitions"]] == [0, 1, 2]
        for row in found["partitions"]:
            for lane in LANES:
                at = row["partition"], lane
                numbers = row["lanes"][lane]
                assert (numbers["ready"], numbers["in_flight"], numbers["served"]) == (
                    ready[at], out[at], served[at],
                ), at  # fmt: skip
        for lane in LANES:
            assert found["lanes"][lane]["ready"] == sum(number for at, number in ready.items() if at[1] == lane)

    for _ in range(25):
        for partition in range(3):
            some = [
                {"priority": rng.choice(LANES), "partition": partition, "value": "v" * 200}
                for _ in range(rng.randrange(20))
            ]
            if some:
                publish(broker, name, *some)
                ready.update((partition, str(message["priority"])) for message in some)
        for message in member.poll(max_messages=rng.randrange(1, 40))["messages"]:
            at = message["partition"], message["priority"]
            ready[at] -= 1
            served[at] += 1
            held.append(message)
        rng.shuffle(held)
        done, again, held = held[:15], held[15:20], held[20:]
        if done:
            settle(broker, "ack", done)
        if again:
            settle(broker, "nack", again, delay="1h")  # neither ready nor in flight
        check()
    assert sum(served.values()) > 200
    served_in_metrics = scrape(broker).rows("goqueue_lane_served_total", "group", "lane")
    ready_in_metrics = scrape(broker).rows("goqueue_lane_ready", "group", "lane")
    for lane in LANES:
        assert served_in_metrics[group, lane] == sum(number for at, number in served.items() if at[1] == lane)
        assert ready_in_metrics[group, lane] == sum(number for at, number in ready.items() if at[1] == lane)


def test_a_lane_that_waits_says_so(broker: RunningBroker) -> None:
    name, group = topic(broker, lane_policy="strict", visibility_timeout="1h"), f"group{next(_numbers)}"
    publish(broker, name, {"priority": "high"}, {"priority": "low"})
    member = Member(broker, group, name)
    begun = time.monotonic()
    assert [message["priority"] for message in member.poll(max_messages=1)["messages"]] == ["high"]
    wait_until(lambda: lanes(broker, group, name, "waited_seconds")[3] > 0)
    waited = lanes(broker, group, name, "waited_seconds")
    assert 0 < waited[3] <= time.monotonic() - begun
    assert waited[:3] == [0, 0, 0]
    times = lanes(broker, group, name, "last_served")
    assert [moment is not None for moment in times] == [False, True, False, False, False]
    member.poll()
    assert lanes(broker, group, name, "waited_seconds") == [0] * 5


# --- delays


def test_delayed_messages_are_pending_then_delivered_cancelled_or_moved(broker: RunningBroker) -> None:
    name, group = topic(broker, partitions=2), f"group{next(_numbers)}"
    member = Member(broker, group, name)
    before = ask(broker, "delay")
    publish(broker, name, *[{"delay": "300ms"}] * 3, *[{"delay": "1h", "partition": 1}] * 4)
    publish(broker, name, {})
    assert good(broker.request("DELETE", f"/topics/{name}/delayed/1/0"))["cancelled"]
    good(broker.request("PATCH", f"/topics/{name}/delayed/1/1", {"delay": "2h"}))
    good(broker.request("PATCH", f"/topics/{name}/delayed/1/2", {"delay": "100ms"}))
    got: list[dict[str, Any]] = []

    def poll() -> bool:
        got.extend(member.poll(timeout="1s")["messages"])
        return len(got) == 5

    wait_until(poll)
    found = ask(broker, "delay", topic=name)["topics"][name]
    assert {field: value for field, value in found.items() if field != "next_due"} == {
        "pending": 2, "scheduled": 7, "delivered": 4, "cancelled": 1, "moved": 2,
    }  # fmt: skip
    assert found["next_due"] is not None
    total = ask(broker, "delay")
    for field in ("pending", "scheduled", "delivered", "cancelled", "moved"):
        assert total[field] - before[field] == found[field]
    lateness = total["lateness"]
    assert 0 < lateness["count"] - before["lateness"]["count"] <= 4
    assert lateness["buckets"]["+Inf"] == lateness["count"]
    metrics = scrape(broker)
    assert metrics.value("goqueue_delayed_pending", topic=name) == 2
    assert metrics.value("goqueue_delay_lateness_seconds_count") == lateness["count"]
    assert metrics.value("goqueue_delay_lateness_seconds_sum") == pytest.approx(lateness["sum_seconds"])


# --- how deliveries end


def test_every_end_is_counted_once(broker: RunningBroker) -> None:
    name = topic(broker, max_retries=1, visibility_timeout="1500ms", backoff={"base": "0s"})
    group = f"group{next(_numbers)}"
    before = ask(broker, "reliability")
    member = Member(broker, group, name)
    publish(broker, name, *[{"ttl": "1ms"}] * 2)
    stale_at = time.monotonic() + 0.05
    publish(broker, name, *[{}] * 12)
    wait_until(lambda: time.monotonic() > stale_at)
    live = member.poll()["messages"]
    assert [message["offset"] for message in live] == list(range(2, 14))
    settle(broker, "ack", live[:5])
    settle(broker, "nack", live[5:7])
    settle(broker, "reject", live[7:8], reason="no")
    expected = {"acked": 5, "nacked": 2, "rejected": 1, "expired": 2, "dead": {"expired": 2, "rejected": 1}}
    assert ended(broker, group, name) == {**expected, "in_flight": 4}
    again: list[dict[str, Any]] = []

    def poll() -> bool:
        came = member.poll(timeout="1s")["messages"]
        again.extend(came)
        if nacked := [message for message in came if message["offset"] == live[5]["offset"]]:
            settle(broker, "nack", nacked)  # at once: the others lapse a moment before it would
        return len(again) == 6

    wait_until(poll)  # two that were given back, and four that were not settled in time
    wait_until(lambda: ended(broker, group, name)["lapsed"] == 9)
    wait_until(lambda: ask(broker, "reliability")["dead_letters"] - before["dead_letters"] == 7)
    dead = {"expired": 2, "rejected": 1, "nacked": 1, "lapsed": 5}
    expected |= {"nacked": 3, "lapsed": 9, "redelivered": 6, "dead": dead}
    assert ended(broker, group, name) == expected
    total = ask(broker, "reliability")
    for field, number in expected.items():
        if isinstance(number, int):
            assert total[field] - before[field] == number
    assert {reason: number - before["dead"].get(reason, 0) for reason, number in total["dead"].items()} == dead
    assert (total["in_flight"] - before["in_flight"], total["outbox"]) == (0, 0)
    metrics = scrape(broker)
    labels = {"group": group, "topic": name}
    for metric, number in (
        ("acks", 5), ("nacks", 3), ("rejects", 1), ("lapses", 9), ("redeliveries", 6), ("messages_expired", 2),
        ("messages_consumed", 18),
    ):  # fmt: skip
        assert metrics.value(f"goqueue_{metric}_total", **labels) == number
    for reason, number in dead.items():
        assert metrics.value("goqueue_messages_dead_total", **labels, reason=reason) == number
    assert metrics.value("goqueue_dead_letters_total", topic=name) == 7
    for metric in ("messages_in_flight", "retries_waiting"):
        assert metrics.value(f"goqueue_{metric}", **labels) == 0


def test_what_is_held_now_is_the_same_after_a_kill_and_what_was_counted_begins_anew(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        name = topic(broker, visibility_timeout="1h", fsync="every")
        member = Member(broker, "billing", name)
        publish(broker, name, *[{"priority": "high"}] * 10, *[{"delay": "1h"}] * 2)
        messages = member.poll(max_messages=6)["messages"]
        settle(broker, "ack", messages[:1])
        settle(broker, "nack", messages[1:3], delay="1h")
        assert ended(broker, "billing", name) == {"acked": 1, "nacked": 2, "in_flight": 3, "waiting": 2}
        assert lanes(broker, "billing", name, "served") == [0, 6, 0, 0, 0]
        broker.kill()
        broker.start()
        assert ended(broker, "billing", name) == {"in_flight": 3, "waiting": 2}
        assert lanes(broker, "billing", name, "ready") == [0, 4, 0, 0, 0]
        assert lanes(broker, "billing", name, "in_flight") == [0, 3, 0, 0, 0]
        assert lanes(broker, "billing", name, "served") == [0] * 5
        delayed = ask(broker, "delay")
        assert (delayed["pending"], delayed["scheduled"], delayed["delivered"]) == (2, 2, 0)


# --- requests


def test_a_request_with_a_wrong_limit_or_an_unknown_field_is_refused(broker: RunningBroker) -> None:
    for what in ("priority", "delay", "reliability"):
        refusal(broker.request("GET", f"/{what}/stats?limit=0"), 400, "invalid_request")
        refusal(broker.request("GET", f"/{what}/stats?colour=red"), 400, "invalid_request")
    assert ask(broker, "priority", group="nobody")["partitions"] == []
