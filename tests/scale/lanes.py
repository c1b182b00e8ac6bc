"""Lanes over ten million messages: the one that is urgent comes next, and what was settled in between costs little.

First ten million normal messages and a critical one behind them: it is in the next poll of a new group, and of one that
is in the middle. Then every other message is high, the rest low, and the lanes are strict: all the high ones are
consumed, the low ones are not, and after a restart the broker is as large as before.
"""

from collections.abc import Iterator
from time import perf_counter
from typing import Final, NamedTuple

from bench.report import Figure
from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.client.member import Delivered, Member
from goqueue.model.limits import MIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Lane, Record
from goqueue.wire.codes import CODES
from tests.chaos.ledger import Lost, Violation
from tests.scale.stage import BLOCK, connected, create, do, offsets_of, publish_all, staged, start_again, weigh
from tests.support.broker import RunningBroker

GROWN_MIB: Final = 64.0
FIRST_POLL_MS: Final = 1000.0
_VALUE: Final = b"small"
_POLLED: Final = 10_000


class Plan(NamedTuple):
    messages: int = 10_000_000


class Behind(NamedTuple):
    """One critical message behind many normal ones."""

    plan: Plan
    per_s: float
    grown_mib: float


class Between(NamedTuple):
    """All that is high, of every other."""

    plan: Plan
    per_s: float
    acked_per_s: float
    before_mib: float
    acked_mib: float
    again_mib: float
    start_s: float
    first_poll_s: float
    """After the restart, when nothing is known yet but what was settled."""


# ---------------------------------------------------------------- behind


def run_behind(plan: Plan) -> Behind:
    with staged() as broker:
        do(_warm(broker))
        before = weigh(broker)
        seconds = do(_behind(broker, plan))
        return Behind(plan, plan.messages / seconds, weigh(broker) - before)


async def _warm(broker: RunningBroker) -> None:
    """What a broker needs for any topic and any group is there."""
    async with connected(broker) as connection:
        topic_id = await create(connection, "warm", num_partitions=1)
        await publish_all(connection, topic_id, [(0, _block([Lane.NORMAL]))] * 4)
        member = await Member.join(connection, "warm", ["warm"])
        await member.commit(await _some(member))
        await member.leave()


def _block(lanes: list[Lane]) -> bytes:
    return bytes(codec.encode([Record(value=_VALUE, priority=lanes[at % len(lanes)]) for at in range(BLOCK)]))


async def _some(member: Member, max_messages: int = _POLLED) -> list[Delivered]:
    """The next messages; the first reply may bring news only."""
    for _ in range(3):
        rows = await member.poll(max_messages=max_messages, max_bytes=8 * MIB, max_wait_ms=5000)
        if rows:
            return rows
    raise Lost("nothing comes")


async def _behind(broker: RunningBroker, plan: Plan) -> float:
    async with connected(broker) as connection:
        topic_id = await create(connection, "behind", num_partitions=1)
        block = _block([Lane.NORMAL])
        seconds = await publish_all(connection, topic_id, [(0, block)] * (plan.messages // BLOCK))
        middle = await Member.join(connection, "middle", ["behind"], max_unacked=50_000)
        reset = {"group": "middle", "topic": "behind", "to": "offset", "value": plan.messages // 2}
        await connection.ask(CODES["reset_offsets"], reset)
        for _ in range(5):
            await middle.commit(await _some(middle))
        urgent = codec.encode([Record(value=b"now", priority=Lane.CRITICAL)])
        await connection.publish_block(topic_id, 0, urgent, acks=Acks.LEADER)
        await _check_next(middle, plan.messages)
        new = await Member.join(connection, "new", ["behind"], max_unacked=50_000)
        await _check_next(new, plan.messages)
        return seconds


async def _check_next(member: Member, offset: int) -> None:
    """The next poll, a small one, has the message first."""
    rows = await _some(member, 10)
    found = [each for row in rows for each in offsets_of(row)]
    if found[:1] != [offset]:
        raise Violation(f"{member.group} was to be delivered {offset}, and got {found}")


# ---------------------------------------------------------------- between


def run_between(plan: Plan) -> Between:
    with staged() as broker:
        do(_warm(broker))
        seconds = do(_fill(broker, plan))
        filled = weigh(broker)
        acked_s = do(_ack_high(broker, plan))
        acked = weigh(broker)
        broker.stop()
        start_s = start_again(broker)
        first_poll_s = do(_check_low(broker))
        again = weigh(broker)
    return Between(
        plan, plan.messages / seconds, plan.messages / 2 / acked_s, filled, acked, again, start_s, first_poll_s
    )


async def _fill(broker: RunningBroker, plan: Plan) -> float:
    async with connected(broker) as connection:
        topic_id = await create(connection, "between", num_partitions=1, lane_policy="strict")
        block = _block([Lane.HIGH, Lane.LOW])
        return await publish_all(connection, topic_id, [(0, block)] * (plan.messages // BLOCK))


async def _ack_high(broker: RunningBroker, plan: Plan) -> float:
    async with connected(broker) as connection:
        member = await Member.join(connection, "between", ["between"], max_unacked=50_000)
        begun = perf_counter()
        left = plan.messages // 2
        while left:
            rows = await _some(member, min(_POLLED, left))
            for row in rows:
                if any(offset % 2 for offset in offsets_of(row)):
                    raise Violation(f"a low message came before {left} high ones")
                left -= row.records
            if await member.ack(rows):
                raise Violation("an ack was refused")
        seconds = perf_counter() - begun
        await member.leave()
        return seconds


async def _check_low(broker: RunningBroker) -> float:
    """Only low ones are left, from the first on; seconds until they come."""
    async with connected(broker) as connection:
        member = await Member.join(connection, "between", ["between"])
        begun = perf_counter()
        rows = await _some(member, 100)
        seconds = perf_counter() - begun
        found = [offset for row in rows for offset in offsets_of(row)]
        if found != list(range(1, 200, 2)):
            raise Violation(f"after the restart there came {found}")
        lag = await connection.ask(CODES["group_lag"], {"group": "between"})
        await _expect_lag(connection, lag["total_lag"])
        return seconds


async def _expect_lag(connection: Connection, lag: int) -> None:
    end = await connection.ask(CODES["offsets"], {"topic": "between"})
    if 2 * lag != end["offsets"]["0"]:
        raise Violation(f"{lag} messages are left of {end}")


# ---------------------------------------------------------------- figures


def figures_behind(outcome: Behind) -> Iterator[Figure]:
    how = f"{outcome.plan.messages:,} normal messages, a critical one behind them, {len(_VALUE)} B each"
    yield Figure("published", outcome.per_s, "msg/s", note=f"{how}; it is in the next poll of both groups")
    yield Figure(
        "memory, grown by", outcome.grown_mib, "MiB", GROWN_MIB, at_most=True,
        note="RSS, garbage collected and trimmed",
    )  # fmt: skip


def figures_between(outcome: Between) -> Iterator[Figure]:
    how = f"{outcome.plan.messages:,} messages, every other one high and acked, strict"
    yield Figure("high ones, delivered and acked", outcome.acked_per_s, "msg/s", note=how)
    yield Figure("memory before", outcome.before_mib, "MiB", note="published, nobody was there")
    yield Figure(
        "memory, grown by acks", outcome.acked_mib - outcome.before_mib, "MiB", GROWN_MIB, at_most=True, note=how
    )
    yield Figure(
        "memory after a restart, more than before", outcome.again_mib - outcome.before_mib, "MiB", GROWN_MIB,
        at_most=True, note=f"a group in the middle of everything; start in {outcome.start_s:.1f} s",
    )  # fmt: skip
    yield Figure("first poll after a restart", outcome.first_poll_s * 1000, "ms", FIRST_POLL_MS, at_most=True, note=how)
