"""What the metadata log says: one struct per thing that can happen, as JSON with a `type`.

JSON, so that a person can read it. To change the format: add optional fields, or a new struct; never
change the meaning of one. `docs/internals/metadata.md` lists them, and golden bytes hold them.
"""

import msgspec

from goqueue.model.names import TopicId
from goqueue.model.topic import TopicSettings


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all."""


class ClusterNamed(_Event, frozen=True, kw_only=True, tag="cluster_named"):
    cluster_id: str


class HandleKeyMade(_Event, frozen=True, kw_only=True, tag="handle_key_made"):
    """What receipt handles are signed with, in hexadecimal."""

    key: str


class TopicCreated(_Event, frozen=True, kw_only=True, tag="topic_created"):
    name: str
    topic_id: TopicId
    partitions: int
    settings: TopicSettings
    created_ms: int


class TopicChanged(_Event, frozen=True, kw_only=True, tag="topic_changed"):
    topic_id: TopicId
    settings: TopicSettings


class PartitionsAdded(_Event, frozen=True, kw_only=True, tag="partitions_added"):
    topic_id: TopicId
    partitions: int
    """The new total."""


class TopicDeleted(_Event, frozen=True, kw_only=True, tag="topic_deleted"):
    """The topic is gone for everybody; its files may still be there."""

    topic_id: TopicId
    name: str
    partitions: int


class TopicRemoved(_Event, frozen=True, kw_only=True, tag="topic_removed"):
    """The files of a deleted topic are gone as well."""

    topic_id: TopicId


Event = ClusterNamed | HandleKeyMade | TopicCreated | TopicChanged | PartitionsAdded | TopicDeleted | TopicRemoved

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
encode = msgspec.json.Encoder().encode
decode = _decoder.decode
