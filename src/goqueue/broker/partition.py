"""A partition: a log, what is known about the producers that write to it, and what groups have done with it.

Publishing appends blocks; nothing here looks at single messages. A block that comes again is recognised by its
producer's sequence and answered with where its messages are; of a block that is there in part only the rest is
appended. The table of producers is a view of the log: after a restart it is put together from the segments' own.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue import codec
from goqueue.broker.append_clock import AppendClock
from goqueue.codec import Field
from goqueue.codec.layout import REASONS
from goqueue.delivery.commands import Hide, Retries
from goqueue.delivery.delays import Delays
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.sidecar import Sidecar, sidecar_settings
from goqueue.model.errors import GoQueueError, InvalidRecord, StorageFailed, Unavailable
from goqueue.model.names import is_dlq
from goqueue.model.record import Producer, Record
from goqueue.model.settings import LogSettings
from goqueue.model.topic import Topic
from goqueue.producers.sequences import Known, ProducerTable, Run
from goqueue.producers.views import ProducerView, ProducerViews, restore
from goqueue.storage.delays import DueTimes, delayed
from goqueue.storage.lane_index import remember
from goqueue.storage.log import Appended, Log
from goqueue.storage.store import Store, log_name, sidecar_name
from goqueue.storage.transactions import Run as TransactionRun
from goqueue.storage.transactions import TransactionView, transactions
from goqueue.telemetry import logs
from goqueue.telemetry.meters import Histogram
from goqueue.transactions.in_partition import Ended, PartitionTransactions

_log = logs.get("partitions")

_SEQUENCE_MASK = 2**31 - 1
_UNKNOWN_TIME = 0


class Placed(NamedTuple):
    """`messages` of them in a row, from `first_offset` on."""

    messages: int
    first_offset: int
    timestamp: int
    duplicate: bool


class Partition:
    """One thread appends; any may read the log."""

    __slots__ = (
        "append_clock",
        "append_latency",
        "delays",
        "log",
        "log_name",
        "met_damage",
        "number",
        "producers",
        "sidecar",
        "sidecar_damage",
        "topic",
        "transactions",
        "unknown_delays",
    )

    def __init__(
        self, topic: Topic, number: int, log_name: str, log: Log, producers: ProducerTable, append_latency: Histogram
    ) -> None:
        self.topic = topic
        self.number = number
        self.log_name = log_name
        self.log = log
        self.producers = producers
        self.append_latency = append_latency
        self.append_clock = AppendClock()
        """Where append times are ahead of the clock."""
        self.delays = Delays()
        """Messages that are not due yet."""
        self.transactions = PartitionTransactions()
        """Messages that belong to open transactions, and what nobody may see."""
        self.sidecar: Sidecar | None = None
        """What groups have done with the messages; None until the first group comes."""
        self.sidecar_damage: GoQueueError | None = None
        """Why groups cannot use this partition."""
        self.met_damage: set[tuple[int, int]] = set()
        """Damaged ranges that somebody ran into: their first offsets, and where reading goes on."""
        self.unknown_delays = BitMap64()
        """Where the sidecar is damaged: all messages that were delayed. Nobody knows which of them were cancelled, or
        moved to another time."""

    @classmethod
    def open(
        cls,
        store: Store,
        topic: Topic,
        number: int,
        settings: LogSettings,
        append_latency: Histogram,
        *,
        wall: int,
        now: int,
    ) -> "Partition":
        """May take long: it recovers the log, and its sidecar if there is one, before anything is appended."""
        name = log_name(topic.name, topic.topic_id, number)
        log = store.open_log(name, settings, views=(ProducerViews(),))
        log.settings = settings  # it may have been left open by an earlier try, with the settings of then
        partition = cls(topic, number, name, log, _restore_producers(log), append_latency)
        if log.last_timestamp > wall:
            partition.append_clock.tell(log.end_offset, wall)
        if store.has_log(sidecar_name(name)):
            try:
                partition.sidecar = partition.make_sidecar(store, wall, now)
            except (Unavailable, StorageFailed):
                raise
            except GoQueueError as damage:
                partition.sidecar_damage = damage
        partition.transactions.restore(partition._read_views(wall, now))
        partition.transactions.forget_below(log.start_offset)
        if partition.transactions.hidden:
            partition._hide(store, wall)
        return partition

    def make_sidecar(self, store: Store, wall: int, now: int) -> Sidecar:
        """Also on a full disk. Waits for the disk."""
        name, settings = sidecar_name(self.log_name), sidecar_settings(self.log.settings)
        delays, uncommitted = self.delays, self.transactions.uncommitted
        return store.spending(
            lambda: Sidecar.open(
                store.open_log(name, settings), self.log, wall=wall, now=now, delays=delays, uncommitted=uncommitted
            )
        )

    def _hide(self, store: Store, wall: int) -> None:
        """What was aborted, and markers, from groups; the last of them may not have come so far in the life before."""
        hidden = self.transactions.hidden
        if self.sidecar is None:
            self.delays.drop(hidden)
        else:
            sidecar = self.sidecar
            store.spending(lambda: sidecar.host.submit(sidecar.deliveries, Hide(hidden), wall))

    def _read_views(self, wall: int, now: int) -> Iterator[TransactionView]:
        """A segment at a time: what is delayed goes into the wheels, less what was cancelled, as the sidecar knows."""
        cancelled = BitMap64() if self.sidecar is None else self.deliveries.cancelled
        moved = {} if self.sidecar is None else self.deliveries.moved
        start = self.log.start_offset
        for segment in self.log.segments:
            derived = self.log.derived(segment)
            remember(segment, derived)
            yield transactions(derived.views)
            offsets, times = delayed(derived.views, segment.base)
            if cancelled or moved or segment.base < start:
                times = [moved.get(offset, time) for offset, time in zip(offsets, times, strict=True)]
                kept = [at for at, offset in enumerate(offsets) if offset >= start and offset not in cancelled]
                offsets, times = [offsets[at] for at in kept], [times[at] for at in kept]
            if self.sidecar_damage is None:
                self.delays.add(offsets, times, wall=wall, now=now)
            else:
                self.unknown_delays |= BitMap64([offset for offset in offsets if offset >= start])

    @property
    def deliveries(self) -> Deliveries:
        """Of a partition that has a sidecar."""
        assert self.sidecar is not None
        return self.sidecar.deliveries

    @property
    def holds_back(self) -> bool:
        """Whether some of the messages are not to be delivered, yet or ever: who looks for some has to look closely."""
        return bool(self.delays.pending or self.transactions.uncommitted or self.transactions.hidden)

    @property
    def stable_end(self) -> int:
        """Ordered reads stop here, at the first message of an open transaction; the end when there is none."""
        return self.transactions.stable(self.log.end_offset)

    @property
    def has_dead_letters(self) -> bool:
        """Whether what failed too often goes to a topic of its own."""
        return self.topic.settings.dlq_enabled and not is_dlq(self.topic.name)

    @property
    def retries(self) -> Retries:
        rules = self.topic.settings
        return Retries(rules.max_retries, rules.backoff, self.has_dead_letters)

    @property
    def due_times(self) -> DueTimes:
        """As they are now, for the cleaner, which runs in another thread."""
        pending, open_ones = self.delays.pending | self.unknown_delays, self.transactions.uncommitted.copy()
        hidden, end = self.transactions.hidden, self.log.end_offset
        if self.sidecar is None:
            return DueTimes(cancelled=hidden.copy(), pending=pending, uncommitted=open_ones, end=end)
        deliveries = self.deliveries
        return DueTimes(
            dict(deliveries.moved),
            deliveries.cancelled | hidden,
            pending,
            deliveries.taken,
            uncommitted=open_ones,
            end=end,
        )

    def change_settings(self, topic: Topic, settings: LogSettings) -> None:
        self.topic = topic
        self.log.settings = settings
        if self.sidecar is not None:
            self.sidecar.log.settings = sidecar_settings(settings)

    def append(
        self,
        block: memoryview,
        *,
        count: int,
        now: int,
        producer: Producer | None,
        monotonic: int | None = None,
        transactional: bool = False,
    ) -> tuple[Placed, ...]:
        """Where the block's `count` messages are. Of what was here before, nothing is appended again.

        `monotonic` is the time of a clock that never steps; given when some of the messages are delayed.
        `transactional`: they belong to a transaction, which is open.
        """
        if producer is None:
            appended = self.log.append(block, now=now)
            if transactional:
                self.transactions.fold(_runs(block, appended))
            self._delay(block, appended, now, monotonic)
            return (Placed(count, appended.first_offset, appended.timestamp, False),)
        verdict = self.producers.check(producer, count)
        known = verdict.known
        placed = tuple(self._found(found) for found in known)
        there = skipped = 0
        if known:
            there = sum(found.count for found in known)
            if there == count:
                return placed
            rest = _without_first(block, there)
            skipped = len(block) - len(rest)
            block = rest
            count -= there
            producer = msgspec.structs.replace(producer, sequence=(producer.sequence + there) & _SEQUENCE_MASK)
        try:
            appended = self.log.append(block, now=now, producer=producer)
        except InvalidRecord as error:
            index, position = (error.index or 0) + there, error.position + skipped
            raise InvalidRecord(error.reason, index=index, position=position) from None
        if transactional:
            self.transactions.fold(_runs(block, appended))
        self._delay(block, appended, now, monotonic)
        if verdict.missing:
            _log.warning(
                "a producer goes on behind what is damaged or forgotten",
                topic=self.topic.name,
                partition=self.number,
                producer=producer.producer_id,
                missing=verdict.missing,
                sequence=producer.sequence,
            )
        self.producers.add(
            Run(
                producer.producer_id,
                producer.producer_epoch,
                producer.sequence,
                appended.first_offset,
                count,
                appended.timestamp,
            )
        )
        return (*placed, Placed(count, appended.first_offset, appended.timestamp, False))

    def mark(self, marker: Record, now: int) -> Ended:
        """Append what ends a transaction. Only of one that is open here."""
        block = memoryview(codec.encode([marker]))
        (ended,) = self.transactions.fold(_runs(block, self.log.append(block, now=now)))
        return ended

    def _delay(self, block: memoryview, appended: Appended, wall: int, now: int | None) -> None:
        if appended.timestamp > wall:
            self.append_clock.tell(appended.next_offset, wall)
        if now is not None:
            ordinals, times = codec.field_values(block, appended.scan, Field.DELIVER_AT)
            first = appended.first_offset
            offsets = [first + ordinal for ordinal in ordinals]
            if self.sidecar_damage is None:
                self.delays.add(offsets, times, wall=wall, now=now)
            else:
                self.unknown_delays |= BitMap64(offsets)

    def _found(self, known: Known) -> Placed:
        first = self._message_at(known.first_offset)
        return Placed(known.count, known.first_offset, _UNKNOWN_TIME if first is None else first.timestamp, True)

    def deliver_at(self, offset: int) -> int | None:
        """Of a message that came again, as it was first appended; None if it was not delayed, or is cleaned."""
        found = self._message_at(offset)
        return None if found is None or found.extension is None else found.extension.deliver_at

    def _message_at(self, offset: int) -> Record | None:
        """One that came again; None once it is cleaned."""
        try:
            records = self.log.records(offset, max_bytes=1, max_count=1, to_offset=offset + 1)
        except (GoQueueError, OSError):
            return None
        return records[0] if records else None

    def appended_at(self, record: Record) -> int:
        """By the clock as it is now: its append time may be ahead of that, because it never goes back."""
        return self.append_clock.of(record.offset, record.timestamp)

    def reads_warm(self, offset: int, size: int) -> bool:
        """Whether a read from here finds its records in memory: just written, or read before."""
        return offset >= self.log.segments[-1].base or self.log.is_cached(offset, size)


def _runs(block: memoryview, appended: Appended) -> list[TransactionRun]:
    return [TransactionRun(*run) for run in codec.transaction_runs(block, appended.scan)]


def _without_first(block: memoryview, count: int) -> memoryview:
    scan = codec.scan(block)
    if len(scan) <= count:
        raise InvalidRecord(REASONS[scan.problem], index=len(scan), position=scan.end)
    return block[scan.positions[count] :]


def _restore_producers(log: Log) -> ProducerTable:
    """From the newest view that knows everything before it, and those after; the tail's learn it from there."""
    views = (log.derived(segment).views[ProducerViews.name] for segment in reversed(log.segments))
    return restore(view for view in views if isinstance(view, ProducerView))
