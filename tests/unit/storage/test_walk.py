"""The walk over a segment: runs of records, damaged ranges to the byte, and what can be believed after them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue import codec
from goqueue.codec.layout import HEADER, HEADER_BYTES, KEY_LENGTH_AT, MAGIC, VALUE_LENGTH_AT, VERSION
from goqueue.io.disk import Buffer, LocalDisk
from goqueue.model import limits
from goqueue.model.record import Record
from goqueue.storage.walk import Damage, Extent, Run, walk
from tests.unit.storage.disks import Operation, WatchedDisk
from tests.unit.storage.logs import message, stamped

COUNT = 20
WHOLE, SCAN = stamped(*map(message, range(COUNT)), offset=100)
STARTS = [*SCAN.positions, len(WHOLE)]
Walker = Callable[..., list[Run | Damage]]


@pytest.fixture
def walked(tmp_path: Path) -> Walker:
    def run(
        data: bytes, *, first: int = 100, limit: int = 100 + COUNT, contiguous: bool = True, size: int = len(WHOLE)
    ) -> list[Run | Damage]:
        (tmp_path / "segment.log").write_bytes(data)
        return walk_file(tmp_path, Extent(first, limit, max(len(data), size), contiguous=contiguous))

    return run


def walk_file(directory: Path, extent: Extent) -> list[Run | Damage]:
    file = LocalDisk().open(f"{directory}/segment.log")
    try:
        return list(walk(file, extent))
    finally:
        file.close()


def found(items: list[Run | Damage]) -> list[int]:
    return [offset for item in items if isinstance(item, Run) for offset in item.scan.offsets]


def damages(items: list[Run | Damage]) -> list[Damage]:
    return [item for item in items if isinstance(item, Damage)]


def flipped(*positions: int) -> bytes:
    data = bytearray(WHOLE)
    for position in positions:
        data[position] ^= 4
    return bytes(data)


def test_a_whole_segment_is_one_run(walked: Walker) -> None:
    (run,) = walked(WHOLE)
    assert isinstance(run, Run)
    assert (run.position, run.end, run.next_offset, bytes(run.data)) == (0, len(WHOLE), 120, WHOLE)
    assert list(run.scan.offsets) == list(range(100, 120))


def test_an_empty_file_of_an_empty_extent_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "segment.log").touch()
    assert walk_file(tmp_path, Extent(100, 100, 0, contiguous=True)) == []


def test_chunks_cut_records_and_nothing_is_missed_or_doubled(walked: Walker, monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in (1, 33, 34, 100, 150, 1000):
        monkeypatch.setattr(limits, "SCAN_CHUNK_BYTES", chunk)
        runs = walked(WHOLE)
        assert found(runs) == list(range(100, 120))
        assert damages(runs) == []
        assert b"".join(bytes(run.data) for run in runs if isinstance(run, Run)) == WHOLE


def test_memory_holds_a_chunk_at_a_time(walked: Walker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_CHUNK_BYTES", 500)
    assert max(len(run.data) for run in walked(WHOLE) if isinstance(run, Run)) <= 500


def test_a_record_larger_than_the_chunk_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_CHUNK_BYTES", 256)
    data, _ = stamped(message(0), message(1, size=5000), message(2))
    (tmp_path / "segment.log").write_bytes(data)
    items = walk_file(tmp_path, Extent(0, 3, len(data), contiguous=True))
    assert found(items) == [0, 1, 2]
    assert damages(items) == []


@pytest.mark.parametrize("victim", [0, 1, 10, 18, 19])
def test_one_damaged_record_is_one_range_to_the_byte(walked: Walker, victim: int) -> None:
    for position in (STARTS[victim], STARTS[victim] + 5, STARTS[victim] + 20, STARTS[victim + 1] - 1):
        items = walked(flipped(position))
        (damage,) = damages(items)
        assert (damage.first, damage.next_offset) == (100 + victim, 101 + victim)
        assert (damage.position, damage.end) == (STARTS[victim], STARTS[victim + 1])
        assert found(items) == [offset for offset in range(100, 120) if offset != 100 + victim]


def test_a_damaged_length_does_not_hide_the_records_it_claims(walked: Walker) -> None:
    """Every bit of the value's length: the promise of a longer record is not believed."""
    for bit in range(32):
        data = bytearray(WHOLE)
        data[STARTS[5] + 28 + bit // 8] ^= 1 << bit % 8
        items = walked(bytes(data))
        assert [damage[:4] for damage in damages(items)] == [(105, 106, STARTS[5], STARTS[6])]


def test_neighbours_are_one_range_and_others_are_apart(walked: Walker) -> None:
    items = walked(flipped(STARTS[3] + 40, STARTS[4] + 40, STARTS[9] + 40))
    assert [damage[:4] for damage in damages(items)] == [
        (103, 105, STARTS[3], STARTS[5]),
        (109, 110, STARTS[9], STARTS[10]),
    ]
    assert found(items) == [offset for offset in range(100, 120) if offset not in (103, 104, 109)]


def test_runs_and_damages_come_in_the_order_of_the_file(walked: Walker) -> None:
    items = walked(flipped(STARTS[3] + 40, STARTS[9] + 40))
    assert [type(item) for item in items] == [Run, Damage, Run, Damage, Run]
    assert [item.position for item in items] == [0, STARTS[3], STARTS[4], STARTS[9], STARTS[10]]


def test_a_file_that_ends_early_lacks_exactly_its_last_offsets(walked: Walker) -> None:
    items = walked(WHOLE[: STARTS[15]])
    assert damages(items) == [Damage(115, 120, STARTS[15], len(WHOLE), "the file ends before its records do")]
    torn = damages(walked(WHOLE[: STARTS[15] + 7]))
    assert (torn[0].first, torn[0].position, torn[-1].next_offset) == (115, STARTS[15], 120)


def test_a_file_of_zeros_is_one_range(walked: Walker) -> None:
    assert [damage[:4] for damage in damages(walked(bytes(len(WHOLE))))] == [(100, 120, 0, len(WHOLE))]


def test_a_missing_offset_is_damage_where_all_must_be_there_and_none_where_some_were_cleaned(walked: Walker) -> None:
    gap = WHOLE[: STARTS[5]] + WHOLE[STARTS[7] :]
    assert found(walked(gap, contiguous=False)) == [*range(100, 105), *range(107, 120)]
    assert [damage.first for damage in damages(walked(gap)) if damage.first < 120] == [105]


def test_an_offset_that_goes_back_is_never_accepted(walked: Walker) -> None:
    again = WHOLE[: STARTS[5]] + WHOLE[STARTS[2] :]
    for contiguous in (True, False):
        offsets = found(walked(again, contiguous=contiguous))
        assert offsets == sorted(set(offsets))
        assert offsets[:5] == list(range(100, 105))


def test_records_from_the_limit_on_are_not_handed_out(walked: Walker) -> None:
    for contiguous in (True, False):
        assert found(walked(WHOLE, limit=107, contiguous=contiguous)) == list(range(100, 107))


def test_a_walk_may_begin_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "segment.log").write_bytes(WHOLE)
    items = walk_file(tmp_path, Extent(110, 120, len(WHOLE), contiguous=True, position=STARTS[10]))
    assert found(items) == list(range(110, 120))
    assert items[0].position == STARTS[10]


def test_bytes_past_the_extent_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "segment.log").write_bytes(WHOLE + b"anything")
    assert found(walk_file(tmp_path, Extent(100, 120, len(WHOLE), contiguous=True))) == list(range(100, 120))


def embedding(inner: bytes, *, first: int) -> tuple[bytes, list[int]]:
    """Three records, the first one with `inner` as a part of its value; and where each begins."""
    records = [Record(value=b"before" + inner + b"after"), message(1), message(2)]
    data, scan = stamped(*records, offset=first)
    return data, list(scan.positions)


@pytest.mark.parametrize("first", [0, 100])
@pytest.mark.parametrize("claimed", [0, 1])
def test_a_record_inside_a_damaged_records_value_is_not_taken_for_one_of_the_log(
    tmp_path: Path, first: int, claimed: int
) -> None:
    """A value may hold a record's bytes, as a copy would, with the very offset that comes here, or the next."""
    inner, _ = stamped(Record(value=b"not of this log"), offset=first + claimed)
    data, starts = embedding(inner, first=first)
    damaged = bytearray(data)
    damaged[starts[0] + 36] ^= 1
    (tmp_path / "segment.log").write_bytes(damaged)
    items = walk_file(tmp_path, Extent(first, first + 3, len(data), contiguous=True))
    assert found(items) == [first + 1, first + 2]
    assert [damage[:4] for damage in damages(items)] == [(first, first + 1, starts[0], starts[1])]


def test_a_record_not_stamped_inside_a_damaged_value_is_not_believed(tmp_path: Path) -> None:
    data, starts = embedding(bytes(codec.encode([message(7)])), first=0)
    damaged = bytearray(data)
    damaged[starts[0] + 36] ^= 1
    (tmp_path / "segment.log").write_bytes(damaged)
    items = walk_file(tmp_path, Extent(0, 3, len(data), contiguous=True))
    assert found(items) == [1, 2]
    assert [damage[:4] for damage in damages(items)] == [(0, 1, starts[0], starts[1])]


@given(st.lists(st.integers(0, 8 * len(WHOLE) - 1), max_size=8, unique=True), st.booleans())
def test_whatever_bits_flip_every_offset_is_in_a_run_or_in_a_damage(
    tmp_path_factory: pytest.TempPathFactory, bits: list[int], contiguous: bool
) -> None:
    directory = tmp_path_factory.mktemp("walk")
    data = bytearray(WHOLE)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    (directory / "segment.log").write_bytes(data)
    items = walk_file(directory, Extent(100, 120, len(WHOLE), contiguous=contiguous))
    hit = {next(at for at in range(COUNT) if STARTS[at] <= bit // 8 < STARTS[at + 1]) + 100 for bit in bits}
    lost = {offset for damage in damages(items) for offset in range(damage.first, damage.next_offset)}
    assert found(items) == [offset for offset in range(100, 120) if offset not in lost]
    assert hit <= lost
    # Behind a record with wrong lengths, one that nothing recognisable follows may be a part of a value.
    assert {offset + 1 for offset in lost - hit} <= hit
    position = 0
    for item in items:
        assert item.position == position
        position = item.end
    assert position == len(WHOLE)


# --- values made to be taken for records


def forged(count: int, *, offset: int, size: int = 256) -> bytes:
    """Valid records back to back, `size` bytes in all, that claim the offsets from `offset` on."""
    each = size // count - HEADER_BYTES
    return stamped(*(Record(value=b"forged".ljust(each, b"!")) for _ in range(count)), offset=offset)[0]


@pytest.mark.parametrize("last", [b"", b"after"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_records_forged_inside_a_value_are_never_believed_whichever_length_bit_flips(
    walked: Walker, count: int, last: bytes
) -> None:
    """Some of the flips make the damaged record end exactly where the forged ones begin."""
    value = b"v" * 512 + forged(count, offset=102) + last
    records = [message(0), Record(value=value), *(message(number) for number in range(2, 9))]
    data, scan = stamped(*records, offset=100)
    start, end = scan.positions[1], scan.positions[2]
    for bit in range(8 * (HEADER_BYTES - KEY_LENGTH_AT)):
        damaged = bytearray(data)
        damaged[start + KEY_LENGTH_AT + bit // 8] ^= 1 << bit % 8
        items = walked(bytes(damaged), limit=109, size=len(data))
        assert found(items) == [100, *range(102, 109)], f"bit {bit}"
        assert [damage[:4] for damage in damages(items)] == [(101, 102, start, end)], f"bit {bit}"
        assert not any(b"forged" in run.data.tobytes() for run in items if isinstance(run, Run)), f"bit {bit}"


class Meter:
    """Counts the bytes that are read from a file or given to the codec, and stops work that asks for too many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        self.limit = limit
        self.total = 0
        for name in ("scan", "select"):
            right = getattr(codec, name)
            monkeypatch.setattr(codec, name, self._counted(right))

    def _counted(self, right: Callable[..., Any]) -> Callable[..., Any]:
        def counted(data: Buffer, *arguments: Any, **more: Any) -> Any:
            self.count(len(data))
            return right(data, *arguments, **more)

        return counted

    def count(self, size: int) -> None:
        self.total += size
        assert self.total <= self.limit, "this would take a time that grows with the square of the size"

    def before(self, operation: Operation) -> None:
        if operation.kind == "read":
            self.count(operation.size)


def beginnings(size: int) -> bytes:
    """Headers back to back, each of which promises a record that reaches almost to the end."""
    ends = range(size - HEADER_BYTES, 0, -HEADER_BYTES)
    return b"".join(HEADER.pack(MAGIC, VERSION, 2, 0, 102, 1, 2, 0, 0, max(left - 40, 0), 0) for left in ends)


def small_records(size: int) -> bytes:
    """Valid records back to back, as small as they can be, with the very offsets that come next."""
    return stamped(*[Record(value=b"")] * (size // HEADER_BYTES), offset=102)[0]


def same_records(size: int) -> bytes:
    """Valid records back to back that all claim the next offset."""
    return stamped(Record(value=b""), offset=102)[0] * (size // HEADER_BYTES)


@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("make", [beginnings, small_records, same_records])
@pytest.mark.parametrize("budget", [1, 4])
def test_the_way_around_a_hostile_value_is_bounded_and_never_leads_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], bytes], budget: int, followed: bool
) -> None:
    """With no more bytes to check in search of the next record than `budget` times the size of the value."""
    size = 100_000
    monkeypatch.setattr(limits, "RESYNC_BYTES", budget * size, raising=False)
    records = [message(0), Record(value=make(size)), *([message(2), message(3)] if followed else [])]
    data, scan = stamped(*records, offset=100)
    real = {scan.positions[number]: offset for number, offset in enumerate(scan.offsets)}
    damaged = bytearray(data)
    damaged[scan.positions[1] + VALUE_LENGTH_AT] ^= 0x40
    (tmp_path / "segment.log").write_bytes(damaged)
    meter = Meter(monkeypatch, 20 * len(data))
    file = WatchedDisk(meter.before).open(f"{tmp_path}/segment.log")
    items = list(walk(file, Extent(100, 100 + len(records), len(data), contiguous=True)))
    file.close()
    served = {
        run.position + position: offset
        for run in items
        if isinstance(run, Run)
        for position, offset in zip(run.scan.positions, run.scan.offsets, strict=True)
    }
    assert served.items() <= real.items(), "a forged record was served"
    assert 100 in found(items)
    assert sum(damage.next_offset - damage.first for damage in damages(items)) == len(records) - len(served)
    assert meter.total >= len(data)


@pytest.mark.parametrize("make", [beginnings, small_records, same_records])
def test_behind_a_hostile_value_the_records_of_the_log_are_found(walked: Walker, make: Callable[[int], bytes]) -> None:
    data, scan = stamped(message(0), Record(value=make(10_000)), message(2), message(3), offset=100)
    damaged = bytearray(data)
    damaged[scan.positions[1] + VALUE_LENGTH_AT] ^= 0x40
    items = walked(bytes(damaged), limit=104, size=len(data))
    assert found(items) == [100, 102, 103]
    assert [damage[:4] for damage in damages(items)] == [(101, 102, scan.positions[1], scan.positions[2])]


@pytest.mark.parametrize("left", [0, 1, 33, 40, 1000])
def test_a_file_that_becomes_shorter_while_it_is_walked_ends_there(left: int) -> None:
    """Every size it may have by the second read: the rest is damage, and the walk comes to its end."""

    class Shrinking:
        def size(self) -> int:
            return len(WHOLE)

        def read(self, position: int, size: int) -> bytes:
            return WHOLE[:left][position : position + size]

    items = list(walk(Shrinking(), Extent(100, 120, len(WHOLE), contiguous=True)))  # type: ignore[arg-type]
    whole = sum(1 for end in STARTS[1:] if end <= left)
    assert found(items) == list(range(100, 100 + whole))
    assert damages(items)[-1].next_offset == 120
