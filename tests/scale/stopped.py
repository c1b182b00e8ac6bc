"""Readers that stop with a large backlog behind them: the broker stays small, and nobody else notices.

Four stop at once: a consumer and a reader of the public client, which do not ask for more than they may hold; and two
raw connections, one that polls and one that fetches as much as it may ask for, which then leave their sockets unread. A
probe in a process of its own publishes to another topic and polls it, before and meanwhile. In the end those who
stopped go on, and nothing is missing or comes twice.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from typing import Final, NamedTuple

from bench.callers import WireCaller
from bench.processes import resident_mib
from bench.report import Figure
from bench.timing import quantile
from goqueue import AsyncClient, codec
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.reader import AsyncReader
from goqueue.model.limits import MIB
from goqueue.model.record import Record
from goqueue.wire.blocks import FETCH_REPLY, FetchRequest
from goqueue.wire.codes import FETCH_BLOCK, POLL_BLOCK
from goqueue.wire.polls import PollRequest, unpack_poll_reply
from tests.chaos.ledger import Lost, Violation
from tests.scale.probe import Probe
from tests.scale.stage import PARTITIONS, connected, create, do, publish_all, staged, weigh
from tests.support.broker import RunningBroker
from tests.support.patience import PATIENCE_S

GROWN_MIB: Final = 256e6 / MIB
_TOPIC: Final = "backlog"
_VALUE_BYTES: Final = 1000
_PER_BLOCK: Final = 4000
_FETCHES: Final = 64
"""Requests of a raw connection that reads none of their answers."""
_FETCH_BYTES: Final = 8 * MIB
_POLLED: Final = 10_000
_LOOK_S: Final = 0.05
_SPARE_MIB: Final = 1024
"""Of disk, beside the backlog."""


class NoSpace(Violation):
    """The disk is too small for the backlog."""


class Plan(NamedTuple):
    mib: int = 10 * 1024
    before_s: float = 5.0
    """How long the probe looks before anybody stops."""
    stopped_s: float = 20.0
    """Less than the broker leaves a client that does not take its replies."""
    resumed: int = 500_000
    """Messages that are consumed in the end, or all."""


class Outcome(NamedTuple):
    plan: Plan
    messages: int
    published_s: float
    base_mib: float
    """Before anything was published."""
    filled_mib: float
    """With the backlog, and nobody there."""
    peak_mib: float
    """The most while readers had stopped, as it was: nothing collected, nothing trimmed."""
    resumed: int
    before_ms: list[float]
    meanwhile_ms: list[float]


def run(plan: Plan) -> Outcome:
    _check_space(plan)
    with staged() as broker, Probe(broker.wire, f"{broker.data_dir}.probe") as probe:
        do(_publish(broker, "warm", 4))  # what any topic needs is there
        base = weigh(broker)
        blocks = max(plan.mib * MIB // len(_block()), PARTITIONS)
        published_s = do(_publish(broker, _TOPIC, blocks))
        filled = weigh(broker)
        before, meanwhile, peak, resumed = do(_stop(broker, plan, blocks * _PER_BLOCK, probe))
    return Outcome(plan, blocks * _PER_BLOCK, published_s, base, filled, peak, resumed, before, meanwhile)


def _check_space(plan: Plan) -> None:
    where = os.environ.get("GOQUEUE_BENCH_DIR") or tempfile.gettempdir()
    free = shutil.disk_usage(where).free // MIB
    if free < plan.mib + _SPARE_MIB:
        raise NoSpace(
            f"a backlog of {plan.mib} MiB needs {plan.mib + _SPARE_MIB} MiB of disk and {free} are free at {where}; "
            "GOQUEUE_BENCH_DIR names another place"
        )


def _block() -> bytes:
    return bytes(codec.encode([Record(value=bytes(_VALUE_BYTES))] * _PER_BLOCK))


async def _publish(broker: RunningBroker, topic: str, blocks: int) -> float:
    async with connected(broker) as connection:
        topic_id = await create(connection, topic)
        block = _block()
        return await publish_all(connection, topic_id, [(number % PARTITIONS, block) for number in range(blocks)])


# ---------------------------------------------------------------- stopping


async def _stop(
    broker: RunningBroker, plan: Plan, messages: int, probe: Probe
) -> tuple[list[float], list[float], float, int]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(broker.wire))
        before = await _look(probe, plan.before_s)
        consumer = await stack.enter_async_context(client.consumer("stopped", [_TOPIC], max_unacked=50_000))
        reader = await stack.enter_async_context(client.reader(_TOPIC))
        seen = Seen()
        await seen.take(consumer, 1)
        begun = await reader.read()
        if begun is None:
            raise Lost("a reader found nothing")
        with ExitStack() as raw:
            fetching = raw.enter_context(closing(_Unread(broker.wire)))
            polling = raw.enter_context(closing(_Unread(broker.wire)))
            fetching.fetch()
            polling.poll()
            looking = asyncio.create_task(_look(probe, plan.stopped_s))
            peak = 0.0
            while not looking.done():
                peak = max(peak, resident_mib(broker.pid))
                await asyncio.wait([looking], timeout=_LOOK_S)
            meanwhile = looking.result()
            await asyncio.to_thread(fetching.check_fetched)
            await asyncio.to_thread(polling.check_polled)
        await _go_on(reader, begun.partition, begun.next_offset)
        await seen.take(consumer, min(plan.resumed, messages))
        lag = (await client.group_lag("stopped")).total_lag
        if lag != messages - seen.messages:
            raise Violation(f"{seen.messages} of {messages} were consumed, and the lag is {lag}")
        return before, meanwhile, peak, seen.messages


async def _look(probe: Probe, seconds: float) -> list[float]:
    await asyncio.to_thread(probe.begin)
    await asyncio.sleep(seconds)
    return await asyncio.to_thread(probe.end)


async def _go_on(reader: AsyncReader, partition: int, next_offset: int) -> None:
    """What it reads next begins where it stopped."""
    for _ in range(PARTITIONS):
        batch = await reader.read(PATIENCE_S)
        if batch is None:
            raise Lost("a reader that went on found nothing")
        begun = next_offset if batch.partition == partition else 0
        if batch.next_offset - len(batch) != begun:
            raise Violation(f"partition {batch.partition} goes on at {batch.next_offset - len(batch)}, not {begun}")
        if batch.partition == partition:
            return
    raise Lost(f"nothing more came of partition {partition}")


class Seen:
    """What a consumer was given and has acked: each partition from its beginning, without a gap."""

    def __init__(self) -> None:
        self.messages = 0
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    async def take(self, consumer: AsyncConsumer, until: int) -> None:
        """Polls until it has so many in all; what they brought is acked, and the broker has the acks."""
        while self.messages < until:
            batch = await consumer.poll(min(_POLLED, until - self.messages), timeout=PATIENCE_S)
            if not batch:
                raise Lost(f"nothing comes after {self.messages} messages")
            for message in batch:
                wanted = self._next[message.partition]
                if message.offset != wanted:
                    raise Violation(f"partition {message.partition} brought {message.offset}, not {wanted}")
                self._next[message.partition] = wanted + 1
            self.messages += len(batch)
            await batch.ack()
        await consumer.flush()


class _Unread:
    """A raw connection that asks for much and reads nothing of it until the end."""

    def __init__(self, address: str) -> None:
        self._caller = WireCaller(address)
        self._into = memoryview(bytearray(2 * _FETCH_BYTES))
        (topic,) = self._caller.ask("metadata", topics=[_TOPIC])["topics"]
        self._topic_id = int(topic["topic_id"], 16)

    def fetch(self) -> None:
        for number in range(_FETCHES):
            request = FetchRequest(self._topic_id, number % PARTITIONS, 0, _FETCH_BYTES, _POLLED).pack()
            self._caller.request(FETCH_BLOCK, number, [request])

    def check_fetched(self) -> None:
        """Every request has its answer, in any order, with records from the beginning."""
        missing = set(range(_FETCHES))
        while missing:
            number, payload = self._caller.reply(self._into)
            next_offset, _, _, records = FETCH_REPLY.unpack_from(payload)
            if number not in missing or not records or next_offset != records:
                raise Violation(f"fetch {number} was answered with {records} records, next offset {next_offset}")
            missing.remove(number)

    def poll(self) -> None:
        member = self._caller.ask("join_group", group="unread", client_id="unread", topics=[_TOPIC], max_unacked=50_000)
        request = PollRequest("unread", member["member_id"], _FETCH_BYTES, _POLLED, 1000)
        self._caller.request(POLL_BLOCK, 0, [request.pack()])

    def check_polled(self) -> None:
        _, payload = self._caller.reply(self._into)
        _, rows = unpack_poll_reply(payload)
        if not sum(row.records for row in rows):
            raise Lost("a poll that was read late brought nothing")

    def close(self) -> None:
        self._caller.close()


# ---------------------------------------------------------------- figures


def figures(outcome: Outcome) -> Iterator[Figure]:
    plan = outcome.plan
    how = f"{plan.mib:,} MiB, {outcome.messages:,} messages, published in {outcome.published_s:.0f} s"
    yield Figure("memory with a backlog, grown by", outcome.filled_mib - outcome.base_mib, "MiB", note=how)
    yield Figure(
        "memory while readers have stopped, grown by", outcome.peak_mib - outcome.base_mib, "MiB", GROWN_MIB,
        at_most=True,
        note=f"the most in {plan.stopped_s:.0f} s: a consumer, a reader, an unread poll, {_FETCHES} unread fetches of "
        f"{_FETCH_BYTES // MIB} MiB; then {outcome.resumed:,} consumed, each once",
    )  # fmt: skip
    before, meanwhile = quantile(outcome.before_ms, 0.99), quantile(outcome.meanwhile_ms, 0.99)
    yield Figure("another topic before, p99", before, "ms", note=f"publish to poll, {len(outcome.before_ms)} messages")
    yield Figure(
        "another topic meanwhile, p99", meanwhile, "ms", max(2 * before, before + 10), at_most=True,
        note=f"{len(outcome.meanwhile_ms)} messages; p50 {quantile(outcome.meanwhile_ms, 0.5):.1f} ms",
    )  # fmt: skip
