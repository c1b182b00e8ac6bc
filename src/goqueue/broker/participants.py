"""Partitions that take part in transactions: what each has of them, and that each hears how they ended.

Who takes part, the partitions know: a transaction's records carry its number, and so do the acks that are pledged to
it. So what is kept here is found again at a start. What cannot be told to a partition now is told later.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.broker.partition import Partition
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topics import TopicCatalogue
from goqueue.delivery.commands import Hide, Redeem
from goqueue.model.errors import GoQueueError, LogClosed, StorageFailed
from goqueue.model.names import GroupNumber
from goqueue.model.record import Record
from goqueue.storage.driver import OnFailure
from goqueue.storage.store import Store
from goqueue.telemetry import logs
from goqueue.transactions.ending import Durable, orphan_marker
from goqueue.transactions.in_partition import Ended
from goqueue.transactions.records import Participant

log = logs.get("transactions")


class Part(NamedTuple):
    """What a transaction has in one partition."""

    topic: str
    partition: int
    messages: int
    acks: int


class Site:
    """A partition that takes part in some transactions."""

    __slots__ = ("_numbers", "_participants", "partition")

    def __init__(self, participants: "Participants", partition: Partition, numbers: Iterable[int]) -> None:
        self._participants = participants
        self._numbers = numbers
        self.partition = partition

    @property
    def participant(self) -> Participant:
        """As the coordinator's log calls it."""
        return Participant(self.partition.topic.topic_id, self.partition.number)

    def saved(self) -> Sequence[Durable]:
        return _positions(self.partition, acks=any(_has_acks(self.partition, number) for number in self._numbers))

    def tell(self, number: int, commits: bool, marker: Record) -> Sequence[Durable]:
        return self._participants.tell(self.partition, number, commits, marker)


class Participants:
    """Of all transactions that are not complete."""

    def __init__(
        self,
        *,
        store: Store,
        topics: TopicCatalogue,
        sidecars: Sidecars,
        clock: Callable[[], int],
        on_ready: Callable[[Partition, set[GroupNumber] | None], None],
        on_acked: Callable[[Partition, GroupNumber, int], None],
        on_failure: OnFailure,
    ) -> None:
        """`on_ready` is told of a partition where more may be delivered, `on_acked` of acks that count from now on."""
        self._store = store
        self._topics = topics
        self._sidecars = sidecars
        self._clock = clock
        self._on_ready = on_ready
        self._on_acked = on_acked
        self._on_failure = on_failure
        self._by_number: dict[int, dict[Partition, None]] = {}
        self._unseen: list[tuple[Partition, int]] = []
        """Markers that groups have not been told to pass over yet."""
        self._orphans: dict[tuple[Partition, int], None] = {}
        """What nobody knows and could not be dropped yet."""

    # --- who takes part

    def add(self, number: int, partition: Partition) -> None:
        """The partition has, or will have, something of it."""
        self._by_number.setdefault(number, {})[partition] = None

    def forget(self, number: int) -> None:
        """It is complete."""
        self._by_number.pop(number, None)

    def sites(self, numbers: Iterable[int]) -> list[Site]:
        found: dict[Partition, list[int]] = {}
        for number in numbers:
            for partition in self._by_number.get(number, ()):
                found.setdefault(partition, []).append(number)
        return [Site(self, partition, mine) for partition, mine in found.items()]

    def parts(self, number: int) -> list[Part]:
        rows = []
        for partition in self._by_number.get(number, ()):
            acks = 0 if partition.sidecar is None else sum(partition.deliveries.pledged(number).values())
            messages = partition.transactions.count(number)
            rows.append(Part(partition.topic.name, partition.number, messages, acks))
        return sorted(rows)

    def have_heard(self, number: int, participants: Iterable[Participant]) -> bool:
        """Whether all of them have; those of topics that are gone need not. `participants` are as the log names them:
        one that could not be opened yet is known from nowhere else."""
        for participant in participants:
            topic = self._topics.by_id.get(participant.topic_id)
            if topic is None:
                if self._topics.name_of(participant.topic_id) is not None:
                    return False
                continue
            slot = topic.slots[participant.partition] if participant.partition < len(topic.slots) else None
            if not isinstance(slot, Partition):
                return False
        return not any(
            number in partition.transactions or _has_acks(partition, number)
            for partition in self._by_number.get(number, ())
            if self._topics.name_of(partition.topic.topic_id) is not None
        )

    # --- telling them

    def tell(self, partition: Partition, number: int, commits: bool, marker: Record) -> list[Durable]:
        """A marker, if it has records of it; its acks are settled, or to be tried again."""
        has_acks = _has_acks(partition, number)
        if number not in partition.transactions and not has_acks:
            return []
        if number in partition.transactions:
            if not commits:  # before the marker: from there on nothing else keeps groups from them
                self._hide(partition, partition.transactions.records(number))
            ended_here = self._mark(partition, marker)
            if partition.sidecar is not None:
                committed = ended_here.records if commits else BitMap64()
                partition.deliveries.end_transaction(number, committed)
            self._unseen.append((partition, ended_here.marker))
            self._hide_markers()
        if has_acks:
            for group, count in self._sidecars.write(partition, Redeem(number, commits, partition.retries)).items():
                if commits:
                    self._on_acked(partition, group, count)
        self._on_ready(partition, None)
        return _positions(partition, acks=has_acks)

    def drop(self, number: int, partition: Partition) -> None:
        """Nothing is known of that transaction, so it is aborted."""
        self._orphans[partition, number] = None
        self._drop_orphans()

    def catch_up(self) -> None:
        """With what could not be told before."""
        self._drop_orphans()
        self._hide_markers()

    def _drop_orphans(self) -> None:
        for partition, number in list(self._orphans):
            try:
                self.tell(partition, number, False, orphan_marker(number))
            except LogClosed:
                pass  # its topic was deleted
            except GoQueueError as error:
                log.warning("records of a transaction that nobody knows are dropped later", reason=str(error))
                continue
            del self._orphans[partition, number]

    def _mark(self, partition: Partition, marker: Record) -> Ended:
        try:
            return self._store.spending(lambda: partition.mark(marker, self._clock()))
        except StorageFailed as failure:
            self._on_failure(failure)
            raise

    def _hide(self, partition: Partition, offsets: BitMap64) -> None:
        """From groups, for good."""
        if partition.sidecar is None:
            partition.delays.drop(offsets)
        elif not isinstance(partition.sidecar.log.written.failure, LogClosed):  # else its topic was deleted
            self._sidecars.write(partition, Hide(offsets))

    def _hide_markers(self) -> None:
        """Nobody is delivered one in any case: where that cannot be written now, groups go past it later."""
        unseen, self._unseen = self._unseen, []
        for partition, marker in unseen:
            try:
                self._hide(partition, BitMap64([marker]))
            except GoQueueError as error:
                log.warning("groups hear of a marker later", log=partition.log_name, reason=str(error))
                self._unseen.append((partition, marker))


def transactions_in(partition: Partition) -> list[int]:
    """Those it has records or acks of, and does not know the end of."""
    numbers = {*partition.transactions.open}
    if partition.sidecar is not None:
        numbers |= partition.deliveries.pledged_to
    return sorted(numbers)


def _has_acks(partition: Partition, number: int) -> bool:
    return partition.sidecar is not None and bool(partition.deliveries.pledged(number))


def _positions(partition: Partition, *, acks: bool) -> list[Durable]:
    found = [Durable(partition.log, partition.log.end_offset)]
    if acks and partition.sidecar is not None:
        found.append(Durable(partition.sidecar.log, partition.sidecar.log.end_offset))
    return found
