"""What the codec's tests share: both twins, records worth testing, and ways to compare results."""

import importlib
import os
import struct
from types import ModuleType

import crc32c
import pytest

from goqueue.codec.layout import HEADER, Flag, Picked, Scan, Selection, Survey
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Producer, Record

TWINS = ("reference", "_compiled")

SAMPLES = (
    Record(),
    Record(7, 1_700_000_000_000, b"key", b"value", 0),
    Record(8, 1_700_000_000_001, b"", b"", 4, headers=(("a", b"1"), ("a", b""), ("", b"\x00\xff"))),
    Record(9, 1_700_000_000_002, b"k" * 33, None, extension=Extension(deliver_at=-5_000, expires_at=-60_000)),
    Record(10, 1_700_000_000_003, None, b"x" * 900, extension=Extension(producer=Producer(2**40, 3, 11))),
    Record(
        11,
        1_700_000_000_004,
        b"full",
        b"everything",
        1,
        (("traceparent", b"00-01-02-03"),),
        Extension(
            deliver_at=1,
            expires_at=2,
            event_time=-3,
            producer=Producer(-4, -5, -6),
            transaction=7,
            blob=b"blob",
        ),
    ),
    Record(12, 1_700_000_000_005, control=True, commit=True, extension=Extension(blob=b"")),
    Record(13, 1_700_000_000_006, b"marker", control=True),
)


def load_twin(name: str) -> ModuleType:
    """One implementation; a compiled one that was not built skips the test, or fails it where it must be there."""
    try:
        return importlib.import_module(f"goqueue.codec.{name}")
    except ImportError as error:
        if os.environ.get("GOQUEUE_REQUIRE_COMPILED") == "1":
            pytest.fail(f"GOQUEUE_REQUIRE_COMPILED=1, but the compiled codec cannot be loaded: {error}")
        pytest.skip(f"the compiled codec was not built: {error}")


def boundaries(codec: ModuleType, records: tuple[Record, ...] = SAMPLES) -> list[int]:
    """Where each record begins in the block of them all, and where the block ends."""
    ends = [0]
    for record in records:
        ends.append(ends[-1] + len(codec.encode([record])))
    return ends


def columns(scan: Scan) -> tuple[object, ...]:
    """A scan as something to compare, the arrays' types included."""
    arrays = (scan.positions, scan.offsets, scan.timestamps, scan.flags, scan.lanes, scan.key_hashes)
    return (*((one.typecode, one.tolist()) for one in arrays), scan.end, scan.problem)


def bounds(selection: Selection) -> tuple[object, ...]:
    return (selection.start, selection.end, selection.count, selection.last_offset, selection.problem)


def findings(survey: Survey) -> tuple[object, ...]:
    return (survey.count, survey.flags, survey.fields, survey.largest, survey.headers, survey.end, survey.problem)


def takings(picked: Picked) -> tuple[object, ...]:
    """What was picked as something to compare, the arrays' types included."""
    arrays = (picked.offsets, picked.key_hashes, picked.flags, picked.lanes)
    others = (picked.expired, picked.missing, picked.controls)
    return (bytes(picked.data), *((one.typecode, one.tolist()) for one in (*arrays, *others)), picked.next_offset)


def refusal(error: InvalidRecord) -> tuple[object, ...]:
    return (error.reason, error.index, error.position)


def reseal(record: bytes | bytearray) -> bytearray:
    """One record with a checksum that fits whatever else was done to its bytes."""
    sealed = bytearray(record)
    sealed[4:8] = crc32c.crc32c(sealed[8:], crc32c.crc32c(sealed[:4])).to_bytes(4, "big")
    return sealed


def header(
    *,
    magic: bytes = b"GQ",
    version: int = 1,
    flags: int = 0,
    priority: int = 2,
    reserved: int = 0,
    key: int = 0,
    value: int = 0,
    headers: int = 0,
) -> bytes:
    """A record's fixed header, not sealed."""
    return HEADER.pack(magic, version, flags, 0, 0, 0, priority, reserved, key, value, headers)


def extended(extension: bytes, *, length: int | None = None) -> bytearray:
    """A record with these bytes as its extension, sealed."""
    length = len(extension) if length is None else length
    return reseal(header(flags=Flag.EXTENSION) + struct.pack(">H", length) + extension)
