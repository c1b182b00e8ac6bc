"""The synced mark: golden bytes, two slots in turn, and one that survives when the other is torn."""

from pathlib import Path

import crc32c
import pytest

from goqueue.storage.synced import SLOT, SLOT_STRIDE, Synced, SyncedMark
from tests.unit.storage.disks import Stopped, WatchedDisk, stop_at

GOLDEN = bytes.fromhex(
    "4751534d 01 00 0000 dcb33fde"  # GQSM, version, reserved, crc32c
    "0000000000000001"  # sequence
    "0000000000000064 00000000000007d0 000000000000007b".replace(" ", "")  # base, position, offset
)
ONE, TWO, THREE = Synced(100, 2000, 123), Synced(100, 3000, 140), Synced(150, 0, 150)


def mark(directory: Path) -> SyncedMark:
    return SyncedMark(WatchedDisk(), str(directory))


def slots(directory: Path) -> list[bytes]:
    data = (directory / "synced").read_bytes()
    return [data[start : start + SLOT.size] for start in (0, SLOT_STRIDE)]


def stored(directory: Path, *marks: Synced) -> SyncedMark:
    kept = mark(directory)
    for each in marks:
        kept.store(each, durably=False)
    return kept


def test_the_bytes_are_the_golden_ones(tmp_path: Path) -> None:
    stored(tmp_path, ONE)
    assert slots(tmp_path)[1] == GOLDEN
    assert (tmp_path / "synced").stat().st_size == SLOT_STRIDE + SLOT.size
    assert int.from_bytes(GOLDEN[8:12], "big") == crc32c.crc32c(GOLDEN[:8] + GOLDEN[12:])


def test_golden_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "synced").write_bytes(bytes(SLOT_STRIDE) + GOLDEN)
    assert mark(tmp_path).load() == ONE


def test_there_is_no_mark_without_a_file(tmp_path: Path) -> None:
    assert mark(tmp_path).load() is None


def test_the_newest_slot_counts(tmp_path: Path) -> None:
    stored(tmp_path, ONE, TWO, THREE)
    assert mark(tmp_path).load() == THREE


def test_the_slots_are_written_in_turn_also_by_the_next_process(tmp_path: Path) -> None:
    stored(tmp_path, ONE, TWO)
    before = slots(tmp_path)
    again = mark(tmp_path)
    assert again.load() == TWO
    again.store(THREE, durably=True)
    after = slots(tmp_path)
    assert [first == second for first, second in zip(before, after, strict=True)] == [True, False]
    assert mark(tmp_path).load() == THREE


def test_a_slot_torn_at_any_byte_falls_back_to_the_other(tmp_path: Path) -> None:
    stored(tmp_path, ONE, TWO)
    whole = (tmp_path / "synced").read_bytes()
    stored_third = SLOT_STRIDE
    for done in range(SLOT.size):
        torn = bytearray(whole)
        torn[stored_third : stored_third + SLOT.size] = (
            b"\xff" * done + whole[stored_third + done :][: SLOT.size - done]
        )
        (tmp_path / "synced").write_bytes(torn)
        assert mark(tmp_path).load() == TWO


def test_every_damaged_bit_of_the_newest_slot_falls_back_to_the_other(tmp_path: Path) -> None:
    stored(tmp_path, ONE, TWO)
    whole = (tmp_path / "synced").read_bytes()
    for bit in range(8 * SLOT.size):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "synced").write_bytes(damaged)
        assert mark(tmp_path).load() == ONE, f"bit {bit} does not matter"


def test_two_damaged_slots_are_no_mark(tmp_path: Path) -> None:
    stored(tmp_path, ONE, TWO)
    damaged = bytearray((tmp_path / "synced").read_bytes())
    damaged[20] ^= 1
    damaged[SLOT_STRIDE + 20] ^= 1
    (tmp_path / "synced").write_bytes(damaged)
    assert mark(tmp_path).load() is None


@pytest.mark.parametrize("size", [0, SLOT.size - 1, SLOT_STRIDE + SLOT.size - 1])
def test_a_short_file_loses_only_the_slots_it_lacks(tmp_path: Path, size: int) -> None:
    stored(tmp_path, ONE, TWO)
    whole = (tmp_path / "synced").read_bytes()
    (tmp_path / "synced").write_bytes(whole[:size])
    assert mark(tmp_path).load() == (TWO if size >= SLOT.size else None)


def test_after_a_reset_neither_slot_speaks_for_an_older_mark(tmp_path: Path) -> None:
    kept = stored(tmp_path, TWO, THREE)
    kept.reset(ONE)
    assert mark(tmp_path).load() == ONE
    for start in (0, SLOT_STRIDE):
        damaged = bytearray((tmp_path / "synced").read_bytes())
        damaged[start + 20] ^= 1
        (tmp_path / "synced").write_bytes(damaged)
        assert mark(tmp_path).load() == (ONE if start == 0 else None)


def test_only_a_durable_store_costs_a_sync(tmp_path: Path) -> None:
    disk = WatchedDisk()
    kept = SyncedMark(disk, str(tmp_path))
    kept.store(ONE, durably=False)
    assert disk.of_kind("sync") == []
    kept.store(TWO, durably=True)
    kept.reset(ONE)
    assert len(disk.of_kind("sync", "/synced")) == 2
    assert disk.open_count == 0


def test_a_mark_that_does_not_move_is_not_written_again(tmp_path: Path) -> None:
    disk = WatchedDisk()
    kept = SyncedMark(disk, str(tmp_path))
    kept.store(ONE, durably=False)
    disk.operations.clear()
    kept.store(ONE, durably=False)
    assert disk.operations == []
    kept.store(ONE, durably=True)
    assert len(disk.of_kind("sync")) == 1
    disk.operations.clear()
    kept.store(ONE, durably=True)
    assert disk.operations == []


def test_a_mark_that_was_only_read_is_not_known_to_be_durable(tmp_path: Path) -> None:
    stored(tmp_path, ONE)
    disk = WatchedDisk()
    again = SyncedMark(disk, str(tmp_path))
    assert again.stored is None
    assert again.load() == again.stored == ONE
    disk.operations.clear()
    again.store(ONE, durably=False)
    assert disk.operations == []
    again.store(ONE, durably=True)
    assert len(disk.of_kind("sync", "/synced")) == 1


def test_a_mark_whose_writing_broke_is_written_again(tmp_path: Path) -> None:
    disk = WatchedDisk()
    kept = SyncedMark(disk, str(tmp_path))
    kept.store(ONE, durably=True)
    disk.before = stop_at(0)
    with pytest.raises(Stopped):
        kept.store(TWO, durably=True)
    assert kept.stored is None
    disk.before = None
    kept.store(ONE, durably=True)
    assert mark(tmp_path).load() == ONE
