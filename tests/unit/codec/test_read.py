"""Reading a block: selections, decoding, columns of fields, milestones, and the switch between the twins."""

import os
import subprocess
import sys
from array import array
from types import ModuleType

import pytest

from goqueue.codec import layout
from goqueue.codec.layout import REASONS, Field, Problem, Scan
from goqueue.model import limits
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, boundaries, bounds, load_twin, refusal

RECORDS = tuple(Record(offset=offset, value=b"v" * 66) for offset in (10, 11, 12, 15, 16))
SIZE = 100


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, (0, 500, 5, 16, Problem.NONE)),
        ({"from_offset": 12}, (200, 500, 3, 16, Problem.NONE)),
        ({"from_offset": 13}, (300, 500, 2, 16, Problem.NONE)),
        ({"to_offset": 12}, (0, 200, 2, 11, Problem.NONE)),
        ({"to_offset": 14}, (0, 300, 3, 12, Problem.NONE)),
        ({"from_offset": 13, "to_offset": 14}, (300, 300, 0, -1, Problem.NONE)),
        ({"from_offset": 17}, (500, 500, 0, -1, Problem.NONE)),
        ({"to_offset": 10}, (0, 0, 0, -1, Problem.NONE)),
        ({"max_count": 2}, (0, 200, 2, 11, Problem.NONE)),
        ({"max_count": 0, "from_offset": 11}, (0, 0, 0, -1, Problem.NONE)),
        ({"max_bytes": 299}, (0, 200, 2, 11, Problem.NONE)),
        ({"max_bytes": 300}, (0, 300, 3, 12, Problem.NONE)),
        ({"from_offset": 11, "max_bytes": 0}, (100, 200, 1, 11, Problem.NONE)),
    ],
)
def test_a_selection_keeps_its_bounds(codec: ModuleType, wanted: dict[str, int], expected: object) -> None:
    block = codec.encode(RECORDS)
    assert len(block) == 5 * SIZE
    everything = {"from_offset": 0, "to_offset": 2**62, "max_count": 100, "max_bytes": 2**30}
    assert bounds(codec.select(block, **{**everything, **wanted})) == expected


def test_a_selection_stops_at_the_first_problem(codec: ModuleType) -> None:
    block = codec.encode(RECORDS)
    block[350] ^= 1
    everything = {"from_offset": 0, "to_offset": 2**62, "max_count": 100, "max_bytes": 2**30}
    assert bounds(codec.select(block, **everything)) == (0, 300, 3, 12, Problem.CHECKSUM)
    assert bounds(codec.select(block, **{**everything, "max_count": 3})) == (0, 300, 3, 12, Problem.NONE)
    assert bounds(codec.select(block, **{**everything, "from_offset": 15})) == (300, 300, 0, -1, Problem.CHECKSUM)
    assert bounds(codec.select(block[:250], **everything)) == (0, 200, 2, 11, Problem.INCOMPLETE)


def test_decoding_gives_back_what_was_encoded(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    for verified in (False, True):
        assert codec.decode(block, verified=verified) == list(SAMPLES)


def test_decoding_names_the_first_problem(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    at = boundaries(codec)[3]
    block[at + 8] ^= 1
    with pytest.raises(InvalidRecord) as caught:
        codec.decode(block)
    assert refusal(caught.value) == (REASONS[Problem.CHECKSUM], 3, at)
    assert len(codec.decode(block, verified=True)) == len(SAMPLES)


def test_decoding_verified_bytes_still_checks_everything_but_the_checksum(codec: ModuleType) -> None:
    block = bytes(codec.encode(SAMPLES))
    for cut in set(range(len(block))) - set(boundaries(codec)):
        with pytest.raises(InvalidRecord, match="the bytes end"):
            codec.decode(block[:cut], verified=True)


def test_field_values_are_those_of_the_records_that_have_them(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    scan = codec.scan(block)
    expected = {
        Field.DELIVER_AT: ([3, 5], [-5_000, 1]),
        Field.EXPIRES_AT: ([3, 5], [-60_000, 2]),
        Field.EVENT_TIME: ([5], [-3]),
        Field.PRODUCER_ID: ([4, 5], [2**40, -4]),
        Field.PRODUCER_SEQUENCE: ([4, 5], [(3 << 48) | 11, (-5 << 48) | (2**32 - 6)]),
        Field.TRANSACTION: ([5], [7]),
    }
    for field, (ordinals, values) in expected.items():
        assert codec.field_values(block, scan, field) == (array("I", ordinals), array("q", values))
    plain = codec.encode([Record()])
    assert codec.field_values(plain, codec.scan(plain), Field.TRANSACTION) == (array("I"), array("q"))


def test_a_scan_of_another_block_never_leads_outside_this_one(codec: ModuleType) -> None:
    block = codec.encode([Record(extension=Extension(producer=Producer(1, 2, 3), transaction=4))])
    empty = array("q")

    def scan(position: int) -> Scan:
        one, flags = array("I", [position]), array("B", [1])
        return Scan(one, empty, empty, flags, flags, one, 0, Problem.NONE)

    for position in (len(block) - 37, len(block), 2**32 - 1):
        with pytest.raises(ValueError, match="not of this block"):
            codec.field_values(block, scan(position), Field.TRANSACTION)
    for cut in range(len(block)):
        with pytest.raises(ValueError, match="not of this block"):
            codec.field_values(block[:cut], scan(0), Field.TRANSACTION)
    with pytest.raises(ValueError, match="no such field"):
        codec.field_values(block, scan(0), 15)


@pytest.mark.parametrize(
    ("since", "interval", "expected"),
    [
        (0, 4096, []),
        (-4096, 4096, [0]),
        (-100, 1100, [0]),
        (900, 200, [1, 3]),
        (1000, 100, [1, 2, 3, 4]),
        (990, 1, [0, 1, 2, 3, 4]),
    ],
)
def test_milestones_are_at_least_an_interval_apart(
    codec: ModuleType, since: int, interval: int, expected: list[int]
) -> None:
    scan = codec.scan(codec.encode([Record(offset=70 + at, timestamp=5 * at, value=b"v" * 66) for at in range(5)]))
    points = codec.milestones(scan, base=20, start=1000, since=since, interval=interval)
    assert points[0] == array("I", [50 + ordinal for ordinal in expected])
    assert points[1] == array("I", [1000 + SIZE * ordinal for ordinal in expected])
    assert points[2] == array("q", [5 * ordinal for ordinal in expected])
    nothing = codec.milestones(codec.scan(b""), base=20, start=1000, since=since, interval=interval)
    assert nothing == (array("I"), array("I"), array("q"))


def test_the_compiled_constants_are_those_of_the_layout(compiled: ModuleType) -> None:
    for name, value in compiled.CONSTANTS.items():
        assert value == getattr(layout, name, None) or value == getattr(limits, name), name
    positions = {name for name in vars(layout) if name.endswith(("_AT", "_BYTES", "_BIT"))}
    assert positions <= set(compiled.CONSTANTS)
    assert {flag.name: flag.value for flag in layout.Flag} == compiled.FLAGS
    assert {field.name: field.value for field in Field} == compiled.FIELDS
    assert {problem.name: problem.value for problem in Problem} == compiled.PROBLEMS


def test_layout_positions_are_those_of_its_struct() -> None:
    values = layout.HEADER.pack(b"GQ", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    for at, width, value in (
        (layout.VERSION_AT, 1, 1),
        (layout.FLAGS_AT, 1, 2),
        (layout.CRC_AT, 4, 3),
        (layout.OFFSET_AT, 8, 4),
        (layout.TIMESTAMP_AT, 8, 5),
        (layout.PRIORITY_AT, 1, 6),
        (layout.RESERVED_AT, 1, 7),
        (layout.KEY_LENGTH_AT, 2, 8),
        (layout.VALUE_LENGTH_AT, 4, 9),
        (layout.HEADERS_LENGTH_AT, 2, 10),
    ):
        assert int.from_bytes(values[at : at + width], "big") == value


def chosen(choice: str) -> subprocess.CompletedProcess[str]:
    program = "from goqueue import codec; print(codec.COMPILED, codec.scan.__module__)"
    environment = {**os.environ, "GOQUEUE_CODEC": choice, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_the_environment_can_ask_for_the_python_codec() -> None:
    assert chosen("python").stdout == "False goqueue.codec.reference\n"


def test_the_environment_can_ask_for_the_compiled_codec() -> None:
    load_twin("_compiled")
    for choice in ("compiled", "auto"):
        assert chosen(choice).stdout == "True goqueue.codec._compiled\n"


def test_an_unknown_codec_is_refused_by_name() -> None:
    result = chosen("fast")
    assert result.returncode
    assert "GOQUEUE_CODEC is 'fast'; it must be auto, compiled or python" in result.stderr
