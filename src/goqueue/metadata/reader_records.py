"""What the metadata log says of named readers: one struct per thing that can happen, as JSON with a `type`.

To change the format: as with the records of topics, in `records.py`.
"""

import msgspec

from goqueue.model.names import TopicId

Offsets = dict[TopicId, dict[int, int]]
"""By topic and partition. One that is kept is never changed: another one takes its place."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all."""


class ReaderPut(_Event, frozen=True, kw_only=True, tag="reader_put"):
    """All of a reader, as it is from now on."""

    name: str
    offsets: Offsets
    created_ms: int
    changed_ms: int


class ReaderDeleted(_Event, frozen=True, kw_only=True, tag="reader_deleted"):
    name: str


class ReadersLeftTopic(_Event, frozen=True, kw_only=True, tag="readers_left_topic"):
    """A topic was deleted: no reader has offsets of it any more."""

    topic_id: TopicId


Event = ReaderPut | ReaderDeleted | ReadersLeftTopic

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
encode = msgspec.json.Encoder().encode
decode = _decoder.decode
