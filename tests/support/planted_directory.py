"""A data directory as a broker leaves it, written without one: quick to make, and with what a test wants in it."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from goqueue import codec
from goqueue.machine.host import Host
from goqueue.metadata.topics import CreateTopic, DeleteTopic, Topics
from goqueue.model.names import TopicId
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import Topic, TopicSettings
from goqueue.model.transactions import AbortReason
from goqueue.producers.registry import ProducerRegistry
from goqueue.storage.log import Log
from goqueue.storage.store import METADATA_LOG, TRANSACTIONS_LOG, Store, log_name
from goqueue.transactions.commands import Abort, Begin, Commit
from goqueue.transactions.coordinator import Transactions
from goqueue.transactions.ending import marker_of

T0 = 1_700_000_000_000
HOUR_MS = 3600 * 1000


class PlantedDirectory:
    """Holds the directory until it is closed."""

    def __init__(self, path: Path, *, segment_bytes: int = 16 * 1024) -> None:
        self.path = path
        self._store = Store(str(path))
        self._settings = LogSettings(segment_bytes=segment_bytes)
        self._topics = Topics()
        meta = self._store.open_log(METADATA_LOG, LogSettings(fsync=Fsync.EVERY), area="meta")
        self._metadata = Host(meta, (self._topics, ProducerRegistry()))
        self._coordinator = Transactions()
        log = self._store.open_log(TRANSACTIONS_LOG, LogSettings(), area="meta")
        self._decisions = Host(log, (self._coordinator,))

    def topic(self, name: str, partitions: int = 1) -> Topic:
        command = CreateTopic(name, TopicId(1000 + len(self._topics.by_id)), partitions, TopicSettings())
        outcome = self._metadata.submit(self._topics, command, T0)
        assert outcome.refusal is None, outcome.refusal
        topic: Topic = outcome.reply
        for number in range(partitions):
            self.log(name, number)
        return topic

    def delete(self, name: str) -> None:
        self._metadata.submit(self._topics, DeleteTopic(name), T0)

    def log(self, topic: str, partition: int = 0) -> Log:
        found = self._topics.by_name[topic]
        return self._store.open_log(log_name(topic, found.topic_id, partition), self._settings)

    def append(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        now: int = T0,
        producer: Producer | None = None,
        block: int = 50,
    ) -> None:
        for first in range(0, len(records), block):
            rows = records[first : first + block]
            if producer is None:
                self.log(topic, partition).append(codec.encode(rows), now=now)
            else:
                placed = Producer(producer.producer_id, producer.producer_epoch, producer.sequence + first)
                room = [_with(row, producer=Producer(0, 0, 0)) for row in rows]
                self.log(topic, partition).append(codec.encode(room), now=now, producer=placed)

    def begin(self, producer_id: int) -> int:
        """A transaction's number."""
        outcome = self._decisions.submit(self._coordinator, Begin(producer_id=producer_id, epoch=0), T0)
        assert outcome.refusal is None, outcome.refusal
        number: int = outcome.reply
        return number

    def decide(self, number: int, *, commits: bool) -> None:
        command = Commit(number, ()) if commits else Abort((number,), AbortReason.ASKED)
        outcome = self._decisions.submit(self._coordinator, command, T0)
        assert outcome.refusal is None, outcome.refusal

    def mark(self, number: int, topic: str, partition: int = 0) -> None:
        """Tell a partition what was decided."""
        self.append(topic, [marker_of(self._coordinator.by_number[number])], partition=partition)

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> "PlantedDirectory":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _with(record: Record, **fields: object) -> Record:
    extension = msgspec.structs.replace(record.extension or Extension(), **fields)
    return msgspec.structs.replace(record, extension=extension)


def messages(numbers: Iterable[int], *, transaction: int | None = None, size: int = 40, keys: int = 7) -> list[Record]:
    extension = None if transaction is None else Extension(transaction=transaction)
    return [
        Record(
            key=b"key %d" % (number % keys),
            value=(b"%d." % number).ljust(size, b"v"),
            headers=(("number", b"%d" % number),) if number % 3 == 0 else (),
            priority=number % 5,
            extension=extension,
        )
        for number in numbers
    ]


def segment_files(data: Path, topic: str, partition: int = 0) -> list[Path]:
    return sorted(data.glob(f"logs/{topic}/*/{partition}/*.log"))


def copied(data: Path, to: Path) -> Path:
    shutil.copytree(data, to)
    return to
