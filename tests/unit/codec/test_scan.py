"""The valid prefix of any bytes: what `scan` accepts, refuses, and how it names the reason."""

import struct
from itertools import pairwise
from types import ModuleType

import mmh3
import pytest

from goqueue.codec.layout import HEADER_BYTES, MAX_EXTENSION_BYTES, Flag, Problem
from goqueue.model.limits import MAX_RECORD_BYTES
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, boundaries, extended, header, reseal


def with_headers(section: bytes) -> bytearray:
    return reseal(header(headers=len(section)) + section)


def test_every_record_of_a_valid_block_is_found(codec: ModuleType) -> None:
    scan = codec.scan(codec.encode(SAMPLES))
    ends = boundaries(codec)
    assert len(scan) == len(SAMPLES)
    assert scan.positions.tolist() == ends[:-1]
    assert scan.offsets.tolist() == [record.offset for record in SAMPLES]
    assert scan.timestamps.tolist() == [record.timestamp for record in SAMPLES]
    assert scan.lanes.tolist() == [record.priority for record in SAMPLES]
    assert scan.key_hashes.tolist() == [
        0 if record.key is None else mmh3.hash(record.key, signed=False) for record in SAMPLES
    ]
    assert [bool(flags & Flag.NO_KEY) for flags in scan.flags] == [record.key is None for record in SAMPLES]
    assert [bool(flags & Flag.COMMIT) for flags in scan.flags] == [record.commit for record in SAMPLES]
    assert [one.typecode for one in (scan.positions, scan.offsets, scan.timestamps)] == ["I", "q", "q"]
    assert [one.typecode for one in (scan.flags, scan.lanes, scan.key_hashes)] == ["B", "B", "I"]
    assert (scan.end, scan.problem) == (ends[-1], Problem.NONE)


def test_an_empty_block_is_valid_and_has_no_records(codec: ModuleType) -> None:
    scan = codec.scan(b"")
    assert (len(scan), scan.end, scan.problem) == (0, 0, Problem.NONE)


def test_a_small_first_record_does_not_limit_how_many_are_found(codec: ModuleType) -> None:
    records = [Record(value=bytes(500)), *(Record(offset=offset) for offset in range(1, 3000))]
    assert codec.scan(codec.encode(records)).offsets.tolist() == list(range(3000))


def test_a_cut_at_any_byte_leaves_the_whole_records_before_it(codec: ModuleType) -> None:
    block = bytes(codec.encode(SAMPLES))
    ends = boundaries(codec)
    for cut in range(len(block) + 1):
        scan = codec.scan(block[:cut])
        whole = sum(end <= cut for end in ends[1:])
        assert (len(scan), scan.end) == (whole, ends[whole]), cut
        assert scan.problem is (Problem.NONE if cut in ends else Problem.INCOMPLETE), cut


def test_any_flipped_bit_ends_the_prefix_before_its_record(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    ends = boundaries(codec)
    for index, (start, end) in enumerate(pairwise(ends)):
        for at in range(start, end):
            for bit in range(8):
                block[at] ^= 1 << bit
                scan = codec.scan(block)
                block[at] ^= 1 << bit
                assert (len(scan), scan.end) == (index, start), (at, bit)
                assert scan.problem is not Problem.NONE, (at, bit)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (header(magic=b"GR"), Problem.MAGIC),
        (header(version=0), Problem.VERSION),
        (header(version=2), Problem.VERSION),
        (header(flags=Flag.COMMIT), Problem.FLAGS),
        (header(reserved=1), Problem.RESERVED),
        (header(priority=5), Problem.PRIORITY),
        (header(priority=255), Problem.PRIORITY),
        (header(flags=Flag.NO_KEY, key=1), Problem.LENGTHS),
        (header(flags=Flag.NO_VALUE, value=1), Problem.LENGTHS),
        (header(value=0xFFFF_FFFF), Problem.TOO_LARGE),
        (header(value=MAX_RECORD_BYTES - HEADER_BYTES + 1), Problem.TOO_LARGE),
        (header(value=MAX_RECORD_BYTES - HEADER_BYTES - 1, flags=Flag.EXTENSION), Problem.TOO_LARGE),
        (header(value=MAX_RECORD_BYTES - HEADER_BYTES, key=1), Problem.TOO_LARGE),
        (header(value=MAX_RECORD_BYTES - HEADER_BYTES), Problem.INCOMPLETE),
        (header(flags=Flag.EXTENSION) + struct.pack(">H", MAX_EXTENSION_BYTES + 1), Problem.TOO_LARGE),
        (header(flags=Flag.EXTENSION) + struct.pack(">H", MAX_EXTENSION_BYTES), Problem.INCOMPLETE),
        (header(flags=Flag.EXTENSION, value=MAX_RECORD_BYTES - 40) + b"\x00\x08", Problem.TOO_LARGE),
        (header(), Problem.CHECKSUM),
    ],
)
def test_a_bare_header_is_judged_before_anything_waits_or_allocates(
    codec: ModuleType, record: bytes, problem: Problem
) -> None:
    assert codec.scan(record).problem is problem
    assert codec.scan(reseal(record)).problem is (Problem.NONE if problem is Problem.CHECKSUM else problem)


@pytest.mark.parametrize("flags", range(32, 256))
def test_unknown_flags_are_refused_even_with_a_right_checksum(codec: ModuleType, flags: int) -> None:
    assert codec.scan(reseal(header(flags=flags))).problem is Problem.FLAGS


@pytest.mark.parametrize(
    ("beginning", "problem"),
    [
        (b"G", Problem.INCOMPLETE),
        (b"GQ", Problem.INCOMPLETE),
        (b"GQ\x01", Problem.INCOMPLETE),
        (b"GQ\x01\xff", Problem.INCOMPLETE),
        (b"\x00", Problem.MAGIC),
        (b"GG", Problem.MAGIC),
        (b"GQ\x02", Problem.VERSION),
        (bytes(33), Problem.MAGIC),
    ],
)
def test_less_than_a_header_is_incomplete_only_if_it_could_begin_one(
    codec: ModuleType, beginning: bytes, problem: Problem
) -> None:
    assert codec.scan(beginning).problem is problem


FIELD = bytes(8)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (extended(b""), Problem.EXTENSION),
        (extended(b"\x00"), Problem.EXTENSION),
        (extended(b"\x00\x00"), Problem.EXTENSION),
        (extended(b"\x00\x00" + FIELD), Problem.EXTENSION),
        (extended(b"\x00\x01" + FIELD), Problem.NONE),
        (extended(b"\x00\x01" + FIELD[1:]), Problem.EXTENSION),
        (extended(b"\x00\x01" + FIELD + b"\x00"), Problem.EXTENSION),
        (extended(b"\x00\x08" + FIELD), Problem.EXTENSION),
        (extended(b"\x00\x10" + FIELD), Problem.EXTENSION),
        (extended(b"\x00\x18" + FIELD + FIELD), Problem.NONE),
        (extended(b"\x00\x18" + FIELD + b"\x00\x00\x00\x01\x00\x00\x00\x00"), Problem.EXTENSION),
        (extended(b"\x00\x40" + FIELD), Problem.NONE),
        (extended(b"\x7f\xff" + 15 * FIELD), Problem.NONE),
        (extended(b"\xff\xff" + 15 * FIELD + b"\x10\x00" + bytes(4096)), Problem.NONE),
        (extended(b"\x80\x00"), Problem.EXTENSION),
        (extended(b"\x80\x00\x00"), Problem.EXTENSION),
        (extended(b"\x80\x00\x00\x00"), Problem.NONE),
        (extended(b"\x80\x00\x00\x01"), Problem.EXTENSION),
        (extended(b"\x80\x00\x00\x01ab"), Problem.EXTENSION),
        (extended(b"\x80\x00\x10\x01" + bytes(4097)), Problem.EXTENSION),
        (with_headers(b"\x00"), Problem.HEADERS),
        (with_headers(b"\x00\x00"), Problem.HEADERS),
        (with_headers(b"\x00\x00" + bytes(4)), Problem.HEADERS),
        (with_headers(b"\x00\x01" + bytes(4)), Problem.NONE),
        (with_headers(b"\x00\x01" + bytes(3)), Problem.HEADERS),
        (with_headers(b"\x00\x01" + bytes(5)), Problem.HEADERS),
        (with_headers(b"\x00\x02" + bytes(4)), Problem.HEADERS),
        (with_headers(b"\x00\x01\xff\xff\x00\x00"), Problem.HEADERS),
        (with_headers(b"\x00\x01\x00\x00\x00\x01"), Problem.HEADERS),
        (with_headers(b"\xff\xff" + bytes(4)), Problem.HEADERS),
    ],
)
def test_what_is_inside_must_add_up_exactly(codec: ModuleType, record: bytearray, problem: Problem) -> None:
    assert codec.scan(record).problem is problem
    unsealed = bytearray(record)
    unsealed[4] ^= 1  # and the checksum is named before the structure
    assert codec.scan(unsealed).problem is Problem.CHECKSUM


def test_unknown_fields_are_skipped(codec: ModuleType) -> None:
    known_and_unknown = extended(b"\x40\x22" + (5).to_bytes(8, "big") + (6).to_bytes(8, "big") + FIELD)
    assert codec.decode(known_and_unknown)[0].extension == Extension(expires_at=5, transaction=6)
    assert codec.decode(extended(b"\x40\x00" + FIELD))[0].extension is None


def test_any_contiguous_buffer_may_be_scanned(codec: ModuleType) -> None:
    block = codec.encode([Record(key=b"k"), Record(extension=Extension(producer=Producer(1, 2, 3)))])
    for buffer in (bytes(block), block, memoryview(block), memoryview(b"x" + block)[1:]):
        assert len(codec.scan(buffer)) == 2
    with pytest.raises(BufferError):
        codec.scan(memoryview(block)[::2])
