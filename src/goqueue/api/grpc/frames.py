"""A frame of PublishStream on its way: to records, to blocks by partition, to the broker, to a compact answer.

What publish_batch does, with the same broker functions, in three ways. If all messages have value, key and partition
at most, the codec makes blocks out of protobuf's bytes. Else what most messages have goes from protobuf's objects into
records, and what is rare takes the long way through the shapes. A frame that has little is published in one piece; a
large one, and one with more than a few messages that are not for the codec, takes turns with others. So does an answer
with more than a few refusals.
"""

import asyncio
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from goqueue import codec
from goqueue.api.batch import STEP, Batch, Made, Refused, Sent
from goqueue.api.grpc.failures import refusal
from goqueue.api.grpc.translating import check_known, check_weight, pb, read_message
from goqueue.api.grpc.weighing import count_values
from goqueue.api.handlers.publishing import to_record
from goqueue.api.refusals import refuse
from goqueue.api.turns import FEW, Turns, exhaust
from goqueue.broker.broker import Broker
from goqueue.broker.topic import OpenTopic
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Lane, Producer, Record
from goqueue.wire import shapes

_ACKS: Final = {"": Acks.LEADER, "none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}
_NORMAL: Final = int(Lane.NORMAL)
_LANES: Final = {"": _NORMAL} | {lane.name.lower(): int(lane) for lane in Lane}
_REFUSED: Final = -1
NAME: Final = "PublishFrame"
FEW_VALUES: Final = 5000
"""Fields of a frame that is published without a pause."""
_LEAST_BYTES: Final = 2
"""Of a field with its value."""
_ORDINAL_BYTES: Final = 2
"""Of a message, to know where it went."""
_PLAIN: Final = {"messages": pb.PublishFrame.DESCRIPTOR.fields_by_name["messages"].number} | {
    name: pb.Message.DESCRIPTOR.fields_by_name[name].number for name in ("value", "key", "partition")
}
"""Numbers of the fields that the codec reads."""


Headers = tuple[tuple[str, bytes], ...]


class Frame:
    """Publish it, which raises for what is no frame at all; other refusals are in its `answer`."""

    __slots__ = (
        "_acks", "_batch", "_begun", "_broker", "_count", "_failure", "_is_plain", "_producer", "_sent", "_topic",
        "_work", "number", "outcome", "weight",
    )  # fmt: skip

    def __init__(self, broker: Broker, number: int) -> None:
        self._begun = perf_counter()
        self._broker = broker
        self.number = number
        self.outcome = "ok"
        self._sent: list[Sent] = []
        self._batch: Batch | None = None
        self._failure: GoQueueError | None = None
        """Why the frame as a whole was refused."""
        self.weight = 0
        """What it was counted for among the answers that wait."""
        self._count = 0
        self._is_plain = False
        """Whether nothing is left to be done message by message: its blocks are made."""
        self._topic: OpenTopic | None = None
        self._producer: Producer | None = None
        self._work: asyncio.Task[None] | None = None

    # --- publishing

    def publish(self, body: bytes) -> Iterator[None] | None:
        """Publish it without a pause, or begin to: if it has too much for that, the steps that are left."""
        steps = self._steps(_decode(body), body)
        try:
            next(steps, None)
            if not self._is_plain and (self._count > FEW or _has_many_values(body)):
                return steps
            exhaust(steps)
        except GoQueueError as error:
            self._fail(error)
        return None

    async def publish_in_turns(self, turns: Turns, body: bytes) -> None:
        """Publish it with pauses, in which others get their turns."""
        async with turns.turn():
            frame = _decode(body)
        await self.finish(turns, self._steps(frame, body))

    async def finish(self, turns: Turns, steps: Iterator[None]) -> None:
        """Publish what is left, with pauses."""
        try:
            await turns.take(steps)
        except GoQueueError as error:
            self._fail(error)

    def wait_for(self, publishing: "asyncio.Task[None]") -> None:
        """Keep the answer back until this task has published it."""
        self._work = publishing

    def refuse(self, error: GoQueueError) -> None:
        """Answer with this error, and publish nothing."""
        self._fail(error)

    def _steps(self, frame: Any, body: bytes) -> Iterator[None]:
        """Publish it in steps, none of which waits for anything."""
        self._broker.check()
        check_known(frame)
        self._acks, self._producer = _acks(frame), _producer(frame)
        topic = self._topic = self._broker.topics.named(frame.topic)
        given = frame.partition if frame.HasField("partition") else None
        self._count = len(frame.messages)
        if frame.HasField("block"):
            if self._count or given is None:
                raise InvalidRequest("a block stands alone, and names its partition")
            block = memoryview(bytearray(frame.block))
            receipt = self._broker.publisher.publish(topic, given, block, acks=self._acks, producer=self._producer)
            self._count = sum(place.messages for place in receipt.placed)
            self._is_plain = True
            self._sent.append(Sent(given, range(self._count), receipt))
            return
        if not 0 < self._count <= limits.MAX_MESSAGES_PER_REQUEST:
            raise InvalidRequest(f"a frame has from 1 to {limits.MAX_MESSAGES_PER_REQUEST} messages")
        batch = self._batch = Batch(self._broker.publisher, topic, self._acks, self._producer)
        self._sent = batch.sent  # from now on: what is stored is in the answer, whatever happens to the rest
        blocks = codec.from_protobuf(
            body,
            **_PLAIN,
            count=self._count,
            partition_count=len(topic.slots),
            given=given,
            keyless=lambda: topic.round_robin.next(len(topic.slots)),
            max_bytes=_small(topic.meta.settings.max_message_bytes),
            numbered=self._producer is not None,
        )
        self._is_plain = blocks is not None
        yield
        if blocks is None:
            yield from batch.sort(self._made(frame.messages, batch, len(body)), given)
            yield from batch.append()
        else:
            yield from batch.append_blocks(blocks)

    def _made(self, messages: Any, batch: Batch, size: int) -> Iterator[Made]:
        """Of every message what it became."""
        limit = batch.topic.meta.settings.max_message_bytes
        small = _small(limit)
        may_be_heavy = size > limits.SMALL_JSON_BYTES
        extension = None if self._producer is None else Extension(producer=self._producer)
        for ordinal, message in enumerate(messages):
            try:
                if may_be_heavy:
                    check_weight(message)
                record = _usual(message, small, extension) or _to_record(message, limit, self._producer)
            except GoQueueError as error:
                batch.refuse_one(ordinal, error)
                yield None
                continue
            yield ordinal, message.partition if message.HasField("partition") else None, record

    def _fail(self, error: GoQueueError) -> None:
        self.outcome = error.code
        self._failure = error.bare()

    @property
    def held_bytes(self) -> int:
        """What it holds until it is answered, about."""
        refusals = sum([limits.REFUSAL_BYTES + len(str(refused.error)) for refused in self._refused])
        return refusals + self._count * _ORDINAL_BYTES

    @property
    def _refused(self) -> list[Refused]:
        return [] if self._batch is None or not self._batch.is_refused_in_part else self._batch.refused

    # --- answering

    @property
    def waits(self) -> bool:
        """Whether the answer has to wait for something."""
        return self._work is not None or any(sent.receipt.durable_at is not None for sent in self._sent)

    async def safe(self) -> None:
        """Until the answer may go out."""
        if self._work is not None:
            await asyncio.shield(self._work)
        try:
            if self._batch is not None:
                await self._batch.safe()
            else:
                for sent in self._sent:
                    await sent.receipt.safe()
        except GoQueueError as error:
            self._sent = []
            self._fail(error)

    @property
    def answers_at_length(self) -> bool:
        """Whether its answer has more than a few refusals."""
        return sum([len(ordinals) for ordinals, _, _ in self._refused]) > FEW

    def answer(self) -> Any:
        """The reply to the frame, once it is safe; and its time is counted."""
        reply = pb.PublishFrameReply(frame=self.number)
        refused = self._refused
        if refused:
            exhaust(self._report(reply, refused))
        return self._conclude(reply, refused)

    async def answer_in_turns(self, turns: Turns) -> Any:
        """The reply to the frame, made with pauses in which others get their turns."""
        reply = pb.PublishFrameReply(frame=self.number)
        refused = self._refused
        await turns.take(self._report(reply, refused))
        return self._conclude(reply, refused)

    def _report(self, reply: Any, refused: list[Refused]) -> Iterator[None]:
        """Each refused message, in steps of a few."""
        for ordinals, error, _ in refused:
            self.outcome = error.code
            for place in range(0, len(ordinals), STEP):
                reply.errors.extend([refusal(error, index=ordinal) for ordinal in ordinals[place : place + STEP]])
                yield

    def _conclude(self, reply: Any, refused: list[Refused]) -> Any:
        if self._topic is not None:
            self._topic.meters.produce_latency.observe(perf_counter() - self._begun)
            self._count_failures(self._topic, refused)
        if self._failure is not None:
            reply.errors.append(refusal(self._failure))
        for partition, _, receipt in self._sent:
            reply.durability = shapes.DURABILITY_NAMES[receipt.durability]
            if receipt.acks is Acks.NONE:
                continue
            for messages, first_offset, timestamp, duplicate in receipt.placed:
                reply.ranges.add(
                    partition=partition,
                    first_offset=first_offset,
                    count=messages,
                    timestamp=timestamp,
                    duplicate=duplicate,
                )
        if len(self._sent) > 1 or (self._sent and refused):
            reply.partitions.extend(self._places())
        return reply

    def _count_failures(self, topic: OpenTopic, refused: list[Refused]) -> None:
        for _, error, failures in refused:
            topic.meters.errors.add(error.code, failures)
        if self._failure is not None:
            topic.meters.errors.add(self._failure.code)

    @property
    def took_s(self) -> float:
        return perf_counter() - self._begun

    def _places(self) -> list[int]:
        places = [_REFUSED] * self._count
        for partition, ordinals, _ in self._sent:
            for ordinal in ordinals:
                places[ordinal] = partition
        return places


def _decode(body: bytes) -> Any:
    try:
        return pb.PublishFrame.FromString(body)
    except DecodeError:
        raise InvalidRequest("what was sent is not a PublishFrame of protobuf") from None


def _has_many_values(body: bytes) -> bool:
    return len(body) > _LEAST_BYTES * FEW_VALUES and count_values(NAME, body, FEW_VALUES) > FEW_VALUES


def _small(limit: int) -> int:
    """Up to this size neither a message nor a part of it can be too large."""
    return min(limit, limits.MAX_KEY_BYTES, limits.MAX_HEADERS_BYTES)


def _size_of(headers: Headers) -> int:
    """As they count for the size of a message."""
    return 2 + sum([4 + len(name.encode()) + len(value) for name, value in headers])


def _usual(message: Any, small: int, extension: Extension | None) -> Record | None:
    """What most messages have at most; None if it has more, or something may be wrong with it.

    A field is copied when it is looked at, so that is done once.
    """
    value, lane = message.value, _LANES.get(message.priority)
    if not value or message.tombstone or lane is None:
        return None
    if message.delay or message.deliverAt or message.ttl or message.event_time:
        return None
    key = message.key if message.HasField("key") else None
    found = message.headers
    if len(found) > limits.MAX_HEADERS:
        return None
    headers = tuple([(header.name, header.value) for header in found]) if found else ()
    size = len(value) + (len(key) if key else 0) + (_size_of(headers) if headers else 0)
    if size > small or len(UnknownFieldSet(message)):
        return None
    return Record(0, 0, key, value, lane, headers, extension)


def _to_record(message: Any, limit: int, producer: Producer | None) -> Record:
    """The long way: everything a message may have, checked as everywhere."""
    try:
        shape = msgspec.convert(read_message(message), shapes.Message)
    except msgspec.ValidationError as error:
        raise refuse(error, shapes.Message) from None
    return to_record(shape, limit, producer)


def _acks(frame: Any) -> Acks:
    acks = _ACKS.get(frame.acks)
    if acks is None:
        raise InvalidRequest(f"acks is {frame.acks[:80]!r}; it is none, leader or all")
    return acks


def _producer(frame: Any) -> Producer | None:
    has_id, has_sequence = frame.HasField("producer_id"), frame.HasField("sequence")
    if not (has_id or has_sequence or frame.HasField("epoch")):
        return None
    if not (has_id and has_sequence):
        raise InvalidRequest("producer_id and sequence belong together (and epoch, which is 0 if left out)")
    fields = {"producer_id": frame.producer_id, "epoch": frame.epoch, "sequence": frame.sequence}
    try:
        checked = msgspec.convert(fields, _ProducerFields)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    return Producer(checked.producer_id, checked.epoch, checked.sequence)


class _ProducerFields(msgspec.Struct, frozen=True):
    producer_id: shapes.ProducerId
    epoch: shapes.ProducerEpoch
    sequence: shapes.Sequence
