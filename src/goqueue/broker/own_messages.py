"""Publishing what the broker has to say by itself: durable before anybody counts on it, recognised if it comes again.

It is not held to what a topic allows its clients: whoever publishes looks first. On a full disk it waits as clients do.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from goqueue import codec
from goqueue.broker.partition import Placed
from goqueue.broker.topic import OpenTopic
from goqueue.broker.waiting import until, while_open
from goqueue.model.errors import DiskFull, StorageFailed
from goqueue.model.record import Extension, Producer, Record
from goqueue.storage.driver import OnFailure
from goqueue.storage.log import Log


class Sent(NamedTuple):
    """Where the messages are, durable or not."""

    placed: tuple[Placed, ...]
    log: Log

    async def durable(self) -> None:
        self.log.hasten()
        await until(self.log.durable, max(place.first_offset + place.messages for place in self.placed))


class OwnPublisher:
    """Used from one event loop. While there is no `has_room` nothing is appended."""

    def __init__(self, clock: Callable[[], int], on_failure: OnFailure, has_room: Callable[[], bool]) -> None:
        self._clock = clock
        self._on_failure = on_failure
        self._has_room = has_room

    def append(self, topic: OpenTopic, number: int, records: Sequence[Record], producer: Producer) -> Sent:
        """`producer` has the sequence of the first; one of the broker's own."""
        partition = topic.partition(number)
        if not self._has_room():
            raise DiskFull("the disk is full, and the space left on it is kept for the commits of consumers")
        block = memoryview(codec.encode([_by(producer, record) for record in records]))
        try:
            with while_open():
                placed = partition.append(block, count=len(records), now=self._clock(), producer=producer)
        except StorageFailed as failure:
            self._on_failure(failure)
            raise
        meters = topic.meters
        for place in placed:
            if place.duplicate:
                meters.duplicates += place.messages
            else:
                meters.messages_produced += place.messages
                meters.bytes_produced += len(block) * place.messages // len(records)
        return Sent(placed, partition.log)


def _by(producer: Producer, record: Record) -> Record:
    """With room for the producer's fields; they are stamped when it is appended."""
    extension = msgspec.structs.replace(record.extension or Extension(), producer=producer)
    return msgspec.structs.replace(record, extension=extension)
