"""A topic that is open: its metadata, its partitions, its meters."""

from goqueue.broker.partition import Partition
from goqueue.broker.partitioner import RoundRobin
from goqueue.model.errors import GoQueueError, UnknownPartition
from goqueue.model.topic import Topic
from goqueue.telemetry.meters import TopicMeters


class OpenTopic:
    """`slots` has an entry per partition: the partition, or why it could not be opened."""

    __slots__ = ("meta", "meters", "round_robin", "slots")

    def __init__(self, meta: Topic, meters: TopicMeters) -> None:
        self.meta = meta
        self.slots: list[Partition | GoQueueError] = []
        self.meters = meters
        self.round_robin = RoundRobin()

    @property
    def partitions(self) -> list[Partition]:
        """Those that work."""
        return [slot for slot in self.slots if isinstance(slot, Partition)]

    @property
    def damage(self) -> dict[int, str]:
        """Partitions that cannot be opened, or of which nobody knows what groups did, and why: a list has none of
        theirs, and says so."""
        found = {}
        for number, slot in enumerate(self.slots):
            reason = slot.sidecar_damage if isinstance(slot, Partition) else slot
            if reason is not None:
                found[number] = str(reason)
        return found

    def opened(self, number: int) -> Partition | None:
        """None when there is no such partition, or it could not be opened."""
        slot = self.slots[number] if 0 <= number < len(self.slots) else None
        return slot if isinstance(slot, Partition) else None

    def partition(self, number: int) -> Partition:
        if not 0 <= number < len(self.slots):
            raise UnknownPartition(
                f"{self.meta.name} has no partition {number}; it has {len(self.slots)}, counted from 0"
            )
        slot = self.slots[number]
        if isinstance(slot, Partition):
            return slot
        raise slot.with_traceback(None)
