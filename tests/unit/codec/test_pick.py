"""Single records out of a block by their offsets: what is picked, what is not and why, and where picking goes on."""

from array import array
from collections.abc import Iterable
from types import ModuleType

import mmh3
import pytest

from goqueue.codec.layout import BLOCK_NOT_ASCENDING, NOT_ASCENDING, NOT_INT64, REASONS, Picked, Problem
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Record
from tests.unit.codec.samples import SAMPLES, boundaries, extended, header, refusal

SIZE = 100
RECORDS = tuple(Record(offset=offset, key=b"k%d" % offset, value=bytes(63)) for offset in (10, 11, 12, 15, 16))
EVERYTHING = 2**40
LAST = 2**63 - 1


def wanted(offsets: Iterable[int]) -> "array[int]":
    return array("q", offsets)


def decided(picked: Picked) -> tuple[list[int], list[int], list[int], list[int], int]:
    return (
        picked.offsets.tolist(),
        picked.expired.tolist(),
        picked.missing.tolist(),
        picked.controls.tolist(),
        picked.next_offset,
    )


# --- What is picked


@pytest.mark.parametrize(
    ("asked", "picked", "missing", "next_offset"),
    [
        ([10, 11, 12, 15, 16], [10, 11, 12, 15, 16], [], 17),
        ([11], [11], [], 12),
        ([16], [16], [], 17),
        ([10, 12, 16], [10, 12, 16], [], 17),
        ([3, 9, 10], [10], [3, 9], 11),
        ([12, 13, 14, 15], [12, 15], [13, 14], 16),
        ([13], [], [13], 14),
        ([3], [], [3], 4),
        ([12, 14], [12], [14], 15),
        ([16, 17], [16], [], 17),
        ([17, 18], [], [], 17),
        ([40], [], [], 17),
        ([14, 40], [], [14], 17),
        ([], [], [], 0),
    ],
)
def test_what_is_asked_for_is_picked_or_missing_up_to_the_end_of_the_block(
    codec: ModuleType, asked: list[int], picked: list[int], missing: list[int], next_offset: int
) -> None:
    found = codec.pick(codec.encode(RECORDS), wanted(asked), max_bytes=EVERYTHING)
    assert decided(found) == (picked, [], missing, [], next_offset)
    assert codec.decode(found.data) == [record for record in RECORDS if record.offset in picked]
    assert len(found) == len(picked)


@pytest.mark.parametrize(("asked", "next_offset"), [([5, 6], 5), ([], 0)])
def test_an_empty_block_decides_nothing(codec: ModuleType, asked: list[int], next_offset: int) -> None:
    found = codec.pick(b"", wanted(asked), max_bytes=EVERYTHING)
    assert decided(found) == ([], [], [], [], next_offset)
    assert found.data == b""


def test_columns_are_those_of_a_scan(codec: ModuleType) -> None:
    messages = [record for record in SAMPLES if not record.control]
    block = codec.encode(SAMPLES)
    found = codec.pick(block, wanted(record.offset for record in messages), max_bytes=EVERYTHING)
    scan = codec.scan(codec.encode(messages))
    assert (found.offsets, found.flags, found.lanes) == (scan.offsets, scan.flags, scan.lanes)
    assert found.key_hashes == scan.key_hashes
    assert found.key_hashes.tolist() == [
        0 if record.key is None else mmh3.hash(record.key, signed=False) for record in messages
    ]
    arrays = (found.offsets, found.key_hashes, found.flags, found.lanes, found.expired, found.missing, found.controls)
    assert [one.typecode for one in arrays] == ["q", "I", "B", "B", "q", "q", "q"]


def test_control_records_are_named_and_not_picked(codec: ModuleType) -> None:
    found = codec.pick(codec.encode(SAMPLES), wanted([11, 12, 13]), max_bytes=EVERYTHING, now=LAST, ttl_ms=0)
    assert decided(found) == ([], [11], [], [12, 13], 14)


def test_offsets_at_the_ends_of_their_range_are_no_exception(codec: ModuleType) -> None:
    block = codec.encode([Record(offset=-LAST - 1), Record(offset=LAST)])
    found = codec.pick(block, wanted([-LAST - 1, LAST]), max_bytes=EVERYTHING)
    assert decided(found) == ([-LAST - 1, LAST], [], [], [], LAST + 1)
    found = codec.pick(block[:34], wanted([LAST]), max_bytes=EVERYTHING)
    assert decided(found) == ([], [], [], [], -LAST)


def test_many_records_are_picked_with_many_left_out(codec: ModuleType) -> None:
    records = [Record(offset=2 * number, value=bytes(number % 50)) for number in range(3000)]
    found = codec.pick(codec.encode(records), wanted(range(0, 6000, 3)), max_bytes=EVERYTHING)
    assert codec.decode(found.data) == records[::3]
    assert found.missing.tolist() == list(range(3, 5998, 6))


# --- Where it is


def is_part_of(data: memoryview, block: bytearray) -> bool:
    """Whether a change of the block can be seen in the data."""
    before = bytes(data)
    for at in range(len(block)):
        block[at] ^= 0xFF
    seen = bytes(data) != before
    for at in range(len(block)):
        block[at] ^= 0xFF
    return seen


@pytest.mark.parametrize("asked", [[10], [16], [11, 12], [12, 13, 15], [10, 11, 12, 15, 16]])
def test_one_run_of_records_is_not_copied(codec: ModuleType, asked: list[int]) -> None:
    block = codec.encode(RECORDS)
    found = codec.pick(block, wanted(asked), max_bytes=EVERYTHING)
    assert isinstance(found.data, memoryview)
    assert is_part_of(found.data, block)


@pytest.mark.parametrize("asked", [[10, 12], [10, 11, 15], [11, 16]])
def test_several_runs_are_copied(codec: ModuleType, asked: list[int]) -> None:
    block = codec.encode(RECORDS)
    found = codec.pick(block, wanted(asked), max_bytes=EVERYTHING)
    assert isinstance(found.data, memoryview)
    assert not is_part_of(found.data, block)


def test_an_expired_record_in_between_parts_a_run(codec: ModuleType) -> None:
    records = [Record(offset=0), Record(offset=1, extension=Extension(expires_at=5)), Record(offset=2)]
    block = codec.encode(records)
    found = codec.pick(block, wanted([0, 1, 2]), max_bytes=EVERYTHING, now=5)
    assert decided(found) == ([0, 2], [1], [], [], 3)
    assert codec.decode(found.data) == [records[0], records[2]]
    assert not is_part_of(found.data, block)


# --- How much


@pytest.mark.parametrize(
    ("asked", "max_bytes", "picked", "missing", "next_offset"),
    [
        ([10, 11, 12], 299, [10, 11], [], 12),
        ([10, 11, 12], 300, [10, 11, 12], [], 13),
        ([10, 12, 16], 200, [10, 12], [], 16),
        ([11, 12], 0, [11], [], 12),
        ([11, 12], -5, [11], [], 12),
        ([12, 13, 14, 15, 16], 100, [12], [13, 14], 15),
        ([9, 11, 40], 1, [11], [9], 17),
    ],
)
def test_picking_stops_before_a_record_there_is_no_room_for(
    codec: ModuleType, asked: list[int], max_bytes: int, picked: list[int], missing: list[int], next_offset: int
) -> None:
    block = codec.encode(RECORDS)
    assert len(block) == len(RECORDS) * SIZE
    found = codec.pick(block, wanted(asked), max_bytes=max_bytes)
    assert decided(found) == (picked, [], missing, [], next_offset)
    assert len(found.data) == len(picked) * SIZE


def test_what_is_not_picked_takes_no_room(codec: ModuleType) -> None:
    gone = Extension(expires_at=1)
    records = [
        Record(offset=0, value=bytes(500), extension=gone),
        Record(offset=1, value=bytes(500), control=True),
        Record(offset=2, value=bytes(10)),
        Record(offset=3, value=bytes(500), extension=gone),
        Record(offset=4, value=bytes(500), control=True),
        Record(offset=5, value=bytes(10)),
        Record(offset=6),
    ]
    found = codec.pick(codec.encode(records), wanted(range(7)), max_bytes=88, now=9)
    assert decided(found) == ([2, 5], [0, 3], [], [1, 4], 6)


def test_picking_may_go_on_where_it_stopped(codec: ModuleType) -> None:
    block = codec.encode(RECORDS)
    left = list(range(8, 17))
    picked, missing = [], []
    while left:
        found = codec.pick(block, wanted(left), max_bytes=2 * SIZE)
        picked += found.offsets.tolist()
        missing += found.missing.tolist()
        left = [offset for offset in left if offset >= found.next_offset]
    assert picked == [record.offset for record in RECORDS]
    assert missing == [8, 9, 13, 14]


# --- When it expires


@pytest.mark.parametrize(
    ("timestamp", "extension", "now", "ttl_ms", "expired"),
    [
        (5, None, LAST, -1, False),
        (5, Extension(expires_at=100), 99, -1, False),
        (5, Extension(expires_at=100), 100, -1, True),
        (5, Extension(expires_at=100), LAST, -1, True),
        (5, Extension(expires_at=100), 0, 0, False),
        (5, Extension(expires_at=0), LAST, -1, False),
        (5, Extension(expires_at=-100), LAST, -1, False),
        (5, Extension(expires_at=LAST), LAST - 1, -1, False),
        (5, None, 104, 100, False),
        (5, None, 105, 100, True),
        (5, None, 5, 0, True),
        (5, None, 0, 0, False),
        (5, None, LAST, LAST, False),
        (LAST, None, LAST, LAST, False),
        (-LAST - 1, None, 1, LAST, True),
        (5, Extension(deliver_at=50), 149, 100, False),
        (5, Extension(deliver_at=50), 150, 100, True),
        (5, Extension(deliver_at=2), 104, 100, False),
        (5, Extension(deliver_at=2), 105, 100, True),
        (5, Extension(deliver_at=-50), 105, 100, True),
        (5, Extension(deliver_at=50), LAST, -1, False),
        (5, Extension(expires_at=200), 150, 100, False),
        (5, Extension(expires_at=0), 150, 100, False),
        (500, Extension(expires_at=100), 100, 1000, True),
        (5, Extension(deliver_at=500, expires_at=100), 100, 1000, True),
        (5, Extension(event_time=1, transaction=1, blob=b"blob"), 104, 100, False),
        (5, Extension(event_time=1, transaction=1, blob=b"blob"), 105, 100, True),
    ],
)
def test_a_record_expires_at_its_own_time_or_by_the_time_to_live(
    codec: ModuleType, timestamp: int, extension: Extension | None, now: int, ttl_ms: int, expired: bool
) -> None:
    block = codec.encode([Record(7, timestamp, b"k", b"v", extension=extension)])
    found = codec.pick(block, wanted([7]), max_bytes=EVERYTHING, now=now, ttl_ms=ttl_ms)
    assert decided(found) == (([], [7], [], [], 8) if expired else ([7], [], [], [], 8))


def test_without_a_time_nothing_expires(codec: ModuleType) -> None:
    block = codec.encode([Record(7, -5, extension=Extension(expires_at=1)), Record(8, -5)])
    for now in (0, -1, -LAST - 1):
        found = codec.pick(block, wanted([7, 8]), max_bytes=EVERYTHING, now=now, ttl_ms=0)
        assert decided(found) == ([7, 8], [], [], [], 9)
    assert decided(codec.pick(block, wanted([7, 8]), max_bytes=EVERYTHING)) == ([7, 8], [], [], [], 9)


# --- What is refused


def test_a_cut_at_any_byte_is_refused_like_decoding_refuses_it(codec: ModuleType) -> None:
    block = bytes(codec.encode(SAMPLES))
    ends = boundaries(codec)
    for cut in set(range(len(block))) - set(ends):
        with pytest.raises(InvalidRecord) as caught:
            codec.pick(block[:cut], wanted([100]), max_bytes=EVERYTHING)
        whole = sum(end <= cut for end in ends[1:])
        assert refusal(caught.value) == (REASONS[Problem.INCOMPLETE], whole, ends[whole])


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (header(magic=b"GR"), Problem.MAGIC),
        (header(flags=32), Problem.FLAGS),
        (header(value=0xFFFF_FFFF), Problem.TOO_LARGE),
        (extended(b"\x00\x02" + bytes(7)), Problem.EXTENSION),
        (extended(b""), Problem.EXTENSION),
        (header(headers=2) + b"\x00\x00", Problem.HEADERS),
    ],
)
def test_bytes_that_are_no_record_are_refused_but_not_for_their_checksum(
    codec: ModuleType, record: bytes, problem: Problem
) -> None:
    before = codec.encode(SAMPLES[:2])
    before[4] ^= 0xFF
    with pytest.raises(InvalidRecord) as caught:
        codec.pick(before + record, wanted([0, 8]), max_bytes=EVERYTHING, now=5, ttl_ms=0)
    assert refusal(caught.value) == (REASONS[problem], 2, len(before))


def test_what_lies_behind_the_last_offset_is_not_looked_at(codec: ModuleType) -> None:
    block = codec.encode(RECORDS[:2]) + b"anything"
    assert decided(codec.pick(block, wanted([10, 11]), max_bytes=EVERYTHING)) == ([10, 11], [], [], [], 12)
    assert decided(codec.pick(b"anything", wanted([]), max_bytes=EVERYTHING)) == ([], [], [], [], 0)


@pytest.mark.parametrize("offsets", [(5, 5), (5, 4), (-1, -2), (LAST - 1, -LAST - 1)])
def test_a_block_whose_offsets_do_not_ascend_is_refused(codec: ModuleType, offsets: tuple[int, int]) -> None:
    block = codec.encode([Record(offset=offset) for offset in offsets])
    with pytest.raises(ValueError, match=BLOCK_NOT_ASCENDING):
        codec.pick(block, wanted([LAST]), max_bytes=EVERYTHING)


@pytest.mark.parametrize("asked", [(5, 5), (5, 4), (1, 2, 3, 3), (LAST, -LAST - 1)])
def test_offsets_that_do_not_ascend_are_refused(codec: ModuleType, asked: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=NOT_ASCENDING):
        codec.pick(b"", wanted(asked), max_bytes=EVERYTHING)


def test_offsets_may_come_in_any_buffer_of_int64(codec: ModuleType) -> None:
    block = codec.encode(RECORDS)
    asked = wanted([10, 12, 16])
    odd = memoryview(b"x" + asked.tobytes())[1:]
    for offsets in (asked, memoryview(asked), array("l", asked), odd.cast("q")):
        assert codec.pick(block, offsets, max_bytes=EVERYTHING).offsets == asked
    with pytest.raises(BufferError):
        codec.pick(block, memoryview(asked)[::2], max_bytes=EVERYTHING)
    for other in (array("Q", asked), array("i", asked), array("d", asked), asked.tobytes(), b""):
        with pytest.raises(ValueError, match=NOT_INT64):
            codec.pick(block, other, max_bytes=EVERYTHING)
    with pytest.raises(ValueError, match=NOT_INT64):
        codec.pick(block, memoryview(asked.tobytes()).cast("q", (3, 1)), max_bytes=EVERYTHING)
    with pytest.raises(TypeError):
        codec.pick(block, [10, 12], max_bytes=EVERYTHING)


def test_any_contiguous_buffer_may_be_picked_from(codec: ModuleType) -> None:
    block = codec.encode(RECORDS)
    words = memoryview(block).cast("I")
    for buffer in (bytes(block), block, memoryview(block), memoryview(b"x" + block)[1:], words):
        for asked in ([11, 12], [10, 15]):
            found = codec.pick(buffer, wanted(asked), max_bytes=EVERYTHING)
            assert [record.offset for record in codec.decode(found.data)] == asked
    with pytest.raises(BufferError):
        codec.pick(memoryview(block)[::2], wanted([10]), max_bytes=EVERYTHING)


def test_what_was_picked_outlives_the_name_of_its_block(codec: ModuleType) -> None:
    found = codec.pick(bytes(codec.encode(RECORDS)), wanted([11, 12]), max_bytes=EVERYTHING)
    assert codec.decode(found.data) == list(RECORDS[1:3])
