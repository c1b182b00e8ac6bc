"""Messages published by the column: the same as one by one."""

import asyncio
import struct
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue import AsyncClient
from goqueue.client.outgoing import OutgoingColumns
from goqueue.client.routes import Route
from goqueue.codec.layout import Pieces
from goqueue.model.errors import InvalidRecord, InvalidRequest, TransactionAborted, UnknownTopic
from goqueue.model.limits import MAX_KEY_BYTES
from goqueue.model.record import Lane
from goqueue.server.embedded import EmbeddedBroker


def pieces(values: Sequence[bytes]) -> Pieces:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    return Pieces(None, struct.pack(f"={len(ends)}i", *ends), b"".join(values))


def columns(values: Sequence[bytes], keys: Sequence[bytes] | None = None, partition: int = -1) -> OutgoingColumns:
    return OutgoingColumns(
        len(values),
        keys=None if keys is None else pieces(keys),
        values=pieces(values),
        headers=None,
        lanes=bytes([Lane.NORMAL]) * len(values),
        fields={},
        partitions=(array("i", [partition]) * len(values)).tobytes(),
    )


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[AsyncClient]:
    with EmbeddedBroker(str(path)) as broker:
        async with AsyncClient(broker.endpoints["wire"]) as client:
            await client.create_topic("rows", partitions=4)
            yield client


async def found(client: AsyncClient, **reading: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    async with client.reader("rows", **reading) as reader:
        return [(message.partition, message.key, message.value) async for message in reader]


def test_rows_go_where_single_messages_would(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(tmp_path) as client:
            values = [str(number).encode() for number in range(1000)]
            keys = [f"key-{number % 37}".encode() for number in range(1000)]
            async with client.producer() as producer:
                await producer.enqueue_columns("rows", columns(values, keys))
            by_column = await found(client)
            await client.delete_topic("rows")
            await client.create_topic("rows", partitions=4)
            async with client.producer() as producer:
                for key, value in zip(keys, values, strict=True):
                    producer.enqueue("rows", value, key=key)
            assert sorted(by_column) == sorted(await found(client))
            for partition in range(4):
                own = [int(value or b"") for at, _, value in by_column if at == partition]
                assert own == sorted(own)

    asyncio.run(go())


def test_what_does_not_fit_the_buffer_waits_for_room(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            connected(tmp_path) as client,
            client.producer(buffer_bytes=1 << 20, batch_bytes=64 << 10) as producer,
        ):
            for _ in range(8):
                await producer.enqueue_columns("rows", columns([bytes(1000)] * 1000, [b"k"] * 1000))
            await producer.flush()
            assert len(await found(client)) == 8000

    asyncio.run(go())


def test_columns_do_not_overtake_sends_that_wait_for_room(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            connected(tmp_path) as client,
            client.producer(buffer_bytes=64 << 10, batch_bytes=32 << 10) as producer,
        ):
            large = [str(number).encode().ljust(20_000) for number in range(20)]
            sends = [asyncio.create_task(producer.send("rows", value, partition=0)) for value in large]
            await asyncio.sleep(0)
            await producer.enqueue_columns("rows", columns([b"last"], partition=0))
            await asyncio.gather(*sends)
            await producer.flush()
            assert [value for _, _, value in await found(client)] == [*large, b"last"]

    asyncio.run(go())


def test_memory_of_columns_is_not_kept_for_later(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(tmp_path) as client, client.producer() as producer:
            for number in range(1, 10):
                await producer.enqueue_columns("rows", columns([bytes(1000 * number)], partition=0))
                await producer.flush()
            buffers = producer.sender.accumulator.buffers
            assert (buffers.held, buffers._idle_bytes) == (0, 0)

    asyncio.run(go())


def test_without_keys_batches_take_turns(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(tmp_path) as client, client.producer() as producer:
            for _ in range(4):
                await producer.enqueue_columns("rows", columns([b"x"] * 10))
            await producer.flush()
            assert (
                sorted(partition for partition, _, _ in await found(client))
                == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10
            )

    asyncio.run(go())


def test_in_a_transaction_they_count_as_one(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(tmp_path) as client, client.producer() as producer:
            async with producer.transaction() as transaction:
                await producer.enqueue_columns("rows", columns([b"given up"] * 10))
                await producer.flush()
                await transaction.abort()
            async with producer.transaction():
                await producer.enqueue_columns("rows", columns([b"kept"] * 10))
                await producer.flush()
                assert await found(client) == []
            assert {value for _, _, value in await found(client)} == {b"kept"}
            assert len(await found(client, isolation="read_uncommitted")) == 20

    asyncio.run(go())


def test_what_waits_when_its_transaction_ends_is_not_in_the_next(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(tmp_path) as client, client.producer() as producer:
            known = asyncio.Event()
            async with producer.transaction() as first:
                outlet = producer.outlet
                find = outlet.find

                async def find_slowly(topic: str) -> Route:
                    await known.wait()
                    return await find(topic)

                outlet.find = find_slowly  # type: ignore[method-assign]
                waiting = [
                    asyncio.create_task(producer.enqueue_columns("rows", columns([b"given up"]))),
                    asyncio.create_task(producer.send("rows", b"given up as well")),
                ]
                await asyncio.sleep(0)
                await first.abort()
            async with producer.transaction():
                known.set()
                ended = await asyncio.gather(*waiting, return_exceptions=True)
                assert [type(each) for each in ended] == [TransactionAborted] * 2
                await producer.send("rows", b"of the next")
            assert [value for _, _, value in await found(client)] == [b"of the next"]

    asyncio.run(go())


def test_rows_that_are_no_messages_are_refused_all_together(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(tmp_path) as client, client.producer() as producer:
            with pytest.raises(InvalidRecord) as refused:
                await producer.enqueue_columns(
                    "rows", columns([b"a", b"b", b"c"], [b"", b"", bytes(MAX_KEY_BYTES + 1)])
                )
            assert refused.value.index == 2
            with pytest.raises(InvalidRecord, match="partition"):
                await producer.enqueue_columns("rows", columns([b"a"], partition=4))
            with pytest.raises(UnknownTopic):
                await producer.enqueue_columns("nowhere", columns([b"a"]))
            await producer.flush()
            assert await found(client) == []
            async with client.producer(acks="none") as careless:
                with pytest.raises(InvalidRequest, match="use leader or all"):
                    await careless.enqueue_columns("rows", columns([b"a"]))

    asyncio.run(go())
