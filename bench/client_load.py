"""The load through the public client: `python -m bench.client_load`, a process that does one job per line it is given.

What users write is what runs here: `enqueue`, `send`, `poll`, `async for`, `reader`. Keys and values are built before
the clock starts. Every job counts what it did and refuses to be a figure if something is missing, came twice or was
refused; a server is told by its address alone. Jobs for the client without a loop are in `bench.client_sync`.
"""

import asyncio
import json
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from os import urandom
from typing import Any, Final, TypeVar

import msgspec
import uvloop

from bench.blocks import KEYS, VALUE_BYTES
from bench.callers import Refused
from bench.client_pace import keep_pace
from bench.processes import Child
from bench.timing import quantile
from goqueue import AsyncClient, BufferFull, Outcome, Receipt
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.messages import ReadBatch
from goqueue.codec import murmur3
from goqueue.model.limits import DEFAULT_UNACKED, KIB

JOB_TIMEOUT_S: Final = 300.0
VALUES: Final = 9_973
"""A prime: keys and values meet in ever new pairs."""
BATCH: Final = 500
"""Messages of one poll."""
DEFAULT_PREFETCH: Final = 500
DEFAULT_BATCH_MESSAGES: Final = 10_000
DEFAULT_BATCH_BYTES: Final = 256 * KIB
STAMP_BYTES: Final = 8
"""In front of a value: when its message was to be published, by the clock that all processes share."""
READY: Final = b"ready"
IDLE_TIMEOUT_S: Final = 30.0
"""How long a consumer waits for what must come."""
_PER_S: Final = 1000
"""Ticks of a second."""

T = TypeVar("T")


class Enqueue(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Messages with keys into a topic that is empty, acks leader, until the last has its answer."""

    address: str
    topic: str
    messages: int
    batch_messages: int = DEFAULT_BATCH_MESSAGES
    batch_bytes: int = DEFAULT_BATCH_BYTES
    sync: bool = False


class Send(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The same, each message awaited by one of `in_flight` tasks, or threads."""

    address: str
    topic: str
    messages: int
    in_flight: int
    sync: bool = False


class Pace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many messages a second, each stamped; latencies are those from the moment planned to the batch's answer."""

    address: str
    topic: str
    partitions: int
    per_s: int
    seconds: float
    warm_s: float
    held: int = 0
    """Messages that are in the topic and belong to open transactions."""

    @property
    def messages(self) -> int:
        return self.per_s // _PER_S * round(self.seconds * _PER_S)


class Read(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A topic of so many messages from its beginning to its end: values, or messages that are looked at."""

    address: str
    topic: str
    messages: int
    objects: bool = False
    sync: bool = False


class Consume(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A group's only member takes so many messages of `total` and acks them: batches, or one by one with `each`.

    With `wait` it goes on when the broker has the ack; otherwise acks are queued, and flushed at the end.
    """

    address: str
    topic: str
    group: str
    messages: int
    total: int
    each: bool = False
    wait: bool = False
    prefetch: int = DEFAULT_PREFETCH
    max_unacked: int = DEFAULT_UNACKED
    sync: bool = False


class Follow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Be there when stamped messages come, ack them; latencies are those from the stamp until they are handed out.

    It says `READY` when it has joined. Those of the first `warm_s` are not counted.
    """

    address: str
    topic: str
    group: str
    messages: int
    warm_s: float
    each: bool = False
    sync: bool = False


class Transact(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many transactions with so many messages each, by `writers` producers; latencies are those of whole ones."""

    address: str
    topic: str
    transactions: int
    messages_each: int
    writers: int


Job = Enqueue | Send | Pace | Read | Consume | Follow | Transact


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu_s` is what the client's process used meanwhile. Latencies are 0 where none were looked at."""

    seconds: float
    cpu_s: float
    messages: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    samples: int = 0

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class ClientLoad(Child):
    """The process, seen from the bench."""

    def __init__(self, directory: str, name: str = "client") -> None:
        super().__init__(["-m", "bench.client_load"], name=name, log=f"{directory}/{name}.log")

    def do(self, job: Job) -> Done:
        self.tell(msgspec.json.encode(job))
        return self.finish()

    def begin(self, job: Follow) -> None:
        """Return when it waits for messages; `finish` is to follow."""
        self.tell(msgspec.json.encode(job))
        said = self.hear(JOB_TIMEOUT_S)
        if said != READY:
            raise Refused(f"the {self.name} said {said!r}")

    def finish(self) -> Done:
        return msgspec.json.decode(self.hear(JOB_TIMEOUT_S), type=Done)


class Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._begun, self._cpu = time.perf_counter(), time.process_time()

    def done(self, messages: int, latencies_ms: Sequence[float] = ()) -> Done:
        seconds, cpu_s = time.perf_counter() - self._begun, time.process_time() - self._cpu
        if not latencies_ms:
            return Done(seconds=seconds, cpu_s=cpu_s, messages=messages)
        ordered = sorted(latencies_ms)
        return Done(
            seconds=seconds, cpu_s=cpu_s, messages=messages, samples=len(ordered),
            p50_ms=quantile(ordered, 0.5), p99_ms=quantile(ordered, 0.99),
        )  # fmt: skip


class Waits:
    """How long messages took from the moment they were planned for, in nanoseconds of the monotonic clock."""

    def __init__(self) -> None:
        self._planned = array("q")
        self._took = array("q")

    def see(self, planned: int, now: int) -> None:
        self._planned.append(planned)
        self._took.append(now - planned)

    def after(self, warm_s: float) -> list[float]:
        """Milliseconds of those that were planned so long after the first, or later."""
        begin = min(self._planned, default=0) + int(warm_s * 1e9)
        return [took / 1e6 for planned, took in zip(self._planned, self._took, strict=True) if planned >= begin]


class Ends:
    """Where the partitions of a topic end that was empty, by what answers say: every message once, or it is no figure.

    As many offsets as messages, beside those that were `held` before: none is missing, none was appended twice.
    """

    def __init__(self, held: int = 0) -> None:
        self._held = held
        self._ends: dict[int, int] = {}
        self._messages = 0
        self._troubles: list[str] = []

    def on_batch(self, outcome: Outcome) -> None:
        if outcome.error is not None or outcome.first_offset is None:
            self._troubles.append(f"{outcome.messages} messages: {outcome.error}")
            return
        self.add(outcome.partition, outcome.first_offset + outcome.messages, outcome.messages)

    def on_receipt(self, receipt: Receipt) -> None:
        if receipt.offset is None or receipt.duplicate:
            self._troubles.append(f"a receipt says {receipt}")
            return
        self.add(receipt.partition, receipt.offset + 1, 1)

    def add(self, partition: int, end: int, messages: int) -> None:
        self._messages += messages
        self._ends[partition] = max(self._ends.get(partition, 0), end)

    def check(self, messages: int) -> None:
        appended = sum(self._ends.values()) - self._held
        if self._troubles or self._messages != messages or appended != messages:
            why = "; ".join(self._troubles[:3])
            raise Refused(f"{self._messages} of {messages} were answered, {appended} are there. {why}")


class Places:
    """Where a reader is: every batch must begin where the last of its partition ended."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self.messages = 0

    def see(self, batch: ReadBatch, found: int) -> None:
        """`found` messages, or values, were in it."""
        begun = self._next.get(batch.partition, 0)
        if batch.next_offset - found != begun:
            raise Refused(f"{found} messages of partition {batch.partition} from {begun} to {batch.next_offset}")
        self._next[batch.partition] = batch.next_offset
        self.messages += found

    def check(self, messages: int) -> None:
        if self.messages != messages:
            raise Refused(f"{self.messages} of {messages} messages were read")


@cache
def keys() -> list[bytes]:
    return [b"key-%06d" % number for number in range(KEYS)]


@cache
def values() -> list[bytes]:
    return [urandom(VALUE_BYTES) for _ in range(VALUES)]


def pairs(messages: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of so many messages."""
    return islice(zip(cycle(keys()), cycle(values()), strict=False), messages)


def check_settled(lag: int, taken: int, job: Consume, refused: Sequence[object]) -> None:
    """As many messages as were taken are settled, by their offsets: none came twice."""
    if taken != job.messages or lag != job.total - job.messages or refused:
        raise Refused(f"{taken} of {job.messages} were taken, the lag is {lag} of {job.total}; refused: {refused[:3]}")


# --- publishing


async def _enqueue(client: AsyncClient, job: Enqueue) -> Done:
    ends = Ends()
    topic = job.topic
    async with client.producer(
        batch_messages=job.batch_messages, batch_bytes=job.batch_bytes, on_batch=ends.on_batch
    ) as producer:
        await producer.prepare(topic)
        keys(), values()
        clock = Clock()
        for key, value in pairs(job.messages):
            try:
                producer.enqueue(topic, value, key=key)
            except BufferFull:
                await producer.room()
                producer.enqueue(topic, value, key=key)
        await producer.flush()
        done = clock.done(job.messages)
    ends.check(job.messages)
    return done


async def _send(client: AsyncClient, job: Send) -> Done:
    ends = Ends()
    latencies = array("d")
    messages = pairs(job.messages)
    async with client.producer() as producer:

        async def work() -> None:
            for key, value in messages:  # all tasks take from one: each message once
                begun = time.perf_counter()
                receipt = await producer.send(job.topic, value, key=key)
                latencies.append((time.perf_counter() - begun) * 1000)
                ends.on_receipt(receipt)

        await producer.prepare(job.topic)
        keys(), values()
        clock = Clock()
        async with asyncio.TaskGroup() as group:
            for _ in range(job.in_flight):
                group.create_task(work())
        done = clock.done(job.messages, latencies)
    ends.check(job.messages)
    return done


async def _pace(client: AsyncClient, job: Pace) -> Done:
    """Batches of a partition are answered in their order: an answer is about those that were planned first."""
    ends = Ends(job.held)
    planned: list[deque[int]] = [deque() for _ in range(job.partitions)]
    waits = Waits()

    def on_batch(outcome: Outcome) -> None:
        ends.on_batch(outcome)
        if outcome.partition < 0:
            return
        now, line = time.monotonic_ns(), planned[outcome.partition]
        for _ in range(outcome.messages):
            waits.see(line.popleft(), now)

    places = {key: murmur3(key) % job.partitions for key in keys()}
    rest = values()[0][STAMP_BYTES:]
    names = cycle(keys())
    each_tick = job.per_s // _PER_S
    async with client.producer(on_batch=on_batch) as producer:

        def publish(due: int) -> None:
            value = due.to_bytes(STAMP_BYTES, "little") + rest
            for key in islice(names, each_tick):
                planned[places[key]].append(due)
                producer.enqueue(job.topic, value, key=key)

        await producer.prepare(job.topic)
        clock = Clock()
        await keep_pace(job.messages // each_tick, publish)
        await producer.flush()
        done = clock.done(job.messages, waits.after(job.warm_s))
    ends.check(job.messages)
    return done


# --- reading and consuming


async def _read(client: AsyncClient, job: Read) -> Done:
    places = Places()
    async with client.reader(job.topic) as reader:
        clock = Clock()
        while (batch := await reader.read()) is not None:
            if job.objects:
                places.see(batch, sum([message.value is not None for message in batch]))
            else:
                places.see(batch, len(batch.values()))
        done = clock.done(places.messages)
    places.check(job.messages)
    return done


async def _consume(client: AsyncClient, job: Consume) -> Done:
    refused: list[object] = []
    clock = Clock()
    async with client.consumer(
        job.group, [job.topic], prefetch=job.prefetch, max_unacked=job.max_unacked, on_ack_error=refused.append
    ) as consumer:
        take = _take_each if job.each else _take_batches
        taken = await take(consumer, job)
        await consumer.flush()
        done = clock.done(taken)
    check_settled((await client.group_lag(job.group)).total_lag, taken, job, refused)
    return done


async def _take_batches(consumer: AsyncConsumer, job: Consume) -> int:
    taken = 0
    while taken < job.messages:
        batch = await consumer.poll(min(BATCH, job.messages - taken), timeout=IDLE_TIMEOUT_S)
        if not batch:
            raise Refused(f"only {taken} of {job.messages} came")
        taken += len(batch.values())
        await batch.ack(wait=job.wait)
    return taken


async def _take_each(consumer: AsyncConsumer, job: Consume) -> int:
    taken = 0
    wait = job.wait
    async for message in consumer:
        if message.value is not None:
            taken += 1
        await message.ack(wait=wait)
        if taken == job.messages:
            break
    return taken


async def _follow(client: AsyncClient, job: Follow) -> Done:
    waits = Waits()
    refused: list[object] = []
    taken = 0

    async with client.consumer(job.group, [job.topic], on_ack_error=refused.append) as consumer:
        if await consumer.poll(timeout=0.5):  # it has its partitions, and waits
            raise Refused(f"{job.topic} is not empty")
        print(READY.decode(), flush=True)
        clock = Clock()
        if job.each:
            async for message in consumer:
                waits.see(_stamp(message.value), time.monotonic_ns())
                taken += 1
                await message.ack()
                if taken == job.messages:
                    break
        while taken < job.messages:
            batch = await consumer.poll(BATCH, timeout=IDLE_TIMEOUT_S)
            if not batch:
                raise Refused(f"only {taken} of {job.messages} came")
            now = time.monotonic_ns()
            found = batch.values()
            for value in found:
                waits.see(_stamp(value), now)
            taken += len(found)
            await batch.ack()
        await consumer.flush()
        done = clock.done(taken, waits.after(job.warm_s))
    lag = (await client.group_lag(job.group)).total_lag
    if lag or refused or taken != job.messages:
        raise Refused(f"{taken} of {job.messages} came, the lag is {lag}; refused: {refused[:3]}")
    return done


async def _transact(client: AsyncClient, job: Transact) -> Done:
    """What is visible in the end must be all of it, once."""
    took_ms: list[float] = []
    left = iter(range(job.transactions))
    keys(), values()

    async def write() -> None:
        async with client.producer() as producer:
            await producer.prepare(job.topic)
            for _ in left:
                begun = time.perf_counter()
                async with producer.transaction():
                    for key, value in pairs(job.messages_each):
                        producer.enqueue(job.topic, value, key=key)
                took_ms.append((time.perf_counter() - begun) * 1000)

    clock = Clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(job.writers):
            group.create_task(write())
    done = clock.done(job.transactions * job.messages_each)
    async with client.reader(job.topic) as reader:
        found = 0
        while (batch := await reader.read()) is not None:
            found += len(batch.values())
    if found != done.messages:
        raise Refused(f"{found} of {done.messages} messages are visible")
    took_ms.sort()
    p50_ms, p99_ms = quantile(took_ms, 0.5), quantile(took_ms, 0.99)
    return msgspec.structs.replace(done, p50_ms=p50_ms, p99_ms=p99_ms, samples=len(took_ms))


def _stamp(value: bytes | None) -> int:
    return int.from_bytes((value or b"")[:STAMP_BYTES], "little")


# --- the process


async def run(job: Job) -> Done:
    async with AsyncClient(job.address) as client:
        match job:
            case Enqueue():
                return await _enqueue(client, job)
            case Send():
                return await _send(client, job)
            case Pace():
                return await _pace(client, job)
            case Read():
                return await _read(client, job)
            case Consume():
                return await _consume(client, job)
            case Follow():
                return await _follow(client, job)
            case Transact():
                return await _transact(client, job)


def _jobs() -> Iterator[Job]:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Job)
    for line in sys.stdin:
        yield decoder.decode(line)


def _do(job: Job) -> Done:
    if not isinstance(job, Pace | Transact) and job.sync:
        from bench.client_sync import run_sync  # the other jobs are measured without it

        return run_sync(job)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(job))


if __name__ == "__main__":
    from bench import client_load  # the classes of the jobs are that module's, not those of __main__

    for job in client_load._jobs():
        print(json.dumps(msgspec.to_builtins(client_load._do(job))), flush=True)
