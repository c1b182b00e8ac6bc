"""A partition in memory, as the delivery room sees one: a data log, its sidecar, delayed messages, two clocks.

What the broker does around the room is done here in the plainest way: views are loaded and keys read when they are
asked for, and after a restart delayed messages are found again from the views.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyroaring import BitMap64

from goqueue import codec
from goqueue.codec import Field
from goqueue.delivery.commands import Lapse, Lease, Retries, Skip
from goqueue.delivery.delays import Delays
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.delivery import Delivery, pack_keys
from goqueue.delivery.key_lines import KeyedSelection, ReadAhead
from goqueue.delivery.selection import Pick, Policy, Selection
from goqueue.delivery.sidecar import Sidecar, sidecar_settings
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import Backoff
from goqueue.storage.delays import delayed
from goqueue.storage.lane_index import ViewMissing
from goqueue.storage.log import Log
from tests.support.memory_disk import MemoryDisk

T0: Final = 1_700_000_000_000
SPAN: Final = 30_000
A, B, C = GroupNumber(1), GroupNumber(2), GroupNumber(3)
RETRIES: Final = Retries(2, Backoff(base_ms=1000, factor=2.0, max_ms=3000), True)
EVENLY: Final = Policy((1, 1, 1, 1, 1), strict=False)
STRICTLY: Final = Policy((1, 1, 1, 1, 1), strict=True)
ALL: Final = 10**6
_SETTINGS: Final = LogSettings(fsync=Fsync.NONE, segment_bytes=4096)
_AHEAD: Final = 4
"""Records that are read at a time in search of keys: few, so that it is done often."""


def message(
    key: str | None = None,
    *,
    lane: int = Lane.NORMAL,
    deliver_at: int | None = None,
    transaction: int | None = None,
) -> Record:
    extension = None
    if deliver_at is not None or transaction is not None:
        extension = Extension(deliver_at=deliver_at, transaction=transaction)
    return Record(key=None if key is None else key.encode(), value=b"v", priority=lane, extension=extension)


def some(*offsets: int) -> BitMap64:
    return BitMap64(offsets)


def offsets_of(picks: Iterable[Pick]) -> BitMap64:
    found = BitMap64()
    for pick in picks:
        found |= pick.offsets
    return found


class MemoryPartition:
    """`wall` is Unix time, `now` that of a clock that never steps."""

    def __init__(self, *records: Record) -> None:
        self._disk = MemoryDisk()
        self.wall = T0
        self.now = 5_000
        self._last_poll = 0
        self._open()
        if records:
            self.publish(*records)

    def _open(self) -> None:
        self.data = Log.open("/partition", disk=self._disk, settings=_SETTINGS)
        self.delays = Delays()
        log = Log.open("/sidecar", disk=self._disk, settings=sidecar_settings(_SETTINGS))
        self.sidecar = Sidecar.open(log, self.data, wall=self.wall, now=self.now, delays=self.delays)
        self._find_delays()

    def _find_delays(self) -> None:
        cancelled, moved = self.deliveries.cancelled, self.deliveries.moved
        for segment in self.data.segments:
            offsets, times = delayed(self.data.derived(segment).views, segment.base)
            left = {
                offset: moved.get(offset, time)
                for offset, time in zip(offsets, times, strict=True)
                if offset >= self.data.start_offset and offset not in cancelled
            }
            self.delays.add(list(left), list(left.values()), wall=self.wall, now=self.now)

    @property
    def deliveries(self) -> Deliveries:
        return self.sidecar.deliveries

    def delivery(self, group: GroupNumber) -> Delivery:
        return self.deliveries.delivery(group)

    # --- the data log

    def publish(self, *records: Record) -> range:
        block = codec.encode(records)
        appended = self.data.append(block, now=self.wall)
        ordinals, times = codec.field_values(block, appended.scan, Field.DELIVER_AT)
        offsets = [appended.first_offset + ordinal for ordinal in ordinals]
        self.delays.add(offsets, times, wall=self.wall, now=self.now)
        return range(appended.first_offset, appended.next_offset)

    def roll(self) -> None:
        """A new segment; the views of those before it are not in memory."""
        self.data.roll()
        self.data.sync()
        for segment in self.data.segments[:-1]:
            segment.derived = None

    def retain(self, start: int) -> None:
        """Retention: the partition begins at `start`."""
        self.data.truncate_prefix(start)

    # --- time

    def pass_time(self, ms: int) -> None:
        self.wall += ms
        self.now += ms

    def step_wall(self, ms: int) -> None:
        self.wall += ms

    def restart(self, *, lost: int = 0, wall_ms: int = 0) -> None:
        """With another clock that never steps; `lost` messages went in a power cut, and `wall_ms` passed."""
        if lost:
            self.data.truncate(self.data.end_offset - lost)
        self.wall += wall_ms
        self.now = 900_000 - self.now % 1000
        self._open()

    # --- what the broker does

    def do(self, command: Any) -> Any:
        """Decide, write down, apply; refusals are raised."""
        outcome = self.sidecar.submit(command, wall=self.wall, now=self.now)
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.reply

    def staged(self, group: GroupNumber, mode: Mode = Mode.SHARED, want: int = ALL) -> Selection:
        """What there is for a group."""
        while True:
            try:
                hole = self.sidecar.hole_at(self.deliveries.low(group) or 0)
                if hole is not None:
                    self.do(Skip(group, *hole))
                return self.sidecar.stage(group, mode, want)
            except ViewMissing as missing:
                self.data.derived(missing.segment)
            except ReadAhead as wanted:
                self._read_ahead(group, mode, wanted)

    def _read_ahead(self, group: GroupNumber, mode: Mode, wanted: ReadAhead) -> None:
        selection = self.deliveries.selection(group, mode)
        assert isinstance(selection, KeyedSelection)
        chunk = self.data.read(wanted.first, max_bytes=10**6, max_count=_AHEAD, to_offset=wanted.end)
        scan, following = codec.scan(chunk.data), max(chunk.next_offset, wanted.first + 1)
        runs = codec.transaction_runs(chunk.data, scan)
        selection.feed(wanted, scan, following, runs, self.delivery(group), self.deliveries)

    def next_poll(self) -> int:
        self._last_poll += 1
        return self._last_poll

    def lease(
        self,
        group: GroupNumber,
        selection: Selection,
        picks: Sequence[Pick],
        *,
        poll: int,
        holder: str = "a",
        epoch: int = 0,
        span_ms: int = SPAN,
    ) -> None:
        """What was picked is delivered."""
        offsets = offsets_of(picks)
        keys = pack_keys(selection.keys_of(offsets)) if isinstance(selection, KeyedSelection) else b""
        self.hold(group, offsets, poll=poll, holder=holder, epoch=epoch, span_ms=span_ms, keys=keys)
        selection.keep(picks, self.now)

    def hold(
        self,
        group: GroupNumber,
        offsets: BitMap64,
        *,
        poll: int,
        holder: str = "a",
        epoch: int = 0,
        span_ms: int = SPAN,
        keys: bytes = b"",
    ) -> None:
        """That they are leased is written down."""
        self.do(
            Lease(
                group=group,
                poll=poll,
                holder=holder,
                start=self.data.start_offset,
                offsets=offsets,
                span_ms=span_ms,
                assignment_epoch=epoch,
                keys=keys,
            )
        )

    def poll(
        self,
        group: GroupNumber,
        count: int = ALL,
        *,
        mode: Mode = Mode.SHARED,
        holder: str = "a",
        epoch: int = 0,
        span_ms: int = SPAN,
        policy: Policy = EVENLY,
    ) -> tuple[int, list[int]]:
        """Deliver up to `count`: the number of the poll, and what it was given."""
        number = self.next_poll()
        selection = self.staged(group, mode, count)
        picks = selection.pick(count, policy, self.now)
        if picks:
            self.lease(group, selection, picks, poll=number, holder=holder, epoch=epoch, span_ms=span_ms)
        return number, list(offsets_of(picks))

    def lapse(self, retries: Retries = RETRIES) -> set[GroupNumber]:
        """Leases whose time is over end; the groups for which something is ready by itself."""
        lapsed, woken = self.deliveries.lapse_due(self.now)
        for group in {due.group for due in lapsed}:
            self.do(Lapse(group, tuple((due.poll, due.until) for due in lapsed if due.group == group), retries))
        return woken

    def fire(self, limit: int = ALL) -> list[int]:
        return list(self.deliveries.fire(wall=self.wall, now=self.now, limit=limit))
