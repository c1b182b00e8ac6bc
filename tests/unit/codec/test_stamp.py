"""Stamping: every record validated, then every record changed, or nothing changed at all."""

from types import ModuleType

import msgspec
import pytest

from goqueue.codec.layout import EMPTY_BLOCK, REASONS, Problem
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, boundaries, columns, refusal

MAX_INT64 = 2**63 - 1
WITH_PRODUCER = tuple(
    msgspec.structs.replace(
        record,
        extension=msgspec.structs.replace(record.extension or Extension(), producer=Producer(0, 0, 0)),
    )
    for record in SAMPLES
)


def stamped(
    records: tuple[Record, ...], *, offset: int, timestamp: int, producer: Producer | None = None
) -> list[Record]:
    """What stamping means, said with records instead of bytes."""
    result = []
    for index, record in enumerate(records):
        extension = record.extension
        if extension is not None:
            deliver_at, expires_at = extension.deliver_at, extension.expires_at
            if deliver_at is not None and deliver_at < 0:
                deliver_at = min(timestamp - deliver_at, MAX_INT64)
            if expires_at is not None and expires_at < 0:
                due = timestamp if deliver_at is None else max(timestamp, deliver_at)
                expires_at = min(due - expires_at, MAX_INT64)
            extension = msgspec.structs.replace(extension, deliver_at=deliver_at, expires_at=expires_at)
            if producer is not None:
                sequence = (producer.sequence + index) % 2**31
                extension = msgspec.structs.replace(
                    extension, producer=Producer(producer.producer_id, producer.producer_epoch, sequence)
                )
        result.append(msgspec.structs.replace(record, offset=offset + index, timestamp=timestamp, extension=extension))
    return result


@pytest.mark.parametrize("producer", [None, Producer(2**50, 7, 100), Producer(-1, -1, 2**31 - 3)])
def test_stamping_equals_decoding_changing_and_encoding(codec: ModuleType, producer: Producer | None) -> None:
    records = SAMPLES if producer is None else WITH_PRODUCER
    block = codec.encode(records)
    scan = codec.stamp(block, offset=1000, timestamp=1_800_000_000_000, producer=producer)
    assert block == codec.encode(stamped(records, offset=1000, timestamp=1_800_000_000_000, producer=producer))
    assert columns(scan) == columns(codec.scan(block))


@pytest.mark.parametrize("deliver_at", [None, 0, 50, 2_000, MAX_INT64, -1, -500, -MAX_INT64, -MAX_INT64 - 1])
@pytest.mark.parametrize("expires_at", [None, 0, 50, MAX_INT64, -1, -500, -MAX_INT64, -MAX_INT64 - 1])
def test_relative_times_are_resolved_and_never_overflow(
    codec: ModuleType, deliver_at: int | None, expires_at: int | None
) -> None:
    records = (Record(extension=Extension(deliver_at=deliver_at, expires_at=expires_at, transaction=1)),)
    block = codec.encode(records)
    codec.stamp(block, offset=0, timestamp=1_000)
    assert codec.decode(block) == stamped(records, offset=0, timestamp=1_000)


@pytest.mark.parametrize(("deliver_at", "expires_at"), [(-10, -100), (-10, None), (None, -100), (50, -100)])
def test_relative_times_count_from_what_the_clock_shows_and_append_times_do_not(
    codec: ModuleType, deliver_at: int | None, expires_at: int | None
) -> None:
    """The clock was ahead when the record before was appended: a time may lie before the append time."""
    block = codec.encode([Record(extension=Extension(deliver_at=deliver_at, expires_at=expires_at, transaction=1))])
    scan = codec.stamp(block, offset=0, timestamp=9_000, now=1_000)
    (record,) = codec.decode(block)
    due = {None: None, -10: 1_010, 50: 50}[deliver_at]
    assert (record.timestamp, list(scan.timestamps)) == (9_000, [9_000])
    expires = None if expires_at is None else max(due or 0, 1_000) + 100
    assert record.extension == Extension(deliver_at=due, expires_at=expires, transaction=1)


def test_stamping_twice_resolves_relative_times_once(codec: ModuleType) -> None:
    block = codec.encode([Record(extension=Extension(deliver_at=-10, expires_at=-100))])
    codec.stamp(block, offset=0, timestamp=1_000)
    codec.stamp(block, offset=5, timestamp=9_000)
    assert codec.decode(block)[0].extension == Extension(deliver_at=1_010, expires_at=1_110)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 255, 256, 700, 734, 767, 768, 769, 1024, 1600, 5000])
@pytest.mark.parametrize("extension", [None, Extension(producer=Producer(1, 1, 1)), Extension(blob=b"b")])
def test_values_of_any_length_get_the_right_checksum(codec: ModuleType, size: int, extension: Extension | None) -> None:
    block = codec.encode([Record(value=bytes(index % 251 for index in range(size)), extension=extension)] * 2)
    codec.stamp(block, offset=3, timestamp=4)
    assert codec.scan(block).problem is Problem.NONE
    assert [record.offset for record in codec.decode(block)] == [3, 4]


def refuse(codec: ModuleType, block: bytearray, **stamp: object) -> tuple[object, ...]:
    before = bytes(block)
    with pytest.raises(InvalidRecord) as caught:
        codec.stamp(block, **{"offset": 77, "timestamp": 88, **stamp})
    assert block == before
    return refusal(caught.value)


def test_an_empty_block_is_refused(codec: ModuleType) -> None:
    assert refuse(codec, bytearray()) == (EMPTY_BLOCK, 0, 0)


def test_a_cut_block_is_refused_unchanged(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    ends = boundaries(codec)
    for cut in set(range(1, len(block))) - set(ends):
        whole = sum(end <= cut for end in ends[1:])
        assert refuse(codec, block[:cut]) == (REASONS[Problem.INCOMPLETE], whole, ends[whole])


def test_trailing_bytes_are_refused_unchanged(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    assert refuse(codec, block + b"\x00") == (REASONS[Problem.MAGIC], len(SAMPLES), len(block))


def test_a_flipped_bit_anywhere_leaves_the_block_unchanged(codec: ModuleType) -> None:
    block = codec.encode(WITH_PRODUCER)
    ends = boundaries(codec, WITH_PRODUCER)
    for at in range(len(block)):
        block[at] ^= 1 << at % 8
        index = sum(end <= at for end in ends[1:])
        assert refuse(codec, block, producer=Producer(1, 1, 1))[1:] == (index, ends[index])
        block[at] ^= 1 << at % 8


def test_a_record_without_producer_fields_cannot_get_a_producer(codec: ModuleType) -> None:
    producer = Producer(1, 2, 3)
    with_fields = WITH_PRODUCER[0]
    for without in (Record(), Record(value=b"x", extension=Extension(deliver_at=5))):
        block = codec.encode([with_fields, without])
        position = len(codec.encode([with_fields]))
        assert refuse(codec, block, producer=producer) == (REASONS[Problem.PRODUCER], 1, position)
        block[-1] ^= 1  # what else is wrong is named first
        assert refuse(codec, block, producer=producer)[0] != REASONS[Problem.PRODUCER]


def test_a_view_into_a_larger_buffer_is_stamped_in_place(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    around = bytearray(b"before") + block + b"after"
    codec.stamp(memoryview(around)[6:-5], offset=5, timestamp=6)
    codec.stamp(block, offset=5, timestamp=6)
    assert around == b"before" + block + b"after"


def test_a_read_only_block_cannot_be_stamped(codec: ModuleType) -> None:
    with pytest.raises(BufferError):
        codec.stamp(bytes(codec.encode(SAMPLES)), offset=0, timestamp=0)


@pytest.mark.parametrize(
    "stamp",
    [
        {"offset": -1},
        {"offset": 2**62},
        {"timestamp": -1},
        {"timestamp": 2**80},
        {"now": -1},
        {"now": 2**62},
        {"producer": Producer(2**63, 0, 0)},
        {"producer": Producer(0, 2**15, 0)},
        {"producer": Producer(0, 0, -1)},
        {"producer": Producer(0, 0, 2**31)},
    ],
)
def test_a_stamp_out_of_range_is_the_callers_mistake(codec: ModuleType, stamp: dict[str, object]) -> None:
    block = codec.encode(WITH_PRODUCER)
    before = bytes(block)
    with pytest.raises(ValueError, match="to stamp must"):
        codec.stamp(block, **{"offset": 0, "timestamp": 0, **stamp})
    assert block == before
