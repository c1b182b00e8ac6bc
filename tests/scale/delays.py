"""Delayed messages by the million: published, some cancelled, some moved, the broker killed; the rest fires on time.

Memory is what the broker grows by when they are published, less what it grows by when as many messages of the same
size are that are not delayed; both after garbage was collected and free memory given back. How late a message is, is
its time of arrival at a consumer that waits with a poll, less the time it was due: the same clock at both ends.
"""

import asyncio
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bench.report import Figure
from bench.timing import quantile
from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.client.member import Member
from goqueue.model.limits import MIB
from goqueue.model.record import Extension, Record
from goqueue.wire.codes import CODES
from tests.chaos.ledger import Lost, Violation
from tests.scale.stage import (
    BLOCK,
    PARTITIONS,
    TooSlow,
    connected,
    create,
    delayed_in,
    do,
    now_ms,
    offsets_of,
    publish_all,
    staged,
    start_again,
    weigh,
)
from tests.support.broker import RunningBroker
from tests.support.delivery_ledger import Early

MEMORY_BYTES: Final = 150.0
START_S: Final = 10.0
LATE_MS: Final = 50.0

_TOPIC: Final = "delayed"
_CANCELLED: Final = 0.3
_MOVED: Final = 0.1
_CANCELLED_AT_ONCE: Final = 20_000
_MOVING: Final = 64
"""Moves under way."""
_AFTER_MS: Final = 1500
"""How long to wait for what should have come, and for what should not."""


class Plan(NamedTuple):
    """They are due over `spread_s`, from `lead_s` after the first was published."""

    messages: int = 1_000_000
    lead_s: float = 180.0
    spread_s: float = 60.0
    seed: int = 1


class Schedule:
    """When each message is due, by partition and offset; 0 for cancelled."""

    def __init__(self, plan: Plan, start: int) -> None:
        self.start = start
        self.end = start + int(plan.spread_s * 1000)
        self._dice = random.Random(plan.seed)
        self.due: list[array[int]] = [array("q") for _ in range(PARTITIONS)]
        self.arrived = [bytearray() for _ in range(PARTITIONS)]
        self.late_ms: array[int] = array("q")
        for number in range(plan.messages):
            self.due[number % PARTITIONS].append(self.any_time())
        self.arrived = [bytearray(len(due)) for due in self.due]

    def check_time(self, error: Exception | None = None) -> None:
        """TooSlow when the first of them is due already, and `error` came of that."""
        late_ms = now_ms() - self.start
        if late_ms > 0:
            raise TooSlow(f"the first message was due {late_ms} ms before everything was prepared") from error

    def any_time(self) -> int:
        return self._dice.randrange(self.start, self.end)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """All of it."""
        for first in range(0, max(map(len, self.due)), BLOCK):
            for partition, due in enumerate(self.due):
                records = [
                    Record(value=_VALUE, extension=Extension(deliver_at=at)) for at in due[first : first + BLOCK]
                ]
                if records:
                    yield partition, bytes(codec.encode(records))

    def some(self, share: float) -> list[tuple[int, int]]:
        """Partition and offset of so many that are not cancelled."""
        there = [(partition, at) for partition, due in enumerate(self.due) for at in range(len(due)) if due[at]]
        return self._dice.sample(there, int(share * sum(map(len, self.due))))

    @property
    def pending(self) -> int:
        return sum(1 for due in self.due for at in due if at)

    def arrive(self, partition: int, offsets: Sequence[int], at: int) -> None:
        due, arrived = self.due[partition], self.arrived[partition]
        for offset in offsets:
            if not due[offset]:
                raise Violation(f"offset {offset} of partition {partition} was cancelled, and has come")
            if at < due[offset]:
                raise Early(f"offset {offset} of partition {partition} came {due[offset] - at} ms early")
            if arrived[offset]:
                raise Violation(f"offset {offset} of partition {partition} came again")
            arrived[offset] = 1
            self.late_ms.append(at - due[offset])

    def check(self) -> None:
        """Exactly what was pending has come."""
        if len(self.late_ms) != self.pending:
            missing = [
                (partition, offset)
                for partition, due in enumerate(self.due)
                for offset, at in enumerate(due)
                if at and not self.arrived[partition][offset]
            ]
            raise Lost(f"{len(missing)} of {self.pending} did not come: {missing[:10]}")


_VALUE: Final = b"a message, small"
_PLAIN: Final = Extension(event_time=1)
"""As many bytes as a time to be delivered at."""


class Outcome(NamedTuple):
    plan: Plan
    scheduled_per_s: float
    plain_per_s: float
    bytes_each: float
    cancelled_per_s: float
    moved_per_s: float
    start_s: float
    late_ms: list[float]
    fired: int


def run(plan: Plan) -> Outcome:
    """A Violation when a message comes early, twice, after all, or not."""
    with staged() as broker:
        do(_create(broker))
        plain = [
            (partition, bytes(codec.encode([Record(value=_VALUE, extension=_PLAIN)] * count)))
            for partition, count in _counts(plan.messages)
        ]
        empty = weigh(broker)
        plain_s = do(_publish(broker, "plain", plain))
        with_plain = weigh(broker)
        schedule = Schedule(plan, now_ms() + int(plan.lead_s * 1000))
        blocks = list(schedule.blocks())
        scheduled_s = do(_publish(broker, _TOPIC, blocks))
        grown = (weigh(broker) - with_plain) - (with_plain - empty)
        try:
            cancelled_s, moved_s = do(_change(broker, schedule))
        except Exception as error:
            schedule.check_time(error)
            raise
        broker.kill()
        start_s = start_again(broker)
        schedule.check_time()
        do(_consume(broker, schedule))
    schedule.check()
    return Outcome(
        plan,
        plan.messages / scheduled_s,
        plan.messages / plain_s,
        grown * MIB / plan.messages,
        int(plan.messages * _CANCELLED) / cancelled_s,
        int(plan.messages * _MOVED) / moved_s,
        start_s,
        sorted(schedule.late_ms),
        len(schedule.late_ms),
    )


def _counts(messages: int) -> Iterator[tuple[int, int]]:
    for first in range(0, messages, BLOCK):
        yield first // BLOCK % PARTITIONS, min(BLOCK, messages - first)


async def _create(broker: RunningBroker) -> None:
    async with connected(broker) as connection:
        await create(connection, "plain")
        await create(connection, _TOPIC)


async def _publish(broker: RunningBroker, topic: str, blocks: Sequence[tuple[int, bytes]]) -> float:
    async with connected(broker) as connection:
        found = await connection.ask(CODES["metadata"], {"topics": [topic]})
        return await publish_all(connection, int(found["topics"][0]["topic_id"], 16), blocks)


async def _change(broker: RunningBroker, schedule: Schedule) -> tuple[float, float]:
    """Cancel and move some; seconds for each."""
    async with connected(broker) as connection:
        begun = time.perf_counter()
        cancelled = schedule.some(_CANCELLED)
        for first in range(0, len(cancelled), _CANCELLED_AT_ONCE):
            ids = cancelled[first : first + _CANCELLED_AT_ONCE]
            reply = await connection.ask(CODES["cancel_many_delayed"], {"topic": _TOPIC, "ids": ids})
            if reply["cancelled"] != len(ids) or reply["failed"]:
                raise Violation(f"of {len(ids)} that are pending {reply['cancelled']} were cancelled")
        for partition, offset in cancelled:
            schedule.due[partition][offset] = 0
        cancelled_s = time.perf_counter() - begun
        moved = schedule.some(_MOVED)
        begun = time.perf_counter()
        await _move(connection, schedule, moved)
        moved_s = time.perf_counter() - begun
        if await delayed_in(connection, _TOPIC) != schedule.pending:
            raise Violation(f"{await delayed_in(connection, _TOPIC)} are pending, not {schedule.pending}")
        return cancelled_s, moved_s


async def _move(connection: Connection, schedule: Schedule, moved: list[tuple[int, int]]) -> None:
    left = iter(moved)

    async def work() -> None:
        for partition, offset in left:
            deliver_at = schedule.any_time()
            await connection.ask(
                CODES["move_delayed"],
                {"topic": _TOPIC, "partition": partition, "offset": offset, "deliverAt": str(deliver_at)},
            )
            schedule.due[partition][offset] = deliver_at

    async with asyncio.TaskGroup() as group:
        for _ in range(_MOVING):
            group.create_task(work())


async def _consume(broker: RunningBroker, schedule: Schedule) -> None:
    """Until all have come, and a moment longer."""
    async with connected(broker) as connection:
        member = await Member.join(connection, "late", [_TOPIC], max_unacked=50_000)
        pending, empty = schedule.pending, 0
        while empty < 2 and now_ms() < schedule.end + 10 * _AFTER_MS:
            rows = await member.poll(max_messages=BLOCK, max_bytes=4 * MIB, max_wait_ms=_AFTER_MS)
            at = now_ms()
            for row in rows:
                schedule.arrive(row.partition, offsets_of(row), at)
            await member.commit(rows)
            is_over = at > schedule.end and len(schedule.late_ms) == pending
            empty = empty + 1 if is_over and not rows else 0


def figures(outcome: Outcome) -> Iterator[Figure]:
    plan = outcome.plan
    how = f"{plan.messages:,} delayed messages in {PARTITIONS} partitions, due over {plan.spread_s:.0f} s"
    yield Figure(
        "scheduled", outcome.scheduled_per_s, "msg/s", note=f"{how}; not delayed: {outcome.plain_per_s:,.0f}/s"
    )
    yield Figure(
        "memory per delayed message", outcome.bytes_each, "B", MEMORY_BYTES, at_most=True,
        note="RSS, less that of as many that are not delayed, garbage collected and trimmed",
    )  # fmt: skip
    yield Figure("cancelled", outcome.cancelled_per_s, "msg/s", note=f"{_CANCELLED_AT_ONCE:,} a request")
    yield Figure("moved", outcome.moved_per_s, "msg/s", note=f"one a request, {_MOVING} under way")
    yield Figure("start after kill -9", outcome.start_s, "s", START_S, at_most=True, note="until its doors are open")
    for share in (0.5, 0.99, 0.999):
        yield Figure(
            f"due until delivered, p{share * 100:g}", quantile(outcome.late_ms, share), "ms",
            LATE_MS if share == 0.99 else None, at_most=True, note=f"{outcome.fired:,} fired, each once, none early",
        )  # fmt: skip
