"""Delivery: polls and acks through the broker's own functions, the machine alone, keys, poison, delays.

The broker runs in this process, without doors, unless a figure says otherwise; what is measured is CPU time where a
ratio is asked for, in pairs that take turns, because machines are noisy.
"""

import asyncio
import random
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import uvloop
from pyroaring import BitMap64

from bench.processes import BrokerProcess, scratch
from bench.report import Figure, Part, Run
from bench.timing import median
from goqueue import codec
from goqueue.base.offset_sets import gathered, ranged
from goqueue.base.wheel import TimerWheel
from goqueue.broker.broker import Broker, BrokerSettings
from goqueue.broker.poll import Polled
from goqueue.broker.topic import OpenTopic
from goqueue.client.connection import Connection
from goqueue.delivery import commands
from goqueue.delivery.deliveries import Deliveries
from goqueue.groups.commands import Join
from goqueue.groups.group import Group
from goqueue.model.groups import Mode, Place, Position
from goqueue.model.names import GroupNumber
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.topic import TopicSettings
from goqueue.wire.codes import CODES

BATCH: Final = 500
VALUE: Final = bytes(100)
ACK_RATE: Final = 300_000.0
KEYS: Final = 1000
MEMBERS: Final = 8
KEY_SHARE: Final = 0.9
POISON_GROWTH: Final = 1.10
DELAY_BYTES: Final = 150.0
DELAY_RATE: Final = 200_000.0
_GROUP: Final = GroupNumber(1)


def _do(work: Awaitable[Any]) -> Any:
    async def run() -> Any:
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


@asynccontextmanager
async def _broker(directory: str) -> AsyncIterator[Broker]:
    broker = await Broker.open(BrokerSettings(data_dir=directory))
    try:
        yield broker
    finally:
        await broker.close()


async def _filled(
    broker: Broker, name: str, records: list[Record], blocks: int, settings: TopicSettings | None = None
) -> OpenTopic:
    topic = await broker.topics.create(name, 1, settings or TopicSettings(), broker.clock())
    block = codec.encode(records)
    for _ in range(blocks):
        broker.publisher.publish(topic, 0, memoryview(bytearray(block)), acks=Acks.LEADER)
    return topic


async def _join(broker: Broker, group: str, topic: str, member: str, mode: Mode = Mode.PARTITION) -> Group:
    command = Join(
        group=group,
        client_id=member,
        topics=(topic,),
        new_id=member,
        session_ms=600_000,
        rebalance_ms=30_000,
        mode=mode,
    )
    await broker.groups.join(command, partial(broker.offsets.begin, position=Position(Place.EARLIEST)))
    return broker.groups.machine.group(group)


async def _poll(broker: Broker, group: str, member: str, count: int = BATCH, wait_ms: int = 0) -> Polled:
    turn = await broker.poller.park(group, member, timeout_ms=wait_ms)
    return await broker.poller.take(turn, max_messages=count, max_bytes=1 << 20)


def _offsets(polled: Polled) -> BitMap64:
    offsets = BitMap64()
    for row in polled.rows:
        offsets |= gathered(codec.scan(row.chunk.data).offsets)
    return offsets


# --- polls and acks


def acks(run: Run) -> Iterator[Figure]:
    """A backlog polled 500 at a time, each poll acked as one batch."""
    blocks = 200 if run.short else 1000
    for name, records in (
        ("one lane", [Record(key=b"k", value=VALUE)] * 1000),
        ("five lanes", [Record(key=b"k", value=VALUE, priority=number % len(Lane)) for number in range(1000)]),
    ):
        with scratch() as directory:
            rates, cost = _do(_consume(str(directory), records, blocks))
        yield Figure(
            f"poll {BATCH} + batch ack, {name}", median(rates), "msg/s", ACK_RATE,
            note=f"the broker's own functions, one partition, {len(VALUE)} B, {blocks * 1000:,} messages, "
            f"{cost:.2f} us of CPU a message, median of {len(rates)}",
        )  # fmt: skip


async def _consume(directory: str, records: list[Record], blocks: int) -> tuple[list[float], float]:
    rates, costs = [], []
    async with _broker(directory) as broker:
        topic = await _filled(broker, "backlog", records, blocks)
        partition, total = topic.partition(0), blocks * len(records)
        for number in range(3):
            group = await _join(broker, f"group-{number}", "backlog", "member")
            begun, cpu, done = time.perf_counter(), time.process_time(), 0
            while done < total:
                polled = await _poll(broker, group.name, "member")
                offsets = _offsets(polled)
                done += len(offsets)
                broker.sidecars.write(partition, commands.Ack(group.number, {polled.number: offsets}))
            rates.append(total / (time.perf_counter() - begun))
            costs.append((time.process_time() - cpu) / total * 1e6)
    return rates, median(costs)


def machine(run: Run) -> Iterator[Figure]:
    """Decisions and changes of the delivery machine alone: no log, no reading."""
    polls = 400 if run.short else 2000

    def lease_and_ack() -> None:
        deliveries = Deliveries()
        deliveries.begin_life(wall=0, now=0)
        for poll in range(1, polls + 1):
            offsets = ranged((poll - 1) * BATCH, poll * BATCH)
            for command in (
                commands.Lease(group=_GROUP, poll=poll, holder="m", start=0, offsets=offsets, span_ms=30_000),
                commands.Ack(_GROUP, {poll: offsets}),
            ):
                for record in deliveries.decide(command, 0).records:
                    deliveries.apply(record, 0)
            deliveries.arm(poll)

    costs = []
    for _ in range(5):
        begun = time.process_time()
        lease_and_ack()
        costs.append((time.process_time() - begun) / (polls * BATCH) * 1e9)
    yield Figure("delivery machine, lease + ack", min(costs), "ns/msg", note=f"batches of {BATCH}, best of 5")


# --- keys


def keys(run: Run) -> Iterator[Figure]:
    """Key mode: what keys that fail cost the others."""
    each = 20 if run.short else 100
    pairs = []
    with scratch() as directory:
        for number in range(3 if run.short else 5):
            run.say(f"keys: pair {number + 1}")
            calm = _do(_keyed(f"{directory}/calm-{number}", each, nacked=0))
            nacked = _do(_keyed(f"{directory}/nacked-{number}", each, nacked=KEYS // 20))
            pairs.append(calm / nacked)
    yield Figure(
        "key mode, throughput of the keys that do not fail", median(pairs), "x", KEY_SHARE,
        note=f"{MEMBERS} members, {KEYS} keys x {each}, 5 % of the keys nacked twice with 200 ms; by CPU a message, "
        f"median of {len(pairs)} pairs",
    )  # fmt: skip


async def _keyed(directory: str, each: int, *, nacked: int) -> float:
    """CPU seconds per message of the keys that never fail."""
    records = [Record(key=b"%d" % key, value=VALUE) for key in range(KEYS)]
    async with _broker(directory) as broker:
        topic = await _filled(broker, "keyed", records, each)
        partition = topic.partition(0)
        for member in range(MEMBERS):
            group = await _join(broker, "group", "keyed", f"m{member}", Mode.KEY)
        failures: dict[int, int] = {}
        good = (KEYS - nacked) * each
        done = 0
        cpu = time.process_time()
        while done < good:
            for member in range(MEMBERS):
                polled = await _poll(broker, group.name, f"m{member}", 100)
                offsets = _offsets(polled)
                failing = [at for at in offsets if at % KEYS < nacked and failures.get(at, 0) < 2] if nacked else []
                for at in failing:
                    failures[at] = failures.get(at, 0) + 1
                bad = BitMap64(failing)
                acked = offsets - bad
                done += sum(1 for at in acked if at % KEYS >= nacked) if nacked else len(acked)
                if acked:
                    broker.sidecars.write(partition, commands.Ack(group.number, {polled.number: acked}))
                if bad:
                    broker.sidecars.write(
                        partition, commands.Nack(group.number, {polled.number: bad}, partition.retries, 200)
                    )
            await asyncio.sleep(0)
        return (time.process_time() - cpu) / good


# --- poison


def poison(run: Run) -> Iterator[Figure]:
    """One message in a hundred always fails: what that costs the broker process for the others, and in all."""
    messages = 20_000 if run.short else 40_000
    pairs = []
    with scratch() as directory, BrokerProcess(directory) as broker:
        for number in range(3 if run.short else 15):
            run.say(f"poison: pair {number + 1}")
            calm = _do(_work(broker, f"calm-{number}", messages, poisoned=False))
            poisoned = _do(_work(broker, f"poisoned-{number}", messages, poisoned=True))
            pairs.append((poisoned[0] / calm[0], poisoned[1] / calm[1]))
    how = (
        f"a worker with JSON polls of {BATCH} and batch acks by handle, {messages:,} messages, a poison one comes 4 "
        f"times and then a dead letter; median of {len(pairs)} pairs"
    )
    others, all_ = (median(ratios) for ratios in zip(*pairs, strict=True))
    yield Figure("1 % poison, CPU of polls and acks per good message", others, "x", POISON_GROWTH, True, note=how)
    yield Figure("the same with nacks and dead letters", all_, "x", note=how)


async def _work(broker: BrokerProcess, name: str, messages: int, *, poisoned: bool) -> tuple[float, float]:
    """CPU of the broker until the good ones are done, per good one: for polls and acks, and in all."""
    host, _, port = broker.wire.rpartition(":")
    async with await Connection.connect(host, int(port)) as connection:
        ask = connection.ask
        settings = {"num_partitions": 1, "backoff": {"base": "20ms", "max": "100ms"}}
        for topic in (name, f"{name}.dlq"):
            await ask(CODES["create_topic"], {"name": topic, **settings})
        values = [{"value": f"{'poison' if number % 100 == 7 else 'good'} {number:080d}"} for number in range(messages)]
        for first in range(0, messages, 1000):
            await ask(CODES["publish_batch"], {"topic": name, "messages": values[first : first + 1000]})
        joined = await ask(CODES["join_group"], {"group": name, "client_id": "worker", "topics": [name]})
        member = {"group": name, "member_id": joined["member_id"]}
        good = sum(1 for each in values if not poisoned or each["value"].startswith("good"))
        begun, others, done = broker.cpu_s, 0.0, 0
        while done < good:
            cpu = broker.cpu_s
            taken = (await ask(CODES["poll"], {**member, "timeout": "1s", "max_messages": BATCH}))["messages"]
            bad = [each for each in taken if poisoned and each["value"].startswith("poison")]
            fine = [each["receipt_handle"] for each in taken if each not in bad] if bad else [
                each["receipt_handle"] for each in taken
            ]  # fmt: skip
            if fine:
                await ask(CODES["ack"], {"receipt_handles": fine})
            others += broker.cpu_s - cpu
            if bad:
                await ask(CODES["nack"], {"receipt_handles": [each["receipt_handle"] for each in bad]})
            done += len(fine)
        return others / good, (broker.cpu_s - begun) / good


# --- delays


def delays(run: Run) -> Iterator[Figure]:
    """The wheel alone, and scheduling through the broker."""
    count = 100_000 if run.short else 1_000_000
    chance = random.Random(1)
    times = [1000 + chance.randrange(86_400_000) for _ in range(count)]
    offsets = list(range(count))
    tracemalloc.start()
    wheel = TimerWheel(0)
    begun = time.perf_counter()
    wheel.extend(offsets, times)
    seconds = time.perf_counter() - begun
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield Figure(
        "timer wheel, bytes an entry", held / count, "B", note=f"{count:,} entries over a day, {seconds:.2f} s"
    )
    with scratch() as directory:
        rate, moved = _do(_schedule(str(directory), count))
    yield Figure(
        "schedule", rate, "msg/s", DELAY_RATE, note=f"publish through the broker's own functions, {count:,} messages"
    )
    yield Figure("a start with them", moved, "s", 10.0, at_most=True, note="recovery, views, wheel; in this process")


async def _schedule(directory: str, count: int) -> tuple[float, float]:
    records = [Record(value=VALUE, extension=Extension(deliver_at=-(3_600_000 + number))) for number in range(1000)]
    async with _broker(directory) as broker:
        begun = time.perf_counter()
        await _filled(broker, "delayed", records, count // 1000)
        rate = count / (time.perf_counter() - begun)
    begun = time.perf_counter()
    async with _broker(directory) as broker:
        assert len(broker.topics.named("delayed").partition(0).delays) == count
        return rate, time.perf_counter() - begun


PARTS: Final[dict[str, Part]] = {
    "acks": acks,
    "machine": machine,
    "keys": keys,
    "poison": poison,
    "delays": delays,
}
