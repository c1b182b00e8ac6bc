"""Simple reads as JSON: pages that leave nothing out, times, and messages that are not text."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, OffsetOutOfRange, Quarantined, UnknownPartition, UnknownTopic
from goqueue.model.record import Extension, Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.wire.failures import pack_error, unpack_error
from tests.support.loop import run, turns
from tests.unit.api.services import Served, served
from tests.unit.broker.brokers import T0, block, messages, topic_directory

T0_TEXT = "2023-11-14T22:13:20.000Z"


def put(broker: Served, *records: Record, partition: int = 0, now: int | None = None) -> None:
    log = broker.broker.topics.named("orders").partition(partition).log
    log.append(block(*records), now=broker.clock.now if now is None else now)


def fill(broker: Served, count: int, *, partition: int = 0, per_segment: int = 1000) -> None:
    """Messages named after their offsets, a second apart."""
    log = broker.broker.topics.named("orders").partition(partition).log
    for number in range(count):
        if number and number % per_segment == 0:
            log.roll()
        log.append(messages(str(number)), now=T0 + number * 1000)
    log.sync()


def texts(reply: dict[str, Any]) -> list[str]:
    return [message["value"] for message in reply["messages"]]


async def read(broker: Served, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = await broker.call("read_partition", **{"topic": "orders", "partition": 0, **fields})
    return reply


# --- what a message looks like


def test_a_message_has_all_it_was_published_with(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            extension = Extension(event_time=T0 - 500)
            put(
                broker,
                Record(key=b"k", value="wert ü".encode(), priority=1, headers=(("a", b"b"),), extension=extension),
            )
            assert (await read(broker))["messages"] == [
                {
                    "offset": 0,
                    "partition": 0,
                    "timestamp": T0_TEXT,
                    "key": "k",
                    "value": "wert ü",
                    "headers": {"a": "b"},
                    "priority": "high",
                    "message_id": "orders:0:0",
                    "event_time": "2023-11-14T22:13:19.500Z",
                }
            ]

    run(go())


def test_absent_and_empty_differ(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            put(broker, Record(key=b"k"), Record(value=b""), Record(key=b"", value=b"x"))
            found = [(message["key"], message["value"]) for message in (await read(broker))["messages"]]
            assert found == [("k", None), (None, ""), ("", "x")]

    run(go())


@pytest.mark.parametrize(
    "record",
    [
        Record(key=b"\xff", value=b"v", headers=(("h", b"w"),)),
        Record(key=b"k", value=b"\x80", headers=(("h", b"w"),)),
        Record(key=b"k", value=b"v", headers=(("h", b"\xfe"),)),
    ],
)
def test_what_is_not_text_is_base64_and_says_so(tmp_path: Path, record: Record) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            put(broker, record)
            (message,) = (await read(broker))["messages"]
            assert message["encoding"] == "base64"
            again = {name: message[name] for name in ("key", "value", "headers", "encoding")}
            await broker.call("publish", topic="orders", partition=1, **again)
            stored = broker.broker.topics.named("orders").partition(1).log.records(0, max_bytes=1000)[0]
            assert (stored.key, stored.value, stored.headers) == (record.key, record.value, record.headers)

    run(go())


def test_headers_are_pairs_when_a_name_repeats(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            put(broker, Record(value=b"", headers=(("a", b"1"), ("b", b"2"), ("a", b"3"))), Record(value=b""))
            found = [message["headers"] for message in (await read(broker))["messages"]]
            assert found == [[["a", "1"], ["b", "2"], ["a", "3"]], {}]

    run(go())


def test_a_header_name_that_is_no_text_can_be_shown(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            put(broker, Record(value=b"", headers=(("a\udcff", b"1"),)))
            (message,) = (await read(broker))["messages"]
            assert message["headers"] == {"a\\xff": "1"}

    run(go())


def test_control_records_are_nobodys_messages(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            put(broker, Record(value=b"a"), Record(key=b"marker", control=True), Record(value=b"b"))
            reply = await read(broker)
            assert (texts(reply), reply["next_offset"]) == (["a", "b"], 3)

    run(go())


# --- pages


def test_a_page_says_where_the_next_one_begins(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 10)
            reply = await read(broker, limit=4)
            assert (texts(reply), reply["next_offset"]) == (["0", "1", "2", "3"], 4)
            reply = await read(broker, offset=4, limit=100)
            assert (texts(reply), reply["next_offset"]) == (["4", "5", "6", "7", "8", "9"], 10)
            reply = await read(broker, offset=10)
            assert (texts(reply), reply["next_offset"]) == ([], 10)

    run(go())


def test_a_page_goes_on_over_segments(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 20, per_segment=3)
            assert texts(await read(broker)) == [str(number) for number in range(20)]
            assert texts(await read(broker, offset=5, limit=7)) == [str(number) for number in range(5, 12)]

    run(go())


def test_a_page_has_at_least_one_message_and_no_more_bytes_than_asked_for(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 6, per_segment=2)
            size = len(messages("0"))
            for max_bytes, count in ((1, 1), (size, 1), (2 * size, 2), (3 * size, 3), (3 * size + 1, 3)):
                assert len(texts(await read(broker, max_bytes=max_bytes))) == count, max_bytes

    run(go())


def test_an_offset_that_is_gone_or_not_there_yet_is_refused_with_the_range(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1, retention_hours=1)
            fill(broker, 4, per_segment=2)
            log = broker.broker.topics.named("orders").partition(0).log
            log.settings = LogSettings(retention_ms=1)
            clean(log, T0 + 10**9)
            for offset in (0, 5):
                with pytest.raises(OffsetOutOfRange) as caught:
                    await read(broker, offset=offset)
                assert caught.value.details == {"offset": offset, "earliest": 2, "latest": 4}
            assert texts(await read(broker)) == ["2", "3"], "without an offset it begins at the earliest"

    run(go())


def test_what_lies_before_damage_is_given_out_and_then_the_damage_is_met(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 6, per_segment=2)
            topic = broker.broker.topics.named("orders")
            segment = topic_directory(tmp_path, topic) / "0" / f"{2:020d}.log"
            data = bytearray(segment.read_bytes())
            data[len(messages("0")) - 1] ^= 1
            segment.write_bytes(data)
            reply = await read(broker)
            assert (texts(reply), reply["next_offset"]) == (["0", "1"], 2)
            ((partition, reason),) = [(each["partition"], each["reason"]) for each in reply["incomplete"]]
            assert (partition, reason[:20]) == (0, "offset 2 is damaged "), "it says why it ends there"
            with pytest.raises(Quarantined) as caught:
                await read(broker, offset=2)
            assert "incomplete" not in await read(broker, limit=1), "it ends before that"
            reply = await read(broker, offset=caught.value.details["next_offset"])
            assert texts(reply) == ["3", "4", "5"]
            assert "incomplete" not in reply

    run(go())


def test_a_read_of_all_partitions_says_which_one_is_damaged_and_how_to_go_on(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            fill(broker, 2)
            fill(broker, 4, partition=1, per_segment=2)
            topic = broker.broker.topics.named("orders")
            segment = topic_directory(tmp_path, topic) / "1" / f"{2:020d}.log"
            data = bytearray(segment.read_bytes())
            data[len(messages("0")) - 1] ^= 1
            segment.write_bytes(data)
            reply = await broker.call("read_topic", topic="orders")
            assert (texts(reply), reply["next_offsets"]) == (["0", "0", "1", "1"], {"0": 2, "1": 2})
            assert [each["partition"] for each in reply["incomplete"]] == [1]
            reply = await broker.call("read_topic", topic="orders", limit=2)
            assert (texts(reply), "incomplete" in reply) == (["0", "0"], False), "it ends before that"
            with pytest.raises(Quarantined) as caught:
                await broker.call("read_topic", topic="orders", from_time=str(T0 + 2000))
            assert caught.value.details["partition"] == 1
            assert "/topics/orders/partitions/1/messages?offset=3" in str(caught.value)
            assert unpack_error(memoryview(pack_error(caught.value))).details["next_offset"] == 3
            assert texts(await read(broker, partition=1, offset=3)) == ["3"]

    run(go())


# --- times


def test_times_bound_a_read(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 6, per_segment=2)
            for fields, expected in (
                ({"from_time": str(T0 + 2000)}, ["2", "3", "4", "5"]),
                ({"from_time": str(T0 + 1001)}, ["2", "3", "4", "5"]),
                ({"to_time": str(T0 + 2000)}, ["0", "1"]),
                ({"from_time": "2023-11-14T22:13:21Z", "to_time": "2023-11-14T22:13:23Z"}, ["1", "2"]),
                ({"from_time": "2023-11-14T23:13:21 01:00", "limit": 1}, ["1"]),
                ({"from_time": "2023-11-14T23:13:21+01:00", "limit": 1}, ["1"]),
                ({"from_time": str(T0 + 10**6)}, []),
                ({"to_time": "0"}, []),
                ({"from_time": str(T0 + 5000), "to_time": str(T0)}, []),
                ({"from_time": str(T0), "offset": 4}, ["4", "5"]),
                ({"from_time": str(T0 + 5000), "offset": 4}, ["5"]),
            ):
                assert texts(await read(broker, **fields)) == expected, fields

    run(go())


@pytest.mark.parametrize("time", ["yesterday", "2023-11-14", "2023-11-14T22:13:20", "", "1.5", "-1", "9" * 15])
def test_what_is_no_time_is_refused(tmp_path: Path, time: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            with pytest.raises(InvalidRequest):
                await read(broker, from_time=time)
            with pytest.raises(InvalidRequest):
                await broker.call("offsets", topic="orders", timestamp=time)

    run(go())


def test_a_day_that_no_calendar_has_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            for time in (
                "2023-02-30T00:00:00Z",
                "2023-13-01T00:00:00Z",
                "2023-01-01T24:01:00Z",
                "0000-01-01T00:00:00Z",
            ):
                with pytest.raises(InvalidRequest, match="is no time: write RFC 3339 with a zone"):
                    await read(broker, to_time=time)

    run(go())


def test_offsets_are_those_of_a_time_or_the_ends(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            fill(broker, 6, per_segment=2)
            fill(broker, 3, partition=1)
            assert await broker.call("offsets", topic="orders") == {"offsets": {"0": 6, "1": 3}}
            found = await broker.call("offsets", topic="orders", timestamp=str(T0 + 1500))
            assert found == {"offsets": {"0": 2, "1": 2}}
            found = await broker.call("offsets", topic="orders", timestamp=str(T0 + 10**6))
            assert found == {"offsets": {"0": 6, "1": 3}}

    run(go())


# --- whole topics


def test_a_topic_with_one_partition_is_read_like_that_partition(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 5)
            reply = await broker.call("read_topic", topic="orders", offset=1, limit=2)
            assert texts(reply) == ["1", "2"]
            assert (reply["next_offset"], reply["next_offsets"]) == (3, {"0": 3})

    run(go())


def test_an_offset_belongs_to_one_partition(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            with pytest.raises(
                InvalidRequest, match="has 2 partitions and an offset belongs to one: read /topics/orders"
            ):
                await broker.call("read_topic", topic="orders", offset=0)

    run(go())


def test_the_partitions_of_a_topic_are_merged_by_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            for number in range(9):
                put(broker, Record(value=b"%d" % number), partition=number % 3, now=T0 + number)
            reply = await broker.call("read_topic", topic="orders")
            assert texts(reply) == [str(number) for number in range(9)]
            assert reply["next_offsets"] == {"0": 3, "1": 3, "2": 3}
            assert "next_offset" not in reply
            reply = await broker.call("read_topic", topic="orders", limit=4)
            assert texts(reply) == ["0", "1", "2", "3"]
            assert reply["next_offsets"] == {"0": 2, "1": 1, "2": 1}

    run(go())


sizes = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400), st.integers(0, 3)), min_size=1, max_size=40)


@given(sizes, st.integers(1, 12), st.integers(1, 1500))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_page_of_a_topic_leaves_anything_out_in_between(
    tmp_path: Path, published: list[tuple[int, int, int]], limit: int, max_bytes: int
) -> None:
    """The messages of a page are the first of all that are left, by time: what a page has not, comes later."""

    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            now = T0
            for partition, size, later in published:
                now += later
                log = broker.broker.topics.named("orders").partition(partition).log
                if size % 7 == 0:
                    log.roll()
                put(broker, Record(value=b"v" * size), partition=partition, now=now)
            everything = (await broker.call("read_topic", topic="orders", limit=1000))["messages"]
            assert len(everything) == len(published)
            reply = await broker.call("read_topic", topic="orders", limit=limit, max_bytes=max_bytes)
            found = reply["messages"]
            assert found == everything[: len(found)]
            assert 1 <= len(found) <= limit
            for partition in range(3):
                mine = [message["offset"] for message in found if message["partition"] == partition]
                assert reply["next_offsets"][str(partition)] == len(mine)
            await broker.call("delete_topic", topic="orders")

    run(go())


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(1, 10), st.integers(1, 1000))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_of_a_partition_one_after_the_other_are_all_of_it(
    tmp_path: Path, published: list[int], limit: int, max_bytes: int
) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            for size in published:
                if size % 5 == 0:
                    broker.broker.topics.named("orders").partition(0).log.roll()
                put(broker, Record(value=b"v" * size))
            found: list[int] = []
            offset = 0
            while offset < len(published):
                reply = await read(broker, offset=offset, limit=limit, max_bytes=max_bytes)
                assert 1 <= len(reply["messages"]) <= limit
                found += [len(message["value"]) for message in reply["messages"]]
                offset = reply["next_offset"]
            assert found == published
            await broker.call("delete_topic", topic="orders")

    run(go())


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            with pytest.raises(UnknownPartition):
                await read(broker, partition=1)
            for operation in ("read_topic", "offsets"):
                with pytest.raises(UnknownTopic):
                    await broker.call(operation, topic="bills")
            for fields in ({"limit": 0}, {"limit": 1001}, {"max_bytes": 0}, {"offset": -1}, {"order": "newest"}):
                with pytest.raises(InvalidRequest):
                    await read(broker, **fields)

    run(go())


def test_what_is_read_is_counted(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 5, per_segment=2)
            await read(broker, limit=3)
            meters = broker.broker.topics.named("orders").meters
            assert (meters.messages_read, meters.bytes_read) == (3, 3 * len(messages("0")))

    run(go())


# --- delayed messages, and the order of lanes


async def publish(broker: Served, value: str, **fields: Any) -> None:
    await broker.call("publish", topic="orders", value=value, **{"partition": 0, **fields})


def test_what_is_not_due_is_hidden_unless_it_is_asked_for(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            await publish(broker, "a")
            await publish(broker, "late", delay="1m")
            await publish(broker, "b")
            found = await read(broker)
            assert (texts(found), found["next_offset"]) == (["a", "b"], 3)
            found = await read(broker, include="delayed")
            assert texts(found) == ["a", "late", "b"]
            assert [message.get("deliver_at") for message in found["messages"]] == [
                None, "2023-11-14T22:14:20.000Z", None,
            ]  # fmt: skip
            everything = await broker.call("read_topic", topic="orders")
            assert texts(everything) == ["a", "b"]
            assert texts(await broker.call("read_topic", topic="orders", include="delayed")) == ["a", "late", "b"]
            with pytest.raises(InvalidRequest):
                await read(broker, include="everything")

    run(go())


def test_when_it_is_due_it_is_read_like_others_and_what_was_cancelled_is_not(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            await publish(broker, "late", delay="1m")
            await publish(broker, "never", delay="1m")
            await broker.call("cancel_delayed", topic="orders", partition=0, offset=1)
            assert texts(await read(broker)) == []
            broker.clock.now += 61_000
            partition = broker.broker.topics.named("orders").partition(0)
            partition.deliveries.fire(wall=broker.clock(), now=10**15, limit=10)
            assert texts(await read(broker)) == ["late"]
            assert texts(await read(broker, include="delayed")) == ["late", "never"], "the log still has it"

    run(go())


def test_what_is_cancelled_while_a_read_waits_for_its_turn_is_not_read(tmp_path: Path) -> None:
    """It was pending before the turn and cancelled after it: hidden both times."""

    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            await publish(broker, "never", delay="1h")
            large = "x" * (limits.READ_AT_ONCE_BYTES // 2)
            await publish(broker, large)
            async with broker.service.turns.turn():
                reading = asyncio.ensure_future(read(broker))
                await turns()
                await broker.call("cancel_delayed", topic="orders", partition=0, offset=0)
                assert not reading.done(), "it waits for its turn"
            assert texts(await reading) == [large]

    run(go())


def test_what_is_cleaned_while_a_read_waits_for_its_turn_is_not_read(tmp_path: Path) -> None:
    """Of what is cleaned nobody knows any more whether it was aborted."""

    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            await publish(broker, "x" * limits.READ_AT_ONCE_BYTES)
            log = broker.broker.topics.named("orders").partition(0).log
            log.roll()
            log.sync()
            async with broker.service.turns.turn():
                reading = asyncio.ensure_future(read(broker))
                await turns()
                log.settings = LogSettings(retention_ms=1)
                clean(log, broker.clock.now + 10**9)
                assert log.start_offset == 1
            assert texts(await reading) == []

    run(go())


def test_a_page_is_filled_behind_what_is_hidden_and_reading_on_finds_the_rest(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            for number in range(30):
                await publish(broker, str(number), **({"delay": "1m"} if number % 3 else {}))
            found, offset, pages = [], 0, 0
            while True:
                page = await read(broker, offset=offset, limit=4)
                found += texts(page)
                pages += 1
                if page["next_offset"] == offset:
                    break
                offset = page["next_offset"]
            assert found == [str(number) for number in range(0, 30, 3)]
            assert pages <= 5, "pages are not short because something is hidden"

    run(go())


def test_a_partition_of_which_all_is_hidden_hides_nothing_of_the_others(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            for number in range(50):
                await publish(broker, f"late{number}", delay="1m", partition=0)
                await publish(broker, f"m{number}", partition=1)
                broker.clock.now += 1
            await publish(broker, "last", partition=0)
            seen: list[str] = []
            offsets = {"0": 0, "1": 0}
            page = await broker.call("read_topic", topic="orders", limit=1000)
            seen += texts(page)
            offsets = page["next_offsets"]
            assert sorted(seen) == sorted([*(f"m{number}" for number in range(50)), "last"])
            assert offsets == {"0": 51, "1": 50}

    run(go())


def test_no_page_is_later_than_what_is_behind_hidden_messages(tmp_path: Path) -> None:
    """A partition whose share of bytes is used up by what is hidden was not read to its end."""

    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            await publish(broker, "late", delay="1h")
            broker.clock.now += 1000
            await publish(broker, "first")
            broker.clock.now += 1000
            await publish(broker, "second", partition=1)
            page = await broker.call("read_topic", topic="orders", max_bytes=1)
            assert (texts(page), page["next_offsets"]) == ([], {"0": 1, "1": 0})
            assert texts(await read(broker, offset=1, max_bytes=1)) == ["first"]
            page = await broker.call("read_topic", topic="orders")
            assert (texts(page), page["next_offsets"]) == (["first", "second"], {"0": 2, "1": 1})

    run(go())


hidden = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 300), st.integers(0, 2), st.booleans()), min_size=1, max_size=30
)


@given(hidden, st.integers(1, 12), st.integers(1, 1500))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_hidden_leaves_nothing_out_in_between(
    tmp_path: Path, published: list[tuple[int, int, int, bool]], limit: int, max_bytes: int
) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=3)
            for number, (partition, size, later, is_hidden) in enumerate(published):
                broker.clock.now += later
                delay = {"delay": "1h"} if is_hidden else {}
                await publish(broker, f"{number}:" + "v" * size, partition=partition, **delay)
            everything = (await broker.call("read_topic", topic="orders", limit=1000))["messages"]
            page = await broker.call("read_topic", topic="orders", limit=limit, max_bytes=max_bytes)
            found = page["messages"]
            assert found == everything[: len(found)]
            assert any(page["next_offsets"].values()), "there is something to go on with"
            for message in everything[len(found) :]:
                assert page["next_offsets"][str(message["partition"])] <= message["offset"], "it is still to come"
            await broker.call("delete_topic", topic="orders")

    run(go())


def test_a_page_may_be_in_the_order_of_the_lanes(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=2)
            for number, lane in enumerate(("low", "critical", "normal", "critical", "background", "high")):
                await publish(broker, f"{lane}{number}", priority=lane, partition=0)
                await publish(broker, f"{lane}{number}x", priority=lane, partition=1)
                broker.clock.now += 1
            wanted = ["critical1", "critical3", "high5", "normal2", "low0", "background4"]
            assert texts(await read(broker, order="priority")) == wanted
            page = await read(broker, order="priority", limit=3)
            assert (texts(page), page["next_offset"]) == (["critical1", "normal2", "low0"], 3), "of each page, by lane"
            both = texts(await broker.call("read_topic", topic="orders", order="priority"))
            assert both == [name for one in wanted for name in (one, f"{one}x")]
            assert texts(await read(broker, order="offset"))[0] == "low0"

    run(go())


# --- pages of much


def test_a_page_is_the_same_however_little_is_translated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            fill(broker, 200)
            for fields in ({}, {"limit": 150}, {"limit": 1000, "max_bytes": 3000}, {"offset": 7, "limit": 90}):
                whole = await read(broker, **fields)
                with monkeypatch.context() as patch:
                    patch.setattr(limits, "READ_AT_ONCE_BYTES", 200)
                    patch.setattr(limits, "TURN_S", -1.0)
                    assert await read(broker, **fields) == whole

    run(go())


def test_a_page_ends_where_its_messages_have_very_many_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_READ_HEADERS", 1000)
    monkeypatch.setattr(limits, "READ_AT_ONCE_BYTES", 2500)

    async def go() -> None:
        async with served(tmp_path) as broker:
            await broker.call("create_topic", name="orders", num_partitions=1)
            for number in range(10):  # as a log may have them that was written before headers were bounded
                put(broker, Record(value=str(number).encode(), headers=tuple([("h", b"v")] * 400)))
            page = await read(broker)
            assert (texts(page), page["next_offset"]) == (["0", "1", "2"], 3)
            found = texts(page)
            while page["messages"]:
                page = await read(broker, offset=page["next_offset"])
                found += texts(page)
            assert found == [str(number) for number in range(10)]

    run(go())
