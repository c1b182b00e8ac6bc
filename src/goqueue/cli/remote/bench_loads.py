"""What `goqueue-cli bench` does to a broker: four loads, each telling a gauge what it has done.

A load that needs a group asks for its name right before it joins: whoever runs the load removes the group afterwards.
What a load has begun has ended when it ends, also when it is cancelled.
"""

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from goqueue import AsyncClient
from goqueue.cli.remote.bench_gauge import Gauge
from goqueue.client.consumer import AsyncBatch, AsyncConsumer
from goqueue.client.producer import AsyncProducer
from goqueue.model import limits
from goqueue.model.errors import BufferFull, RequestTimeout

_SAMPLES: Final = 2000
"""Messages of a run for throughput whose latency is measured."""
_OVERHEAD: Final = 64
"""What a message takes beside its value, about."""
_PATIENCE_S: Final = 30.0
_STAMP: Final = struct.Struct("<d")


NewGroup = Callable[[], str]
"""Gives the name of a group that is removed afterwards."""


class Load(NamedTuple):
    messages: int
    size: int
    batch: int
    in_flight: int
    partitions: int
    keys: int
    acks: str
    rate: float


def _keys(load: Load) -> Iterator[bytes | None]:
    names: list[bytes | None] = [f"key-{number}".encode() for number in range(load.keys)] or [None]
    while True:
        yield from names


def _producer(client: AsyncClient, load: Load, gauge: Gauge | None) -> AsyncProducer:
    room = max(load.in_flight * (load.size + _OVERHEAD), limits.MIB)
    told = None if gauge is None else lambda outcome: gauge.add(0 if outcome.error else outcome.messages)
    return client.producer(acks=load.acks, batch_messages=load.batch, buffer_bytes=room, on_batch=told)


async def produce(client: AsyncClient, topic: str, _: NewGroup, load: Load, gauge: Gauge) -> None:
    gauge.begin()
    await _fill(client, topic, load, gauge)
    gauge.end()


async def _fill(client: AsyncClient, topic: str, load: Load, gauge: Gauge | None) -> None:
    value, keys = os.urandom(load.size), _keys(load)
    every = max(load.messages // _SAMPLES, 1)
    samples: set[asyncio.Task[None]] = set()
    async with _producer(client, load, gauge) as producer:
        try:
            for number in range(load.messages):
                key = next(keys)
                if gauge is not None and not number % every:
                    samples.add(asyncio.create_task(_timed(producer, topic, value, key, gauge)))
                    await asyncio.sleep(0)
                    continue
                await _enqueue(producer, topic, value, key)
            await asyncio.gather(*samples)
        finally:
            await _end(*samples)


async def _end(*tasks: asyncio.Task[None]) -> None:
    """Cancel what is not done, and retrieve what became of each: asyncio would print every error nobody asked for."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _enqueue(producer: AsyncProducer, topic: str, value: bytes, key: bytes | None) -> None:
    while True:
        try:
            producer.enqueue(topic, value, key=key)
            return
        except BufferFull:
            await producer.room()


async def _timed(producer: AsyncProducer, topic: str, value: bytes, key: bytes | None, gauge: Gauge) -> None:
    begun = time.perf_counter()
    await producer.send(topic, value, key=key)
    gauge.took(time.perf_counter() - begun)


async def consume(client: AsyncClient, topic: str, new_group: NewGroup, load: Load, gauge: Gauge) -> None:
    await _fill(client, topic, load, None)
    held = min(load.in_flight, limits.MAX_UNACKED)
    gauge.begin()
    async with client.consumer(new_group(), [topic], max_unacked=held, prefetch=min(held, 10_000)) as consumer:
        taken = 0
        while taken < load.messages:
            begun = time.perf_counter()
            batch = await _poll(consumer, taken, load)
            gauge.took(time.perf_counter() - begun)
            taken += len(batch.values())
            gauge.add(len(batch))
            await batch.ack()
        await consumer.flush()
        gauge.end()


async def _poll(consumer: AsyncConsumer, taken: int, load: Load) -> AsyncBatch:
    batch = await consumer.poll(load.batch, timeout=_PATIENCE_S)
    if not len(batch):
        raise RequestTimeout(f"nothing came for {_PATIENCE_S:g} s after {taken} of {load.messages} messages")
    return batch


async def latency(client: AsyncClient, topic: str, _: NewGroup, load: Load, gauge: Gauge) -> None:
    value, keys, left = os.urandom(load.size), _keys(load), iter(range(load.messages))

    async def send_some(producer: AsyncProducer) -> None:
        for _number in left:
            await _timed(producer, topic, value, next(keys), gauge)
            gauge.add(1)

    async with _producer(client, load, None) as producer:
        await producer.send(topic, value)  # what only the first message costs
        gauge.begin()
        await asyncio.gather(*(send_some(producer) for _ in range(min(load.in_flight, load.messages))))
        gauge.end()


async def end_to_end(client: AsyncClient, topic: str, new_group: NewGroup, load: Load, gauge: Gauge) -> None:
    held = min(load.in_flight, limits.MAX_UNACKED)
    async with client.consumer(new_group(), [topic], start="latest", max_unacked=held) as consumer:
        async with asyncio.timeout(_PATIENCE_S):
            while not consumer.assigned:
                await asyncio.sleep(0.01)
        gauge.begin()
        sending = asyncio.create_task(_send_stamped(client, topic, load))
        try:
            taken = 0
            while taken < load.messages:
                batch = await _poll(consumer, taken, load)
                now = time.perf_counter()
                for message in batch:
                    gauge.took(now - _STAMP.unpack_from(message.value or b"")[0])
                taken += len(batch)
                gauge.add(len(batch))
                await batch.ack()
            gauge.end()
            await sending
        finally:
            await _end(sending)


async def _send_stamped(client: AsyncClient, topic: str, load: Load) -> None:
    rest, keys = os.urandom(load.size - _STAMP.size), _keys(load)
    async with _producer(client, load, None) as producer:
        begun = time.perf_counter()
        for number in range(load.messages):
            if load.rate:
                early = begun + number / load.rate - time.perf_counter()
                if early > 0:
                    await asyncio.sleep(early)
            elif not number % 1000:
                await asyncio.sleep(0)
            await _enqueue(producer, topic, _STAMP.pack(time.perf_counter()) + rest, next(keys))


LOADS: Final[dict[str, Callable[[AsyncClient, str, NewGroup, Load, Gauge], Awaitable[None]]]] = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "end-to-end": end_to_end,
}
