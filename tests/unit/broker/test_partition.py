"""A partition: blocks that come again are recognised, and what groups have done is found, also after restarts."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyroaring import BitMap64

from goqueue import codec
from goqueue.broker.partition import Partition, Placed
from goqueue.codec.layout import CRC_AT
from goqueue.delivery.commands import Cancel, Move, Retries, Start
from goqueue.delivery.sidecar import Sidecar
from goqueue.io.disk import LocalFile
from goqueue.model.errors import InvalidRecord, OutOfSequence, UnknownProducer
from goqueue.model.names import GroupNumber, TopicId
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import Topic, TopicSettings
from goqueue.producers.sequences import Run
from goqueue.storage.cleaner import clean
from goqueue.storage.store import Store, log_name, sidecar_name
from goqueue.telemetry.meters import APPEND_BOUNDS_S, Histogram
from tests.unit.broker.brokers import T0, block, messages, values

LAST = 2**31 - 1
TOPIC = Topic(name="orders", topic_id=TopicId(1), partitions=1, settings=TopicSettings(), created_ms=T0)
NAME = log_name(TOPIC.name, TOPIC.topic_id, 0)


class Stored:
    """One partition of a store that can be closed and opened again."""

    def __init__(self, path: Path, settings: LogSettings | None = None) -> None:
        self.path = path
        self.settings = settings or LogSettings(segment_bytes=4096)
        self.open()

    def open(self) -> None:
        self.store = Store(str(self.path))
        self.partition = Partition.open(self.store, TOPIC, 0, self.settings, Histogram(APPEND_BOUNDS_S), wall=T0, now=0)

    def make_sidecar(self) -> Sidecar:
        self.partition.sidecar = self.partition.make_sidecar(self.store, T0, 0)
        return self.partition.sidecar

    def restart(self) -> None:
        self.store.close()
        self.open()

    def append(self, *texts: str, sequence: int | None = None, epoch: int = 0, now: int = T0) -> tuple[Placed, ...]:
        producer = None if sequence is None else Producer(1, epoch, sequence)
        return self.partition.append(messages(*texts, producer=producer), count=len(texts), now=now, producer=producer)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    made = Stored(tmp_path)
    yield made
    made.store.close()


def test_without_a_producer_everything_is_new(stored: Stored) -> None:
    assert stored.append("a") == ((1, 0, T0, False),)
    assert stored.append("a") == ((1, 1, T0, False),)
    assert len(stored.partition.producers) == 0


def test_the_producers_fields_are_stamped_into_the_records(stored: Stored) -> None:
    stored.append("a", "b", sequence=0)
    found = stored.partition.log.records(0, max_bytes=1000)
    assert [record.extension.producer for record in found if record.extension] == [Producer(1, 0, 0), Producer(1, 0, 1)]


def test_a_block_that_comes_again_is_not_appended_again(stored: Stored) -> None:
    stored.append("a", "b", sequence=0)
    stored.append("c", sequence=2)
    assert stored.append("a", "b", sequence=0, now=T0 + 9) == ((2, 0, T0, True),)
    assert stored.append("b", sequence=1) == ((1, 1, T0, True),)
    assert stored.append("c", sequence=2) == ((1, 2, T0, True),)
    assert values(stored.partition) == ["a", "b", "c"]


def test_a_block_over_several_rows_is_found_in_pieces(stored: Stored) -> None:
    """As after a retry that was cut in two by somebody else's messages."""
    stored.append("a", sequence=0)
    stored.append("x")
    stored.append("b", sequence=1)
    assert stored.append("a", "b", "c", sequence=0, now=T0 + 5) == (
        (1, 0, T0, True),
        (1, 2, T0, True),
        (1, 3, T0 + 5, False),
    )
    assert values(stored.partition) == ["a", "x", "b", "c"]


def test_the_rest_of_an_overlap_is_stamped_with_its_own_sequences(stored: Stored) -> None:
    stored.append("a")
    stored.partition.producers.add(Run(1, 0, LAST - 1, 0, 1, T0))
    assert stored.append("a", "b", "c", "d", sequence=LAST - 1) == ((1, 0, T0, True), (3, 1, T0, False))
    found = stored.partition.log.records(1, max_bytes=1000)
    producers = [record.extension.producer for record in found if record.extension]
    assert producers == [Producer(1, 0, LAST), Producer(1, 0, 0), Producer(1, 0, 1)], "after the last comes 0"


def test_a_bad_record_in_the_part_that_is_known_is_refused(stored: Stored) -> None:
    producer = Producer(1, 0, 0)
    stored.append("a", sequence=0)
    data = bytearray(messages("a", "b", producer=producer))
    data[CRC_AT] ^= 1
    with pytest.raises(InvalidRecord) as caught:
        stored.partition.append(memoryview(data), count=2, now=T0, producer=producer)
    assert caught.value.index == 0
    assert values(stored.partition) == ["a"]


def test_a_bad_record_in_the_part_that_is_new_is_named_by_its_place_in_the_block(stored: Stored) -> None:
    producer = Producer(1, 0, 0)
    stored.append("a", "b", sequence=0)
    data = bytearray(messages("a", "b", "c", "d", producer=producer))
    fourth = codec.scan(bytes(data)).positions[3]
    data[fourth + CRC_AT] ^= 1
    with pytest.raises(InvalidRecord) as caught:
        stored.partition.append(memoryview(data), count=4, now=T0, producer=producer)
    assert (caught.value.index, caught.value.position) == (3, fourth)
    assert values(stored.partition) == ["a", "b"]
    assert stored.append("a", "b", "c", sequence=0)[-1] == (1, 2, T0, False), "nothing of it counts as published"


def test_a_restart_knows_the_producers(stored: Stored) -> None:
    stored.append("a", "b", sequence=0)
    stored.restart()
    assert stored.append("a", "b", sequence=0) == ((2, 0, T0, True),)
    with pytest.raises(OutOfSequence) as caught:
        stored.append("d", sequence=3)
    assert caught.value.expected == 2
    assert stored.append("c", sequence=2) == ((1, 2, T0, False),)


def test_a_restart_knows_producers_of_segments_long_past(stored: Stored) -> None:
    stored.append("a", sequence=0)
    for _ in range(3):
        stored.partition.log.roll()
        stored.append("x" * 500)
    assert len(stored.partition.log.segments) == 4
    stored.restart()
    assert stored.append("a", sequence=0) == ((1, 0, T0, True),)


def test_a_producer_is_known_after_its_messages_are_cleaned(stored: Stored) -> None:
    stored.append("a", sequence=0)
    for later in (0, 4000, 8000):
        stored.partition.log.roll()
        stored.append("x", now=T0 + later)
        stored.partition.log.sync()
    stored.partition.log.settings = LogSettings(segment_bytes=4096, retention_ms=2000)
    clean(stored.partition.log, T0 + 5000)
    assert stored.partition.log.start_offset > 0
    assert stored.append("a", sequence=0) == ((1, 0, 0, True),), "its time is not known any more"
    stored.restart()
    assert stored.append("a", sequence=0) == ((1, 0, 0, True),)


def test_a_restart_gives_the_same_table_as_before(stored: Stored) -> None:
    stored.append("a", sequence=0)
    stored.append("x")
    stored.partition.log.roll()
    stored.append("b", "c", sequence=1)
    before = stored.partition.producers
    stored.restart()
    assert stored.partition.producers == before


def test_a_new_partition_knows_nobody(stored: Stored) -> None:
    with pytest.raises(UnknownProducer):
        stored.append("b", sequence=1)


def test_reads_from_the_active_segment_are_warm(stored: Stored) -> None:
    stored.append("a")
    assert stored.partition.reads_warm(0, 1000)
    stored.partition.log.roll()
    stored.append("b")
    for offset in (1, 2):
        assert stored.partition.reads_warm(offset, 1000)


@pytest.mark.parametrize("cached", [False, True])
def test_reads_from_older_segments_are_warm_when_the_system_has_them_in_memory(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    stored.append("a")
    stored.partition.log.roll()
    stored.append("b")
    monkeypatch.setattr(LocalFile, "is_cached", lambda _, __: cached)
    assert stored.partition.reads_warm(0, 1000) is cached


# --- the sidecar


GROUP = GroupNumber(1)


def test_a_partition_that_no_group_has_used_has_no_sidecar(stored: Stored) -> None:
    stored.append("a")
    stored.restart()
    assert stored.partition.sidecar is None
    assert not stored.store.has_log(sidecar_name(NAME))


def test_a_sidecar_is_made_when_it_is_wanted_and_found_after_a_restart(stored: Stored) -> None:
    stored.append("a", "b")
    stored.make_sidecar().submit(Start(GROUP, 1), wall=T0, now=0)
    stored.restart()
    assert stored.partition.sidecar is not None
    assert stored.partition.sidecar.deliveries.low(GROUP) == 1


def test_every_start_fences_a_sidecar_before_anything_is_appended(stored: Stored) -> None:
    stored.append("a", "b")
    stored.make_sidecar().submit(Start(GROUP, 2), wall=T0, now=0)
    epochs = []
    for _ in range(3):
        stored.restart()
        sidecar = stored.partition.sidecar
        assert sidecar is not None
        assert sidecar.log.durable.value == sidecar.log.end_offset
        epochs.append(stored.partition.log.epochs[-1].epoch)
    assert epochs == sorted(set(epochs))
    stored.partition.log.truncate(1)  # as a power cut would
    stored.restart()
    assert stored.partition.sidecar is not None
    assert stored.partition.sidecar.deliveries.low(GROUP) == 1, "what will be published next is not settled"


def test_the_sidecar_is_made_durable_as_its_partition_is_and_nothing_in_it_is_cleaned(stored: Stored) -> None:
    sidecar = stored.make_sidecar()
    stored.partition.change_settings(
        TOPIC, LogSettings(fsync=Fsync.EVERY, retention_ms=1, retention_bytes=1, compact=True)
    )
    settings = sidecar.log.settings
    assert settings.fsync is Fsync.EVERY
    assert (settings.retention_ms, settings.retention_bytes, settings.compact) == (None, None, False)


def test_a_damaged_sidecar_does_not_keep_the_partition_from_opening(stored: Stored) -> None:
    stored.append("a")
    stored.make_sidecar().submit(Start(GROUP, 1), wall=T0, now=0)
    stored.store.close()
    segment = next(stored.path.glob(f"logs/{NAME}/sidecar/*.log"))
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)
    stored.open()
    assert values(stored.partition) == ["a"]
    assert stored.partition.sidecar is None
    assert stored.partition.sidecar_damage is not None
    stored.append("b")
    assert values(stored.partition) == ["a", "b"]


# --- delayed messages


def delay(stored: Stored, *times: int) -> None:
    data = block(*(Record(value=b"a", extension=Extension(deliver_at=time)) for time in times))
    stored.partition.append(data, count=len(times), now=T0, producer=None, monotonic=0)


def test_a_restart_finds_what_is_delayed_and_not_due_in_all_segments(stored: Stored) -> None:
    delay(stored, T0 + 5000, T0 - 1)
    stored.append("plain")
    stored.partition.log.roll()
    delay(stored, T0 + 1000)
    stored.restart()
    assert list(stored.partition.delays.pending) == [0, 3]
    assert list(stored.partition.delays.fire(wall=T0 + 1010, now=1010, limit=10)) == [3]


def test_a_restart_knows_what_was_cancelled_and_moved(stored: Stored) -> None:
    delay(stored, *([T0 + 5000] * 4))
    sidecar = stored.make_sidecar()
    sidecar.submit(Cancel(BitMap64([1])), wall=T0, now=0)
    sidecar.submit(Move(BitMap64([2]), T0 + 100), wall=T0, now=0)
    sidecar.submit(Move(BitMap64([3]), T0 - 100), wall=T0, now=0)
    stored.restart()
    assert list(stored.partition.delays.pending) == [0, 2], "one is cancelled, one is due"
    assert list(stored.partition.delays.fire(wall=T0 + 110, now=110, limit=10)) == [2]


def test_the_cleaner_is_told_what_was_cancelled_and_moved(stored: Stored) -> None:
    delay(stored, *([T0 + 5000] * 3))
    assert stored.partition.due_times.of(1, T0 + 5000) == T0 + 5000
    sidecar = stored.make_sidecar()
    sidecar.submit(Cancel(BitMap64([1])), wall=T0, now=0)
    sidecar.submit(Move(BitMap64([2]), T0 + 99_000), wall=T0, now=0)
    times = stored.partition.due_times
    assert [times.of(offset, T0 + 5000) for offset in range(3)] == [T0 + 5000, 0, T0 + 99_000]


@pytest.mark.parametrize(
    ("name", "enabled", "expected"),
    [("orders", True, True), ("orders", False, False), ("orders.dlq", True, False), ("orders.dlq", False, False)],
)
def test_which_partitions_have_dead_letters(stored: Stored, name: str, enabled: bool, expected: bool) -> None:
    settings = TopicSettings(dlq_enabled=enabled, max_retries=7)
    stored.partition.change_settings(msgspec.structs.replace(TOPIC, name=name, settings=settings), stored.settings)
    assert stored.partition.has_dead_letters is expected
    assert stored.partition.retries == Retries(7, settings.backoff, expected)
