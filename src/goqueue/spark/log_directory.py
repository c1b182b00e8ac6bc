"""A data directory, or a copy of it, as a reader without a broker sees it: topics, and what of each partition counts.

Nothing is locked or written. Which topics there are comes from the metadata log, through the machine the broker uses;
what of a partition is committed from its own records and markers, by the code the broker uses. A transaction whose
marker is not there yet is looked up in the coordinator's log: a decision counts from the moment it is written there,
and a broker that was killed would go on with it. Of what nobody has decided nothing is read, nor what lies behind it.

Beside a running broker all of this is as of a moment: the coordinator is read first, so what it has decided about is
in the partitions.
"""

import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyroaring import BitMap64

from goqueue import codec
from goqueue.codec import Flag
from goqueue.io.disk import Disk
from goqueue.io.read_only import ReadOnlyDisk
from goqueue.machine.replay import Replay
from goqueue.machine.shape import Machine
from goqueue.metadata.readers import Readers
from goqueue.metadata.topics import Topics
from goqueue.model import limits
from goqueue.model.errors import DamagedData, InvalidRequest
from goqueue.model.topic import Topic
from goqueue.producers.registry import ProducerRegistry
from goqueue.storage import derived as companions
from goqueue.storage.offline import OfflineLog, SegmentFile, Start
from goqueue.storage.segment import stem
from goqueue.storage.state import Trait
from goqueue.storage.store import METADATA_LOG, TRANSACTIONS_LOG, log_directory, log_name
from goqueue.storage.transactions import COMMIT, Run, TransactionView, TransactionViews, transactions
from goqueue.storage.walk import Damage
from goqueue.transactions.coordinator import Transactions
from goqueue.transactions.in_partition import PartitionTransactions

log = logging.getLogger("goqueue.spark")

ABORT: Final = int(Flag.CONTROL)
START_BYTES: Final = 8 * limits.MIB
"""How far apart the places are from which a segment that has no index yet can be read."""
_TRIES: Final = 3


class SegmentPart(NamedTuple):
    """What there is of a partition in one segment."""

    file: SegmentFile
    first: int
    end: int
    size: int
    last_timestamp: int
    starts: tuple[Start, ...] = ()
    """Where it can be read from, if it has no index."""

    @property
    def is_cleaned(self) -> bool:
        return self.file.entry is not None and bool(self.file.entry.traits & Trait.CLEANED)


class PartitionLog(NamedTuple):
    """What there is of one partition."""

    log: OfflineLog
    start: int
    end: int
    """Where it ends; what was torn off above the synced mark does not count."""
    stable: int
    """Where ordered reads stop: the first record that nobody has decided about."""
    hidden: BitMap64
    """Aborted records, and markers."""
    segments: tuple[SegmentPart, ...]
    torn: Damage | None = None
    """Bytes behind the end, above the synced mark: the next start of a broker cuts them off."""

    @property
    def cleaned(self) -> int:
        """Below this offset records may have been cleaned away."""
        return max([self.start, *(part.end for part in self.segments if part.is_cleaned)])

    def offset_at(self, time_ms: int) -> int:
        """The first offset appended at or after a time."""
        for part in self.segments:
            if part.last_timestamp < time_ms:
                continue
            for item in self.log.walk(part.file):
                if not isinstance(item, Damage) and item.scan.timestamps[-1] >= time_ms:
                    return max(item.scan.offsets[bisect_left(item.scan.timestamps, time_ms)], self.start)
        return self.end


class DataDirectory:
    """InvalidRequest when there is none at `path`; DamagedData when it cannot be told which topics it has."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path = path
        self.disk = disk or ReadOnlyDisk()
        self._coordinator = Transactions()
        self._replay(TRANSACTIONS_LOG, self._coordinator)
        topics = Topics()
        if not self._replay(METADATA_LOG, topics, ProducerRegistry(), Readers()):
            raise InvalidRequest(
                f"{path} is no data directory: it has no meta/{METADATA_LOG}; name the directory a broker was started "
                "with, or a copy of all of it"
            )
        self.topics: dict[str, Topic] = topics.by_name
        """Those that live, by name."""

    def directory(self, topic: Topic, partition: int) -> str:
        return log_directory(self.path, log_name(topic.name, topic.topic_id, partition))

    def partition(self, topic: Topic, number: int, *, committed: bool) -> PartitionLog:
        """FileNotFoundError when its files are not there. Without `committed` nothing is hidden, nor held back."""
        path = self.directory(topic, number)
        for _ in range(_TRIES):
            found = OfflineLog(path, self.disk)
            parts, views, torn = _survey(found, self.disk, committed=committed)
            if torn is None or OfflineLog(path, self.disk).state == found.state:
                break  # else a segment may have gone while it was looked at
        start = found.start_offset
        end = max([start, *(part.end for part in parts)])
        state = PartitionTransactions()
        state.restore(views)
        for transaction in state.open:
            decided = self._coordinator.by_number.get(transaction)
            if decided is not None and not decided.is_open:
                state.fold([Run(transaction, end, 0, COMMIT if decided.is_committed else ABORT)])
        state.forget_below(start)
        stable = max(state.stable(end), start)
        if stable < end:
            log.warning(
                "partition %d of %s is read up to offset %d, and ends at %d: a transaction is not decided about",
                number, topic.name, stable, end,
            )  # fmt: skip
        return PartitionLog(found, start, end, stable, state.hidden, tuple(parts), torn)

    def _replay(self, name: str, *machines: Machine) -> bool:
        """Make the machines what a log of the process says; False when there is no such log."""
        directory = log_directory(self.path, name, "meta")
        tries = 0
        while True:
            for machine in machines:
                machine.reset()
            try:
                found = OfflineLog(directory, self.disk)
            except FileNotFoundError:
                return False
            damage = _feed(found, machines)
            if damage is None:
                return True
            tries += 1
            if tries < _TRIES and OfflineLog(directory, self.disk).state != found.state:
                continue  # it was shortened under our hands
            raise DamagedData(
                f"{directory} is damaged, and nothing can be told without what it says ({damage.reason}, offsets "
                f"{damage.first} to {damage.next_offset - 1}); put a good copy of that directory in place"
            )


def _feed(found: OfflineLog, machines: Sequence[Machine]) -> Damage | None:
    start = found.start_offset
    replay = Replay(found.directory, {machine.name: machine for machine in machines}, start)
    for segment in found.segments():
        for item in found.walk(segment):
            if not isinstance(item, Damage):
                replay.feed(record for record in codec.decode(item.data, verified=True) if record.offset >= start)
            elif found.is_torn(segment, item):
                replay.finish()
                return None
            elif item.next_offset > start:
                return item
    replay.finish()
    return None


def _survey(
    found: OfflineLog, disk: Disk, *, committed: bool
) -> tuple[list[SegmentPart], list[TransactionView], Damage | None]:
    """The segments in order, and what each has of transactions; up to where the log ends, and what is torn there."""
    parts: list[SegmentPart] = []
    views: list[TransactionView] = []
    for file in found.segments():
        entry = file.entry
        saved = None
        if entry is not None and committed:
            path = stem(found.directory, entry.base)
            kinds = (TransactionViews(),)
            saved = companions.load_views(disk, path, base=entry.base, seal=entry.seal, kinds=kinds)
        if entry is not None and (saved is not None or not committed):
            parts.append(SegmentPart(file, entry.base, entry.end, entry.size, entry.last_timestamp))
            if saved is not None:
                views.append(transactions(saved))
            continue
        part, view, torn = _walk(found, file, committed=committed)
        parts.append(part)
        views.append(view)
        if torn is not None:
            return parts, views, torn
    return parts, views, None


def _walk(
    found: OfflineLog, file: SegmentFile, *, committed: bool
) -> tuple[SegmentPart, TransactionView, Damage | None]:
    """A segment that nothing was written down about; and where the log ends in it, if it does."""
    view = TransactionView(file.base)
    starts: list[Start] = []
    end, size, last_timestamp = file.base, 0, 0
    torn: Damage | None = None
    for item in found.walk(file):
        if isinstance(item, Damage):
            if found.is_torn(file, item):
                torn = item
                break
        else:
            if committed:
                view.on_append(item.data, item.scan)
            last_timestamp = item.scan.timestamps[-1]
            if item.position >= (starts[-1].position if starts else 0) + START_BYTES:
                starts.append(Start(item.position, item.scan.offsets[0]))
        end, size = item.next_offset, item.end
    if file.entry is not None:
        end, size, last_timestamp = file.entry.end, file.entry.size, file.entry.last_timestamp
    return SegmentPart(file, file.base, end, size, last_timestamp, tuple(starts)), view, torn
