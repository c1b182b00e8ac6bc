"""The walk over headers alone: what `survey` counts, where it stops, and what it leaves to `scan`."""

import struct
from types import ModuleType

import pytest

from goqueue.codec.layout import BLOB_BIT, HEADER_BYTES, MAX_EXTENSION_BYTES, Field, Flag, Problem
from goqueue.model.limits import MAX_RECORD_BYTES
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, boundaries, extended, findings, header

FIELD = bytes(8)
ALL_FIELDS = sum(1 << field for field in Field)
BLOB = 1 << BLOB_BIT


def _message_bytes(record: Record) -> int:
    """Key, value and the headers' section."""
    headers = 2 + sum(4 + len(name.encode("utf-8", "surrogateescape")) + len(value) for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + (headers if record.headers else 0)


def test_a_whole_block_is_counted_and_its_flags_and_fields_are_gathered(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    largest = max(_message_bytes(record) for record in SAMPLES)
    everything = int(Flag.EXTENSION | Flag.NO_KEY | Flag.NO_VALUE | Flag.CONTROL | Flag.COMMIT)
    headers = max(len(record.headers) for record in SAMPLES)
    expected = (len(SAMPLES), everything, ALL_FIELDS | BLOB, largest, headers, len(block), Problem.NONE)
    assert findings(codec.survey(block)) == expected


def test_an_empty_block_has_nothing_and_no_problem(codec: ModuleType) -> None:
    assert findings(codec.survey(b"")) == (0, 0, 0, 0, 0, 0, Problem.NONE)


@pytest.mark.parametrize(
    ("extension", "fields"),
    [
        (None, 0),
        (Extension(deliver_at=-1), 1 << Field.DELIVER_AT),
        (Extension(expires_at=0, event_time=0), 1 << Field.EXPIRES_AT | 1 << Field.EVENT_TIME),
        (Extension(producer=Producer(0, 0, 0)), 1 << Field.PRODUCER_ID | 1 << Field.PRODUCER_SEQUENCE),
        (Extension(transaction=1, blob=b""), 1 << Field.TRANSACTION | BLOB),
    ],
)
def test_fields_are_the_bits_of_the_mask(codec: ModuleType, extension: Extension | None, fields: int) -> None:
    block = codec.encode([Record(key=b"k", value=b"v", extension=extension), Record(key=b"k", value=b"v")])
    assert codec.survey(block).fields == fields
    assert codec.survey(block).flags == (Flag.EXTENSION if fields else 0)


def test_fields_of_a_later_version_are_reported_too(codec: ModuleType) -> None:
    assert codec.survey(extended(b"\x40\x00" + FIELD)).fields == 1 << 14


def test_the_largest_message_may_be_any_of_them(codec: ModuleType) -> None:
    for sizes in ((9, 1, 1), (1, 9, 1), (1, 1, 9)):
        block = codec.encode([Record(value=bytes(size)) for size in sizes])
        assert codec.survey(block).largest == 9


def test_a_cut_at_any_byte_leaves_the_whole_records_before_it(codec: ModuleType) -> None:
    block = bytes(codec.encode(SAMPLES))
    ends = boundaries(codec)
    for cut in range(len(block) + 1):
        survey = codec.survey(block[:cut])
        whole = sum(end <= cut for end in ends[1:])
        assert findings(survey)[:5] == findings(codec.survey(block[: ends[whole]]))[:5], cut
        assert (survey.count, survey.end) == (whole, ends[whole]), cut
        assert survey.problem is (Problem.NONE if cut in ends else Problem.INCOMPLETE), cut


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b"G", Problem.INCOMPLETE),
        (b"GR", Problem.MAGIC),
        (b"GQ\x02", Problem.VERSION),
        (header(magic=b"GR"), Problem.MAGIC),
        (header(version=2), Problem.VERSION),
        (header(flags=32), Problem.FLAGS),
        (header(flags=Flag.COMMIT), Problem.FLAGS),
        (header(reserved=1), Problem.RESERVED),
        (header(priority=5), Problem.PRIORITY),
        (header(flags=Flag.NO_KEY, key=1), Problem.LENGTHS),
        (header(flags=Flag.NO_VALUE, value=1), Problem.LENGTHS),
        (header(value=0xFFFF_FFFF), Problem.TOO_LARGE),
        (header(value=0xFFFF_FFFF, key=0xFFFF, headers=0xFFFF), Problem.TOO_LARGE),
        (header(value=MAX_RECORD_BYTES - HEADER_BYTES + 1), Problem.TOO_LARGE),
        (header(value=MAX_RECORD_BYTES - HEADER_BYTES), Problem.INCOMPLETE),
        (header(key=0xFFFF), Problem.INCOMPLETE),
        (header(headers=0xFFFF), Problem.INCOMPLETE),
        (header(flags=Flag.EXTENSION), Problem.INCOMPLETE),
        (header(flags=Flag.EXTENSION) + b"\xff", Problem.INCOMPLETE),
        (header(flags=Flag.EXTENSION) + b"\xff\xff", Problem.TOO_LARGE),
        (header(flags=Flag.EXTENSION) + struct.pack(">H", MAX_EXTENSION_BYTES + 1), Problem.TOO_LARGE),
        (header(flags=Flag.EXTENSION) + struct.pack(">H", MAX_EXTENSION_BYTES), Problem.INCOMPLETE),
        (header(flags=Flag.EXTENSION, value=MAX_RECORD_BYTES - 40) + b"\x00\x08", Problem.TOO_LARGE),
        (extended(b""), Problem.EXTENSION),
        (extended(b"\x00"), Problem.EXTENSION),
        (extended(b"\x00\x01" + FIELD[1:]), Problem.EXTENSION),
        (extended(b"\x7f\xff" + 14 * FIELD), Problem.EXTENSION),
        (extended(b"\x80\x00"), Problem.EXTENSION),
        (extended(b"\x80\x01" + FIELD + b"\x00"), Problem.EXTENSION),
    ],
)
def test_a_record_that_cannot_be_walked_ends_the_survey_and_leaves_no_trace(
    codec: ModuleType, record: bytes, problem: Problem
) -> None:
    before = codec.encode(SAMPLES[:2])
    assert findings(codec.survey(before + record)) == (*findings(codec.survey(before))[:6], problem)


def test_an_extension_cannot_borrow_its_mask_or_fields_from_what_follows_it(codec: ModuleType) -> None:
    following = codec.encode([Record(value=bytes(100))])
    for record in (extended(b""), extended(b"\x00"), extended(b"\x00\x01"), extended(b"\x80\x00")):
        assert findings(codec.survey(record + following)) == (0, 0, 0, 0, 0, 0, Problem.EXTENSION)


def test_checksums_and_content_are_left_to_scan(codec: ModuleType) -> None:
    block = codec.encode([Record(value=b"value", headers=(("name", b"value"),))])
    for at in (4, HEADER_BYTES, HEADER_BYTES + 5, len(block) - 1):  # checksum, value, header count, header value
        broken = bytearray(block)
        broken[at] ^= 0xFF
        assert codec.scan(broken).problem is not Problem.NONE
        found, whole = codec.survey(broken), codec.survey(block)
        found.headers = whole.headers  # how many there are is content
        assert findings(found) == findings(whole)


def test_what_scan_accepts_can_be_walked(codec: ModuleType) -> None:
    """The largest and the oddest extension, and the largest record."""
    for record in (
        extended(b"\xff\xff" + 15 * FIELD + b"\x10\x00" + bytes(4096)),
        extended(b"\x80\x00\x00\x00"),
        codec.encode([Record(value=bytes(MAX_RECORD_BYTES - HEADER_BYTES))]),
    ):
        assert codec.scan(record).problem is Problem.NONE
        assert findings(codec.survey(record))[5:] == (len(record), Problem.NONE)


def test_any_contiguous_buffer_may_be_surveyed(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    for buffer in (bytes(block), block, memoryview(block), memoryview(b"x" + block)[1:]):
        assert codec.survey(buffer).count == len(SAMPLES)
    with pytest.raises(BufferError):
        codec.survey(memoryview(block)[::2])
