"""The envelope of small files: golden bytes, and a refusal of everything that is not exactly them."""

import struct

import crc32c
import pytest

from goqueue.storage.envelope import Kind, unwrap, wrap

GOLDEN = bytes.fromhex(
    "47514653"  # GQFS
    "01 04 0000"  # version, kind, reserved
    "d93ca642"  # crc32c of all but itself
    "0000000000000007 0000000000000003"  # base, seal
    "0000000000000007"  # payload length
    "7061796c6f6164"
)


def test_the_bytes_are_the_golden_ones() -> None:
    assert wrap(Kind.VIEW, b"payload", base=7, seal=3) == GOLDEN
    assert unwrap(Kind.VIEW, GOLDEN, base=7, seal=3) == b"payload"


def test_the_checksum_is_crc32c_of_every_byte_but_its_own() -> None:
    assert struct.unpack_from(">I", GOLDEN, 8) == (crc32c.crc32c(GOLDEN[:8] + GOLDEN[12:]),)


def test_kinds_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in Kind} == {"STATE": 1, "INDEX": 2, "TIME_INDEX": 3, "VIEW": 4}


def test_an_empty_payload_comes_back_empty_and_not_as_none() -> None:
    assert unwrap(Kind.STATE, wrap(Kind.STATE, b"")) == b""


def test_every_single_bit_matters() -> None:
    for bit in range(8 * len(GOLDEN)):
        damaged = bytearray(GOLDEN)
        damaged[bit // 8] ^= 1 << bit % 8
        assert unwrap(Kind.VIEW, bytes(damaged), base=7, seal=3) is None, f"bit {bit} does not matter"


def test_every_shorter_and_longer_file_is_refused() -> None:
    for size in range(len(GOLDEN)):
        assert unwrap(Kind.VIEW, GOLDEN[:size], base=7, seal=3) is None
    assert unwrap(Kind.VIEW, GOLDEN + b"\0", base=7, seal=3) is None


@pytest.mark.parametrize(
    ("kind", "base", "seal"), [(Kind.INDEX, 7, 3), (Kind.VIEW, 8, 3), (Kind.VIEW, 7, 4), (Kind.VIEW, 0, 0)]
)
def test_what_was_made_for_something_else_is_refused(kind: Kind, base: int, seal: int) -> None:
    assert unwrap(kind, GOLDEN, base=base, seal=seal) is None
