"""The machine that knows every topic.

Invariants: names of living topics are unique; a topic id is never used again; partitions only grow. A deleted
topic stays in `deleted` until its files are gone: files are removed because a record says so, never because
nobody knows them.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from goqueue.machine.shape import Decision
from goqueue.metadata import records
from goqueue.metadata.records import (
    ClusterNamed,
    Event,
    HandleKeyMade,
    PartitionsAdded,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
    TopicRemoved,
)
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, InvalidRequest, TopicExists, UnknownTopic
from goqueue.model.names import TopicId, check_topic_name, dlq_name, is_dlq
from goqueue.model.topic import Topic, TopicSettings

# --- commands


class NameCluster(msgspec.Struct, frozen=True):
    """Only the first start of a cluster names it; later ones get the name it has."""

    cluster_id: str


class MakeHandleKey(msgspec.Struct, frozen=True):
    """Only the first one counts; replies with the key there is."""

    key: str


class CreateTopic(msgspec.Struct, frozen=True):
    name: str
    topic_id: TopicId
    partitions: int
    settings: TopicSettings


class ChangeTopic(msgspec.Struct, frozen=True):
    name: str
    changes: dict[str, Any]
    """Fields of TopicSettings."""


class AddPartitions(msgspec.Struct, frozen=True):
    name: str
    total: int


class DeleteTopic(msgspec.Struct, frozen=True):
    name: str
    dead_letters: bool = False
    """Also the topic that has its dead letters, and those of deleted topics that had the name before."""


class FinishRemoval(msgspec.Struct, frozen=True):
    """The files of a deleted topic are gone."""

    topic_id: TopicId


class DeletedTopic(msgspec.Struct, frozen=True):
    """What is left to remove."""

    topic_id: TopicId
    name: str
    partitions: int


# --- the machine


class Topics:
    """Replies: the topic, as it is after the command; to AddPartitions also as it was before.

    To DeleteTopic: all topics that are deleted, the named one last.
    """

    name = "topics"

    def __init__(self) -> None:
        self._decisions: dict[type, Callable[[Any, int], Decision]] = {
            NameCluster: self._decide_name,
            MakeHandleKey: self._decide_key,
            CreateTopic: self._decide_create,
            ChangeTopic: self._decide_change,
            AddPartitions: self._decide_add,
            DeleteTopic: self._decide_delete,
            FinishRemoval: self._decide_finish,
        }
        self._changes: dict[type, Callable[[Any], None]] = {
            ClusterNamed: self._apply_name,
            HandleKeyMade: self._apply_key,
            TopicCreated: self._apply_created,
            TopicChanged: self._apply_changed,
            PartitionsAdded: self._apply_added,
            TopicDeleted: self._apply_deleted,
            TopicRemoved: self._apply_removed,
        }
        self.reset()

    def reset(self) -> None:
        self.cluster_id: str | None = None
        self.handle_key: str | None = None
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[TopicId, Topic] = {}
        self.deleted: dict[TopicId, DeletedTopic] = {}
        self.partitions = 0
        """Of all topics together."""

    def decide(self, command: Any, now: int) -> Decision:
        return self._decisions[type(command)](command, now)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
        except msgspec.DecodeError as error:
            raise DamagedData(
                f"offset {offset} of the metadata log is not understood ({error}); start the version that wrote it"
            ) from error
        self._changes[type(event)](event)

    def snapshot(self) -> Iterable[bytes]:
        if self.cluster_id is not None:
            yield records.encode(ClusterNamed(cluster_id=self.cluster_id))
        if self.handle_key is not None:
            yield records.encode(HandleKeyMade(key=self.handle_key))
        for topic in self.by_name.values():
            yield records.encode(TopicCreated(**msgspec.structs.asdict(topic)))
        for gone in self.deleted.values():
            yield records.encode(TopicDeleted(**msgspec.structs.asdict(gone)))

    # --- decisions

    def _decide_name(self, command: NameCluster, now: int) -> Decision:
        if self.cluster_id is not None:
            return Decision((), self.cluster_id)
        return _decided(command.cluster_id, ClusterNamed(cluster_id=command.cluster_id))

    def _decide_key(self, command: MakeHandleKey, now: int) -> Decision:
        if self.handle_key is not None:
            return Decision((), self.handle_key)
        return _decided(command.key, HandleKeyMade(key=command.key))

    def _decide_create(self, command: CreateTopic, now: int) -> Decision:
        check_topic_name(command.name)
        command.settings.check()
        if command.name in self.by_name:
            raise TopicExists(f"there is a topic {command.name!r} already; delete it first, or choose another name")
        if command.topic_id in self.by_id or command.topic_id in self.deleted:
            raise Conflict(f"the topic id {command.topic_id:016x} is taken; try again")
        if len(self.by_name) >= limits.MAX_TOPICS:
            raise Conflict(f"there are {limits.MAX_TOPICS} topics, which is the most; delete one first")
        self._check_partitions(command.partitions, added=command.partitions)
        topic = Topic(
            name=command.name,
            topic_id=command.topic_id,
            partitions=command.partitions,
            settings=command.settings,
            created_ms=now,
        )
        return _decided(topic, TopicCreated(**msgspec.structs.asdict(topic)))

    def _decide_change(self, command: ChangeTopic, now: int) -> Decision:
        topic = self._known(command.name)
        settings = msgspec.structs.replace(topic.settings, **command.changes)
        settings.check()
        if settings == topic.settings:
            return Decision((), topic)
        changed = msgspec.structs.replace(topic, settings=settings)
        return _decided(changed, TopicChanged(topic_id=topic.topic_id, settings=settings))

    def _decide_add(self, command: AddPartitions, now: int) -> Decision:
        topic = self._known(command.name)
        if command.total <= topic.partitions:
            raise InvalidRequest(
                f"{command.name} has {topic.partitions} partitions and they cannot become fewer; "
                f"ask for more than {topic.partitions}"
            )
        self._check_partitions(command.total, added=command.total - topic.partitions)
        grown = msgspec.structs.replace(topic, partitions=command.total)
        return _decided((topic, grown), PartitionsAdded(topic_id=topic.topic_id, partitions=command.total))

    def _decide_delete(self, command: DeleteTopic, now: int) -> Decision:
        topic = self._known(command.name, else_do="list the topics to see which there are")
        if command.dead_letters and is_dlq(topic.name):
            raise InvalidRequest(f"{topic.name} has dead letters and none of its own; delete it without `dead_letters`")
        letters = self.by_name.get(dlq_name(topic.name)) if command.dead_letters else None
        gone = (topic,) if letters is None else (letters, topic)  # a torn end leaves the one that is asked about
        events = [TopicDeleted(topic_id=each.topic_id, name=each.name, partitions=each.partitions) for each in gone]
        return _decided(gone, *events)

    def _decide_finish(self, command: FinishRemoval, now: int) -> Decision:
        if command.topic_id not in self.deleted:
            return Decision((), None)
        return _decided(None, TopicRemoved(topic_id=command.topic_id))

    def _known(self, name: str, *, else_do: str = "create it first") -> Topic:
        topic = self.by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name[: limits.MAX_TOPIC_NAME]!r}; {else_do}")
        return topic

    def _check_partitions(self, total: int, *, added: int) -> None:
        if not 1 <= total <= limits.MAX_PARTITIONS_PER_TOPIC:
            raise InvalidRequest(f"a topic has from 1 to {limits.MAX_PARTITIONS_PER_TOPIC} partitions, not {total}")
        if self.partitions + added > limits.MAX_PARTITIONS:
            raise Conflict(
                f"{added} more partitions would be more than {limits.MAX_PARTITIONS} in all; delete a topic first"
            )

    # --- changes

    def _apply_name(self, event: ClusterNamed) -> None:
        self.cluster_id = event.cluster_id

    def _apply_key(self, event: HandleKeyMade) -> None:
        self.handle_key = event.key

    def _apply_created(self, event: TopicCreated) -> None:
        self._keep(Topic(**msgspec.structs.asdict(event)))
        self.partitions += event.partitions

    def _apply_changed(self, event: TopicChanged) -> None:
        self._keep(msgspec.structs.replace(self.by_id[event.topic_id], settings=event.settings))

    def _apply_added(self, event: PartitionsAdded) -> None:
        topic = self.by_id[event.topic_id]
        self.partitions += event.partitions - topic.partitions
        self._keep(msgspec.structs.replace(topic, partitions=event.partitions))

    def _apply_deleted(self, event: TopicDeleted) -> None:
        topic = self.by_id.pop(event.topic_id, None)
        if topic is not None:  # in a snapshot there is only the tombstone
            del self.by_name[topic.name]
            self.partitions -= topic.partitions
        self.deleted[event.topic_id] = DeletedTopic(event.topic_id, event.name, event.partitions)

    def _apply_removed(self, event: TopicRemoved) -> None:
        self.deleted.pop(event.topic_id, None)

    def _keep(self, topic: Topic) -> None:
        self.by_name[topic.name] = self.by_id[topic.topic_id] = topic


def _decided(reply: Any, *events: Event) -> Decision:
    return Decision([records.encode(event) for event in events], reply)
