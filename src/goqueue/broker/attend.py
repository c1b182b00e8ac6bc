"""Serving one partition to one poll: find what is ready, read it, lease it with one record.

What is ready is said by the delivery room, which asks for what it needs to know: a segment's view that is not in
memory, or keys further ahead. Here that is fetched, off the loop if a disk is involved. What was picked is reserved
meanwhile; what turned out to be gone, or too old, is passed over for good.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Final, NamedTuple

from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import column, gathered, ranged, runs, within
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.codec import Picked
from goqueue.delivery.commands import Expire, GiveUp, Lease, Open, Skip
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.delivery import Delivery, pack_keys
from goqueue.delivery.key_lines import KeyedSelection, ReadAhead
from goqueue.delivery.selection import Pick, Policy, Selection, ready_of
from goqueue.delivery.sidecar import Sidecar
from goqueue.groups.group import Group
from goqueue.io.aside import Aside
from goqueue.io.disk import Buffer
from goqueue.model import limits
from goqueue.model.errors import Conflict, LogClosed, OffsetOutOfRange, Quarantined, Unavailable
from goqueue.model.names import GroupNumber
from goqueue.model.record import Extension, Record
from goqueue.model.topic import LanePolicy, OnExpiry
from goqueue.storage.lane_index import ViewMissing
from goqueue.storage.reading import Chunk
from goqueue.storage.segment import Retired
from goqueue.telemetry import logs
from goqueue.telemetry.meters import GroupMeterSet

log = logs.get("poll")

_AHEAD_BYTES: Final = 1 * limits.MIB
"""What is read at a time in search of other keys."""
_TRIES: Final = 100
"""How often a poll looks again because what it found was gone."""
_SPARSE: Final = 8
"""Offsets further apart than this, on average, are read one row at a time."""


class Row(NamedTuple):
    """Messages of one partition that were delivered equally often, this time included."""

    topic: OpenTopic
    partition: int
    epoch: int
    deliveries: int
    chunk: Chunk


class Visit(NamedTuple):
    """What one poll wants of one partition."""

    group: Group
    holder: str
    poll: int
    epoch: int
    span_ms: int
    still: Callable[[], bool]
    """Whether it may still be served: asked again after every wait."""


class _Portion(NamedTuple):
    """Offsets of one lane that were delivered equally often before."""

    lane: int
    offsets: BitMap64
    deliveries: int
    was_moved: bool = False
    """Whether they were moved to another time than the one their records have."""


class _Read(NamedTuple):
    portion: _Portion
    picked: Picked


class Attendant:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        sidecars: Sidecars,
        reader: PartitionReader,
        aside: Aside,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        meters: GroupMeterSet,
    ) -> None:
        self._sidecars = sidecars
        self._reader = reader
        self._aside = aside
        self._clock = clock
        self._monotonic = monotonic
        self._meters = meters

    # --- what is ready

    async def staged(self, group: Group, partition: Partition, want: int) -> Selection:
        """What there is for the group, up to `want` of each lane. Others get a turn while much is looked at."""
        sidecar, deliveries = partition.sidecar, partition.deliveries
        assert sidecar is not None
        looked_at: int | None = None
        begun = perf_counter()
        while True:
            try:
                low = deliveries.low(group.number) or 0
                if low != looked_at:
                    self._skip_hole(group, partition, sidecar)
                    looked_at = low
                return sidecar.stage(group.number, group.mode, want)
            except ViewMissing as missing:
                try:
                    await self._aside.run(partition.log.derived, missing.segment)
                except (Retired, FileNotFoundError):
                    pass  # it was exchanged: look again
                except LogClosed as closed:
                    raise Unavailable(str(closed)) from None
            except ReadAhead as wanted:
                await self._read_ahead(group, partition, wanted)
            if perf_counter() - begun > limits.TURN_S:
                await asyncio.sleep(0)
                begun = perf_counter()

    def _skip_hole(self, group: Group, partition: Partition, sidecar: Sidecar) -> None:
        hole = sidecar.hole_at_low(group.number)
        if hole is not None:
            deliveries = partition.deliveries
            gone = ready_of(ranged(*hole), deliveries.delivery(group.number), deliveries)
            self._skip(group, partition, gone, damaged=True)

    async def _read_ahead(self, group: Group, partition: Partition, wanted: ReadAhead) -> None:
        """Find out keys."""
        deliveries = partition.deliveries
        selection = deliveries.selection(group.number, group.mode)
        assert isinstance(selection, KeyedSelection)
        only = wanted.only
        block: Buffer | None = None
        if only is not None:
            block = await self._reader.gather(partition, column(only), max_bytes=_AHEAD_BYTES)
        if block:
            scan = codec.scan(block)
            following = scan.offsets[-1] + 1
        else:
            end = wanted.end if only is None else wanted.first + 1
            scan, following = await self._scan(group, partition, wanted.first, end)
        if deliveries.selections.get(group.number) is not selection:
            return  # the group was moved meanwhile
        delivery = deliveries.delivery(group.number)
        if only is not None:
            selection.feed_some(scan, within(only, 0, following), delivery, deliveries)
        else:
            selection.feed(scan, following, delivery, deliveries, first=wanted.first)

    async def _scan(self, group: Group, partition: Partition, first: int, end: int) -> tuple[codec.Scan, int]:
        """Records from `first` on, and up to where there are no others."""
        deliveries = partition.deliveries
        try:
            chunk = await self._reader.read(
                partition, first, max_bytes=_AHEAD_BYTES, max_count=limits.MAX_READ_COUNT, to_offset=end
            )
            return codec.scan(chunk.data), max(chunk.next_offset, first + 1)
        except OffsetOutOfRange:  # retention went past it
            return codec.scan(b""), max(partition.log.start_offset, first + 1)
        except Quarantined as damage:
            log.error("a group passes over damaged messages", group=group.name, log=partition.log_name, found=damage)
            following = max(min(damage.next_offset, end), first + 1)
            lost = ready_of(ranged(first, following), deliveries.delivery(group.number), deliveries)
            self._skip(group, partition, lost, damaged=True)
            return codec.scan(b""), following

    # --- serving

    async def serve(
        self, visit: Visit, topic: OpenTopic, partition: Partition, *, count: int, size: int, at_least_one: bool
    ) -> list[Row]:
        """Up to `count` messages and `size` bytes; nothing when there is nothing, or no room for the next one."""
        group = visit.group
        if partition.deliveries.needs_open(group.number, visit.epoch):
            self._sidecars.write(partition, Open(group.number, visit.epoch))
        for _ in range(_TRIES):
            selection = await self.staged(group, partition, count)
            if not selection.has_staged or not visit.still():
                break
            rows = await self._serve_staged(visit, topic, partition, selection, count, size, at_least_one=at_least_one)
            if rows is not None:
                return rows
            await asyncio.sleep(0)
        return []

    async def _serve_staged(
        self,
        visit: Visit,
        topic: OpenTopic,
        partition: Partition,
        selection: Selection,
        count: int,
        size: int,
        *,
        at_least_one: bool,
    ) -> list[Row] | None:
        """None when what was picked turned out to be gone, and it is worth looking again."""
        group, rules = visit.group, topic.meta.settings
        policy = Policy(rules.lane_weights, rules.lane_policy is LanePolicy.STRICT)
        picks = selection.pick(count, policy, self._monotonic())
        left = picks
        try:
            worn = self._give_up(group, partition, picks)
            portions = list(_portions(_without(picks, [worn]), partition.deliveries, group.number))
            found = [read async for read in self._read_all(group, partition, portions, size, at_least_one=at_least_one)]
            reads = [read for read in found if read is not None]
            if not visit.still() or partition.deliveries.selections.get(group.number) is not selection:
                return []
            gone = self._pass_over(group, partition, reads)
            leased = [Pick(read.portion.lane, gathered(read.picked.offsets)) for read in reads if len(read.picked)]
            if not leased:
                no_room = len(reads) < len(found)  # what was read for nothing is not read again for this poll
                return None if (worn or gone or not reads) and not no_room else []
            rows = self._lease(visit, topic, partition, selection, reads, leased)
            self._count(group, partition, selection.keep(leased, self._monotonic()))
            left = _without(picks, [pick.offsets for pick in leased])
            return rows
        except Conflict:  # an operator moved the group, or a late handle settled one of them: look again
            return None
        finally:
            deliveries = partition.deliveries
            if deliveries.selections.get(group.number) is selection:  # else the group was moved meanwhile
                selection.put_back(left, deliveries.delivery(group.number), deliveries)

    def _lease(
        self,
        visit: Visit,
        topic: OpenTopic,
        partition: Partition,
        selection: Selection,
        reads: list[_Read],
        leased: list[Pick],
    ) -> list[Row]:
        group, start = visit.group, partition.log.start_offset
        offsets = BitMap64()
        for pick in leased:
            offsets |= pick.offsets
        keys = pack_keys(selection.keys_of(offsets)) if isinstance(selection, KeyedSelection) else b""
        missed = partition.deliveries.overtaken(group.number, start)
        self._sidecars.write(
            partition,
            Lease(
                group=group.number,
                poll=visit.poll,
                holder=visit.holder,
                start=start,
                offsets=offsets,
                span_ms=visit.span_ms,
                assignment_epoch=visit.epoch,
                keys=keys,
            ),
        )
        rows = []
        for portion, picked in reads:
            if not len(picked):
                continue
            deliveries = portion.deliveries
            chunk = Chunk(picked.data, len(picked), picked.offsets[-1] + 1)
            rows.append(Row(topic, partition.number, visit.epoch, deliveries + 1, chunk))
            self._meters.consumed(group.name, topic.meta.name, chunk.count, missed, deliveries + 1)
            topic.meters.messages_read += chunk.count
            topic.meters.bytes_read += len(chunk.data)
            missed = 0
        return rows

    def _count(self, group: Group, partition: Partition, taken: list[int]) -> None:
        """So many of each lane were leased."""
        self._meters.served(group.name, taken)
        partition.deliveries.served.serve(group.number, taken, self._clock())

    # --- reading

    async def _read_all(
        self, group: Group, partition: Partition, portions: Sequence[_Portion], size: int, *, at_least_one: bool
    ) -> AsyncIterator[_Read | None]:
        """None for what has no room."""
        left = size
        for portion in portions:
            scattered = await self._gather(partition, portion, left) if _is_sparse(portion.offsets) else None
            if scattered is not None:
                picked = scattered.picked
                if len(picked.data) <= left or at_least_one:
                    yield scattered
                    at_least_one = at_least_one and not len(picked)
                    left -= len(picked.data)
                else:
                    yield None
                continue
            for wanted in _rows_of(portion.offsets):
                if left <= 0:
                    return
                read = await self._read(group, partition, portion._replace(offsets=wanted), left)
                if read is None:
                    continue
                if len(read.picked.data) > left and not at_least_one:
                    yield None
                    return
                yield read
                at_least_one = False
                left -= len(read.picked.data)
                if read.picked.next_offset <= wanted.max():
                    break  # there was no room for the rest; another lane may have smaller ones

    async def _gather(self, partition: Partition, portion: _Portion, size: int) -> _Read | None:
        """Offsets that are far apart, in one go; None when that does not work."""
        wanted = column(portion.offsets)
        block = await self._reader.gather(partition, wanted, max_bytes=max(size, 1))
        return None if not block else _Read(portion, self._pick(partition, portion, block, wanted, size))

    def _pick(self, partition: Partition, portion: _Portion, block: Buffer, wanted: "array[int]", size: int) -> Picked:
        ttl_ms = partition.topic.settings.message_ttl_ms
        if not portion.was_moved:
            return codec.pick(block, wanted, max_bytes=size, now=self._clock(), ttl_ms=-1 if ttl_ms is None else ttl_ms)
        picked = codec.pick(block, wanted, max_bytes=size)
        moved, now = partition.deliveries.moved, self._clock()
        late = [
            record.offset
            for record in codec.decode(picked.data, verified=True)
            if _is_late(record, moved.get(record.offset), ttl_ms, now)
        ]
        if late:
            rest = array("q", [at for at in wanted if at < picked.next_offset and at not in late])
            picked = codec.pick(block, rest, max_bytes=size)
            picked.expired = array("q", late)
        return picked

    async def _read(self, group: Group, partition: Partition, portion: _Portion, size: int) -> _Read | None:
        """None when there was nothing, or it could not be read, and is passed over."""
        offsets = portion.offsets
        first, end = offsets.min(), offsets.max() + 1
        try:
            chunk = await self._reader.read(partition, first, max_bytes=size, max_count=end - first, to_offset=end)
        except OffsetOutOfRange:  # retention went past it meanwhile: look again
            return None
        except Quarantined as damage:
            log.error("a group passes over damaged messages", group=group.name, log=partition.log_name, found=damage)
            lost = BitMap64([offset for offset in column(offsets) if offset < damage.next_offset])
            self._skip(group, partition, lost, damaged=True)
            return None
        if not chunk.count:  # the cleaner took them since they were found
            self._skip(group, partition, offsets, damaged=False)
            return None
        return _Read(portion, self._pick(partition, portion, chunk.data, column(offsets), size))

    def _pass_over(self, group: Group, partition: Partition, reads: Iterable[_Read]) -> list[BitMap64]:
        """What cannot be delivered any more."""
        expired, gone = BitMap64(), BitMap64()
        for read in reads:
            expired |= gathered(read.picked.expired)
            gone |= gathered(read.picked.missing)
            gone |= gathered(read.picked.controls)
        if gone:
            self._skip(group, partition, gone, damaged=False)
        if expired:
            rules = partition.topic.settings
            dead_letters = rules.on_expiry is OnExpiry.DLQ and partition.has_dead_letters
            self._sidecars.write(partition, Expire(group.number, expired, dead_letters))
            self._meters.settled(group.name, partition.topic.name, "expired", len(expired))
            self._meters.died(group.name, partition.topic.name, "expired", len(expired))
        return [offsets for offsets in (expired, gone) if offsets]

    def _give_up(self, group: Group, partition: Partition, picks: Iterable[Pick]) -> BitMap64:
        """What was delivered as often as it may be, by consumers that died: it must not kill the next one."""
        tries, most = partition.deliveries.delivery(group.number).tries, partition.retries.most
        worn = BitMap64()
        for pick in picks if tries else ():
            worn |= BitMap64(
                [offset for offset in column(pick.offsets & tries.offsets) if tries[offset].deliveries > most]
            )
        if worn:
            self._sidecars.write(partition, GiveUp(group.number, worn, partition.has_dead_letters))
            self._meters.died(group.name, partition.topic.name, "lapsed", len(worn))
        return worn

    def _skip(self, group: Group, partition: Partition, offsets: BitMap64, *, damaged: bool) -> None:
        for first, end in runs(offsets):
            try:
                self._sidecars.write(partition, Skip(group.number, first, end))
            except Conflict:
                continue  # somebody else was faster
            if damaged:
                self._meters.missed(group.name, partition.topic.name, end - first)


def _rows_of(offsets: BitMap64) -> Iterator[BitMap64]:
    """As they are when they lie close together, else in rows without gaps."""
    if not _is_sparse(offsets):
        yield offsets
    else:
        for first, end in runs(offsets):
            yield BitMap64(range(first, end))


def _is_sparse(offsets: BitMap64) -> bool:
    return offsets.max() - offsets.min() >= _SPARSE * len(offsets)


def _without(picks: list[Pick], others: list[BitMap64]) -> list[Pick]:
    """The picks, less these offsets."""
    for offsets in filter(None, others):
        picks = [Pick(pick.lane, pick.offsets - offsets) for pick in picks]
    return [pick for pick in picks if pick.offsets]


def _is_late(record: Record, moved_to: int | None, ttl_ms: int | None, now: int) -> bool:
    """Whether the time to live of a message that was moved is over: it counts from when it is due now."""
    extension = record.extension or Extension()
    first_due = extension.deliver_at or record.timestamp
    due = first_due if moved_to is None else moved_to
    if extension.expires_at:
        return now >= extension.expires_at + due - first_due
    return ttl_ms is not None and now >= due + ttl_ms


def _portions(picks: Iterable[Pick], deliveries: Deliveries, group: GroupNumber) -> Iterator[_Portion]:
    """In the order of the picks; in each, first what was moved, then what was tried before."""
    delivery, moved = deliveries.delivery(group), deliveries.moved
    for lane, offsets in picks:
        if moved:
            few, many = (moved, offsets) if len(moved) < len(offsets) else (column(offsets), moved)
            theirs = BitMap64([offset for offset in few if offset in many])
            for portion in _by_deliveries(lane, theirs, delivery):
                yield portion._replace(was_moved=True)
            offsets = offsets - theirs
        yield from _by_deliveries(lane, offsets, delivery)


def _by_deliveries(lane: int, offsets: BitMap64, delivery: Delivery) -> Iterator[_Portion]:
    tries = delivery.tries
    tried = offsets & tries.offsets
    by_count: dict[int, list[int]] = {}
    for offset in column(tried):
        by_count.setdefault(tries[offset].deliveries, []).append(offset)
    for deliveries, some in by_count.items():
        yield _Portion(lane, BitMap64(some), deliveries)
    if len(tried) < len(offsets):
        yield _Portion(lane, offsets - tried if tried else offsets, 0)
