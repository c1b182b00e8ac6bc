"""Reading without a group, from a real broker inside this process: where it begins and ends, what it leaves out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue.client import reader as reader_module
from goqueue.client.client import AsyncClient
from goqueue.client.connection import Connection
from goqueue.client.messages import Message
from goqueue.client.reader import AsyncReader
from goqueue.io.clock import wall_ms
from goqueue.model.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    Quarantined,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from goqueue.server.server import Server
from tests.support.broker_server import running_server
from tests.support.loop import run, turns
from tests.support.patience import PATIENCE_S


class Stage:
    """A broker, and a client of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = AsyncClient(server.endpoints["wire"], request_timeout=PATIENCE_S)

    async def publish(self, *values: str, partition: int = 0, **options: Any) -> None:
        async with self.client.producer() as producer:
            await asyncio.gather(*(producer.send("orders", value, partition=partition, **options) for value in values))

    async def fill(self, first: int, end: int, **options: Any) -> None:
        """Large messages, each in a block of its own: four of them are a segment."""
        for number in range(first, end):
            await self.publish(str(number).ljust(1000, "."), **options)

    async def clean(self) -> None:
        """What housekeeping does every half minute, once everything written is sealed."""
        for partition in self.server.broker.topics.named("orders").partitions:
            await asyncio.to_thread(partition.log.sync)
        await self.server.broker._housekeeping.clean()

    def reader(self, **options: Any) -> AsyncReader:
        return self.client.reader("orders", **options)


@asynccontextmanager
async def staged(data_dir: Path, *, partitions: int = 1, **settings: Any) -> AsyncIterator[Stage]:
    async with running_server(data_dir) as server:
        stage = Stage(server)
        await stage.client.create_topic("orders", partitions=partitions, **settings)
        try:
            yield stage
        finally:
            await stage.client.close()


async def read_all(reader: AsyncReader) -> dict[int, list[str]]:
    """Of each partition in the order they came in."""
    found: dict[int, list[str]] = {}
    async with reader:
        async for message in reader:
            found.setdefault(message.partition, []).append(text(message))
    return found


def text(message: Message) -> str:
    assert message.value is not None
    return message.value.decode().rstrip(".")


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


class Fetches:
    """Every fetch_block that was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        self.answered = 0
        real = Connection.fetch_block

        async def fetch_block(this: Connection, topic_id: int, partition: int, offset: int, **options: Any) -> Any:
            self.asked.append((partition, offset))
            fetched = await real(this, topic_id, partition, offset, **options)
            self.answered += 1
            return fetched

        monkeypatch.setattr(Connection, "fetch_block", fetch_block)


# --- from where to where


def test_all_partitions_are_read_each_in_order(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=3) as stage:
            for partition in range(3):
                await stage.publish(*numbers(0, 300), partition=partition)
            everything = dict.fromkeys(range(3), numbers(0, 300))
            assert await read_all(stage.reader()) == everything
            assert await read_all(stage.reader(fetch_bytes=1000)) == everything
            assert await read_all(stage.reader(partitions=[2, 0, 2], fetch_bytes=1)) == {
                0: numbers(0, 300),
                2: numbers(0, 300),
            }
            assert await read_all(stage.reader(partitions=[])) == {}

    run(go())


def test_a_reader_begins_at_an_offset(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            await stage.publish(*numbers(0, 10), partition=0)
            await stage.publish(*numbers(0, 3), partition=1)
            assert await read_all(stage.reader(from_offset=7)) == {0: ["7", "8", "9"]}
            assert await read_all(stage.reader(from_offset=0)) == {0: numbers(0, 10), 1: numbers(0, 3)}
            assert await read_all(stage.reader(from_offset=10)) == {}

    run(go())


@pytest.mark.parametrize("follow", [False, True])
def test_an_offset_past_every_end_is_refused(tmp_path: Path, follow: bool) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            await stage.publish(*numbers(0, 3), partition=0)
            await stage.publish(*numbers(0, 10), partition=1)
            for options in ({}, {"partitions": [1]}):
                reader = stage.reader(from_offset=11, follow=follow, **options)
                with pytest.raises(OffsetOutOfRange, match=r"offset 11 is outside orders-1, which holds 0 up to 10"):
                    await anext(reader)
            with pytest.raises(OffsetOutOfRange) as caught:
                await stage.reader(from_offset=4, partitions=[0], follow=follow).__aenter__()
            assert (caught.value.start, caught.value.end) == (0, 3)
            assert await read_all(stage.reader(from_offset=11, partitions=[])) == {}
            async with stage.reader(from_offset=10, partitions=[1], follow=follow) as reader:
                assert await reader.positions() == {1: 10}

    run(go())


def test_a_reader_goes_from_a_time_up_to_a_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            for number in range(6):
                await stage.publish(str(number))
                now = wall_ms()
                while wall_ms() == now:
                    await asyncio.sleep(0)
            async with stage.reader() as reader:
                times = [message.timestamp async for message in reader]
            assert len({*times}) == 6
            assert await read_all(stage.reader(from_time=times[2])) == {0: ["2", "3", "4", "5"]}
            assert await read_all(stage.reader(to_time=times[2])) == {0: ["0", "1"]}
            assert await read_all(stage.reader(from_time=times[1], to_time=times[4])) == {0: ["1", "2", "3"]}
            assert await read_all(stage.reader(from_offset=1, to_time=times[4])) == {0: ["1", "2", "3"]}
            assert await read_all(stage.reader(from_time=times[4], to_time=times[1])) == {}
            assert await read_all(stage.reader(from_time=times[5] + 1)) == {}
            assert await read_all(stage.reader(to_time=times[5] + 60_000)) == {0: numbers(0, 6)}
            with pytest.raises(InvalidRequest, match="not both"):
                stage.reader(from_offset=1, from_time=1)
            with pytest.raises(InvalidRequest, match="no end"):
                stage.reader(to_time=1, follow=True)
            with pytest.raises(InvalidRequest):
                stage.reader(fetch_bytes=0)

    run(go())


def test_it_ends_where_the_topic_ended_when_it_began(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            await stage.publish(*numbers(0, 5))
            async with stage.reader() as reader:
                await stage.publish(*numbers(5, 9))
                await stage.publish("late", partition=1)
                assert [text(message) async for message in reader] == numbers(0, 5)
                assert await reader.read() is None
                assert [message async for message in reader] == []

    run(go())


def test_an_empty_topic_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        fetches = Fetches(monkeypatch)
        async with staged(tmp_path, partitions=2) as stage:
            assert await read_all(stage.reader()) == {}
            async with stage.reader() as reader:
                assert await reader.read() is None
                assert await reader.positions() == {0: 0, 1: 0}
            assert fetches.asked == []

    run(go())


def test_who_follows_gets_what_comes(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            await stage.publish("0")
            async with stage.reader(follow=True) as reader:
                assert text(await anext(reader)) == "0"
                assert await reader.read(timeout=0) is None
                for number in range(1, 20):
                    waiting = asyncio.ensure_future(anext(reader))
                    await turns()
                    assert not waiting.done()
                    await stage.publish(str(number), partition=number % 2)
                    assert text(await waiting) == str(number)
                await stage.client.add_partitions("orders", 3)
                await stage.publish("unseen", partition=2)
                await stage.publish("seen")
                assert text(await anext(reader)) == "seen"

    run(go())


def test_who_follows_and_seeks_beyond_the_end_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_WAIT_MS", 1)

    async def go() -> None:
        fetches = Fetches(monkeypatch)
        async with staged(tmp_path) as stage, stage.reader(follow=True) as reader:
            await reader.seek(0, 3)
            waiting = asyncio.ensure_future(anext(reader))
            for number in range(4):
                asked = len(fetches.asked)
                while len(fetches.asked) == asked:
                    await asyncio.sleep(0)
                await stage.publish(str(number))
            assert text(await waiting) == "3"

    run(go())


def test_delayed_messages_are_read_before_they_are_due(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("late", delay=3600)
            await stage.publish("now")
            async with stage.reader() as reader:
                late, now = [message async for message in reader]
            assert late.deliver_at == late.timestamp + 3_600_000
            assert now.deliver_at is None

    run(go())


# --- what is not there


def test_what_retention_took_is_passed_over(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, segment_bytes=4096, retention_bytes=8192) as stage:
            await stage.fill(0, 12)
            async with stage.reader(fetch_bytes=1) as reader, stage.reader() as behind:
                assert text(await anext(reader)) == "0"
                await stage.fill(12, 40)
                await stage.clean()
                start = (await stage.client.describe_topic("orders")).partition_offsets["0"].earliest
                assert start > 12
                rest = [text(message) async for message in reader]
                assert rest in ([], ["1"])  # it had asked for that one before
                assert [message async for message in behind] == []
            assert await read_all(stage.reader()) == {0: numbers(start, 40)}
            assert await read_all(stage.reader(from_offset=0)) == {0: numbers(start, 40)}
            async with stage.reader() as reader:
                await reader.seek(0, 3)
                assert [text(message) async for message in reader] == numbers(start, 40)

    run(go())


def test_what_compaction_took_is_passed_over(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, segment_bytes=4096, cleanup_policy="compact") as stage:
            await stage.publish("first", key="once")
            await stage.fill(0, 40, key="often")
            await stage.clean()
            async with stage.reader() as reader:
                kept = [message.offset async for message in reader]
                assert await reader.positions() == {0: 41}
            assert (kept[0], kept[-1]) == (0, 40)
            assert len(kept) < 10
            for offset in (1, kept[1], kept[1] + 1, 20):
                async with stage.reader(from_offset=offset, fetch_bytes=1) as reader:
                    assert [message.offset async for message in reader] == [each for each in kept if each >= offset]
            async with stage.reader(follow=True, from_offset=1) as reader:
                assert (await anext(reader)).offset == kept[1]

    run(go())


def damage(path: Path, partition: int = 0) -> int:
    """A bit of a message is another one on the disk; its offset."""
    second = sorted(path.glob(f"**/{partition}/*.log"))[1]
    data = bytearray(second.read_bytes())
    data[500] ^= 1
    second.write_bytes(data)
    return int(second.stem)


def test_what_is_damaged_is_named_in_its_place_and_passed_over_only_by_who_seeks_behind_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, segment_bytes=4096) as stage:
            await stage.fill(0, 20)
            damaged = damage(tmp_path)
            async with stage.reader() as reader:
                before = [text(await anext(reader)) for _ in range(damaged)]
                for _ in range(2):
                    with pytest.raises(Quarantined, match=rf"offset {damaged} is damaged .*orders-0.* on at") as found:
                        await anext(reader)
                    assert (found.value.topic, found.value.partition) == ("orders", 0)
                    assert (found.value.first, found.value.next_offset) == (damaged, damaged + 1)
                assert await reader.positions() == {0: damaged}
                await reader.seek(0, found.value.next_offset)
                after = [text(message) async for message in reader]
                assert before + after == [each for each in numbers(0, 20) if each != str(damaged)]
                assert reader.skipped == 0
            async with stage.reader(follow=True, from_offset=damaged) as reader:
                with pytest.raises(Quarantined):
                    await reader.read()

    run(go())


def test_who_asks_for_it_goes_on_behind_what_is_damaged_and_is_told_how_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with staged(tmp_path, segment_bytes=4096) as stage:
            await stage.fill(0, 20)
            damaged = damage(tmp_path)
            expected = numbers(0, 20)
            expected.remove(str(damaged))
            for offset in (0, damaged):
                caplog.clear()
                async with stage.reader(on_damage="skip", from_offset=offset) as reader:
                    assert [text(message) async for message in reader] == expected[offset:]
                    assert reader.skipped == 1
                said = [each.getMessage() for each in caplog.records if each.name == "goqueue.client"]
                assert [f"messages of orders-0 are damaged, at offset {damaged} (" in each for each in said] == [True]

    run(go())


def test_the_other_partitions_are_read_to_their_end_beside_a_damaged_one(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2, segment_bytes=4096) as stage:
            await stage.fill(0, 20)
            await stage.publish(*numbers(0, 5), partition=1)
            damaged = damage(tmp_path)
            got: list[tuple[int, str]] = []
            async with stage.reader() as reader:
                while len(got) < damaged + 5:
                    try:
                        async for message in reader:
                            got.append((message.partition, text(message)))
                    except Quarantined:
                        continue
            assert len([each for each in got if each[0] == 1]) == 5

    run(go())


# --- batches, places, turns


def test_batches_are_of_one_partition_and_mix_with_single_messages(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            await stage.publish(*numbers(0, 10))
            await stage.publish(*numbers(0, 4), partition=1)
            async with stage.reader(partitions=[0]) as reader:
                assert [text(await anext(reader)) for _ in range(3)] == ["0", "1", "2"]
                batch = await reader.read()
                assert batch is not None
                assert (batch.values(), batch.next_offset) == ([b"%d" % number for number in range(3, 10)], 10)
                assert (batch.topic, batch.partition, len(batch)) == ("orders", 0, 7)
                assert await reader.read(timeout=0) is None
            async with stage.reader() as reader:
                got = [batch async for batch in _batches(reader)]
                assert sorted((batch.partition, len(batch)) for batch in got) == [(0, 10), (1, 4)]
            async with stage.reader() as reader:
                await anext(reader)
                while not all(each.under_way is None or each.under_way.done() for each in reader._turns):
                    await asyncio.sleep(0)
                assert await reader.read(timeout=0) is not None  # the rest
                assert await reader.read(timeout=0) is not None  # what is there already
                assert await reader.read(timeout=0) is None

    run(go())


async def _batches(reader: AsyncReader) -> AsyncIterator[Any]:
    while (batch := await reader.read()) is not None:
        yield batch


def test_a_reader_can_be_moved(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=2) as stage:
            for partition in range(2):
                await stage.publish(*numbers(0, 10), partition=partition)
            async with stage.reader() as reader:
                await reader.seek(0, 8)
                assert await reader.positions() == {0: 8, 1: 0}
                first = await anext(reader)
                assert await reader.positions() == {0: 8, 1: 0, first.partition: first.offset + 1}
                await reader.seek(1, 9)
                rest = [(each.partition, each.offset) async for each in reader]
                got = [(0, 8)] * (first.partition == 0) + rest
                assert sorted(got) == [(0, 8), (0, 9), (1, 9)]
                assert await reader.positions() == {0: 10, 1: 10}
                await reader.seek(1, 7)
                assert [text(each) async for each in reader] == ["7", "8", "9"]
                await reader.seek(1, 50)
                assert [each async for each in reader] == []
                with pytest.raises(UnknownPartition):
                    await reader.seek(2, 0)
                with pytest.raises(InvalidRequest):
                    await reader.seek(0, -1)
            async with stage.reader(follow=True, from_offset=10) as reader:
                waiting = asyncio.ensure_future(anext(reader))
                await turns()
                await reader.seek(1, 4)
                assert text(await waiting) == "4"

    run(go())


def test_one_that_is_not_read_from_has_one_reply_of_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        fetches = Fetches(monkeypatch)
        async with staged(tmp_path, partitions=2) as stage:
            for partition in range(2):
                await stage.publish(*numbers(0, 100), partition=partition)
            async with stage.reader(fetch_bytes=200) as reader:
                await turns(100)
                assert fetches.asked == []
                await anext(reader)
                while fetches.answered < 3:
                    await asyncio.sleep(0)
                await turns(100)
                assert len(fetches.asked) == 3  # one is handed out, one of each is there
                assert len([message async for message in reader]) == 199

    run(go())


# --- ending


def test_closing_wakes_who_waits(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            reader = stage.reader(follow=True)
            waiting = asyncio.ensure_future(anext(reader))
            await reader.positions()
            await turns()
            await asyncio.gather(reader.close(), reader.close())
            with pytest.raises(Unavailable, match="closed"):
                await waiting
            with pytest.raises(Unavailable, match="closed"):
                await reader.read()

    run(go())


def test_who_gives_up_waiting_loses_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.reader(follow=True) as reader:
            for work in (reader.read(), anext(reader)):
                waiting = asyncio.ensure_future(work)
                await turns()
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            assert await reader.read(timeout=0.001) is None
            await stage.publish("a", "b")
            assert [text(await anext(reader)) for _ in range(2)] == ["a", "b"]

    run(go())


def test_what_is_not_there_is_told_and_nothing_is_left_open(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            nowhere = stage.client.reader("nope")
            with pytest.raises(UnknownTopic):
                await nowhere.__aenter__()
            with pytest.raises(Unavailable, match="closed"):
                await nowhere._link.get()
            with pytest.raises(UnknownPartition, match="has no partition 3"):
                await stage.reader(partitions=[0, 3]).__aenter__()
            await stage.publish("a")
            async with stage.reader(follow=True) as reader:
                assert text(await anext(reader)) == "a"
                await stage.client.delete_topic("orders")
                with pytest.raises(UnknownTopic):
                    await anext(reader)

    run(go())


def test_a_reader_goes_on_when_the_broker_was_away(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.publish("a", "b")
            address = stage.server.endpoints["wire"]
            client = AsyncClient(address)
            reader = await client.reader("orders", follow=True).__aenter__()
            assert text(await anext(reader)) == "a"
        async with running_server(tmp_path, wire=address) as server:
            stage = Stage(server)
            assert text(await anext(reader)) == "b"
            await stage.publish("c")
            assert text(await anext(reader)) == "c"
            await client.close()
            assert reader.closed
            await stage.client.close()

    run(go())
