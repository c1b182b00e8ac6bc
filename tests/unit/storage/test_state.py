"""The hard state: golden bytes, a refusal of every damaged bit, and a recipe for changing it."""

import struct
from pathlib import Path

import crc32c
import pytest

from goqueue.model.errors import DamagedState
from goqueue.storage import envelope, state
from goqueue.storage.state import LeaderEpoch, LogState, SealedSegment, Trait
from tests.unit.storage.disks import Stopped, WatchedDisk, stop_at

SAMPLE = LogState(
    10,
    40,
    6,
    25,
    1_700_000_000_000,
    (LeaderEpoch(1, 0), LeaderEpoch(4, 30)),
    (
        SealedSegment(10, 20, 1000, 10, 1_699_999_999_000, 1_699_999_999_500, 2),
        SealedSegment(20, 40, 900, 7, 1_699_999_999_600, 1_700_000_000_000, 5, Trait.CLEANED | Trait.COMPACTED),
    ),
)
GOLDEN = bytes.fromhex(
    "47514653 01 01 0000 d4941001 0000000000000000 0000000000000000 00000000000000c4"  # the envelope
    "0001"  # version
    "000000000000000a 0000000000000028"  # start offset, tail base
    "0000000000000006 0000000000000019"  # next seal, truncate to
    "0000018bcfe56800"  # last timestamp
    "00000002 00000002"  # how many epochs, sealed segments
    "0000000000000001 0000000000000000"
    "0000000000000004 000000000000001e"
    "000000000000000a 0000000000000014 00000000000003e8 000000000000000a"
    "0000018bcfe56418 0000018bcfe5660c 0000000000000002 00"
    "0000000000000014 0000000000000028 0000000000000384 0000000000000007"
    "0000018bcfe56670 0000018bcfe56800 0000000000000005 03".replace(" ", "")
)


def test_the_bytes_are_the_golden_ones() -> None:
    assert state.to_bytes(SAMPLE) == GOLDEN
    assert state.from_bytes(GOLDEN) == SAMPLE


def test_a_new_log_has_an_empty_state_that_comes_back() -> None:
    assert state.from_bytes(state.to_bytes(LogState())) == LogState()
    assert LogState().truncate_to == state.NOT_TRUNCATING


def test_every_damaged_bit_is_refused() -> None:
    for bit in range(8 * len(GOLDEN)):
        damaged = bytearray(GOLDEN)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            state.from_bytes(bytes(damaged))


def test_every_shorter_file_is_refused() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="checksum"):
            state.from_bytes(GOLDEN[:size])


def rewrapped(payload: bytes) -> bytes:
    return envelope.wrap(envelope.Kind.STATE, payload)


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="its version is 2, this GoQueue reads 1"):
        state.from_bytes(rewrapped(b"\0\2" + GOLDEN[38:]))


@pytest.mark.parametrize("size", [len(GOLDEN) - 1, len(GOLDEN) - 57, 36 + 50 + 16])
def test_lists_that_do_not_add_up_are_refused_though_the_checksum_is_right(size: int) -> None:
    with pytest.raises(ValueError, match="do not add up"):
        state.from_bytes(rewrapped(GOLDEN[36:size]))
    with pytest.raises(ValueError, match="do not add up"):
        state.from_bytes(rewrapped(GOLDEN[36:] + b"\0"))


def test_a_payload_shorter_than_its_fixed_part_is_refused() -> None:
    with pytest.raises((ValueError, struct.error)):
        state.from_bytes(rewrapped(GOLDEN[36:60]))


def test_the_checksum_is_the_envelopes() -> None:
    assert int.from_bytes(GOLDEN[8:12], "big") == crc32c.crc32c(GOLDEN[:8] + GOLDEN[12:])


def test_a_saved_state_is_loaded_and_no_log_is_none(tmp_path: Path) -> None:
    disk = WatchedDisk()
    assert state.load(disk, str(tmp_path)) is None
    state.save(disk, str(tmp_path), SAMPLE)
    assert state.load(disk, str(tmp_path)) == SAMPLE
    assert (tmp_path / state.FILE_NAME).read_bytes() == GOLDEN


def test_a_damaged_file_refuses_the_log_by_its_path(tmp_path: Path) -> None:
    (tmp_path / state.FILE_NAME).write_bytes(GOLDEN[:-1] + b"\1")
    with pytest.raises(DamagedState, match=r"log\.state is damaged \(its checksum .*\); put a good copy of it back"):
        state.load(WatchedDisk(), str(tmp_path))


def test_segments_without_a_state_file_refuse_the_log(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").touch()
    with pytest.raises(DamagedState, match=r"log\.state is missing although there are segments; put a good copy"):
        state.load(WatchedDisk(), str(tmp_path))


def test_a_save_stopped_anywhere_leaves_the_old_state_or_the_new(tmp_path: Path) -> None:
    outcomes = []
    for change in range(7):
        state.save(WatchedDisk(), str(tmp_path), LogState())
        try:
            state.save(WatchedDisk(stop_at(change)), str(tmp_path), SAMPLE)
        except Stopped:
            pass
        outcomes.append(state.load(WatchedDisk(), str(tmp_path)))
    assert outcomes == [LogState()] * 5 + [SAMPLE] * 2


def test_the_recipe_for_changing_the_format_stands_beside_it() -> None:
    assert "To change the format:" in (state.__doc__ or "")
    assert "golden bytes" in (state.__doc__ or "")
