"""The topics of a simulated broker and their partitions. That they exist is metadata, which is not simulated here."""

from collections.abc import Sequence

from goqueue import codec
from goqueue.codec import Field
from goqueue.delivery.commands import Retries
from goqueue.delivery.delays import Delays
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.sidecar import Sidecar
from goqueue.groups.group import Part
from goqueue.groups.rebalancing import TopicShape
from goqueue.model.names import TopicId
from goqueue.model.record import Record
from goqueue.model.topic import TopicSettings
from goqueue.producers.sequences import ProducerTable
from goqueue.storage.delays import AS_WRITTEN, DueTimes, delayed
from goqueue.storage.lane_index import remember
from goqueue.storage.log import Log


class Topics:
    """The topics there are, by name: metadata, which is not simulated and does not get lost."""

    def __init__(self) -> None:
        self.shapes: dict[str, TopicShape] = {}
        self.names: dict[TopicId, str] = {}
        self.rules: dict[TopicId, TopicSettings] = {}

    def make(self, name: str, partitions: int, rules: TopicSettings | None = None) -> None:
        """Or have it grow."""
        topic_id = self.shapes[name].topic_id if name in self.shapes else TopicId(len(self.shapes) + 1)
        self.shapes[name] = TopicShape(topic_id, partitions)
        self.names[topic_id] = name
        self.rules.setdefault(topic_id, rules or TopicSettings())

    def shape_of(self, name: str) -> TopicShape | None:
        return self.shapes.get(name)

    def parts_of(self, names: Sequence[str]) -> list[Part]:
        shapes = [self.shapes[name] for name in names]
        return [Part(shape.topic_id, number) for shape in shapes for number in range(shape.partitions)]

    @property
    def parts(self) -> list[Part]:
        return self.parts_of(list(self.shapes))


class Partition:
    """A data log with what is delayed in it; its sidecar once a group came by; its dead letters once there are any."""

    def __init__(self, part: Part, data: Log, rules: TopicSettings) -> None:
        self.part = part
        self.data = data
        self.rules = rules
        self.delays = Delays()
        self.sidecar: Sidecar | None = None
        self.letters: Log | None = None
        self.producers = ProducerTable()
        """Of the log of dead letters."""

    @property
    def directory(self) -> str:
        return f"{self.data.directory}/sidecar"

    @property
    def letters_directory(self) -> str:
        return f"{self.data.directory}.dlq"

    @property
    def retries(self) -> Retries:
        return Retries(self.rules.max_retries, self.rules.backoff, self.rules.dlq_enabled)

    def due_times(self) -> DueTimes:
        """When delayed messages are due that were moved, and which are not any more."""
        if self.sidecar is None:
            return AS_WRITTEN
        return DueTimes(self.sidecar.deliveries.moved, self.sidecar.deliveries.cancelled)

    def append(self, records: Sequence[Record], *, wall: int, now: int) -> None:
        block = codec.encode(records)
        appended = self.data.append(block, now=wall)
        ordinals, times = codec.field_values(block, appended.scan, Field.DELIVER_AT)
        self.delays.add([appended.first_offset + ordinal for ordinal in ordinals], times, wall=wall, now=now)

    def find_delays(self, *, wall: int, now: int) -> None:
        """At a start: from the segments' views; what was cancelled or moved the sidecar knows."""
        deliveries = self.sidecar.deliveries if self.sidecar is not None else Deliveries()
        for segment in self.data.segments:
            derived = self.data.derived(segment)
            remember(segment, derived)
            pairs = zip(*delayed(derived.views, segment.base), strict=True)
            pending = [(offset, time) for offset, time in pairs if offset not in deliveries.cancelled]
            offsets = [offset for offset, _ in pending]
            times = [deliveries.moved.get(offset, time) for offset, time in pending]
            self.delays.add(offsets, times, wall=wall, now=now)
