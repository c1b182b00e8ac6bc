"""Transactions that stay open: those beside them do not notice, and many of them cost little.

One holds messages in every partition of a topic, under keys of its own, while others publish to the same partitions and
consume from them, in partition mode and in key mode; how long their messages take is compared with before. And many are
open at once, each with a message, in a broker that is weighed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from bench.report import Figure
from bench.timing import quantile
from goqueue import AsyncClient, codec
from goqueue.client.connection import Connection
from goqueue.client.consumer import AsyncConsumer
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.transactions import transaction_number
from goqueue.wire.codes import CODES
from tests.chaos.ledger import Lost, Violation
from tests.scale.stage import PARTITIONS, connected, create, do, staged, weigh
from tests.support.broker import RunningBroker
from tests.support.patience import PATIENCE_S

GROWN_MIB: Final = 100.0
TIMES: Final = 2.0
MORE_MS: Final = 10.0
"""Others' p99 stays within so many times what it was, or within so much more."""
_TOPIC: Final = "shared"
_MODES: Final = ("partition", "key")
_EVERY_S: Final = 0.005
_OTHER_KEYS: Final = 50
_TOGETHER: Final = 200
"""Transactions that are begun at once."""


class Seen(Violation):
    """A message of an open transaction was delivered."""


class Plan(NamedTuple):
    before_s: float = 20.0
    open_s: float = 60.0
    held: int = 1000
    """Messages of the open transaction in each partition."""


class Outcome(NamedTuple):
    plan: Plan
    before_ms: dict[str, list[float]]
    """By mode, sorted."""
    meanwhile_ms: dict[str, list[float]]
    committed: dict[str, int]
    """Messages of the transaction that came once it was committed."""


def run(plan: Plan) -> Outcome:
    with staged() as broker:
        return do(_hold_open(broker, plan))


def figures(outcome: Outcome) -> Iterator[Figure]:
    for mode in _MODES:
        before, meanwhile = outcome.before_ms[mode], outcome.meanwhile_ms[mode]
        p99_before, p99 = quantile(before, 0.99), quantile(meanwhile, 0.99)
        limit = max(TIMES * p99_before, p99_before + MORE_MS)
        note = (
            f"publish to consumer in the same partitions, {len(meanwhile):,} messages in {outcome.plan.open_s:.0f} s; "
            f"before {p99_before:.2g} ms ({len(before):,}); p50 {quantile(before, 0.5):.2g} before, "
            f"{quantile(meanwhile, 0.5):.2g} meanwhile"
        )
        yield Figure(f"beside an open transaction, {mode} mode, p99", p99, "ms", limit, at_most=True, note=note)


# ---------------------------------------------------------------- one that stays open


async def _hold_open(broker: RunningBroker, plan: Plan) -> Outcome:
    async with connected(broker) as connection, AsyncClient(broker.wire) as client:
        topic_id = await create(connection, _TOPIC)
        async with _followed(client) as found, client.producer(linger="0ms") as producer:
            before = await _measure(producer, found, plan.before_s)
            writer = await Writer.begin(connection, "1h")
            held = [Record(key=b"held-%d" % (number % 10), value=b"held") for number in range(plan.held)]
            for partition in range(PARTITIONS):
                await writer.publish(topic_id, partition, held)
            meanwhile = await _measure(producer, found, plan.open_s)
            if any(each.held for each in found.values()):
                raise Seen(
                    f"{ {mode: each.held for mode, each in found.items()} } messages of an open transaction came"
                )
            await writer.commit()
            deadline = time.monotonic() + PATIENCE_S
            while any(each.held < plan.held * PARTITIONS for each in found.values()):
                if time.monotonic() > deadline:
                    raise Lost(f"after the commit came { {mode: each.held for mode, each in found.items()} }")
                await asyncio.sleep(_EVERY_S)
            return Outcome(plan, before, meanwhile, {mode: each.held for mode, each in found.items()})


class _Follower:
    """What one group was delivered."""

    def __init__(self) -> None:
        self.waits_ms: list[float] = []
        self.held = 0

    async def follow(self, consumer: AsyncConsumer) -> None:
        async for message in consumer:
            now = time.perf_counter_ns()
            if message.value == b"held":
                self.held += 1
            else:
                self.waits_ms.append((now - int(message.value or b"0")) / 1e6)
            await message.ack()


@asynccontextmanager
async def _followed(client: AsyncClient) -> AsyncIterator[dict[str, _Follower]]:
    found = {mode: _Follower() for mode in _MODES}
    async with (
        client.consumer("by-partition", [_TOPIC], mode="partition") as one,
        client.consumer("by-key", [_TOPIC], mode="key") as other,
    ):
        tasks = [asyncio.create_task(found[mode].follow(each)) for mode, each in zip(_MODES, (one, other), strict=True)]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _measure(producer: Any, found: dict[str, _Follower], seconds: float) -> dict[str, list[float]]:
    """How long messages of other keys take to each group, sorted."""
    for each in found.values():
        each.waits_ms = []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        await producer.send(_TOPIC, str(time.perf_counter_ns()).encode(), key=f"other-{number % _OTHER_KEYS}")
        number += 1
        await asyncio.sleep(_EVERY_S)
    deadline = time.monotonic() + PATIENCE_S
    while any(len(each.waits_ms) < number for each in found.values()):
        if time.monotonic() > deadline:
            raise Lost(f"of {number} messages came { {mode: len(each.waits_ms) for mode, each in found.items()} }")
        await asyncio.sleep(_EVERY_S)
    return {mode: sorted(each.waits_ms) for mode, each in found.items()}


# ---------------------------------------------------------------- many that stay open


class Weighed(NamedTuple):
    transactions: int
    base_mib: float
    open_mib: float
    aborted_mib: float
    """When they were aborted."""


def run_many(transactions: int) -> Weighed:
    with staged() as broker:
        return do(_open_many(broker, transactions))


def figures_many(outcome: Weighed) -> Iterator[Figure]:
    count = outcome.transactions
    note = (
        f"{count:,} producers with a message each in a transaction; {outcome.base_mib:.0f} MiB before, "
        f"{outcome.open_mib:.0f} with them, {outcome.aborted_mib:.0f} when they were aborted"
    )
    grown = outcome.open_mib - outcome.base_mib
    yield Figure(f"{count:,} open transactions, memory", grown, "MiB", GROWN_MIB * 1e6 / 2**20, at_most=True, note=note)


async def _open_many(broker: RunningBroker, transactions: int) -> Weighed:
    async with connected(broker) as connection:
        topic_id = await create(connection, _TOPIC)
        await _begin_some(connection, topic_id, _TOGETHER, "1h")  # what any of them needs is there
        base = weigh(broker)
        for first in range(0, transactions, _TOGETHER):
            await _begin_some(connection, topic_id, min(_TOGETHER, transactions - first), "1h", name="many")
        stats = await connection.ask(CODES["transaction_stats"])
        if stats["ongoing"] != transactions + _TOGETHER:
            raise Lost(f"{stats['ongoing']} transactions are open")
        heavy = weigh(broker)
        await connection.ask(CODES["abort_transaction"], {"name": "many"}, timeout_s=PATIENCE_S)
        return Weighed(transactions, base, heavy, weigh(broker))


async def _begin_some(connection: Connection, topic_id: int, count: int, timeout: str, name: str | None = None) -> None:
    async def one(number: int) -> None:
        writer = await Writer.begin(connection, timeout, name)
        await writer.publish(topic_id, number % PARTITIONS, [Record(value=b"open")])

    await asyncio.gather(*map(one, range(count)))


class Writer:
    """A producer with one transaction, without the client around it."""

    def __init__(self, connection: Connection, producer_id: int, number: int) -> None:
        self._connection = connection
        self._producer_id = producer_id
        self._number = number
        self._sequences: dict[tuple[int, int], int] = {}

    @classmethod
    async def begin(cls, connection: Connection, timeout: str, name: str | None = None) -> "Writer":
        producer = await connection.ask(CODES["init_producer"])
        begun = await connection.ask(
            CODES["begin_transaction"], {"producer_id": producer["producer_id"], "timeout": timeout, "name": name}
        )
        return cls(connection, producer["producer_id"], transaction_number(begun["transaction_id"]))

    async def publish(self, topic_id: int, partition: int, records: Sequence[Record]) -> None:
        sequence = self._sequences.get((topic_id, partition), 0)
        producer = Producer(self._producer_id, 0, sequence)
        extension = Extension(producer=producer, transaction=self._number)
        block = codec.encode([Record(key=each.key, value=each.value, extension=extension) for each in records])
        await self._connection.publish_block(topic_id, partition, block, acks=Acks.LEADER, producer=producer)
        self._sequences[topic_id, partition] = sequence + len(records)

    async def commit(self) -> None:
        await self._connection.ask(CODES["commit_transaction"], {"producer_id": self._producer_id})
