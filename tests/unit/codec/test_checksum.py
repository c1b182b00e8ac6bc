"""CRC-32C and murmur3: published vectors, and the compiled paths against the packages everyone uses."""

from collections.abc import Iterator
from types import ModuleType

import crc32c
import mmh3
import pytest

from goqueue.codec import reference
from tests.unit.codec.samples import SAMPLES, columns

DATA = bytes((index * 167 + index // 256 * 31) % 256 for index in range(8192))
VECTORS = {
    b"": 0x0000_0000,
    b"a": 0xC1D0_4330,
    b"123456789": 0xE306_9283,
    bytes(32): 0x8A91_36AA,
    b"\xff" * 32: 0x62A8_AB43,
    bytes(range(32)): 0x46DD_794E,
    bytes(range(31, -1, -1)): 0x113F_DB5C,
}
MURMUR_VECTORS = {b"": 0, b"\x00": 0x514E_28B7, b"!Ce\x87": 0xF55B_516B, b"!Ce": 0x7E4A_8634, b"!C": 0xA0F7_B07A}


@pytest.fixture(params=["hardware", "software"])
def path(compiled: ModuleType, request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiled twin on one of its two paths."""
    taken = compiled.choose_crc(request.param == "hardware")
    try:
        if request.param == "hardware" and taken == "software":
            pytest.skip("this processor, or this build, has no CRC-32C instruction")
        assert (taken == "software") == (request.param == "software")
        yield taken
    finally:
        compiled.choose_crc(True)


@pytest.mark.parametrize("data", VECTORS)
def test_crc32c_gives_the_published_values(codec: ModuleType, data: bytes) -> None:
    assert codec.crc32c(data) == VECTORS[data]


@pytest.mark.parametrize("data", VECTORS)
def test_both_compiled_paths_give_the_published_values(compiled: ModuleType, path: str, data: bytes) -> None:
    assert compiled.crc32c(data) == VECTORS[data]


def test_both_compiled_paths_are_right_at_every_alignment_and_length(compiled: ModuleType, path: str) -> None:
    view = memoryview(DATA)
    for start in range(8):
        for length in range(301):
            data = view[start : start + length]
            assert compiled.crc32c(data) == crc32c.crc32c(data), (start, length)


def test_both_compiled_paths_are_right_around_the_three_lanes(compiled: ModuleType, path: str) -> None:
    for length in (767, 768, 769, 1000, 1024, 1535, 1536, 1537, 2303, 2304, 4096, 8192):
        assert compiled.crc32c(DATA[:length]) == crc32c.crc32c(DATA[:length]), length


def test_a_checksum_can_go_on_from_an_earlier_one(codec: ModuleType) -> None:
    for cut in (0, 1, 4, 100, 1000):
        assert codec.crc32c(DATA[cut:2000], codec.crc32c(DATA[:cut])) == crc32c.crc32c(DATA[:2000])


def test_both_compiled_paths_stamp_and_scan_alike(compiled: ModuleType, path: str) -> None:
    ours, theirs = compiled.encode(SAMPLES), reference.encode(SAMPLES)
    assert columns(compiled.stamp(ours, offset=9, timestamp=99)) == columns(
        reference.stamp(theirs, offset=9, timestamp=99)
    )
    assert ours == theirs
    assert columns(compiled.scan(ours)) == columns(reference.scan(ours))


@pytest.mark.parametrize("data", MURMUR_VECTORS)
def test_murmur3_gives_the_published_values(codec: ModuleType, data: bytes) -> None:
    assert codec.murmur3(data) == MURMUR_VECTORS[data]


def test_murmur3_agrees_with_mmh3_at_every_length(codec: ModuleType) -> None:
    for length in range(301):
        assert codec.murmur3(memoryview(DATA)[7 : 7 + length]) == mmh3.hash(DATA[7 : 7 + length], 0, signed=False)
