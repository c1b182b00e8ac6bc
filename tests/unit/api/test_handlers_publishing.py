"""Publishing as JSON: which partition, what a result says, and what happens to a bad message."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from goqueue.model.errors import (
    DiskFull,
    InvalidRequest,
    OutOfSequence,
    TooLarge,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
)
from goqueue.model.record import Extension, Lane, Producer, Record
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run
from tests.unit.api.services import Served, served
from tests.unit.broker.brokers import T0, values

T0_TEXT = "2023-11-14T22:13:20.000Z"


def partition_values(broker: Served, topic: str = "orders") -> list[list[str]]:
    return [values(partition) for partition in broker.broker.topics.named(topic).partitions]


def record(broker: Served, partition: int = 0, offset: int = 0) -> Record:
    log = broker.broker.topics.named("orders").partition(partition).log
    return log.records(offset, max_bytes=1, max_count=1)[0]


async def batch(broker: Served, *messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    reply = await broker.call("publish_batch", topic="orders", messages=list(messages), **more)
    results: list[dict[str, Any]] = reply["results"]
    assert len(results) == len(messages), "a result per message"
    return results


# --- what a result says


def test_a_result_says_where_the_message_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders")
            assert await broker.call("publish", topic="orders", value="x", partition=2) == {
                "partition": 2,
                "offset": 0,
                "message_id": "orders:2:0",
                "timestamp": T0_TEXT,
                "priority": "normal",
                "durability": "written",
            }
            found = record(broker, 2)
            assert (found.key, found.value, found.timestamp, found.priority) == (None, b"x", T0, Lane.NORMAL)

    run(go())


def test_durability_is_named_as_acks_and_fsync_have_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            for fsync in ("none", "interval", "every"):
                await broker.call("create_topic", name=fsync, num_partitions=1, fsync=fsync)
                for acks, named in (("leader", "durable" if fsync == "every" else "written"), ("all", "durable")):
                    reply = await broker.call("publish", topic=fsync, value="x", acks=acks)
                    assert reply["durability"] == named, (fsync, acks)
                    log = broker.broker.topics.named(fsync).partition(0).log
                    assert named == "written" or log.durable.value == log.end_offset

    run(go())


def test_without_acks_there_is_no_offset(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            reply = await broker.call("publish", topic="orders", value="x", acks="none")
            assert reply == {"partition": 0, "priority": "normal", "durability": "none"}
            assert partition_values(broker) == [["x"]]

    run(go())


# --- which partition


def test_a_message_goes_where_it_says(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            results = await batch(
                broker, *({"value": str(number), "partition": number % 3, "key": "same"} for number in range(6))
            )
            assert [(result["partition"], result["offset"]) for result in results] == [
                (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1),
            ]  # fmt: skip

    run(go())


def test_a_key_has_its_partition(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=12)
            keys = {"": 0, "a": 2, "ab": 11, "abcd": 6, "ключ": 2, "🔑": 1}
            results = await batch(broker, *({"value": "x", "key": key} for key in keys))
            assert [result["partition"] for result in results] == list(keys.values())
            hidden = b64encode(b"\xff" * 4).decode()
            assert (await batch(broker, {"value": "", "key": hidden, "encoding": "base64"}))[0]["partition"] == 4

    run(go())


def test_messages_without_keys_stay_together_and_requests_take_turns(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            found = []
            for _ in range(4):
                results = await batch(broker, {"value": "a"}, {"value": "k", "key": "a"}, {"value": "b"})
                assert results[0]["partition"] == results[2]["partition"]
                assert results[1]["partition"] == 2, "keys go their own way"
                found.append(results[0]["partition"])
            assert found == [0, 1, 2, 0]
            assert (await broker.call("publish", topic="orders", value="x"))["partition"] == 1

    run(go())


def test_a_request_with_keys_alone_takes_no_turn(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            await batch(broker, {"value": "x", "key": "a"})
            assert (await broker.call("publish", topic="orders", value="x"))["partition"] == 0

    run(go())


def test_results_are_in_the_order_of_the_messages(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=5)
            texts = [f"message {number}" for number in range(200)]
            results = await batch(broker, *({"value": text, "key": text} for text in texts))
            stored = partition_values(broker)
            for text, result in zip(texts, results, strict=True):
                assert stored[result["partition"]][result["offset"]] == text

    run(go())


# --- what a message may be


def test_priorities_have_names_and_numbers(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            for number, name in enumerate(("critical", "high", "normal", "low", "background")):
                results = await batch(broker, {"value": "x", "priority": name}, {"value": "x", "priority": number})
                assert [result["priority"] for result in results] == [name, name]
                assert record(broker, 0, results[1]["offset"]).priority == number
            for bad in ("urgent", 5, -1, 1.0, True):
                with pytest.raises(InvalidRequest):
                    await batch(broker, {"value": "x", "priority": bad})

    run(go())


def test_bytes_come_as_base64(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            await batch(broker, {"value": "/wA=", "key": "gA==", "headers": {"h": "AQI="}, "encoding": "base64"})
            found = record(broker)
            assert (found.value, found.key, found.headers) == (b"\xff\x00", b"\x80", (("h", b"\x01\x02"),))

    run(go())


def test_headers_are_an_object_or_pairs(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            results = await batch(
                broker,
                {"value": "x", "headers": {"b": "1", "a": "2"}},
                {"value": "x", "headers": [["b", "1"], ["b", "2"]]},
                {"value": "x", "headers": {}},
                {"value": "x", "headers": None},
            )
            assert [record(broker, 0, result["offset"]).headers for result in results] == [
                (("b", b"1"), ("a", b"2")), (("b", b"1"), ("b", b"2")), (), (),
            ]  # fmt: skip

    run(go())


def test_a_tombstone_says_that_it_is_one_and_nothing_becomes_one_by_accident(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            for forgotten in ({"key": "k"}, {"key": "k", "value": None}, {"key": "k", "tombstone": False}):
                with pytest.raises(InvalidRequest, match="value is missing; a message without one is a tombstone"):
                    await broker.call("publish", topic="orders", **forgotten)
                results = await batch(broker, {"value": "x", "key": "k"}, forgotten)
                assert [result.get("code") for result in results] == [None, "invalid_request"]
            with pytest.raises(InvalidRequest, match="a tombstone has no value"):
                await broker.call("publish", topic="orders", value="", tombstone=True)
            assert partition_values(broker) == [["x"] * 3]
            await broker.call("delete_topic", topic="orders")
            await broker.call("create_topic", name="orders", num_partitions=1)
            await batch(broker, {"tombstone": True, "key": "k"}, {"value": "", "key": ""})
            assert (record(broker).value, record(broker).key) == (None, b"k")
            assert (record(broker, 0, 1).value, record(broker, 0, 1).key) == (b"", b"")

    run(go())


def test_an_event_time_is_rfc_3339_or_milliseconds(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            times = {
                "2023-11-14T22:13:20Z": T0,
                "2023-11-14T23:13:20.5+01:00": T0 + 500,
                str(T0): T0,
                T0: T0,
                0: 0,
            }
            results = await batch(broker, *({"value": "x", "event_time": time} for time in times))
            found = [record(broker, 0, result["offset"]).extension for result in results]
            assert found == [Extension(event_time=time) for time in times.values()]
            for bad in ("yesterday", "2023-11-14", "2023-11-14T22:13:20", -1, 2**62, 1.5):
                with pytest.raises(InvalidRequest):
                    await broker.call("publish", topic="orders", value="x", event_time=bad)
            alone = await batch(broker, {"value": "x", "event_time": "2023-13-14T22:13:20Z"}, {"value": "y"})
            assert [result.get("code") for result in alone] == ["invalid_request", None]

    run(go())


# --- bad messages


def test_without_a_producer_a_bad_message_fails_alone(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, max_message_bytes=100_000)
            results = await batch(
                broker,
                {"value": "a"},
                {"value": "!", "encoding": "base64"},
                {"value": "b"},
                {"value": "x" * 100_001},
                {"value": "c", "partition": 1},
                {"value": "k", "key": "k" * 65_536},
                {"value": "h", "headers": {"h": "h" * 65_536}},
                {"value": "\ud800"},
                {"value": "x", "headers": {"\ud800": "x"}},
                {"value": "d"},
            )
            assert [result.get("code") for result in results] == [
                None,
                "invalid_request",
                None,
                "too_large",
                "unknown_partition",
                "too_large",
                "too_large",
                "invalid_request",
                "invalid_request",
                None,
            ]
            assert partition_values(broker) == [["a", "b", "d"]]
            assert [result["offset"] for result in results if "offset" in result] == [0, 1, 2]
            assert "not base64, as encoding says it is" in results[1]["error"]
            assert "send it as base64" in results[7]["error"]
            assert all(set(result) == {"error", "code", "retriable"} for result in results if "code" in result)

    run(go())


def test_one_message_alone_is_refused_as_a_request(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, max_message_bytes=10)
            for fields, kind in (
                ({"value": "x" * 11}, TooLarge),
                ({"value": "x", "partition": 1}, UnknownPartition),
                ({"value": "?", "encoding": "base64"}, InvalidRequest),
            ):
                with pytest.raises(kind):
                    await broker.call("publish", topic="orders", **fields)
            with pytest.raises(UnknownTopic):
                await broker.call("publish", topic="bills", value="x")

    run(go())


def test_the_limit_counts_key_value_and_headers(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, max_message_bytes=20)
            await broker.call("publish", topic="orders", key="k" * 10, value="v" * 10)
            await broker.call("publish", topic="orders", value="v" * 12, headers={"n": "v"})
            for fields in (
                {"key": "k" * 10, "value": "v" * 11},
                {"value": "v" * 13, "headers": {"n": "v"}},
                {"value": "ü" * 11},
            ):
                with pytest.raises(TooLarge, match="its topic allows 20"):
                    await broker.call("publish", topic="orders", **fields)

    run(go())


def test_a_full_disk_refuses_each_message(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with served(tmp_path, disk=disk) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            disk.free = 0
            results = await batch(broker, {"value": "a", "partition": 0}, {"value": "b", "partition": 1})
            assert [result["code"] for result in results] == ["disk_full", "disk_full"]
            with pytest.raises(DiskFull):
                await broker.call("publish", topic="orders", value="c")
            disk.free = None
            await broker.call("publish", topic="orders", value="d", partition=0)
            assert partition_values(broker) == [["d"], []]

    run(go())


# --- with a producer


async def producer(broker: Served) -> dict[str, Any]:
    await broker.call("create_topic", name="orders", num_partitions=2)
    return {"producer_id": (await broker.call("init_producer"))["producer_id"], "epoch": 0}


def test_a_request_that_comes_again_is_answered_as_a_duplicate(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            me = await producer(broker)
            messages = [{"value": text, "partition": 1} for text in "ab"]
            first = await batch(broker, *messages, **me, sequence=0)
            again = await batch(broker, *messages, **me, sequence=0)
            assert [result["offset"] for result in again] == [result["offset"] for result in first] == [0, 1]
            assert [result.get("duplicate") for result in first + again] == [None, None, True, True]
            overlap = await batch(broker, messages[1], {"value": "c", "partition": 1}, **me, sequence=1)
            assert [(result["offset"], result.get("duplicate")) for result in overlap] == [(1, True), (2, None)]
            assert partition_values(broker) == [[], ["a", "b", "c"]]
            single = await broker.call("publish", topic="orders", value="d", partition=1, **me, sequence=3)
            assert single["offset"] == 3

    run(go())


def test_the_epoch_is_nought_if_left_out(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            me = await producer(broker)
            await batch(broker, {"value": "a", "partition": 0}, producer_id=me["producer_id"], sequence=0)
            assert record(broker).extension == Extension(producer=Producer(me["producer_id"], 0, 0))

    run(go())


@pytest.mark.parametrize("fields", [{"producer_id": 1}, {"sequence": 0}, {"epoch": 0}, {"epoch": 0, "sequence": 0}])
def test_a_producer_is_named_by_id_and_sequence(tmp_path: Path, fields: dict[str, int]) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await producer(broker)
            with pytest.raises(InvalidRequest, match="producer_id and sequence belong together"):
                await batch(broker, {"value": "a", "partition": 0}, **fields)

    run(go())


def test_a_producers_messages_name_one_partition(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            me = await producer(broker)
            with pytest.raises(InvalidRequest, match="message 1 names no partition"):
                await batch(broker, {"value": "a", "partition": 0}, {"value": "b", "key": "k"}, **me, sequence=0)
            with pytest.raises(InvalidRequest, match="name different partitions"):
                await batch(broker, {"value": "a", "partition": 0}, {"value": "b", "partition": 1}, **me, sequence=0)
            with pytest.raises(UnknownPartition):
                await batch(broker, {"value": "a", "partition": 2}, **me, sequence=0)
            assert partition_values(broker) == [[], []]

    run(go())


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ({"value": "?", "encoding": "base64"}, InvalidRequest),
        ({"value": "x" * (2**20 + 1)}, TooLarge),
        ({"value": "x", "key": "k" * 65_536}, TooLarge),
    ],
)
def test_with_a_producer_a_bad_message_refuses_all_and_is_named(
    tmp_path: Path, bad: dict[str, Any], kind: type[InvalidRequest]
) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            me = await producer(broker)
            good = [{"value": text, "partition": 0} for text in "abc"]
            with pytest.raises(kind) as caught:
                await batch(broker, *good[:2], {**bad, "partition": 0}, good[2], **me, sequence=0)
            assert caught.value.details["index"] == 2
            assert partition_values(broker) == [[], []]
            await batch(broker, *good, **me, sequence=0)
            assert partition_values(broker)[0] == ["a", "b", "c"]

    run(go())


def test_a_gap_and_a_stranger_are_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            me = await producer(broker)
            await batch(broker, {"value": "a", "partition": 0}, **me, sequence=0)
            with pytest.raises(OutOfSequence) as caught:
                await batch(broker, {"value": "c", "partition": 0}, **me, sequence=2)
            assert caught.value.details == {"expected": 1}
            with pytest.raises(UnknownProducer):
                await batch(broker, {"value": "c", "partition": 0}, producer_id=10**6, sequence=0)

    run(go())


def test_an_error_that_concerns_a_partition_is_not_marked_with_a_message(tmp_path: Path) -> None:
    """It is told to everybody who asks for that partition."""

    async def go() -> None:
        async with served(tmp_path) as broker:
            me = await producer(broker)
            broker.broker.topics.named("orders").slots[1] = damaged = DiskFull("no space")
            with pytest.raises(DiskFull):
                await batch(broker, {"value": "a", "partition": 1}, **me, sequence=0)
            assert damaged.index is None

    run(go())


# --- delays and times to live


def test_a_delayed_message_says_when_it_is_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            later = "2023-11-14T22:14:20.000Z"
            ways: list[dict[str, Any]] = [
                {"delay": "1m"}, {"delay": 60}, {"deliverAt": later}, {"deliverAt": "2023-11-14T23:14:20+01:00"},
                {"deliverAt": T0 + 60_000}, {"deliverAt": str(T0 + 60_000)},
            ]  # fmt: skip
            for offset, fields in enumerate(ways):
                assert await broker.call("publish", topic="orders", value="x", **fields) == {
                    "partition": 0,
                    "offset": offset,
                    "message_id": f"orders:0:{offset}",
                    "timestamp": T0_TEXT,
                    "priority": "normal",
                    "durability": "written",
                    "delayed": True,
                    "deliverAt": later,
                }, fields
                assert record(broker, 0, offset).extension == Extension(deliver_at=T0 + 60_000)

    run(go())


@pytest.mark.parametrize(
    "fields", [{"delay": 0}, {"delay": "0s"}, {"delay": None}, {"deliverAt": T0_TEXT}, {"deliverAt": 0}, {"ttl": "5s"}]
)
def test_what_is_due_at_once_is_not_called_delayed(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            result = await broker.call("publish", topic="orders", value="x", **fields)
            assert "delayed" not in result
            assert "deliverAt" not in result
            assert not broker.broker.topics.named("orders").partition(0).delays.pending

    run(go())


def test_a_time_to_live_is_stamped_from_when_the_message_can_be_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            await batch(broker, {"value": "a", "ttl": "5s"}, {"value": "b", "ttl": 1.5, "delay": "10s"})
            assert record(broker, 0, 0).extension == Extension(expires_at=T0 + 5000)
            assert record(broker, 0, 1).extension == Extension(deliver_at=T0 + 10_000, expires_at=T0 + 11_500)

    run(go())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"delay": "5s", "deliverAt": T0_TEXT}, "a delay or a deliverAt, not both"),
        ({"ttl": 0}, "ttl is 0.*; write from 1ms"),
        ({"delay": "99999d"}, "'99999d' is too long: write a duration of at most 36500d"),
        ({"deliverAt": "0001-01-01T00:00:00Z"}, "between the years 1970 and 9999"),
    ],
)
def test_a_delay_that_cannot_be_fails_alone(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            with pytest.raises(InvalidRequest, match=reason):
                await broker.call("publish", topic="orders", value="x", **fields)
            results = await batch(broker, {"value": "a"}, {"value": "x", **fields}, {"value": "b"})
            assert [result.get("code") for result in results] == [None, "invalid_request", None]
            assert partition_values(broker) == [["a", "b"]]

    run(go())


def test_delayed_messages_that_are_sent_again_say_the_same(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            producer = (await broker.call("init_producer"))["producer_id"]
            asked = {"producer_id": producer, "epoch": 0, "sequence": 0}
            first = await batch(broker, {"value": "a", "delay": "1m", "partition": 0}, **asked)
            broker.clock.now += 5000
            again = await batch(broker, {"value": "a", "delay": "1m", "partition": 0}, **asked)
            assert again == [{**first[0], "duplicate": True}], "its time is that of the first"

    run(go())


def test_a_delay_without_an_answer_has_none(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            result = await broker.call("publish", topic="orders", value="x", delay="1m", acks="none")
            assert result == {"partition": 0, "priority": "normal", "durability": "none"}

    run(go())
