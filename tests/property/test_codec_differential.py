"""The twins agree about every byte: same result or same exception, whatever is done to a block.

Mutations come from a seeded generator, so a failure names the seed that makes it again. Half of the mutated
records get a checksum that fits, or the structure behind the checksum would never be looked at.
"""

import random
from array import array
from collections.abc import Callable
from types import ModuleType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.codec import reference
from goqueue.codec.layout import Field, Flag, HeaderColumns, Numbers, Pieces, Problem, Scan
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, bounds, columns, findings, load_twin, refusal, reseal, takings

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

    clock = chance.choice((None, 0, timestamp // 2, timestamp))

    def stamp() -> object:
        return columns(codec.stamp(stamped, offset=offset, timestamp=timestamp, now=clock, producer=producer))

    def milestones() -> object:
        start, since = chance.randrange(500), chance.randrange(600)
        return codec.milestones(scan, base=chance.choice((0, offset)), start=start, since=since, interval=100)

    asked = array("q", sorted(chance.sample(range(15), chance.choice((1, 3, 8)))))
    room = chance.choice((0, 150, 10_000))
    now, ttl_ms = chance.choice((0, 1, 10, 1_700_000_000_004)), chance.choice((-1, 0, 2))

    def pick() -> object:
        try:
            return takings(codec.pick(block, asked, max_bytes=room, now=now, ttl_ms=ttl_ms))
        except ValueError as error:  # records of a block made by chance may stand in any order
            return str(error)

    hidden = array("q", sorted(chance.sample(range(15), chance.choice((0, 2, 4)))))
    fields = chance.sample([*Field], 2)
    reach = {"from_offset": wanted["from_offset"], "to_offset": wanted["to_offset"]}

    def to_columns() -> object:
        try:
            return codec.to_columns(block, **reach, hidden=hidden, fields=fields, headers=chance.random() < 0.8)
        except ValueError as error:
            return str(error)

    return [
        columns(scan),
        findings(codec.survey(block)),
        codec.producer_runs(block, scan),
        codec.transaction_runs(block, scan),
        bounds(codec.select(block, **wanted)),
        outcome(lambda: codec.decode(block)),
        outcome(lambda: codec.decode(block, verified=True)),
        outcome(lambda: codec.values(block)),
        outcome(stamp),
        stamped,
        codec.field_values(block, scan, chance.choice(list(Field))),
        outcome(milestones),
        outcome(pick),
        outcome(to_columns),
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


times = st.integers(-3, 30) | st.sampled_from((-(2**63), 2**62, 2**63 - 1))
candidates = st.builds(
    Record,
    timestamp=times,
    key=st.none() | st.sampled_from((b"", b"k", b"key")),
    value=st.none() | st.integers(0, 40).map(bytes),
    priority=st.integers(0, 4),
    headers=st.sampled_from(((), (("name", b"value"),))),
    extension=st.none()
    | st.builds(
        Extension,
        deliver_at=st.none() | times,
        expires_at=st.none() | times,
        event_time=st.none() | times,
        transaction=st.none() | times,
        blob=st.none() | st.just(b"blob"),
    ),
    control=st.sampled_from((False, False, False, True)),
)
numbers = st.integers(0, 20) | st.sampled_from((-(2**63), -1, 2**62, 2**63 - 2, 2**63 - 1))


def expires_by(record: Record, now: int, ttl_ms: int) -> bool:
    extension = record.extension or Extension()
    if extension.expires_at is not None:
        return 0 < extension.expires_at <= now
    due = max(record.timestamp, record.timestamp if extension.deliver_at is None else extension.deliver_at)
    return ttl_ms >= 0 and due + ttl_ms <= now


@settings(max_examples=500, deadline=None)
@given(
    found=st.dictionaries(numbers, candidates, max_size=8),
    asked=st.sets(numbers, max_size=12),
    max_bytes=st.integers(-1, 300) | st.just(2**63 - 1),
    now=times,
    ttl_ms=times,
)
def test_the_twins_pick_what_decoding_would_find(
    compiled: ModuleType, found: dict[int, Record], asked: set[int], max_bytes: int, now: int, ttl_ms: int
) -> None:
    records = [msgspec.structs.replace(found[offset], offset=offset) for offset in sorted(found)]
    block = bytes(reference.encode(records))
    wanted = array("q", sorted(asked))
    ours, theirs = (
        codec.pick(block, wanted, max_bytes=max_bytes, now=now, ttl_ms=ttl_ms) for codec in (compiled, reference)
    )
    assert takings(ours) == takings(theirs)

    picked: list[int] = []
    expired: list[int] = []
    missing: list[int] = []
    controls: list[int] = []
    size, stopped = 0, None
    for offset in wanted:
        record = found.get(offset)
        if record is None:
            if not found or offset > max(found):
                stopped = max(found) + 1 if found else wanted[0]
                break
            missing.append(offset)
        elif record.control:
            controls.append(offset)
        elif now > 0 and expires_by(record, now, ttl_ms):
            expired.append(offset)
        else:
            one = reference.encode([msgspec.structs.replace(record, offset=offset)])
            if picked and size + len(one) > max_bytes:
                stopped = offset
                break
            size += len(one)
            picked.append(offset)
    if stopped is None:
        stopped = wanted[-1] + 1 if wanted else 0
    assert [one.tolist() for one in (ours.offsets, ours.expired, ours.missing, ours.controls)] == [
        picked,
        expired,
        missing,
        controls,
    ]
    assert ours.next_offset == stopped
    taken = reference.scan(ours.data)
    assert (taken.offsets, taken.end, taken.problem) == (ours.offsets, size, Problem.NONE)
    assert (taken.flags, taken.lanes, taken.key_hashes) == (ours.flags, ours.lanes, ours.key_hashes)
    assert not any(flags & Flag.CONTROL for flags in ours.flags)


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


numbers_and_more = st.none() | st.integers(-(2**64), 2**64)


@settings(max_examples=300, deadline=None)
@given(
    value=st.none() | st.binary(max_size=60),
    key=st.none() | st.binary(max_size=20) | st.sampled_from((bytes(0xFFFF), bytes(0x10000))),
    priority=st.integers(-1, 6),
    headers=st.lists(
        st.tuples(st.text(st.characters(), max_size=4), st.binary(max_size=4) | st.just(bytes(0xFFF0))), max_size=3
    ),
    times=st.tuples(numbers_and_more, numbers_and_more, numbers_and_more),
    numbered=st.booleans(),
    transaction=numbers_and_more,
    position=st.integers(-2, 150),
)
def test_the_twins_pack_the_same_bytes_or_refuse_for_the_same_reason(
    compiled: ModuleType,
    value: bytes | None,
    key: bytes | None,
    priority: int,
    headers: list[tuple[str, bytes]],
    times: tuple[int | None, int | None, int | None],
    numbered: bool,
    transaction: int | None,
    position: int,
) -> None:
    results = []
    for codec in (compiled, reference):
        buffer = bytearray(b"\xaa" * 200)

        def pack(codec: ModuleType = codec, buffer: bytearray = buffer) -> object:
            return codec.pack_into(buffer, position, value, key, priority, headers, *times, numbered, transaction)

        results.append((outcome(pack), buffer))
    assert results[0] == results[1]
    extension = Extension(
        deliver_at=times[0],
        expires_at=times[1],
        event_time=times[2],
        producer=Producer(0, 0, 0) if numbered else None,
        transaction=transaction,
    )
    record = Record(key=key, value=value, priority=priority, headers=tuple(headers), extension=extension)
    encoded = outcome(lambda: reference.encode([record]))
    end, buffer = results[0]
    if isinstance(encoded, bytearray):
        assert end == (position + len(encoded) if 0 <= position <= 200 - len(encoded) else -len(encoded))
        expected = bytearray(b"\xaa" * 200)
        if isinstance(end, int) and end >= 0:
            expected[position:end] = encoded
        assert buffer == expected
    else:
        assert isinstance(encoded, tuple)
        assert end == (encoded[0], 0, max(0, position))
        assert buffer == b"\xaa" * 200


pieces = st.none() | st.binary(max_size=12)


def to_pieces(rows: list[bytes | None]) -> Pieces:
    lengths = [len(row or b"") for row in rows]
    present = bytearray(len(rows) // 8 + 1)
    for row, piece in enumerate(rows):
        present[row // 8] |= (piece is not None) << row % 8
    bounds = array("i", [sum(lengths[:row]) for row in range(len(rows) + 1)])
    return Pieces(bytes(present), bounds.tobytes(), b"".join(row or b"" for row in rows))


@settings(max_examples=400, deadline=None)
@given(
    rows=st.lists(
        st.tuples(pieces, pieces, st.integers(0, 5), st.integers(-1, 4), st.integers(0, 2), times), max_size=20
    ),
    headers=st.lists(st.binary(max_size=5), max_size=10),
    times_at=st.lists(st.sampled_from((Field.DELIVER_AT, Field.EXPIRES_AT, Field.EVENT_TIME)), unique=True),
    partition_count=st.integers(1, 5),
    max_bytes=st.integers(0, 400),
    transaction=st.none() | times,
    cut=st.integers(0, 40),
)
def test_the_twins_pack_columns_alike(
    compiled: ModuleType,
    rows: list[tuple[bytes | None, bytes | None, int, int, int, int]],
    headers: list[bytes],
    times_at: list[Field],
    partition_count: int,
    max_bytes: int,
    transaction: int | None,
    cut: int,
) -> None:
    count = len(rows)
    bounds = array("i", [0])
    for row in rows:
        bounds.append(min(bounds[-1] + row[4], len(headers)))
    keys = to_pieces([row[0] for row in rows])
    if not cut:  # bounds that lead past the bytes
        keys = keys._replace(data=keys.data[:-1])
    moments = Numbers(keys.present, array("q", [row[5] for row in rows]).tobytes())

    def pack(codec: ModuleType) -> object:
        try:
            return codec.from_columns(
                count,
                keys=keys,
                values=to_pieces([row[1] for row in rows]),
                headers=HeaderColumns(bounds.tobytes(), to_pieces([*headers]), to_pieces([*reversed(headers)])),
                lanes=bytes(row[2] for row in rows),
                fields=dict.fromkeys(times_at, moments),
                partitions=array("i", [row[3] for row in rows]).tobytes(),
                partition_count=partition_count,
                keyless=partition_count - 1,
                max_bytes=max_bytes,
                transaction=transaction,
            )
        except ValueError as error:
            return str(error)

    assert outcome(lambda: pack(compiled)) == outcome(lambda: pack(reference))


def test_the_twins_read_protobuf_alike(compiled: ModuleType) -> None:
    plain = 0
    for seed in range(3000):
        chance = random.Random(f"protobuf {seed}")
        count = chance.randrange(6)
        body = protobuf(chance, count)
        settings: dict[str, object] = {
            "count": count,
            "partition_count": chance.choice((0, 1, 3, 3, 5, 5)),
            "given": chance.choice((None, None, 0, 2)),
            "keyless": lambda: 0,
            "max_bytes": chance.choice((4, 100, 100, 100)),
            "numbered": chance.random() < 0.3,
        }
        found = [
            codec.from_protobuf(body, messages=2, value=1, key=2, partition=3, **settings)
            for codec in (compiled, reference)
        ]
        assert found[0] == found[1], seed
        plain += bool(found[0])
    assert plain > 300, "hardly any had messages that both could read: nothing is shown"


def test_the_twins_count_values_alike(compiled: ModuleType) -> None:
    nested = array("h", [-1, -1, 1, *[-1] * 61, -1, -1, 1, -2, *[-1] * 60])
    counted = 0
    for seed in range(3000):
        chance = random.Random(f"values {seed}")
        most = chance.choice((0, 3, 1000))
        text = bytes(chance.choices(b'[]{},:"\\ \nab\x00\xff', k=chance.randrange(40)))
        assert compiled.count_json(text, most) == reference.count_json(text, most), text
        body = protobuf(chance, chance.randrange(6)) + bytes(chance.randrange(256) for _ in range(chance.randrange(9)))
        found = compiled.count_protobuf(body, most, nested)
        assert found == reference.count_protobuf(body, most, nested), body
        counted += found > 3
    assert counted > 500, "hardly any had values: nothing is shown"


def protobuf(chance: random.Random, count: int) -> bytes:
    """A frame of so many messages, or something like it."""
    body = bytearray()
    for _ in range(count):
        message = bytearray(b"" if chance.random() < 0.1 else b"\x0a\x03old")
        for _ in range(chance.randrange(4)):
            message += chance.choice(
                (
                    b"\x0a\x03new",
                    b"\x12\x03key",
                    b"\x12\x00",
                    b"\x18" + bytes([chance.choice((0, 0, 1, 2, 5))]),
                    b"\x18\x81\x00",
                    b"\x0a\x00" if chance.random() < 0.2 else b"",
                    b"\x18" + b"\xff" * chance.randrange(1, 11) + b"\x01" if chance.random() < 0.2 else b"",
                )
            )
        body += b"\x12" + bytes([len(message)]) + message
        if chance.random() < 0.2:
            body += chance.choice((b"\x0a\x01t", b"\x25abcd", b"\x29abcdefgh", b"\x30\xff\x01", b"\x33", b"\x10\x01"))
    if body and chance.random() < 0.3:
        body[chance.randrange(len(body))] = chance.choice(EDGES)
    if chance.random() < 0.1:
        del body[chance.randrange(len(body) + 1) :]
    return bytes(body)
