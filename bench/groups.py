"""Consumer groups over the wire, against a broker process: members are asyncio clients in the bench's own process."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

import uvloop

from bench.processes import BrokerProcess, resident_mib, scratch
from bench.report import Figure, Run
from bench.timing import median
from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.client.member import Member
from goqueue.model.limits import MIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from goqueue.wire.codes import CODES

PARTITIONS: Final = 3
BATCH: Final = 500
VALUE_BYTES: Final = 1000
POLL_RATE: Final = 400_000.0
PARKED: Final = 2000
PARKED_CORE_PERCENT: Final = 5.0
PARKED_MB: Final = 100.0
GROUPS: Final = 1000
GROUP_PARTITIONS: Final = 100
PAIR_BYTES: Final = 100.0

T = TypeVar("T")


def _do(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@asynccontextmanager
async def _connected(broker: BrokerProcess) -> AsyncIterator[Connection]:
    host, _, port = broker.wire.rpartition(":")
    async with await Connection.connect(host, int(port)) as connection:
        yield connection


async def _create(connection: Connection, name: str, partitions: int) -> int:
    reply = await connection.ask(CODES["create_topic"], {"name": name, "num_partitions": partitions})
    return int(reply["topic_id"], 16)


def _block(messages: int) -> bytes:
    value = bytes(VALUE_BYTES)
    return bytes(codec.encode([Record(key=b"key-%d" % number, value=value) for number in range(messages)]))


# --- poll and commit


def polls(run: Run) -> Iterator[Figure]:
    """A backlog, consumed by one member that commits every batch; then the same with per-batch times."""
    blocks = 400 if run.short else 2000
    rounds = 3
    rates = []
    with scratch() as directory, BrokerProcess(directory) as broker:
        run.say("polls: publishing a backlog")
        _do(_publish(broker, "backlog", blocks))
        for number in range(rounds):
            run.say(f"polls: round {number + 1} of {rounds}")
            cpu = broker.cpu_s
            seconds = _do(_consume(broker, "backlog", f"group-{number}", blocks * BATCH))
            busy = (broker.cpu_s - cpu) / seconds
            rates.append(blocks * BATCH / seconds)
    yield Figure(
        "poll + commit", median(rates), "msg/s", POLL_RATE,
        note=f"1 member over wire, batches of {BATCH} x {VALUE_BYTES} B, {PARTITIONS} partitions, fsync interval, "
        f"{blocks * BATCH:,} messages, broker busy {busy:.0%}, median of {rounds}",
    )  # fmt: skip


async def _publish(broker: BrokerProcess, topic: str, blocks: int) -> None:
    async with _connected(broker) as connection:
        topic_id = await _create(connection, topic, PARTITIONS)
        block = _block(BATCH)
        for number in range(blocks):
            await connection.publish_block(topic_id, number % PARTITIONS, block, acks=Acks.LEADER)


async def _consume(broker: BrokerProcess, topic: str, group: str, messages: int) -> float:
    async with _connected(broker) as connection:
        member = await Member.join(connection, group, [topic])
        got = 0
        begun = time.perf_counter()
        while got < messages:
            rows = await member.poll(max_messages=BATCH, max_bytes=2 * MIB, max_wait_ms=1000)
            got += sum(row.records for row in rows)
            await member.commit(rows)
        seconds = time.perf_counter() - begun
        await member.leave()
        return seconds


# --- waking up


def wakes(run: Run) -> Iterator[Figure]:
    """One message at a time to a member that waits: from sending it until the poll's reply is there."""
    count = 500 if run.short else 3000
    with scratch() as directory, BrokerProcess(directory) as broker:
        run.say("wakes")
        times = sorted(_do(_wake(broker, count)))
    how = f"{count} messages of {VALUE_BYTES} B, one publisher and one parked poll over wire, acks leader"
    yield Figure("append to parked poll's reply, p50", times[len(times) // 2] * 1000, "ms", note=how)
    yield Figure("append to parked poll's reply, p99", times[len(times) * 99 // 100] * 1000, "ms", note=how)


async def _wake(broker: BrokerProcess, count: int) -> list[float]:
    times = []
    async with _connected(broker) as publisher, _connected(broker) as consumer:
        topic_id = await _create(publisher, "wake", PARTITIONS)
        member = await Member.join(consumer, "wake", ["wake"])
        await member.poll()
        block = _block(1)
        for number in range(count):
            poll = asyncio.ensure_future(member.poll(max_wait_ms=10_000))
            await asyncio.sleep(0.002)  # until it is parked
            begun = time.perf_counter()
            publish = asyncio.ensure_future(
                publisher.publish_block(topic_id, number % PARTITIONS, block, acks=Acks.LEADER)
            )
            rows = await poll
            times.append(time.perf_counter() - begun)
            await publish
            await member.commit(rows)
        await member.leave()
    return times


# --- polls that wait


def parked(run: Run) -> Iterator[Figure]:
    """Members of groups of their own, each on a connection of its own, that wait at topics where nothing happens."""
    seconds = 10.0 if run.short else 30.0
    with scratch() as directory, BrokerProcess(directory) as broker:
        idle_mib = resident_mib(broker.pid)
        run.say(f"parked: {PARKED:,} members")
        core, held_mib = _do(_park(broker, seconds, run))
    mb = (held_mib - idle_mib) * MIB / 1e6
    how = f"{PARKED:,} wire connections, a group each, 20 topics x {PARTITIONS} partitions, over {seconds:.0f} s"
    yield Figure("parked polls, CPU", core * 100, "% of a core", PARKED_CORE_PERCENT, at_most=True, note=how)
    yield Figure("parked polls, memory over idle", mb, "MB", PARKED_MB, at_most=True, note=f"{how}, RSS")


async def _park(broker: BrokerProcess, seconds: float, run: Run) -> tuple[float, float]:
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(_connected(broker))
        for number in range(20):
            await _create(control, f"idle-{number}", PARTITIONS)
        members = []
        for number in range(PARKED):
            connection = await stack.enter_async_context(_connected(broker))
            members.append(await Member.join(connection, f"group-{number}", [f"idle-{number % 20}"]))
            if number % 200 == 199:
                run.say(f"parked: {number + 1:,} members joined")
        await asyncio.gather(*(member.poll() for member in members))
        polls = [asyncio.ensure_future(member.poll(max_wait_ms=60_000)) for member in members]
        await asyncio.sleep(2.0)
        cpu, begun = broker.cpu_s, time.perf_counter()
        await asyncio.sleep(seconds)
        core = (broker.cpu_s - cpu) / (time.perf_counter() - begun)
        held = resident_mib(broker.pid)
        answered = sum(poll.done() for poll in polls)
        assert not answered, f"{answered} polls were answered although nothing happened"
        for poll in polls:
            poll.cancel()
        return core, held


# --- groups that are caught up


def pairs(run: Run) -> Iterator[Figure]:
    """Every group has a member that consumed one message of every partition, committed it, and is still there."""
    with scratch() as directory, BrokerProcess(directory) as broker:
        run.say("pairs: preparing")
        grown_mib = _do(_pair(broker, run))
        start = broker.stop()
        with BrokerProcess(directory) as again:
            started_s = again.start_s
    how = f"{GROUPS:,} groups x {GROUP_PARTITIONS} partitions, each committed once and caught up"
    size = grown_mib * MIB / (GROUPS * GROUP_PARTITIONS)
    yield Figure("memory per group and partition", size, "B", PAIR_BYTES, at_most=True, note=f"{how}, RSS difference")
    yield Figure("start with them", started_s, "s", note=f"{how}, after a stop of {start:.1f} s")


async def _pair(broker: BrokerProcess, run: Run) -> float:
    async with _connected(broker) as connection:
        topic_id = await _create(connection, "wide", GROUP_PARTITIONS)
        block = _block(1)
        for number in range(GROUP_PARTITIONS):
            await connection.publish_block(topic_id, number, block, acks=Acks.LEADER)
        for number in range(20):  # the sidecars are there, and the allocator has what it needs
            await _catch_up(connection, f"warm-{number}")
        before = resident_mib(broker.pid)
        for number in range(GROUPS):
            await _catch_up(connection, f"group-{number}")
            if number % 100 == 99:
                run.say(f"pairs: {number + 1:,} of {GROUPS:,} groups")
        return resident_mib(broker.pid) - before


async def _catch_up(connection: Connection, group: str) -> None:
    member = await Member.join(connection, group, ["wide"])
    got = 0
    while got < GROUP_PARTITIONS:
        rows = await member.poll(max_wait_ms=1000)
        got += sum(row.records for row in rows)
        await member.commit(rows)
