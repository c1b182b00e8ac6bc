"""Deliveries without a log: commands are decided and applied as a host does it, at times a test chooses."""

from collections.abc import Iterable
from typing import Any

from pyroaring import BitMap64

from goqueue.delivery import records
from goqueue.delivery.commands import Lapse, Lease
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Event
from goqueue.model.names import GroupNumber
from tests.unit.delivery.partitions import RETRIES, SPAN, some

NOW = 1_700_000_000_000
UNTIL = NOW + SPAN
CLOCK = 5_000
"""The clock that never steps."""


def live() -> Deliveries:
    """A new one, after its replay."""
    made = Deliveries()
    made.begin_life(wall=NOW, now=CLOCK)
    return made


def do(machine: Deliveries, command: Any, now: int = NOW) -> Any:
    """Decide and apply, as a host does; deciding alone must change nothing."""
    before = list(machine.snapshot())
    try:
        decision = machine.decide(command, now)
    finally:
        assert list(machine.snapshot()) == before
    for record in decision.records:
        machine.apply(record, 0)
    machine.arm(CLOCK + now - NOW)
    return decision.reply


def leasing(
    group: GroupNumber,
    offsets: Iterable[int],
    *,
    poll: int = 1,
    epoch: int = 1,
    holder: str = "a",
    start: int = 0,
    span_ms: int = SPAN,
) -> Lease:
    return Lease(
        group=group,
        poll=poll,
        holder=holder,
        start=start,
        offsets=BitMap64(offsets),
        span_ms=span_ms,
        assignment_epoch=epoch,
    )


def lease(
    machine: Deliveries, group: GroupNumber, *offsets: int, poll: int = 1, epoch: int = 1, holder: str = "a"
) -> None:
    do(machine, leasing(group, offsets, poll=poll, epoch=epoch, holder=holder))


def lapse(machine: Deliveries, group: GroupNumber, *polls: int, until: int = UNTIL) -> BitMap64:
    found = do(machine, Lapse(group, tuple((poll, until) for poll in polls), RETRIES))
    assert isinstance(found, BitMap64)
    return found


def events(machine: Deliveries) -> list[Event]:
    return [records.decode(record) for record in machine.snapshot()]


def ready(machine: Deliveries, group: GroupNumber, end: int = 12) -> list[int]:
    """What is free."""
    return [offset for offset in range(end) if machine.delivery(group).is_free(some(offset))]
