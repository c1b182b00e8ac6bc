"""What happens by itself in a simulated broker when its time has come, and what operators do about that: delays are
over, leases lapse, retries come; delayed messages are cancelled, or moved to another time."""

from pyroaring import BitMap64

from goqueue.delivery.commands import Cancel, Lapse, Move
from goqueue.delivery.running_holds import Due
from goqueue.model import limits
from goqueue.model.names import GroupNumber
from sim.checkers import on_time
from sim.rooms.core import Core
from sim.rooms.exchanges import Steps
from sim.rooms.topics import Partition


class Alarms:
    def __init__(self, core: Core) -> None:
        self._core = core

    def ring(self) -> None:
        """Everything that is due by now."""
        core = self._core
        for partition in core.partitions.values():
            while self._next(partition) <= core.monotonic():
                self._attend(partition)
            on_time.check(core.ledger, partition.part, core.monotonic())
            on_time.check_delays(core.ledger, partition.part, partition.delays.pending, core.moment())

    def _next(self, partition: Partition) -> int:
        """When a partition has something to do."""
        at = self._core.moment()
        found = [partition.delays.next_due(wall=at.wall, now=at.now)]
        if partition.sidecar is not None:
            found.append(partition.sidecar.deliveries.next_deadline())
        return min((due for due in found if due is not None), default=limits.MAX_OFFSET)

    def _attend(self, partition: Partition) -> None:
        wall, now = self._core.moment()
        if partition.sidecar is None:
            partition.delays.fire(wall=wall, now=now, limit=limits.FIRED_AT_ONCE)
            return
        fired = partition.sidecar.deliveries.fire(wall=wall, now=now, limit=limits.FIRED_AT_ONCE)
        lapsed, _ = partition.sidecar.deliveries.lapse_due(now)
        self._core.trace.event("alarm", *partition.part, *fired, lapsed)
        by_group: dict[GroupNumber, list[Due]] = {}
        for due in lapsed:
            by_group.setdefault(due.group, []).append(due)
        for group, mine in by_group.items():
            command = Lapse(group, tuple((due.poll, due.until) for due in mine), partition.retries)
            on_time.check_lapse(self._core.ledger, partition.part, command, now)
            self._core.write(partition, command)

    # --- operators

    def cancel(self, partition: Partition, offset: int) -> Steps[None]:
        """Maybe it is too late."""
        yield from self._core.sidecar(partition)
        written = self._core.write(partition, Cancel(BitMap64([offset])))
        yield from self._core.safe(partition, written.position)

    def move(self, partition: Partition, offset: int, deliver_at: int) -> Steps[None]:
        yield from self._core.sidecar(partition)
        written = self._core.write(partition, Move(BitMap64([offset]), deliver_at))
        if not written.reply:
            wall, now = self._core.moment()
            partition.delays.move(BitMap64([offset]), deliver_at, wall=wall, now=now)
        yield from self._core.safe(partition, written.position)
