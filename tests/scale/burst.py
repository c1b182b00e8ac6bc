"""Half a million messages due in the same second: one consumer gets them in seconds, and nobody else notices.

They lie among three times as many that were consumed before: every fourth message of their segments. A probe in a
process of its own publishes to another topic, and polls it, before and meanwhile. Once with everything in memory, once
after the page cache was emptied.
"""

import asyncio
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench.report import Figure
from bench.timing import quantile
from goqueue import codec
from goqueue.client.member import Member
from goqueue.model.limits import MIB
from goqueue.model.record import Extension, Record
from tests.chaos.ledger import Lost, Violation
from tests.scale.probe import Probe
from tests.scale.stage import (
    BLOCK,
    PARTITIONS,
    TooSlow,
    connected,
    create,
    do,
    drop_cache,
    now_ms,
    offsets_of,
    publish_all,
    staged,
)
from tests.support.broker import RunningBroker
from tests.support.delivery_ledger import Early

DELIVERED_S: Final = 10.0
_AMONG: Final = 4
"""One in so many is delayed."""
_VALUE: Final = b"a message, small"
_COLD_S: Final = 1.0
"""So long before it is due the cache is emptied."""


class Plan(NamedTuple):
    messages: int = 500_000
    lead_s: float = 60.0
    """From the first that is published until they are due."""
    before_s: float = 4.0
    """How long the probe looks before that."""
    cold: bool = False


class Outcome(NamedTuple):
    plan: Plan
    delivered_s: float
    """From when the first is due until the last is there, and committed."""
    before_ms: list[float]
    meanwhile_ms: list[float]


def run(plan: Plan) -> Outcome:
    with staged() as broker, Probe(broker.wire, f"{broker.data_dir}.probe") as probe:
        due = now_ms() + int(plan.lead_s * 1000)
        do(_prepare(broker, plan, due))
        if now_ms() > due - (plan.before_s + _COLD_S) * 1000:
            raise TooSlow(f"only {due - now_ms()} ms are left until they are due")
        probe.begin()
        time.sleep(plan.before_s)
        before = probe.end()
        time.sleep(max((due - now_ms()) / 1000 - _COLD_S, 0))
        if plan.cold:
            drop_cache(Path(broker.data_dir))
        delivered_s, meanwhile = do(_consume(broker, plan, due, probe))
    return Outcome(plan, delivered_s, before, meanwhile)


async def _prepare(broker: RunningBroker, plan: Plan, due: int) -> None:
    """Everything is published, and what is not delayed is consumed."""
    async with connected(broker) as connection:
        topic_id = await create(connection, "burst")
        delayed = [Extension(deliver_at=due + number % 1000) for number in range(BLOCK)]
        records = [
            Record(value=_VALUE, extension=delayed[number] if number % _AMONG == 0 else None) for number in range(BLOCK)
        ]
        block = bytes(codec.encode(records))
        blocks = plan.messages * _AMONG // BLOCK
        await publish_all(connection, topic_id, [(number % PARTITIONS, block) for number in range(blocks)])
        member = await Member.join(connection, "burst", ["burst"], max_unacked=50_000)
        left = plan.messages * (_AMONG - 1)
        while left:
            rows = await member.poll(max_messages=BLOCK, max_bytes=8 * MIB, max_wait_ms=2000)
            left -= sum(row.records for row in rows)
            await member.commit(rows)
            if not rows and now_ms() > due:
                raise TooSlow(f"{left} messages that are not delayed were not consumed before the others were due")
        await member.leave()


async def _consume(broker: RunningBroker, plan: Plan, due: int, probe: Probe) -> tuple[float, list[float]]:
    async with connected(broker) as connection:
        member = await Member.join(connection, "burst", ["burst"], max_unacked=50_000)
        seen: dict[int, set[int]] = {partition: set() for partition in range(PARTITIONS)}
        left = plan.messages
        for _ in range(2):  # it has heard the news, and waits
            if await member.poll():
                raise Violation("something came that is not due")
        await asyncio.sleep(max((due - now_ms()) / 1000 - 0.05, 0))
        probe.begin()
        while left > 0:
            rows = await member.poll(max_messages=BLOCK, max_bytes=8 * MIB, max_wait_ms=5000)
            at = now_ms()
            if not rows and at > due + 60_000:
                raise Lost(f"{left} of {plan.messages} did not come")
            for row in rows:
                _check(offsets_of(row), due, at, seen[row.partition])
                left -= row.records
            await member.commit(rows)
        delivered_s = (now_ms() - due) / 1000
        meanwhile = probe.end()
        if left or await member.poll(max_wait_ms=1000):
            raise Violation("something came twice")
        return delivered_s, meanwhile


def _check(offsets: "array[int]", due: int, at: int, seen: set[int]) -> None:
    """Blocks are alike: an offset tells what is there."""
    for offset in offsets:
        time_of = due + offset % BLOCK % 1000
        if offset % _AMONG or offset in seen:
            raise Violation(f"offset {offset} came again")
        if at < time_of:
            raise Early(f"offset {offset} came {time_of - at} ms early")
    seen.update(offsets)


def figures(outcome: Outcome) -> Iterator[Figure]:
    plan = outcome.plan
    cache = "cold page cache" if plan.cold else "everything in memory"
    how = f"{plan.messages:,} due in one second, one in {_AMONG} of their segments, {cache}"
    yield Figure(
        "a burst, delivered and committed", outcome.delivered_s, "s", DELIVERED_S, at_most=True,
        note=f"{how}, 1 member over wire",
    )  # fmt: skip
    before, meanwhile = quantile(outcome.before_ms, 0.99), quantile(outcome.meanwhile_ms, 0.99)
    yield Figure("another topic before, p99", before, "ms", note=f"publish to poll, {len(outcome.before_ms)} messages")
    yield Figure(
        "another topic meanwhile, p99", meanwhile, "ms", max(2 * before, before + 10), at_most=True,
        note=f"{len(outcome.meanwhile_ms)} messages; p50 {quantile(outcome.meanwhile_ms, 0.5):.1f} ms",
    )  # fmt: skip
