"""Serving one partition to one poll: find what is ready, read it, lease it with one record.

What is ready is said by the delivery room, which asks for what it needs to know: a segment's view that is not in
memory, or keys further ahead. Here that is fetched, off the loop if a disk is involved. What was picked is reserved
meanwhile; what turned out to be gone, or too old, is passed over for good.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import column, gathered, ranged, runs
from goqueue.broker.partition import Partition
from goqueue.broker.read import PartitionReader
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topic import OpenTopic
from goqueue.codec import Picked
from goqueue.delivery.commands import Expire, GiveUp, Lease, Open, Skip
from goqueue.delivery.delivery import Delivery, pack_keys
from goqueue.delivery.key_lines import KeyedSelection, ReadAhead
from goqueue.delivery.selection import LANES, Pick, Policy, Selection, ready_of
from goqueue.groups.group import Group
from goqueue.io.aside import Aside
from goqueue.io.disk import Buffer
from goqueue.model import limits
from goqueue.model.errors import Conflict, LogClosed, OffsetOutOfRange, Quarantined, Unavailable
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
_NEVER_DELIVERED: Final = 0
_SPARSE: Final = 8
"""Offsets further apart than this, on average, are read one row at a time."""


class Row(msgspec.Struct, frozen=True):
    """Messages of one partition that were delivered equally often, this time included."""

    topic: OpenTopic
    partition: int
    epoch: int
    deliveries: int
    chunk: Chunk


class Visit(msgspec.Struct, frozen=True):
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


class _Read(msgspec.Struct, frozen=True, gc=False):
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
        sidecar = partition.sidecar
        assert sidecar is not None
        deliveries = sidecar.deliveries
        has_skipped = False
        begun = perf_counter()
        while True:
            try:
                selection = sidecar.stage(group.number, group.mode, want)
                if has_skipped or (selection.has_staged and deliveries.is_in_order(group.number)):
                    return selection
                hole = sidecar.hole_at(deliveries.low(group.number) or 0)
                if hole is None:
                    return selection
                has_skipped = True  # one at a time: where a cleaner was there may be many
                gone = ready_of(ranged(*hole), deliveries.delivery(group.number), deliveries)
                self._skip(group, partition, gone, damaged=True)
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

    async def _read_ahead(self, group: Group, partition: Partition, wanted: ReadAhead) -> None:
        """Find out keys."""
        deliveries = partition.deliveries
        selection = deliveries.selection(group.number, group.mode)
        assert isinstance(selection, KeyedSelection)
        only = wanted.only
        block: Buffer | None = None
        if only is not None:
            block = await self._reader.gather(partition, column(only), max_bytes=_AHEAD_BYTES)
        following = 0
        if not block:
            end = wanted.end if only is None else wanted.first + 1
            block, following = await self._records(group, partition, wanted.first, end)
        scan = codec.scan(block)
        following = following or scan.offsets[-1] + 1
        if deliveries.selections.get(group.number) is not selection:
            return  # the group was moved meanwhile
        delivery = deliveries.delivery(group.number)
        runs = codec.transaction_runs(block, scan) if deliveries.uncommitted else ()
        selection.feed(wanted, scan, following, runs, delivery, deliveries)

    async def _records(self, group: Group, partition: Partition, first: int, end: int) -> tuple[Buffer, int]:
        """Records from `first` on, and up to where there are no others."""
        deliveries = partition.deliveries
        try:
            chunk = await self._reader.read(
                partition, first, max_bytes=_AHEAD_BYTES, max_count=limits.MAX_READ_COUNT, to_offset=end
            )
            return chunk.data, max(chunk.next_offset, first + 1)
        except OffsetOutOfRange:  # retention went past it
            return b"", max(partition.log.start_offset, first + 1)
        except Quarantined as damage:
            log.error("a group passes over damaged messages", group=group.name, log=partition.log_name, found=damage)
            following = max(min(damage.next_offset, end), first + 1)
            lost = ready_of(ranged(first, following), deliveries.delivery(group.number), deliveries)
            self._skip(group, partition, lost, damaged=True)
            return b"", following

    # --- serving

    async def serve(
        self, visit: Visit, topic: OpenTopic, partition: Partition, *, count: int, size: int, at_least_one: bool
    ) -> list[Row]:
        """Up to `count` messages and `size` bytes; nothing when there is nothing, or no room for the next one."""
        group = visit.group
        if partition.deliveries.needs_open(group.number, visit.epoch):
            self._sidecars.write(partition, Open(group.number, visit.epoch))
        row = self._serve_ahead(visit, topic, partition, count, size)
        if row is not None:
            return [row]
        for _ in range(_TRIES):
            selection = await self.staged(group, partition, count)
            if not selection.has_staged or not visit.still():
                break
            rows = await self._serve_staged(visit, topic, partition, selection, count, size, at_least_one=at_least_one)
            if rows is not None:
                return rows
            await asyncio.sleep(0)
        return []

    def _serve_ahead(self, visit: Visit, topic: OpenTopic, partition: Partition, count: int, size: int) -> Row | None:
        """The short way for a group that goes along at the end of a log; None when it must be the long one.

        It does not wait, so nobody can come between, and nothing is reserved.
        """
        group, sidecar = visit.group, partition.sidecar
        assert sidecar is not None
        ahead = sidecar.ahead(group.number, group.mode)
        if ahead is None or ahead.end - ahead.first > count:
            return None
        lane, first, end = ahead.lane, ahead.first, ahead.end
        try:
            chunk = self._reader.read_now(partition, first, max_bytes=size, max_count=count, to_offset=end)
            if chunk is None or chunk.next_offset < end or len(chunk.data) > size:
                return None
            portion = _Portion(lane, ranged(first, end), _NEVER_DELIVERED)
            picked = self._pick(partition, portion, chunk.data, column(portion.offsets), size)
            if not picked.is_whole:
                return None
            missed = self._lease(visit, partition, portion.offsets, b"")
        except (Conflict, OffsetOutOfRange, Quarantined, LogClosed):
            return None
        sidecar.deliveries.selection(group.number, group.mode).take(ahead)
        self._count(group, partition, [end - first if each == lane else 0 for each in range(LANES)])
        return self._hand_out(visit, topic, partition, _Read(portion, picked), missed)

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
        group, rules, deliveries = visit.group, topic.meta.settings, partition.deliveries
        policy = Policy(rules.lane_weights, rules.lane_policy is LanePolicy.STRICT)
        picks = selection.pick(count, policy, self._monotonic())
        left = picks
        try:
            delivery = deliveries.delivery(group.number)
            worn = self._give_up(group, partition, picks) if delivery.tries else None
            portions = _portions(_without(picks, worn) if worn else picks, delivery, deliveries.moved)
            reads, no_room = await self._read_all(group, partition, portions, size, at_least_one=at_least_one)
            if not visit.still() or deliveries.selections.get(group.number) is not selection:
                return []
            gone = [] if all(read.picked.is_whole for read in reads) else self._pass_over(group, partition, reads)
            leased = [Pick(read.portion.lane, gathered(read.picked.offsets)) for read in reads if len(read.picked)]
            if not leased:  # what was read for nothing is not read again for this poll
                return None if (worn or gone or not reads) and not no_room else []
            offsets = _union([pick.offsets for pick in leased])
            keys = pack_keys(selection.keys_of(offsets)) if isinstance(selection, KeyedSelection) else b""
            missed = self._lease(visit, partition, offsets, keys)
            self._count(group, partition, selection.keep(leased, self._monotonic()))
            left = _without(picks, offsets)
            handed_out = [read for read in reads if len(read.picked)]
            return [
                self._hand_out(visit, topic, partition, read, 0 if ordinal else missed)
                for ordinal, read in enumerate(handed_out)
            ]
        except Conflict:  # an operator moved the group, or a late handle settled one of them: look again
            return None
        finally:
            if left and deliveries.selections.get(group.number) is selection:  # else the group was moved meanwhile
                selection.put_back(left, deliveries.delivery(group.number), deliveries)

    def _lease(self, visit: Visit, partition: Partition, offsets: BitMap64, keys: bytes) -> int:
        """How many messages went before they could be delivered."""
        group, start = visit.group, partition.log.start_offset
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
        return missed

    def _hand_out(self, visit: Visit, topic: OpenTopic, partition: Partition, read: _Read, missed: int) -> Row:
        """What was leased."""
        picked, deliveries = read.picked, read.portion.deliveries + 1
        chunk = Chunk(picked.data, len(picked), picked.offsets[-1] + 1)
        self._meters.consumed(visit.group.name, topic.meta.name, chunk.count, missed, deliveries)
        topic.meters.messages_read += chunk.count
        topic.meters.bytes_read += len(chunk.data)
        return Row(topic, partition.number, visit.epoch, deliveries, chunk)

    def _count(self, group: Group, partition: Partition, taken: list[int]) -> None:
        """So many of each lane were leased."""
        self._meters.served(group.name, taken)
        partition.deliveries.served.serve(group.number, taken, self._clock())

    # --- reading

    async def _read_all(
        self, group: Group, partition: Partition, portions: Sequence[_Portion], size: int, *, at_least_one: bool
    ) -> tuple[list[_Read], bool]:
        """And whether there was something that had no room."""
        reads: list[_Read] = []
        no_room = False
        left = size
        for portion in portions:
            sparse = _is_sparse(portion.offsets)
            scattered = await self._gather(partition, portion, left) if sparse else None
            if scattered is not None:
                picked = scattered.picked
                if len(picked.data) <= left or at_least_one:
                    reads.append(scattered)
                    at_least_one = at_least_one and not len(picked)
                    left -= len(picked.data)
                else:
                    no_room = True
                continue
            for row in _rows_of(portion) if sparse else (portion,):
                if left <= 0:
                    return reads, no_room
                read = await self._read(group, partition, row, left)
                if read is None:
                    continue
                if len(read.picked.data) > left and not at_least_one:
                    return reads, True
                reads.append(read)
                at_least_one = False
                left -= len(read.picked.data)
                if read.picked.next_offset <= row.offsets.max():
                    break  # there was no room for the rest; another lane may have smaller ones
        return reads, no_room

    async def _gather(self, partition: Partition, portion: _Portion, size: int) -> _Read | None:
        """Offsets that are far apart, in one go; None when that does not work."""
        wanted = column(portion.offsets)
        block = await self._reader.gather(partition, wanted, max_bytes=max(size, 1))
        return None if not block else _Read(portion, self._pick(partition, portion, block, wanted, size))

    def _pick(self, partition: Partition, portion: _Portion, block: Buffer, wanted: "array[int]", size: int) -> Picked:
        ttl_ms = partition.topic.settings.message_ttl_ms
        late_clock = ttl_ms is not None and partition.append_clock.knows(portion.offsets.min())
        if not portion.was_moved and not late_clock:
            return codec.pick(block, wanted, max_bytes=size, now=self._clock(), ttl_ms=-1 if ttl_ms is None else ttl_ms)
        picked = codec.pick(block, wanted, max_bytes=size)
        moved, now = partition.deliveries.moved, self._clock()
        late = [
            record.offset
            for record in codec.decode(picked.data, verified=True)
            if _is_late(record, partition.appended_at(record), moved.get(record.offset), ttl_ms, now)
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
        worn = BitMap64()
        tries, most = partition.deliveries.delivery(group.number).tries, partition.retries.most
        for pick in picks:
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


def _rows_of(portion: _Portion) -> Iterator[_Portion]:
    """In rows without gaps."""
    for first, end in runs(portion.offsets):
        yield portion._replace(offsets=ranged(first, end))


def _is_sparse(offsets: BitMap64) -> bool:
    return offsets.max() - offsets.min() >= _SPARSE * len(offsets)


def _union(sets: Sequence[BitMap64]) -> BitMap64:
    return sets[0] if len(sets) == 1 else BitMap64.union(*sets)


def _without(picks: list[Pick], offsets: BitMap64) -> list[Pick]:
    """The picks, less these offsets."""
    return [Pick(lane, left) for lane, mine in picks if (left := mine - offsets)]


def _is_late(record: Record, appended_at: int, moved_to: int | None, ttl_ms: int | None, now: int) -> bool:
    """Whether the time to live of a message is over: it counts from when it is due now."""
    extension = record.extension or Extension()
    first_due = max(extension.deliver_at or 0, appended_at)
    due = first_due if moved_to is None else moved_to
    if extension.expires_at:
        first_due = extension.deliver_at or appended_at
        due = first_due if moved_to is None else moved_to
        return now >= extension.expires_at + due - first_due
    return ttl_ms is not None and now >= due + ttl_ms


def _portions(picks: Iterable[Pick], delivery: Delivery, moved: dict[int, int]) -> list[_Portion]:
    """In the order of the picks; in each, first what was moved, then what was tried before."""
    if not delivery.tries and not moved:
        return [_Portion(lane, offsets, _NEVER_DELIVERED) for lane, offsets in picks]
    return list(_split(picks, delivery, moved))


def _split(picks: Iterable[Pick], delivery: Delivery, moved: dict[int, int]) -> Iterator[_Portion]:
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
        yield _Portion(lane, offsets - tried if tried else offsets, _NEVER_DELIVERED)
