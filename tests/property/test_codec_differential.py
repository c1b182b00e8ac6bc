"""The twins agree about every byte: same result or same exception, whatever is done to a block.

Mutations come from a seeded generator, so a failure names the seed that makes it again. Half of the mutated
records get a checksum that fits, or the structure behind the checksum would never be looked at.
"""

import random
from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.codec import reference
from goqueue.codec.layout import Field, Problem, Scan
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, bounds, columns, findings, load_twin, refusal, reseal

SMALL = tuple(record for record in SAMPLES if len(record.value or b"") < 100)
EDGES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 191, 254, 255)


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    return load_twin("_compiled")


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except InvalidRecord as error:
        return refusal(error)
    except OverflowError:
        return OverflowError


def results(codec: ModuleType, block: bytes, chance: random.Random) -> list[object]:
    """Everything a codec says about a block."""
    scan = codec.scan(block)
    wanted = {
        "from_offset": chance.choice((0, 8, 11)),
        "to_offset": chance.choice((9, 12, 2**40)),
        "max_count": chance.choice((1, 3, 100)),
        "max_bytes": chance.choice((0, 150, 10_000)),
    }
    producer = chance.choice((None, Producer(1, 2, 2**31 - 2)))
    stamped = bytearray(block)
    offset, timestamp = chance.randrange(2**62), chance.randrange(2**41)

    def stamp() -> object:
        return columns(codec.stamp(stamped, offset=offset, timestamp=timestamp, producer=producer))

    def milestones() -> object:
        start, since = chance.randrange(500), chance.randrange(600)
        return codec.milestones(scan, base=chance.choice((0, offset)), start=start, since=since, interval=100)

    return [
        columns(scan),
        findings(codec.survey(block)),
        codec.producer_runs(block, scan),
        bounds(codec.select(block, **wanted)),
        outcome(lambda: codec.decode(block)),
        outcome(lambda: codec.decode(block, verified=True)),
        outcome(stamp),
        stamped,
        codec.field_values(block, scan, chance.choice(list(Field))),
        outcome(milestones),
    ]


def mutate(record: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if not record:
            break
        # Most of the interesting bytes are the header's and the extension's.
        at = chance.randrange(min(len(record), chance.choice((40, 80, len(record)))))
        match chance.randrange(6):
            case 0:
                record[at] ^= 1 << chance.randrange(8)
            case 1:
                record[at] = chance.choice(EDGES)
            case 2:
                record[at] = (record[at] + chance.choice((-1, 1))) % 256
            case 3:
                del record[at : at + chance.choice((1, 2, 8))]
            case 4:
                record[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
            case _:
                del record[at:]
    return record


def mutated_block(seed: int, encoded: list[bytearray]) -> bytes:
    chance = random.Random(seed)
    block = bytearray()
    for _ in range(chance.choice((1, 1, 2, 3))):
        record = bytearray(chance.choice(encoded))
        if chance.random() < 0.7:
            record = mutate(record, chance)
            if len(record) >= 8 and chance.random() < 0.7:
                record = reseal(record)
        block += record
    return bytes(block)


@pytest.mark.parametrize("part", range(4))
def test_the_twins_agree_about_mutated_blocks(compiled: ModuleType, part: int) -> None:
    encoded = [reference.encode([record]) for record in (*SMALL, Record(key=b"k", value=b"v", headers=(("n", b"v"),)))]
    seen: set[Problem] = set()
    for seed in range(part * 10_000, part * 10_000 + 6_000):
        block = mutated_block(seed, encoded)
        ours, theirs = (results(codec, block, random.Random(seed)) for codec in (compiled, reference))
        assert ours == theirs, f"seed {seed}: {block.hex()}"
        seen.add(reference.scan(block).problem)
    assert seen == set(Problem) - {Problem.PRODUCER}, "a mutation that should happen does not"


@pytest.mark.parametrize("part", range(2))
def test_the_twins_agree_about_valid_blocks_of_several_producers(compiled: ModuleType, part: int) -> None:
    longest = 0
    for seed in range(part * 10_000, part * 10_000 + 1_000):
        chance = random.Random(seed)
        block = reference.encode(producing(chance))
        ours, theirs = (results(codec, bytes(block), random.Random(seed)) for codec in (compiled, reference))
        assert ours == theirs, f"seed {seed}: {block.hex()}"
        scan, survey = reference.scan(block), reference.survey(block)
        assert (survey.count, survey.end, survey.problem) == (len(scan), len(block), Problem.NONE)
        runs = reference.producer_runs(block, scan)
        assert sum(run[4] for run in runs) == len(reference.field_values(block, scan, Field.PRODUCER_ID)[0])
        longest = max(longest, *(run[4] for run in runs), 0)
    assert longest >= 5, "no run ever grows"


def producing(chance: random.Random) -> list[Record]:
    """Records of a few producers: mostly the next of the same one, sometimes anything else."""
    edges = (0, 1, 2**31 - 2, 2**31 - 1, -1)
    offset, producer = chance.choice((0, 2**62, 2**63 - 5)), Producer(1, 0, chance.choice(edges))
    records = []
    for _ in range(chance.choice((1, 4, 20))):
        extension = Extension(
            deliver_at=chance.choice((None, None, 5)),
            producer=producer if chance.random() < 0.9 else None,
            transaction=chance.choice((None, None, 6)),
            blob=chance.choice((None, None, b"blob")),
        )
        value = bytes(chance.choice((0, 1, 40)))
        records.append(Record(offset, chance.randrange(2**41), b"k", value, extension=extension))
        offset = min(offset + chance.choice((1,) * 12 + (0, 2)), 2**63 - 1)
        producer = Producer(producer.producer_id, producer.producer_epoch, (producer.sequence + 1) & (2**31 - 1))
        if chance.random() < 0.15:
            producer = Producer(chance.randrange(3), chance.randrange(-1, 2), chance.choice(edges))
    return records


@settings(max_examples=300, deadline=None)
@given(
    block=st.binary(max_size=120),
    positions=st.lists(st.integers(0, 130) | st.integers(0, 2**32 - 1), max_size=4),
    flags=st.integers(0, 31),
    bits=st.integers(0, 2**16 - 1),
)
def test_the_twins_agree_about_scans_of_other_blocks(
    compiled: ModuleType, block: bytes, positions: list[int], flags: int, bits: int
) -> None:
    numbers = array("q", range(len(positions)))
    small = array("B", [flags] * len(positions))
    places = array("I", positions)
    scan = Scan(places, numbers, numbers, small, small, places, 0, Problem.NONE)
    masked = bytearray(block)
    if positions and positions[0] + 38 <= len(block):  # or hardly any block would have a mask with producer fields
        masked[positions[0] + 36 : positions[0] + 38] = (bits | 0x18).to_bytes(2, "big")

    def runs(codec: ModuleType, candidate: bytes | bytearray) -> object:
        try:
            return codec.producer_runs(candidate, scan)
        except ValueError as error:
            return str(error)

    for candidate in (block, masked):
        assert runs(compiled, candidate) == runs(reference, candidate)


@settings(max_examples=300, deadline=None)
@given(block=st.binary(max_size=200), seed=st.integers(0, 2**32))
def test_the_twins_agree_about_any_bytes(compiled: ModuleType, block: bytes, seed: int) -> None:
    for candidate in (block, b"GQ\x01" + block, b"GQ\x01\x01" + block):
        sealed = reseal(candidate) if len(candidate) >= 8 else candidate
        ours, theirs = (results(codec, bytes(sealed), random.Random(seed)) for codec in (compiled, reference))
        assert ours == theirs


@settings(max_examples=300, deadline=None)
@given(
    record=st.builds(
        Record,
        offset=st.integers(-(2**64), 2**64),
        timestamp=st.integers(-(2**64), 2**64),
        priority=st.integers(-1, 6) | st.integers(),
        headers=st.lists(st.tuples(st.text(st.characters(), max_size=4), st.binary(max_size=4)), max_size=3).map(tuple),
        extension=st.builds(
            Extension,
            deliver_at=st.none() | st.integers(-(2**64), 2**64),
            transaction=st.none() | st.integers(-(2**64), 2**64),
            producer=st.none() | st.builds(Producer, st.integers(), st.integers(-40_000, 40_000), st.integers()),
            blob=st.none() | st.sampled_from((b"", bytes(4096), bytes(4097))),
        ),
        control=st.booleans(),
        commit=st.booleans(),
    )
)
def test_the_twins_agree_about_what_can_be_encoded(compiled: ModuleType, record: Record) -> None:
    assert outcome(lambda: compiled.encode([record])) == outcome(lambda: reference.encode([record]))
