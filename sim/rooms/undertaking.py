"""Writing dead letters, as a broker does it: the intent is durable, then the letters are written under their numbers,
then they are durable, then they are buried."""

from itertools import islice
from typing import Final

import msgspec

from goqueue import codec
from goqueue.delivery.commands import Bury
from goqueue.delivery.dead import Death
from goqueue.model import limits
from goqueue.model.dead_letters import DeadLetter, pack_dead_letter
from goqueue.model.errors import OffsetOutOfRange
from goqueue.model.record import Extension, Producer, Record
from goqueue.producers.sequences import Run
from goqueue.storage.log import Log
from sim.rooms.core import Core
from sim.rooms.exchanges import Steps
from sim.rooms.topics import Partition

_AT_ONCE: Final = 4
_GONE: Final = Record(key=b"gone", control=True)


class Undertaker:
    def __init__(self, core: Core) -> None:
        self._core = core

    def bury(self, partition: Partition) -> Steps[None]:
        """Some of a partition's dead, oldest first."""
        core, sidecar = self._core, partition.sidecar
        if sidecar is None or not sidecar.deliveries.outbox:
            return
        outbox = sidecar.deliveries.outbox
        first, deaths = outbox.first, list(islice(outbox, _AT_ONCE))
        yield from core.durable(sidecar.log, sidecar.log.end_offset)
        log = yield from core.letters(partition)
        letters = [self._letter(partition, death) for death in deaths]
        self._append(partition, log, letters, Producer(limits.OWN_PRODUCERS | partition.part.topic_id, 0, first))
        yield from core.durable(log, log.end_offset)
        core.write(partition, Bury(first + len(deaths)))

    def _letter(self, partition: Partition, death: Death) -> Record:
        """What died, with its story; something else in its place when it is not there any more."""
        found: list[Record] = []
        if not death.void:
            try:
                found = partition.data.records(death.offset, max_bytes=1, max_count=1, to_offset=death.offset + 1)
            except OffsetOutOfRange:
                pass
        if not found:
            return _GONE
        story = DeadLetter(
            topic=self._core.topics.names[partition.part.topic_id],
            topic_id=partition.part.topic_id,
            partition=partition.part.partition,
            offset=death.offset,
            group="",
            group_number=death.group,
            reason=death.reason.name.lower(),
            deliveries=death.deliveries,
            published_at=found[0].timestamp,
            died_at=death.at,
        )
        extension = Extension(blob=pack_dead_letter(story))
        return msgspec.structs.replace(found[0], offset=0, timestamp=0, extension=extension)

    def _append(self, partition: Partition, log: Log, letters: list[Record], producer: Producer) -> None:
        """Only those that are not there."""
        known = sum(found.count for found in partition.producers.check(producer, len(letters)).known)
        rest = letters[known:]
        self._core.trace.event("letters", *partition.part, producer.sequence, len(letters), known)
        if not rest:
            return
        producer = msgspec.structs.replace(producer, sequence=producer.sequence + known)
        block = codec.encode([_as_produced(letter, producer) for letter in rest])
        appended = log.append(block, now=self._core.clock.now, producer=producer)
        partition.producers.add(
            Run(
                producer.producer_id,
                producer.producer_epoch,
                producer.sequence,
                appended.first_offset,
                len(rest),
                appended.timestamp,
            )
        )


def _as_produced(letter: Record, producer: Producer) -> Record:
    """With room for the producer's fields."""
    extension = letter.extension or Extension()
    return msgspec.structs.replace(letter, extension=msgspec.structs.replace(extension, producer=producer))
