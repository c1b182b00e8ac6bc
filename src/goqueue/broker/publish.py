"""Publishing a block: check it, find out whether it was here before, append it, say when the answer may go out.

Everything up to the append happens in one piece, without waiting, so blocks of one connection keep their order.
What waits is only the answer, on the mark that `acks` asks for.
"""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Final, Protocol

import msgspec

from goqueue import codec
from goqueue.broker.partition import Partition, Placed
from goqueue.broker.topic import OpenTopic
from goqueue.broker.waiting import GONE, until
from goqueue.codec import Field, Flag, Problem
from goqueue.codec.layout import BLOB_BIT, REASONS, Survey
from goqueue.model import limits
from goqueue.model.errors import (
    DiskFull,
    GoQueueError,
    InvalidRecord,
    InvalidRequest,
    LogClosed,
    StorageFailed,
    TooLarge,
    Unavailable,
    UnknownProducer,
)
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Producer
from goqueue.model.settings import Fsync
from goqueue.producers.registry import ProducerRegistry
from goqueue.storage.log import Log

_CONTROL: Final = int(Flag.CONTROL)
_ALLOWED_FIELDS: Final = 1 << Field.EVENT_TIME | 1 << Field.DELIVER_AT | 1 << Field.EXPIRES_AT
_DELAYED: Final = 1 << Field.DELIVER_AT
_PRODUCER_FIELDS: Final = 1 << Field.PRODUCER_ID | 1 << Field.PRODUCER_SEQUENCE
_TRANSACTION: Final = 1 << Field.TRANSACTION
_KEPT: Final = (
    "the disk is full, and the space left on it is kept for the commits of consumers; free some and try again"
)


class Receipt(msgspec.Struct, frozen=True):
    """Where the messages are. The answer may go out once `log.durable` has reached `durable_at`, or at once if None."""

    placed: tuple[Placed, ...]
    acks: Acks
    durability: Durability
    log: Log
    durable_at: int | None
    now: int
    """What the clock showed: relative times count from there."""

    async def safe(self) -> None:
        """Return when the answer may go out."""
        if self.durable_at is not None:
            await until(self.log.durable, self.durable_at)


class Permits(Protocol):
    """Says who may publish. Both raise when that is not so."""

    def check_producer(self, producer: Producer) -> None:
        """Whether it was replaced."""

    def check_block(self, number: int, producer: Producer) -> None:
        """Whether it may publish in a transaction."""

    def take_part(self, number: int, partition: Partition) -> None:
        """The partition has messages of it."""


class Publisher:
    """Used from one event loop. While there is no `has_room` nothing is appended.

    What fails is counted by the doors: they refuse much before it comes here.
    """

    def __init__(
        self,
        registry: ProducerRegistry,
        permits: Permits,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        on_failure: Callable[[StorageFailed], None],
        on_full: Callable[[DiskFull], None] = lambda _: None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._registry = registry
        self._permits = permits
        self._clock = clock
        self._monotonic = monotonic
        self.on_delayed: Callable[[Partition], None] = lambda _: None
        """Told of a partition that has more delayed messages."""
        self._on_failure = on_failure
        self._on_full = on_full
        self._has_room = has_room

    def publish(
        self,
        topic: OpenTopic,
        partition: int,
        block: memoryview,
        *,
        acks: Acks,
        producer: Producer | None = None,
        transaction: int | None = None,
    ) -> Receipt:
        """Append a block. It is stamped in place; the memory is the caller's again when this returns.

        Messages that carry a transaction belong to it; with a producer it is looked up whether they may. Without one
        the caller has done that for `transaction`.
        """
        meters = topic.meters
        begun = perf_counter()
        try:
            target = topic.partition(partition)
            count, fields = self._check(topic, block, producer, transaction)
            if fields & _TRANSACTION:
                transaction = self._transaction_of(block, count, producer, transaction)
            if not self._has_room():
                raise DiskFull(_KEPT)
            monotonic = self._monotonic() if fields & _DELAYED else None
            now = self._clock()
            placed = target.append(
                block,
                count=count,
                now=now,
                producer=producer,
                monotonic=monotonic,
                transactional=transaction is not None,
            )
            if transaction is not None:
                self._permits.take_part(transaction, target)
            if monotonic is not None:
                self.on_delayed(target)
        except LogClosed:  # the topic was deleted after it was looked up
            raise Unavailable(GONE) from None
        except GoQueueError as error:
            if isinstance(error, StorageFailed):
                self._on_failure(error)
            elif isinstance(error, DiskFull):
                self._on_full(error)
            raise
        target.append_latency.observe(perf_counter() - begun)
        for place in placed:
            if place.duplicate:
                meters.duplicates += place.messages
            else:
                meters.messages_produced += place.messages
                meters.bytes_produced += len(block) * place.messages // count
        return self._receipt(target.log, placed, acks, now)

    def _receipt(self, log: Log, placed: tuple[Placed, ...], acks: Acks, now: int) -> Receipt:
        if acks is Acks.NONE:
            return Receipt(placed, acks, Durability.NONE, log, None, now)
        every = log.settings.fsync is Fsync.EVERY
        if acks is Acks.LEADER and not every:
            return Receipt(placed, acks, Durability.WRITTEN, log, None, now)
        if not every:
            log.hasten()
        end = max(place.first_offset + place.messages for place in placed)
        return Receipt(placed, acks, Durability.DURABLE, log, end, now)

    def _check(
        self, topic: OpenTopic, block: memoryview, producer: Producer | None, transaction: int | None
    ) -> tuple[int, int]:
        """How many messages the block has, and which fields; raises when a client may not publish it."""
        most = limits.APPENDED_AT_ONCE_BYTES
        if len(block) > most and codec.survey(block[:most]).count:
            raise TooLarge(
                f"the messages have {len(block)} bytes together, and are appended at once; send {most} at a time,"
                " or one message alone"
            )
        survey = codec.survey(block)
        if survey.problem is not Problem.NONE:
            raise InvalidRecord(REASONS[survey.problem], index=survey.count, position=survey.end)
        if not survey.count:
            raise InvalidRequest("there is no message in this request; send at least one")
        limit = topic.meta.settings.max_message_bytes
        if survey.largest > limit:
            raise _too_large(topic.meta.name, block, limit)
        if survey.headers > limits.MAX_HEADERS:
            raise _too_many_headers(block)
        if survey.flags & _CONTROL:
            raise InvalidRequest("control records are the broker's own; clients cannot publish them")
        allowed = _ALLOWED_FIELDS if transaction is None else _ALLOWED_FIELDS | _TRANSACTION
        if producer is not None:
            if not self._registry.knows(producer.producer_id):
                raise UnknownProducer(f"no producer has the id {producer.producer_id}; initialise one and use its id")
            self._permits.check_producer(producer)
            allowed |= _PRODUCER_FIELDS | _TRANSACTION
        if survey.fields & ~allowed:
            raise _refused(survey.fields & ~allowed)
        return survey.count, survey.fields

    def _transaction_of(self, block: memoryview, count: int, producer: Producer | None, given: int | None) -> int:
        """The one that all messages of the block belong to."""
        _, numbers = codec.field_values(block, codec.scan(block), Field.TRANSACTION)
        if len(numbers) != count or numbers.count(numbers[0]) != count:
            raise InvalidRequest("the messages of one request belong to one transaction, all of them, or to none")
        number = numbers[0]
        if producer is not None:
            self._permits.check_block(number, producer)
        elif number != given:
            raise InvalidRequest("the messages belong to another transaction than the request")
        return number


def _too_large(topic: str, block: memoryview, limit: int) -> TooLarge:
    """Says which of the messages it is."""
    index, size = _first(block, lambda survey: survey.largest, limit)
    error = TooLarge(f"a message has {size} bytes in key, value and headers; {topic} allows {limit}")
    error.index = index
    return error


def _too_many_headers(block: memoryview) -> TooLarge:
    index, count = _first(block, lambda survey: survey.headers, limits.MAX_HEADERS)
    error = TooLarge(f"a message has {count} headers; it may have {limits.MAX_HEADERS}")
    error.index = index
    return error


def _first(block: memoryview, measure: Callable[[Survey], int], limit: int) -> tuple[int, int]:
    """Index and measure of the first message whose measure exceeds `limit`."""
    scan = codec.scan(block)
    if scan.problem is not Problem.NONE:
        raise InvalidRecord(REASONS[scan.problem], index=len(scan), position=scan.end)
    ends = [*scan.positions[1:], len(block)]
    found = [measure(codec.survey(block[start:end])) for start, end in pairwise([0, *ends])]
    return next(((index, size) for index, size in enumerate(found) if size > limit), (0, max(found)))


def _refused(fields: int) -> InvalidRequest:
    if fields & _TRANSACTION:
        return InvalidRequest("the messages belong to a transaction but the request names no producer")
    if fields & _PRODUCER_FIELDS:
        return InvalidRequest("the messages carry producer fields but the request names no producer")
    if fields >> BLOB_BIT & 1:
        return InvalidRequest("the messages carry a blob, which only the broker writes")
    return InvalidRequest("the messages carry extension fields this broker does not know")
