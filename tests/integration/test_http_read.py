"""Reading over HTTP with a real broker: by offset and by time, in pages, over one partition and over all."""

from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import pytest

from goqueue.model import limits
from goqueue.model.times import parse_time, show_time
from tests.support.broker import RunningBroker, refusal, running_broker

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("read")) as running:
        yield running


@pytest.fixture(scope="module")
def ten(broker: RunningBroker) -> str:
    """A topic with one partition that holds the values 0 to 9."""
    topic = create(broker)
    publish(broker, topic, *range(10))
    return topic


@pytest.fixture(scope="module")
def segmented(broker: RunningBroker) -> str:
    """A topic with one partition that holds the values 0 to 299 in many segments."""
    topic = create(broker, segment_bytes=4096)
    for first in range(0, 300, 7):
        publish(broker, topic, *range(first, min(first + 7, 300)), padding=100)
    stored = broker.data_dir / "logs" / topic
    assert len(list(stored.rglob("*.log"))) > 5
    return topic


def create(broker: RunningBroker, partitions: int = 1, **settings: object) -> str:
    name = f"topic-{next(_numbers)}"
    answer = broker.request("POST", "/topics", {"name": name, "num_partitions": partitions, **settings})
    assert answer.status == 201, answer
    return name


def publish(
    broker: RunningBroker, topic: str, *values: object, partition: int = 0, padding: int = 0
) -> list[dict[str, Any]]:
    messages = [{"key": "p" * padding, "value": f"{value}", "partition": partition} for value in values]
    answer = broker.request("POST", f"/topics/{topic}/messages", {"messages": messages})
    assert answer.status == 200, answer
    results: list[dict[str, Any]] = answer.body["results"]
    return results


def get(broker: RunningBroker, path: str, **query: object) -> dict[str, Any]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    answer = broker.request("GET", f"{path}?{asked}")
    assert answer.status == 200, answer
    body: dict[str, Any] = answer.body
    return body


def partition_path(topic: str, partition: int = 0) -> str:
    return f"/topics/{topic}/partitions/{partition}/messages"


def values(body: dict[str, Any]) -> list[str]:
    return [message["value"] for message in body["messages"]]


def pages(broker: RunningBroker, topic: str, *, offset: int = 0, partition: int = 0, **query: object) -> list[Any]:
    """Every page from `offset` on, until there is no more."""
    found: list[Any] = []
    while True:
        page = get(broker, partition_path(topic, partition), offset=offset, **query)
        if page["next_offset"] == offset:
            assert page["messages"] == []
            return found
        assert page["next_offset"] > offset
        found.append(page["messages"])
        offset = page["next_offset"]


def two_moments(broker: RunningBroker, topic: str) -> tuple[int, int]:
    """Publish "before" and then "after", at different milliseconds; the times of both."""
    before = parse_time(publish(broker, topic, "before")[0]["timestamp"])
    while True:
        after = parse_time(publish(broker, topic, "after")[0]["timestamp"])
        if after > before:
            return before, after


# --- by offset


def test_a_read_begins_at_the_earliest_message_unless_told_otherwise(broker: RunningBroker, ten: str) -> None:
    for path in (partition_path(ten), f"/topics/{ten}/messages"):
        body = get(broker, path)
        assert values(body) == [f"{number}" for number in range(10)]
        assert body["next_offset"] == 10


@pytest.mark.parametrize("offset", [0, 1, 5, 9, 10])
def test_a_read_begins_at_its_offset(broker: RunningBroker, ten: str, offset: int) -> None:
    for path in (partition_path(ten), f"/topics/{ten}/messages"):
        body = get(broker, path, offset=offset)
        assert values(body) == [f"{number}" for number in range(offset, 10)]
        assert [message["offset"] for message in body["messages"]] == list(range(offset, 10))
        assert body["next_offset"] == 10


def test_a_read_past_the_end_is_refused_with_the_range_there_is(broker: RunningBroker, ten: str) -> None:
    for path in (partition_path(ten), f"/topics/{ten}/messages"):
        error = refusal(broker.request("GET", f"{path}?offset=11"), 400, "offset_out_of_range")
        assert error["details"] == {"offset": 11, "earliest": 0, "latest": 10}


def test_a_message_has_all_its_fields(broker: RunningBroker) -> None:
    topic = create(broker)
    message = {"key": "k", "value": "v", "headers": {"h": "1"}, "priority": "high", "event_time": 0}
    published = broker.request("POST", f"/topics/{topic}/publish", message).body
    assert get(broker, partition_path(topic))["messages"] == [
        {
            "offset": 0,
            "partition": 0,
            "timestamp": published["timestamp"],
            "key": "k",
            "value": "v",
            "headers": {"h": "1"},
            "priority": "high",
            "message_id": f"{topic}:0:0",
            "event_time": "1970-01-01T00:00:00.000Z",
        }
    ]


@pytest.mark.parametrize("limit", [1, 3, 10, 1000])
def test_a_page_has_at_most_its_limit(broker: RunningBroker, ten: str, limit: int) -> None:
    body = get(broker, partition_path(ten), limit=limit)
    assert values(body) == [f"{number}" for number in range(min(limit, 10))]
    assert body["next_offset"] == min(limit, 10)


def test_a_page_has_a_hundred_messages_unless_told_otherwise(broker: RunningBroker) -> None:
    topic = create(broker)
    publish(broker, topic, *range(1500))
    assert len(get(broker, partition_path(topic))["messages"]) == 100
    assert len(get(broker, partition_path(topic), limit=limits.MAX_READ_MESSAGES)["messages"]) == 1000


def test_a_page_has_at_most_its_bytes_but_always_one_message(broker: RunningBroker) -> None:
    topic = create(broker)
    publish(broker, topic, *("x" * 1000 for _ in range(10)))
    assert [len(page) for page in pages(broker, topic, max_bytes=1)] == [1] * 10
    sizes = [len(page) for page in pages(broker, topic, max_bytes=3500)]
    assert sum(sizes) == 10
    assert max(sizes) == 3


def test_a_page_of_large_messages_is_bounded(broker: RunningBroker) -> None:
    topic = create(broker, max_message_bytes=2 * limits.MIB)
    for number in range(10):
        publish(broker, topic, f"{number}" * limits.MIB)
    found = pages(broker, topic)
    assert [message["value"][0] for page in found for message in page] == [f"{number}" for number in range(10)]
    assert max(len(page) for page in found) < limits.MAX_JSON_READ_BYTES // limits.MIB


@pytest.mark.parametrize("query", [{"limit": 1}, {"limit": 7}, {"limit": 1000}, {"max_bytes": 1}, {"max_bytes": 1000}])
@pytest.mark.parametrize("topic", ["ten", "segmented"])
def test_paging_gives_everything_exactly_once(
    broker: RunningBroker, topic: str, query: dict[str, int], request: pytest.FixtureRequest
) -> None:
    found = pages(broker, request.getfixturevalue(topic), **query)
    total = 10 if topic == "ten" else 300
    assert [message["value"] for page in found for message in page] == [f"{number}" for number in range(total)]
    assert all(len(page) <= query.get("limit", 1000) for page in found)


def test_a_page_goes_on_over_segments(broker: RunningBroker, segmented: str) -> None:
    assert values(get(broker, partition_path(segmented), limit=1000)) == [f"{number}" for number in range(300)]
    assert values(get(broker, partition_path(segmented), limit=90, offset=5)) == [f"{n}" for n in range(5, 95)]


def test_reading_changes_nothing(broker: RunningBroker, ten: str) -> None:
    before = broker.request("GET", f"/topics/{ten}").body
    assert pages(broker, ten, limit=3) == pages(broker, ten, limit=3)
    assert broker.request("GET", f"/topics/{ten}").body == before


# --- by time


def test_a_read_can_begin_and_end_at_a_time(broker: RunningBroker) -> None:
    topic = create(broker)
    before, after = two_moments(broker, topic)
    everything = get(broker, partition_path(topic))["messages"]
    for path in (partition_path(topic), f"/topics/{topic}/messages"):
        for show in (str, show_time):
            later = get(broker, path, from_time=show(after))
            assert [message["timestamp"] for message in later["messages"]] == [
                message["timestamp"] for message in everything if parse_time(message["timestamp"]) >= after
            ]
            assert values(get(broker, path, from_time=show(before))) == [one["value"] for one in everything]
            earlier = get(broker, path, to_time=show(after))
            assert values(earlier)[0] == "before"
            assert all(parse_time(message["timestamp"]) < after for message in earlier["messages"])
            assert len(earlier["messages"]) + len(later["messages"]) == len(everything)
            between = get(broker, path, from_time=show(before), to_time=show(after))
            assert between["messages"] == earlier["messages"]


def test_an_empty_span_of_time_is_an_empty_page(broker: RunningBroker, ten: str) -> None:
    future = "2100-01-01T00:00:00Z"
    assert get(broker, partition_path(ten), from_time=future) == {"messages": [], "next_offset": 10}
    assert get(broker, partition_path(ten), to_time="2000-01-01T00:00:00Z") == {"messages": [], "next_offset": 0}
    body = get(broker, partition_path(ten), from_time=future, to_time="2000-01-01T00:00:00Z")
    assert body["messages"] == []
    assert get(broker, f"/topics/{ten}/messages", from_time=future)["messages"] == []


@pytest.mark.parametrize(
    "text", ["2000-01-01T00:00:00Z", "2000-01-01T01:00:00+01:00", "2000-01-01T01:00:00%2B01:00", "946684800000", "0"]
)
def test_a_time_can_be_written_in_several_ways(broker: RunningBroker, ten: str, text: str) -> None:
    assert len(get(broker, partition_path(ten), from_time=text)["messages"]) == 10
    assert get(broker, partition_path(ten), to_time=text)["messages"] == []


def test_offset_and_time_together_begin_at_the_later(broker: RunningBroker, ten: str) -> None:
    body = get(broker, partition_path(ten), offset=7, from_time="2000-01-01T00:00:00Z")
    assert values(body) == ["7", "8", "9"]
    assert get(broker, partition_path(ten), offset=7, from_time="2100-01-01T00:00:00Z")["messages"] == []


def test_paging_up_to_a_time_ends_there(broker: RunningBroker) -> None:
    topic = create(broker)
    publish(broker, topic, *range(20))
    _, after = two_moments(broker, topic)
    publish(broker, topic, *range(20, 30))
    found = [message for page in pages(broker, topic, limit=3, to_time=after) for message in page]
    assert [message["value"] for message in found[:21]] == [*(f"{number}" for number in range(20)), "before"]
    assert all(parse_time(message["timestamp"]) < after for message in found)


def test_times_lead_to_offsets_in_every_partition(broker: RunningBroker) -> None:
    topic = create(broker, 2)
    publish(broker, topic, "x", "y", partition=1)
    _, after = two_moments(broker, topic)
    first = next(
        message["offset"]
        for message in get(broker, partition_path(topic))["messages"]
        if parse_time(message["timestamp"]) >= after
    )
    ends = {"0": broker.request("GET", f"/topics/{topic}").body["partition_offsets"]["0"]["latest"], "1": 2}
    path = f"/topics/{topic}/offsets"
    assert get(broker, path)["offsets"] == ends
    assert get(broker, path, timestamp="2100-01-01T00:00:00Z")["offsets"] == ends
    assert get(broker, path, timestamp="2000-01-01T00:00:00Z")["offsets"] == {"0": 0, "1": 0}
    assert get(broker, path, timestamp=after)["offsets"] == {"0": first, "1": 2}
    assert get(broker, path, timestamp=show_time(after))["offsets"] == {"0": first, "1": 2}
    refusal(broker.request("GET", f"{path}?timestamp=soon"), 400, "invalid_request")


# --- over a whole topic


def test_a_topic_is_read_in_the_order_of_append_times(broker: RunningBroker) -> None:
    topic = create(broker, 3)
    for number in range(60):
        publish(broker, topic, number, partition=number % 3)
    body = get(broker, f"/topics/{topic}/messages")
    order = [(one["timestamp"], one["partition"], one["offset"]) for one in body["messages"]]
    assert order == sorted(order)
    assert len(order) == len(set(order)) == 60
    assert body["next_offsets"] == {"0": 20, "1": 20, "2": 20}
    assert "next_offset" not in body


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_what_a_page_of_a_topic_left_out_is_found_at_its_next_offsets(broker: RunningBroker, limit: int) -> None:
    topic = create(broker, 3)
    for number in range(60):
        publish(broker, topic, number, partition=number % 2)  # one partition stays empty
    body = get(broker, f"/topics/{topic}/messages", limit=limit)
    assert len(body["messages"]) == limit
    found = Counter(values(body))
    rest = [
        message
        for partition, offset in body["next_offsets"].items()
        for page in pages(broker, topic, partition=int(partition), offset=offset, limit=13)
        for message in page
    ]
    found.update(message["value"] for message in rest)
    assert found == Counter(f"{number}" for number in range(60))
    last = max(parse_time(message["timestamp"]) for message in body["messages"])
    assert all(parse_time(message["timestamp"]) >= last for message in rest)


def test_the_earliest_messages_of_a_topic_come_first_whatever_its_segments(broker: RunningBroker) -> None:
    topic = create(broker, 2, segment_bytes=4096)
    published = []
    for number in range(40):
        published += publish(broker, topic, *range(10), partition=number % 2, padding=60)
    order = sorted((result["timestamp"], result["partition"], result["offset"]) for result in published)
    body = get(broker, f"/topics/{topic}/messages", limit=300)
    assert [(one["timestamp"], one["partition"], one["offset"]) for one in body["messages"]] == order[:300]


def test_a_topic_can_be_read_from_a_time(broker: RunningBroker) -> None:
    topic = create(broker, 2)
    publish(broker, topic, "old", partition=1)
    _, after = two_moments(broker, topic)
    publish(broker, topic, "new", partition=1)
    body = get(broker, f"/topics/{topic}/messages", from_time=after)
    assert {"after", "new"} == set(values(body))
    assert "new" not in values(get(broker, f"/topics/{topic}/messages", to_time=after))


def test_an_offset_needs_a_topic_with_one_partition(broker: RunningBroker, ten: str) -> None:
    topic = create(broker, 2)
    error = refusal(broker.request("GET", f"/topics/{topic}/messages?offset=0"), 400, "invalid_request")
    assert f"/topics/{topic}/partitions/0/messages" in error["error"]
    body = get(broker, f"/topics/{ten}/messages", offset=8)
    assert (values(body), body["next_offset"], body["next_offsets"]) == (["8", "9"], 10, {"0": 10})


def test_readers_of_a_growing_partition_miss_nothing(broker: RunningBroker) -> None:
    topic = create(broker, segment_bytes=4096)
    offset, found = 0, []
    for first in range(0, 200, 10):
        publish(broker, topic, *range(first, first + 10), padding=100)
        page = get(broker, partition_path(topic), offset=offset, limit=9)
        found += page["messages"]
        offset = page["next_offset"]
    found += [message for page in pages(broker, topic, offset=offset) for message in page]
    assert all(later["offset"] == earlier["offset"] + 1 for earlier, later in pairwise(found))
    assert [message["value"] for message in found] == [f"{number}" for number in range(200)]
