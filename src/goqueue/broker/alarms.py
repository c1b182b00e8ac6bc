"""When something becomes ready by itself: a delay is over, a lease lapses, a retry's time has come.

One timer for all partitions. Each names when it has something to do next; a burst is worked off in slices, so that
others get their turn.
"""

from collections.abc import Callable
from time import perf_counter

from pyroaring import BitMap64

from goqueue.base.deadlines import Deadlines
from goqueue.broker.partition import Partition
from goqueue.broker.timer import Timer
from goqueue.delivery.commands import Lapse
from goqueue.delivery.running_holds import Due
from goqueue.model import limits
from goqueue.model.errors import GoQueueError
from goqueue.model.names import GroupNumber
from goqueue.telemetry import logs
from goqueue.telemetry.meters import LATENESS_BOUNDS_S, Histogram

log = logs.get("alarms")

_RETRY_MS = 1000
"""After what could not be written, for instance because the disk was full."""


class Alarms:
    """Used from one event loop. The owner says what there is to do with what is due."""

    def __init__(
        self,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        *,
        write: Callable[[Partition, Lapse], BitMap64],
        on_ready: Callable[[Partition, set[GroupNumber] | None], None],
        on_lapsed: Callable[[Partition, GroupNumber, int, int], None],
    ) -> None:
        """`on_ready` is told what has become ready, for some groups or for all; `on_lapsed` how many messages of a
        group lapsed, and how many of those are dead now."""
        self._clock = clock
        self._monotonic = monotonic
        self._write = write
        self._on_ready = on_ready
        self._on_lapsed = on_lapsed
        self.lateness = Histogram(LATENESS_BOUNDS_S)
        """Of each slice of delayed messages that became ready (`Delays.late_ms`)."""
        self._deadlines: Deadlines[Partition] = Deadlines()
        self._timer = Timer(lambda: self._deadlines.earliest, monotonic, self._ring)

    def watch(self, partition: Partition) -> None:
        """When the partition has something to do may have changed."""
        due = partition.deliveries.next_deadline() if partition.sidecar is not None else None
        if partition.delays.pending:
            delayed = partition.delays.next_due(wall=self._clock(), now=self._monotonic())
            due = delayed if due is None else due if delayed is None else min(due, delayed)
        if due is not None and self._deadlines.arm(partition, due):
            self._timer.arm()

    def forget(self, partition: Partition) -> None:
        """Its topic is gone."""
        self._deadlines.disarm(partition)

    def stop(self) -> None:
        self._timer.stop()

    def _ring(self) -> None:
        """What is left when the time for one turn is over comes with the next one."""
        begun = perf_counter()
        due = self._deadlines.due(self._monotonic())
        for count, partition in enumerate(due, 1):
            try:
                self._attend(partition)
            except Exception as error:  # others are due, too
                is_known = isinstance(error, GoQueueError)
                say = log.warning if is_known else log.error
                say("what is due will be looked at again", log=partition.log_name, reason=repr(error))
                self._deadlines.arm(partition, self._monotonic() + _RETRY_MS)
            if perf_counter() - begun > limits.TURN_S:
                for rest in due[count:]:
                    self._deadlines.arm(rest, self._monotonic())
                break
        self._timer.arm()

    def _attend(self, partition: Partition) -> None:
        wall, now = self._clock(), self._monotonic()
        if partition.log.written.failure is not None:
            return  # its topic was deleted, or the broker is stopping
        due = partition.delays if partition.sidecar is None else partition.deliveries
        if due.fire(wall=wall, now=now, limit=limits.FIRED_AT_ONCE):
            self.lateness.observe(partition.delays.late_ms / 1000)
            self._on_ready(partition, None)
        if partition.sidecar is not None:
            self._lapse(partition, now)
        self.watch(partition)

    def _lapse(self, partition: Partition, now: int) -> None:
        deliveries = partition.deliveries
        lapsed, woken = deliveries.lapse_due(now)
        by_group: dict[GroupNumber, list[Due]] = {}
        for due in lapsed:
            by_group.setdefault(due.group, []).append(due)
        try:
            for group, mine in list(by_group.items()):
                leases = tuple((due.poll, due.until) for due in mine)
                held = deliveries.leased_in(group, leases)
                dead = self._write(partition, Lapse(group, leases, partition.retries))
                self._on_lapsed(partition, group, held, len(dead))
                woken.add(group)
                del by_group[group]
        finally:
            left = [due for mine in by_group.values() for due in mine]
            if left:
                deliveries.rearm(left, now, _RETRY_MS)
            if woken:
                self._on_ready(partition, woken)
