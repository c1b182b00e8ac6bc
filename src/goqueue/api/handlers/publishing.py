"""Publishing messages as JSON has them: to records, through a `Batch` to the broker, and a result for each."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from msgspec import UNSET

from goqueue import codec
from goqueue.api.batch import STEP, Batch, Made, Refused, partition_for
from goqueue.api.service import Service
from goqueue.api.turns import FEW, exhaust
from goqueue.broker.partition import Placed
from goqueue.broker.publish import Receipt
from goqueue.broker.topic import OpenTopic
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, TooLarge
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


def count_failure(service: Service, topic: object, error: GoQueueError, times: int = 1) -> None:
    found = service.broker.topics.by_name.get(topic) if isinstance(topic, str) else None
    if found is not None:
        found.meters.errors.add(error.code, times)


async def publish(service: Service, request: shapes.Publish, topic: str) -> shapes.PublishResult:
    with counted(service, topic):
        return await publish_one(service, topic, request, _transaction(service, request))


async def publish_one(
    service: Service, topic: str, request: shapes.Publish | shapes.TransactionPublish, transaction: int | None
) -> shapes.PublishResult:
    """In this transaction, which the one who asks may write in."""
    begun = perf_counter()
    opened = service.broker.topics.named(topic)
    acks = _ACKS[request.acks] if isinstance(request, shapes.Publish) else Acks.LEADER
    producer = _producer(request, transaction)
    try:
        record = to_record(request, opened.meta.settings.max_message_bytes, producer, transaction)
        partition = request.partition
        if partition is None:
            partition = partition_for(record, 0, opened, producer)
        block = memoryview(codec.encode((record,)))
        receipt = service.broker.publisher.publish(
            opened, partition, block, acks=acks, producer=producer, transaction=transaction
        )
    except GoQueueError as error:
        error.index = 0
        raise
    await receipt.safe()
    opened.meters.produce_latency.observe(perf_counter() - begun)
    (place,) = receipt.placed
    deliver_at = None if record.extension is None else record.extension.deliver_at
    time = show_time(place.timestamp)
    return _result(opened, partition, receipt, place, time, place.first_offset, record.priority, deliver_at)


def _result(
    topic: OpenTopic,
    partition: int,
    receipt: Receipt,
    place: Placed,
    time: str,
    offset: int,
    lane: int,
    deliver_at: int | None,
) -> shapes.PublishResult:
    """What became of a message that was stored: `time` is that of its place as text, `deliver_at` as in its record."""
    priority = shapes.LANE_NAMES[lane]
    durability = shapes.DURABILITY_NAMES[receipt.durability]
    if receipt.acks is Acks.NONE:
        return shapes.PublishResult(partition=partition, priority=priority, durability=durability)
    appended = place.timestamp
    due = None if deliver_at is None else _due(topic, partition, receipt, place, offset, deliver_at)
    return shapes.PublishResult(
        partition=partition,
        offset=offset,
        delayed=UNSET if due is None else True,
        deliverAt=UNSET if due is None else show_time(due),
        message_id=message_id(topic.meta.name, partition, offset),
        timestamp=time if appended else UNSET,
        priority=priority,
        durability=durability,
        duplicate=place.duplicate or UNSET,
    )


def _due(topic: OpenTopic, partition: int, receipt: Receipt, place: Placed, offset: int, deliver_at: int) -> int | None:
    """When a message is delivered that names a time, or below zero a span; None for at once."""
    now = receipt.now
    if place.duplicate and deliver_at < 0:  # the span counted from then on
        return topic.partition(partition).deliver_at(offset)
    if place.duplicate:
        now = min(place.timestamp, now)
        if not place.timestamp:
            return None
    due = now - deliver_at if deliver_at < 0 else deliver_at
    return due if due > now else None


async def publish_batch(service: Service, request: shapes.PublishBatch, topic: str) -> shapes.PublishResults:
    def check() -> None:
        _transaction(service, request)

    with counted(service, topic):
        transaction = _transaction(service, request)
        batch = _Results(
            service,
            topic,
            request.messages,
            _ACKS[request.acks],
            _producer(request, transaction),
            transaction,
            None if transaction is None else check,
        )
        results = await batch.publish()
    for refused in batch.refused:
        count_failure(service, topic, refused.error, refused.failures)
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
        check: Callable[[], None] | None = None,
    ) -> None:
        """`check` raises if the transaction may not be written in any more: it may end between turns."""
        self._topic = service.broker.topics.named(topic)
        self._turns = service.turns
        self._check = check
        self._batch = Batch(service.broker.publisher, self._topic, acks, producer, transaction)
        self._messages = messages
        self._acks = acks
        self._lanes = bytearray(len(messages))
        self._due: dict[int, int] = {}
        """Of messages that name one, the time they are delivered at, as in their records."""
        self._results: list[shapes.PublishResult | None] = [None] * len(messages)

    @property
    def refused(self) -> list[Refused]:
        return self._batch.refused

    async def publish(self) -> list[shapes.PublishResult]:
        """A result per message, in their order. With a producer a refusal is raised."""
        begun = perf_counter()
        batch = self._batch
        if len(self._messages) > FEW:
            await self._turns.take(batch.sort(self._made()))
            await self._turns.take(batch.append(self._check))
            await batch.safe()
            await self._turns.take(self._report())
        else:
            exhaust(batch.sort(self._made()))
            exhaust(batch.append())
            await batch.safe()
            exhaust(self._report())
        self._topic.meters.produce_latency.observe(perf_counter() - begun)
        return [result for result in self._results if result is not None]

    def _made(self) -> Iterator[Made]:
        """Of every message what it became."""
        limit = self._topic.meta.settings.max_message_bytes
        for ordinal in range(len(self._messages)):
            try:
                message = self._messages[ordinal]
            except TooLarge as error:
                self._batch.refuse_one(ordinal, error)
                yield None
                continue
            try:
                record = to_record(message, limit, self._batch.producer, self._batch.transaction)
            except GoQueueError as error:
                self._batch.refuse_one(ordinal, error)
                yield None
                continue
            self._lanes[ordinal] = record.priority
            if record.extension is not None and record.extension.deliver_at is not None:
                self._due[ordinal] = record.extension.deliver_at
            yield ordinal, message.partition, record

    def _report(self) -> Iterator[None]:
        """In steps of a few messages."""
        for partition, ordinals, receipt in self._batch.sent:
            rest = iter(ordinals)
            for place in receipt.placed:
                time = show_time(place.timestamp)
                for offset, ordinal in zip(
                    range(place.first_offset, place.first_offset + place.messages), rest, strict=False
                ):
                    if not offset % STEP:
                        yield
                    self._results[ordinal] = _result(
                        self._topic,
                        partition,
                        receipt,
                        place,
                        time,
                        offset,
                        self._lanes[ordinal],
                        self._due.get(ordinal),
                    )
        for reported, (ordinals, error, _) in enumerate(self._batch.refused):
            if not reported % STEP:
                yield
            refusal = shapes.PublishResult(error=str(error), code=error.code, retriable=error.retriable)
            for ordinal in ordinals:
                self._results[ordinal] = refusal


def to_record(message: shapes.Message, limit: int, producer: Producer | None, transaction: int | None = None) -> Record:
    """As it is published to a topic that allows so many bytes; raises why it may not be."""
    key, value = message.key, message.value
    if (value is None) is not message.tombstone:
        raise _no_tombstone() if value is None else InvalidRequest("a tombstone has no value; leave out one of the two")
    decode = _from_base64 if message.encoding == "base64" else _from_text
    key_bytes = None if key is None else decode(key, "key")
    value_bytes = None if value is None else decode(value, "value")
    size = len(key_bytes or b"") + len(value_bytes or b"")
    headers: tuple[tuple[str, bytes], ...] = ()
    if message.headers:
        if len(message.headers) > limits.MAX_HEADERS:
            raise TooLarge(f"the message has {len(message.headers)} headers; it may have {limits.MAX_HEADERS}")
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


def _no_tombstone() -> InvalidRequest:
    error = InvalidRequest("value is missing; a message without one is a tombstone, and says so: tombstone is true")
    error.field = "value"
    return error


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
