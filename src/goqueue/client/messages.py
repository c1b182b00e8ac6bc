"""Messages as users get them: read, or delivered to a member of a group and to be settled.

A message is a decoded record and where it came from. Those of one reply share a `Row`, which knows what of it is still
to be settled.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from goqueue import codec
from goqueue.client.arguments import wrong
from goqueue.client.member import Delivered
from goqueue.client.turns import LoopTurns
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import message_id
from goqueue.model.record import Lane, Record
from goqueue.wire.settles import NO_ARGUMENT, Action, Writer

MessageT = TypeVar("MessageT", bound="Message")


class Message:
    """One message. Times are Unix milliseconds."""

    __slots__ = ("_record", "partition", "topic")

    def __init__(self, topic: str, partition: int, record: Record) -> None:
        self.topic = topic
        self.partition = partition
        self._record = record

    @property
    def offset(self) -> int:
        return self._record.offset

    @property
    def timestamp(self) -> int:
        """When it was appended."""
        return self._record.timestamp

    @property
    def key(self) -> bytes | None:
        return self._record.key

    @property
    def value(self) -> bytes | None:
        """None is a tombstone."""
        return self._record.value

    @property
    def text(self) -> str | None:
        """The value as text; None is a tombstone. InvalidRequest when it is not UTF-8."""
        value = self._record.value
        try:
            return None if value is None else str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the value of {self.message_id} is no text ({error}); it is in `value`") from None

    def json(self) -> Any:
        """What the value says as JSON; None also for a tombstone. InvalidRequest when it is not JSON."""
        value = self._record.value
        try:
            return None if value is None else msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the value of {self.message_id} is not JSON ({error}); it is in `value`") from None

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        return self._record.headers

    @property
    def priority(self) -> Lane:
        return Lane(self._record.priority)

    @property
    def deliver_at(self) -> int | None:
        """When it was due, if it was delayed."""
        extension = self._record.extension
        return None if extension is None else extension.deliver_at

    @property
    def expires_at(self) -> int | None:
        extension = self._record.extension
        return None if extension is None else extension.expires_at

    @property
    def event_time(self) -> int | None:
        """When it happened, if its publisher said so."""
        extension = self._record.extension
        return None if extension is None else extension.event_time

    @property
    def message_id(self) -> str:
        return message_id(self.topic, self.partition, self._record.offset)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id} key={self.key!r} value={_short(self.value)}>"


class Receiver(Protocol):
    """Who waits for one settlement: a future, of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class Settler(Protocol):
    """Takes what users decide about messages, in the order in which they do."""

    turns: LoopTurns

    def add(
        self,
        row: "Row",
        offsets: Sequence[int],
        action: Action,
        argument: int,
        reason: str,
        receiver: Any,
        writer: Writer | None = None,
    ) -> None: ...


class Row:
    """Messages of one partition that came in one reply. `settled` are those nobody looks after any more."""

    __slots__ = ("_offsets", "_values", "delivered", "kept_at", "records", "settled", "settler")

    def __init__(self, delivered: Delivered, settler: Settler, kept_at: float) -> None:
        self.delivered = delivered
        self.settler = settler
        self.settled: set[int] = set()
        self.kept_at = kept_at
        """When it was delivered, or extended last."""
        self.records: list[Record] | None = None
        self._offsets: Sequence[int] | None = None
        self._values: list[bytes | None] | None = None

    @property
    def name(self) -> str:
        return f"{self.delivered.topic}-{self.delivered.partition}"

    def __len__(self) -> int:
        return self.delivered.records

    def decode(self) -> list[Record]:
        """Its records; checked and decoded once."""
        if self.records is None:
            self.records = codec.decode(self.delivered.block)
        return self.records

    def values(self) -> list[bytes | None]:
        """The values alone; found once, because a row may be handed out in many parts."""
        if self._values is None:
            self._values = codec.values(self.delivered.block)
        return self._values

    @property
    def offsets(self) -> Sequence[int]:
        if self._offsets is None:
            self._offsets = codec.scan(self.delivered.block).offsets
        return self._offsets

    @property
    def unsettled(self) -> list[int]:
        return [offset for offset in self.offsets if offset not in self.settled]


class DeliveredMessage(Message):
    """One that was delivered to a member of a group. It is this member's until its visibility timeout is over."""

    __slots__ = ("_row",)

    def __init__(self, row: Row, record: Record) -> None:
        super().__init__(row.delivered.topic, row.delivered.partition, record)
        self._row = row

    @property
    def delivery_count(self) -> int:
        """How often it was delivered to the group, this time included."""
        return self._row.delivered.deliveries

    @property
    def place(self) -> tuple[Row, int]:
        """What it came in, and its offset."""
        return self._row, self._record.offset

    def _settle(self, action: Action, argument: int = NO_ARGUMENT, reason: str = "", receiver: Any = None) -> None:
        self._row.settler.add(self._row, (self._record.offset,), action, argument, reason, receiver)


class Batch(Sequence[MessageT], Generic[MessageT]):
    """Messages in the order they came in; decoded when they are looked at."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: list[MessageT] | None = None

    @abstractmethod
    def _decode(self) -> list[MessageT]: ...

    def _all(self) -> list[MessageT]:
        if self._messages is None:
            self._messages = self._decode()
        return self._messages

    def __iter__(self) -> Iterator[MessageT]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> MessageT: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[MessageT]: ...
    def __getitem__(self, at: int | slice) -> MessageT | Sequence[MessageT]:
        return self._all()[at]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"


class ReadBatch(Batch[Message]):
    """Messages of one partition, read without a group. `next_offset` is where to go on."""

    __slots__ = ("_block", "_count", "next_offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, block: memoryview, count: int, next_offset: int) -> None:
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.next_offset = next_offset
        self._block = block
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _decode(self) -> list[Message]:
        return [Message(self.topic, self.partition, record) for record in codec.decode(self._block)]

    def values(self) -> list[bytes | None]:
        """The values alone; without a message around each."""
        return codec.values(self._block)

    def rest(self, offset: int) -> "ReadBatch":
        """Its messages from this offset on."""
        found = codec.select(
            self._block, from_offset=offset, to_offset=self.next_offset, max_count=self._count,
            max_bytes=len(self._block),
        )  # fmt: skip
        return ReadBatch(
            self.topic, self.partition, self._block[found.start : found.end], found.count, self.next_offset
        )


class DeliveredBatch(Batch[MessageT]):
    """Messages that were delivered together: parts of rows. What is settled is settled for all of them at once."""

    __slots__ = ("_count", "_kind", "_parts")

    def __init__(self, kind: type[MessageT], parts: list[tuple[Row, int, int]]) -> None:
        super().__init__()
        self._kind: Any = kind
        self._parts = parts
        self._count = sum([end - start for _, start, end in parts])

    def __len__(self) -> int:
        return self._count

    def _decode(self) -> list[MessageT]:
        return [self._kind(row, record) for row, start, end in self._parts for record in row.decode()[start:end]]

    def values(self) -> list[bytes | None]:
        """The values alone; without a message around each."""
        return [value for row, start, end in self._parts for value in row.values()[start:end]]

    @property
    def places(self) -> list[tuple[Row, Sequence[int]]]:
        """What they came in, and their offsets in it."""
        return [(row, row.offsets[start:end]) for row, start, end in self._parts]

    def _settle(self, action: Action, argument: int = NO_ARGUMENT, reason: str = "", receivers: Any = None) -> None:
        for at, (row, start, end) in enumerate(self._parts):
            offsets = row.offsets[start:end]
            row.settler.add(row, offsets, action, argument, reason, None if receivers is None else receivers[at])


def gather(messages: DeliveredMessage | Iterable[DeliveredMessage]) -> dict[Row, set[int]]:
    """Which messages those are, by what they came in. A batch is not decoded for it."""
    found: dict[Row, set[int]] = {}
    if isinstance(messages, DeliveredBatch):
        for row, offsets in messages.places:
            found.setdefault(row, set()).update(offsets)
        return found
    several = (messages,) if isinstance(messages, DeliveredMessage) else messages
    try:
        for each in several:
            row, offset = each.place
            found.setdefault(row, set()).add(offset)
    except (AttributeError, TypeError):
        raise wrong("messages", messages, "a message of a consumer, several of them, or a batch") from None
    return found


def _short(value: bytes | None) -> str:
    return repr(value) if value is None or len(value) <= 60 else f"{value[:60]!r}... ({len(value)} bytes)"
