"""The topics of a simulated broker and their partitions. That they exist is metadata, which is not simulated here."""

from goqueue.delivery.sidecar import Sidecar
from goqueue.groups.group import Part
from goqueue.groups.rebalancing import TopicShape
from goqueue.model.names import TopicId
from goqueue.storage.log import Log


class Topics:
    """The topics there are, by name: metadata, which is not simulated and does not get lost."""

    def __init__(self) -> None:
        self.shapes: dict[str, TopicShape] = {}
        self.names: dict[TopicId, str] = {}

    def make(self, name: str, partitions: int) -> None:
        topic_id = self.shapes[name].topic_id if name in self.shapes else TopicId(len(self.shapes) + 1)
        self.shapes[name] = TopicShape(topic_id, partitions)
        self.names[topic_id] = name

    def shape_of(self, name: str) -> TopicShape | None:
        return self.shapes.get(name)

    @property
    def parts(self) -> list[Part]:
        return [Part(shape.topic_id, number) for shape in self.shapes.values() for number in range(shape.partitions)]


class Partition:
    """A data log, and its sidecar once a group came by."""

    def __init__(self, part: Part, data: Log) -> None:
        self.part = part
        self.data = data
        self.sidecar: Sidecar | None = None

    @property
    def directory(self) -> str:
        return f"{self.data.directory}/sidecar"
