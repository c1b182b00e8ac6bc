"""The machine that knows every named reader: where somebody who reads without a group began, under a name.

Invariants: what is kept of a reader changes only by a put that is not `if_absent`, or because a topic is deleted; so
whoever puts `if_absent` hears the same as everybody who did before, for every partition that was there then. Offsets
belong to topic ids: a topic created again under an old name is another topic, of which nothing is kept. A reader that
has lost its last topic stays, without offsets, until it is deleted.

Names of topics are not known here, nor which offsets their logs have.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from goqueue.machine.shape import Decision
from goqueue.metadata import reader_records as records
from goqueue.metadata.reader_records import Event, Offsets, ReaderDeleted, ReaderPut, ReadersLeftTopic
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, InvalidRequest, UnknownReader
from goqueue.model.names import TopicId, check_reader_name

# --- commands


class PutReader(msgspec.Struct, frozen=True, kw_only=True):
    """All that a reader has, or, `if_absent`, what is added to it: partitions it has stay as they are.

    Replies with `Put`.
    """

    name: str
    offsets: Offsets
    if_absent: bool = False


class FindReader(msgspec.Struct, frozen=True):
    """Replies with the reader; changes nothing."""

    name: str


class DeleteReader(msgspec.Struct, frozen=True):
    """Replies with the reader."""

    name: str


class TopicGone(msgspec.Struct, frozen=True):
    """A topic was deleted. Replies with how many readers had offsets of it."""

    topic_id: TopicId


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    offsets: Offsets
    created_ms: int
    changed_ms: int

    @property
    def size(self) -> int:
        """Offsets it has."""
        return sum(map(len, self.offsets.values()))


class Put(NamedTuple):
    """A reader, as it is after the command, and whether it was not there before."""

    reader: Reader
    created: bool


# --- the machine


class Readers:
    """One for all readers of a broker."""

    name = "readers"

    def __init__(self) -> None:
        self._decisions: dict[type, Callable[[Any, int], Decision]] = {
            PutReader: self._decide_put,
            FindReader: lambda command, _: Decision((), self.reader(command.name)),
            DeleteReader: self._decide_delete,
            TopicGone: self._decide_gone,
        }
        self._changes: dict[type, Callable[[Any], None]] = {
            ReaderPut: self._apply_put,
            ReaderDeleted: self._apply_deleted,
            ReadersLeftTopic: self._apply_left,
        }
        self.reset()

    def reset(self) -> None:
        self.by_name: dict[str, Reader] = {}
        self.size = 0
        """Offsets of all readers together."""

    # --- looking

    def reader(self, name: str) -> Reader:
        reader = self.by_name.get(name)
        if reader is None:
            raise UnknownReader(f"there is no reader {name[:80]!r}; put one first")
        return reader

    @property
    def topic_ids(self) -> set[TopicId]:
        """Topics that readers have offsets of. After a start, those that are gone want a `TopicGone`."""
        return {topic_id for reader in self.by_name.values() for topic_id in reader.offsets}

    # --- the shape of a machine

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
        for reader in self.by_name.values():
            yield records.encode(ReaderPut(**msgspec.structs.asdict(reader)))

    # --- decisions

    def _decide_put(self, command: PutReader, now: int) -> Decision:
        check_reader_name(command.name)
        if not any(command.offsets.values()):
            raise InvalidRequest("a reader is put with offsets: name a topic, a partition of it and where to begin")
        known = self.by_name.get(command.name)
        if known is None and len(self.by_name) >= limits.MAX_READERS:
            raise Conflict(f"there are {limits.MAX_READERS} readers, which is the most; delete one first")
        kept = known.offsets if known is not None and command.if_absent else {}
        offsets = _joined(command.offsets, kept)
        if known is not None and offsets == known.offsets:
            return Decision((), Put(known, created=False))
        reader = Reader(
            name=command.name,
            offsets=offsets,
            created_ms=now if known is None else known.created_ms,
            changed_ms=now,
        )
        self._check_room(reader, known)
        return _decided(Put(reader, created=known is None), ReaderPut(**msgspec.structs.asdict(reader)))

    def _check_room(self, reader: Reader, known: Reader | None) -> None:
        if len(reader.offsets) > limits.MAX_READER_TOPICS:
            raise Conflict(
                f"reader {reader.name} would have {len(reader.offsets)} topics, and {limits.MAX_READER_TOPICS} are the "
                "most; take another name for some of them"
            )
        size = self.size + reader.size - (0 if known is None else known.size)
        if size > limits.MAX_READER_OFFSETS:
            raise Conflict(
                f"all readers together would have {size} offsets, and {limits.MAX_READER_OFFSETS} are the most; delete "
                "a reader first"
            )

    def _decide_delete(self, command: DeleteReader, now: int) -> Decision:
        return _decided(self.reader(command.name), ReaderDeleted(name=command.name))

    def _decide_gone(self, command: TopicGone, now: int) -> Decision:
        concerned = sum(command.topic_id in reader.offsets for reader in self.by_name.values())
        return _decided(concerned, ReadersLeftTopic(topic_id=command.topic_id)) if concerned else Decision((), 0)

    # --- changes

    def _apply_put(self, event: ReaderPut) -> None:
        self._keep(Reader(**msgspec.structs.asdict(event)))

    def _apply_deleted(self, event: ReaderDeleted) -> None:
        self.size -= self.by_name.pop(event.name).size

    def _apply_left(self, event: ReadersLeftTopic) -> None:
        for reader in list(self.by_name.values()):
            if event.topic_id in reader.offsets:
                left = {topic_id: numbers for topic_id, numbers in reader.offsets.items() if topic_id != event.topic_id}
                self._keep(msgspec.structs.replace(reader, offsets=left))

    def _keep(self, reader: Reader) -> None:
        """In place of what it was."""
        known = self.by_name.get(reader.name)
        self.size += reader.size - (0 if known is None else known.size)
        self.by_name[reader.name] = reader


def _joined(given: Offsets, kept: Offsets) -> Offsets:
    """Both, in order; where both have a partition, what is kept. Topics without partitions are left out."""
    joined = {}
    for topic_id in sorted({**given, **kept}):
        numbers = {**given.get(topic_id, {}), **kept.get(topic_id, {})}
        if numbers:
            joined[topic_id] = dict(sorted(numbers.items()))
    return joined


def _decided(reply: Any, *events: Event) -> Decision:
    return Decision([records.encode(event) for event in events], reply)
