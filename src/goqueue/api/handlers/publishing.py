"""Publishing messages: to records, to blocks, one per partition, to the broker. Here as JSON has them; `Batch` is for
every door that has messages one by one.

Without a producer id a bad message fails alone. With one, all messages are for one partition and a bad one
refuses them all, because a gap in the sequence would make the next request fail.
"""

from array import array
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final, NamedTuple

from msgspec import UNSET

from goqueue import codec
from goqueue.api.service import Service
from goqueue.broker.partition import Placed
from goqueue.broker.publish import Publisher, Receipt
from goqueue.broker.topic import OpenTopic
from goqueue.codec.layout import SortedBlock
from goqueue.codec.partitioning import partition_of
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRecord, InvalidRequest, TooLarge
from goqueue.model.names import message_id
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Lane, Producer, Record
from goqueue.model.times import parse_span, parse_time, show_duration, show_time
from goqueue.model.transactions import transaction_number
from goqueue.transactions.coordinator import Writer
from goqueue.wire import shapes

_ACKS: Final = {"none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}
_LANES: Final[dict[str | int, int]] = {lane.name.lower(): int(lane) for lane in Lane} | {
    int(lane): int(lane) for lane in Lane
}


@contextmanager
def counted(service: Service, topic: str) -> Iterator[None]:
    """Whatever is refused in here is a failed publish of the topic, if there is one of this name."""
    try:
        yield
    except GoQueueError as error:
        count_failure(service, topic, error)
        raise


def count_failure(service: Service, topic: object, error: GoQueueError) -> None:
    found = service.broker.topics.by_name.get(topic) if isinstance(topic, str) else None
    if found is not None:
        found.meters.errors.add(error.code)


async def publish(service: Service, request: shapes.Publish, topic: str) -> shapes.PublishResult:
    with counted(service, topic):
        return await publish_one(service, topic, request, _transaction(service, request))


async def publish_one(
    service: Service, topic: str, request: shapes.Publish | shapes.TransactionPublish, transaction: int | None
) -> shapes.PublishResult:
    """In this transaction, which the one who asks may write in."""
    acks = _ACKS[request.acks] if isinstance(request, shapes.Publish) else Acks.LEADER
    batch = _Results(service, topic, [request], acks, _producer(request, transaction), transaction)
    results = await batch.publish()
    if batch.refused:
        raise batch.refused[0].error
    return results[0]


async def publish_batch(service: Service, request: shapes.PublishBatch, topic: str) -> shapes.PublishResults:
    with counted(service, topic):
        transaction = _transaction(service, request)
        producer = _producer(request, transaction)
        batch = _Results(service, topic, request.messages, _ACKS[request.acks], producer, transaction)
        results = await batch.publish()
    for refused in batch.refused:
        count_failure(service, topic, refused.error)
    return shapes.PublishResults(results=results)


def _transaction(service: Service, request: shapes.Publish | shapes.PublishBatch) -> int | None:
    """The number of the transaction that a request names, if it may be written in."""
    if request.transaction_id is None:
        return None
    if request.producer_id is None:
        raise InvalidRequest("transaction_id belongs to a producer_id: that of the producer who began it")
    runner = service.broker.transactions
    writer = Writer(request.producer_id, request.epoch or 0)
    return runner.writing(runner.machine.of(writer, transaction_number(request.transaction_id))).number


def _producer(
    request: shapes.Publish | shapes.PublishBatch | shapes.TransactionPublish, transaction: int | None
) -> Producer | None:
    """None: what comes again is not recognised."""
    given = (request.producer_id, request.epoch, request.sequence)
    if given == (None, None, None) or (transaction is not None and request.sequence is None):
        return None
    if request.producer_id is None or request.sequence is None:
        raise InvalidRequest("producer_id and sequence belong together (and epoch, which is 0 if left out)")
    return Producer(request.producer_id, request.epoch or 0, request.sequence)


Made = tuple[int, int | None, Record]
"""A good message: which of its request it is, the partition it names, and what is stored."""


class Sent(NamedTuple):
    """Messages that went to one partition: which of the request they are, and where they are now."""

    partition: int
    ordinals: Sequence[int]
    receipt: Receipt


class Refused(NamedTuple):
    ordinals: Sequence[int]
    error: GoQueueError


class Batch:
    """The messages of one request on their way: sorted by partition, and each partition's appended as one block.

    With a producer a refusal is raised; its error says by itself if it is about one message.
    """

    __slots__ = ("_acks", "_publisher", "producer", "refused", "sent", "topic", "transaction")

    def __init__(
        self,
        publisher: Publisher,
        topic: OpenTopic,
        acks: Acks,
        producer: Producer | None,
        transaction: int | None = None,
    ) -> None:
        """`transaction` is one that the one who asks may write in, and that the messages carry."""
        self._publisher = publisher
        self._acks = acks
        self.transaction = transaction
        self.topic = topic
        self.producer = producer
        self.sent: list[Sent] = []
        self.refused: list[Refused] = []

    def publish(self, made: Iterable[Made], partition: int | None = None) -> None:
        """To this partition where a message names none. Nothing waits here."""
        for number, (ordinals, records) in self._by_partition(made, partition).items():
            self._append(number, ordinals, records)

    def publish_blocks(self, blocks: Iterable[SortedBlock]) -> None:
        """Messages that the codec has sorted; with a producer they are for one partition. Nothing waits here."""
        for partition, ordinals, block in blocks:
            try:
                self._append_block(partition, ordinals, block)
            except InvalidRecord as error:  # the codec has made it, so there should be none
                self._refuse(ordinals, error)

    def refuse_one(self, ordinal: int, error: GoQueueError) -> None:
        """A message that is not good."""
        error.index = ordinal
        self._refuse((ordinal,), error)

    async def safe(self) -> None:
        """Until the answer may go out. What was lost meanwhile is refused."""
        for sent in tuple(self.sent):
            try:
                await sent.receipt.safe()
            except GoQueueError as error:
                self.sent.remove(sent)
                self._refuse(sent.ordinals, error)

    def _by_partition(self, made: Iterable[Made], given: int | None) -> dict[int, tuple[list[int], list[Record]]]:
        groups: dict[int, tuple[list[int], list[Record]]] = {}
        topic, producer = self.topic, self.producer
        count = len(topic.slots)
        turn: int | None = None
        for ordinal, partition, record in made:
            if partition is None:
                if given is not None:
                    partition = given
                elif producer is not None:
                    raise InvalidRequest(f"message {ordinal} names no partition; with producer_id every message must")
                elif record.key is not None:
                    partition = partition_of(record.key, count)
                else:
                    turn = topic.round_robin.next(count) if turn is None else turn
                    partition = turn
            group = groups.get(partition)
            if group is None:
                group = groups[partition] = ([], [])
            group[0].append(ordinal)
            group[1].append(record)
        if producer is not None and len(groups) > 1:
            raise InvalidRequest(
                "the messages name different partitions; with producer_id send one partition at a time"
            )
        return groups

    def _append(self, partition: int, ordinals: list[int], records: list[Record]) -> None:
        while records:
            try:
                self._append_block(partition, array("H", ordinals), codec.encode(records))
                return
            except InvalidRecord as error:
                bad = error.index or 0
                del records[bad]
                self.refuse_one(ordinals.pop(bad), error)

    def _append_block(self, partition: int, ordinals: "array[int]", block: bytearray) -> None:
        """`InvalidRecord` says which of the messages is not good; otherwise all of them are refused."""
        try:
            receipt = self._publisher.publish(
                self.topic,
                partition,
                memoryview(block),
                acks=self._acks,
                producer=self.producer,
                transaction=self.transaction,
            )
        except InvalidRecord:
            raise
        except GoQueueError as error:
            self._refuse(ordinals, error)
        else:
            self.sent.append(Sent(partition, ordinals, receipt))  # it may wait, and there may be many

    def _refuse(self, ordinals: Sequence[int], error: GoQueueError) -> None:
        if self.producer is not None:  # a gap in the sequence would make the next request fail
            raise error
        self.refused.append(Refused(ordinals, error))


class _Results:
    """What became of the messages of one request."""

    def __init__(
        self,
        service: Service,
        topic: str,
        messages: Sequence[shapes.Message],
        acks: Acks,
        producer: Producer | None,
        transaction: int | None,
    ) -> None:
        self._topic = service.broker.topics.named(topic)
        self._batch = Batch(service.broker.publisher, self._topic, acks, producer, transaction)
        self._messages = messages
        self._acks = acks
        self._results: list[shapes.PublishResult | None] = [None] * len(messages)

    @property
    def refused(self) -> list[Refused]:
        return self._batch.refused

    async def publish(self) -> list[shapes.PublishResult]:
        """A result per message, in their order. With a producer a refusal is raised."""
        begun = perf_counter()
        self._batch.publish(self._made())
        await self._batch.safe()
        for sent in self._batch.sent:
            self._report(*sent)
        for ordinals, error in self._batch.refused:
            refusal = shapes.PublishResult(error=str(error), code=error.code, retriable=error.retriable)
            for ordinal in ordinals:
                self._results[ordinal] = refusal
        self._topic.meters.produce_latency.observe(perf_counter() - begun)
        return [result for result in self._results if result is not None]

    def _made(self) -> Iterator[Made]:
        limit = self._topic.meta.settings.max_message_bytes
        for ordinal, message in enumerate(self._messages):
            try:
                record = to_record(message, limit, self._batch.producer, self._batch.transaction)
            except GoQueueError as error:
                self._batch.refuse_one(ordinal, error)
            else:
                yield ordinal, message.partition, record

    def _report(self, partition: int, ordinals: Sequence[int], receipt: Receipt) -> None:
        name, durability = self._topic.meta.name, shapes.DURABILITY_NAMES[receipt.durability]
        results, messages = self._results, self._messages
        rest = iter(ordinals)
        for place in receipt.placed:
            time = show_time(place.timestamp) if place.timestamp else UNSET
            duplicate = place.duplicate or UNSET
            for offset, ordinal in zip(
                range(place.first_offset, place.first_offset + place.messages), rest, strict=False
            ):
                priority = shapes.LANE_NAMES[_LANES[messages[ordinal].priority]]
                if self._acks is Acks.NONE:
                    results[ordinal] = shapes.PublishResult(partition=partition, priority=priority, durability="none")
                    continue
                if place.duplicate:
                    deliver_at = self._was_due(messages[ordinal], place, partition, offset, receipt.now)
                else:
                    deliver_at = _due(messages[ordinal], receipt.now)
                results[ordinal] = shapes.PublishResult(
                    partition=partition,
                    offset=offset,
                    delayed=UNSET if deliver_at is None else True,
                    deliverAt=UNSET if deliver_at is None else show_time(deliver_at),
                    message_id=message_id(name, partition, offset),
                    timestamp=time,
                    priority=priority,
                    durability=durability,
                    duplicate=duplicate,
                )

    def _was_due(self, message: shapes.Message, place: Placed, partition: int, offset: int, now: int) -> int | None:
        """When one that was there before is delivered: a delay counted from then on."""
        if message.delay is not None:
            return self._topic.partition(partition).deliver_at(offset)
        return None if place.timestamp == 0 else _due(message, min(place.timestamp, now))


def to_record(message: shapes.Message, limit: int, producer: Producer | None, transaction: int | None = None) -> Record:
    """As it is published to a topic that allows so many bytes; raises why it may not be."""
    key, value = message.key, message.value
    decode = _from_base64 if message.encoding == "base64" else _from_text
    key_bytes = None if key is None else decode(key, "key")
    value_bytes = None if value is None else decode(value, "value")
    size = len(key_bytes or b"") + len(value_bytes or b"")
    headers: tuple[tuple[str, bytes], ...] = ()
    if message.headers:
        pairs = message.headers.items() if isinstance(message.headers, dict) else message.headers
        headers = tuple((_checked_name(name), decode(text, f"header {name[:80]!r}")) for name, text in pairs)
        headers_size = 2 + sum(4 + len(name.encode()) + len(text) for name, text in headers)
        if headers_size > limits.MAX_HEADERS_BYTES:
            raise TooLarge(f"the headers take {headers_size} bytes; they may take {limits.MAX_HEADERS_BYTES}")
        size += headers_size
    if len(key_bytes or b"") > limits.MAX_KEY_BYTES:
        raise TooLarge(f"the key has {len(key_bytes or b'')} bytes; it may have {limits.MAX_KEY_BYTES}")
    if size > limit:
        raise TooLarge(f"the message has {size} bytes in key, value and headers; its topic allows {limit}")
    event_time, deliver_at = _moment("event_time", message.event_time), _deliver_at(message)
    ttl_ms = None if message.ttl is None else span("ttl", message.ttl, limits.MIN_TTL_MS)
    extension = None
    if (event_time, deliver_at, ttl_ms, producer, transaction) != (None, None, None, None, None):
        extension = Extension(
            event_time=event_time,
            deliver_at=deliver_at,
            expires_at=None if ttl_ms is None else -ttl_ms,
            producer=producer,
            transaction=transaction,
        )
    return Record(0, 0, key_bytes, value_bytes, _LANES[message.priority], headers, extension)


def _due(message: shapes.Message, now: int) -> int | None:
    """When a message that was appended at that time, by the clock of then, is delivered; None for at once."""
    if message.delay is None and message.deliverAt is None:
        return None
    deliver_at = _deliver_at(message) or 0
    due = now - deliver_at if deliver_at < 0 else deliver_at
    return due if due > now else None


def _deliver_at(message: shapes.Message) -> int | None:
    """A time, or how many milliseconds after it is appended, below zero; None for at once."""
    if message.delay is None:
        return _moment("deliverAt", message.deliverAt)
    if message.deliverAt is not None:
        raise InvalidRequest("a message has a delay or a deliverAt, not both")
    return -span("delay", message.delay, 0) or None


def _moment(name: str, time: str | int | None) -> int | None:
    moment = parse_time(time.replace(" ", "+")) if isinstance(time, str) else time
    if moment is not None and not 0 <= moment <= limits.LAST_TIME_MS:
        raise InvalidRequest(f"{name} is {time!r}; it must lie between the years 1970 and 9999")
    return moment


def span(name: str, text: str | float, least_ms: int, most_ms: int = limits.MAX_DURATION_MS) -> int:
    """In milliseconds; refused by the name of its field."""
    span_ms = parse_span(text)
    if not least_ms <= span_ms <= most_ms:
        longest = show_duration(most_ms)
        raise InvalidRequest(f"{name} is {text!r}; write from {show_duration(least_ms)} to {longest}")
    return span_ms


def _from_text(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the {what} is no Unicode text (half of a surrogate pair); send it as base64") from None


def _from_base64(text: str, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        raise InvalidRequest(f"the {what} is not base64, as encoding says it is") from None


def _checked_name(name: str) -> str:
    _from_text(name, "name of a header")
    return name
