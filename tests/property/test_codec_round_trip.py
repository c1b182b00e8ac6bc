"""Any record there can be survives the codec, and stamping changes what it should and nothing else."""

from types import ModuleType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.codec.layout import Problem
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import TWINS, columns, load_twin

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.binary(max_size=20).map(lambda name: name.decode("utf-8", "surrogateescape"))
producers = st.builds(Producer, producer_id=int64, producer_epoch=int16, sequence=int32)
extensions = st.builds(
    Extension,
    deliver_at=st.none() | int64,
    expires_at=st.none() | int64,
    event_time=st.none() | int64,
    producer=st.none() | producers,
    transaction=st.none() | int64,
    blob=st.none() | st.binary(max_size=50),
)
records = st.builds(
    Record,
    offset=int64,
    timestamp=int64,
    key=st.none() | st.binary(max_size=50),
    value=st.none() | st.binary(max_size=1000),
    priority=st.integers(0, 4),
    headers=st.lists(st.tuples(names, st.binary(max_size=20)), max_size=5).map(tuple),
    extension=st.none() | extensions,
    control=st.booleans(),
    commit=st.booleans(),
).map(lambda record: record if record.control else msgspec.structs.replace(record, commit=False))


@pytest.fixture(scope="session", params=TWINS)
def codec(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin(request.param)


def canonical(record: Record) -> Record:
    return msgspec.structs.replace(record, extension=None) if record.extension == Extension() else record


@settings(max_examples=300, deadline=None)
@given(written=st.lists(records, max_size=6))
def test_what_is_encoded_decodes_to_the_same(codec: ModuleType, written: list[Record]) -> None:
    block = codec.encode(written)
    read = codec.decode(block)
    assert read == [canonical(record) for record in written]
    assert codec.encode(read) == block
    scan = codec.scan(block)
    assert (len(scan), scan.end, scan.problem) == (len(written), len(block), Problem.NONE)


@settings(max_examples=200, deadline=None)
@given(
    written=st.lists(records, min_size=1, max_size=6),
    offset=st.integers(0, 2**62 - 1),
    timestamp=st.integers(0, 2**62 - 1),
)
def test_stamping_changes_offset_time_and_relative_times_only(
    codec: ModuleType, written: list[Record], offset: int, timestamp: int
) -> None:
    block = codec.encode(written)
    stamped = bytearray(block)
    scan = codec.stamp(stamped, offset=offset, timestamp=timestamp)
    assert columns(scan) == columns(codec.scan(stamped))
    for index, (before, after) in enumerate(zip(codec.decode(block), codec.decode(stamped), strict=True)):
        extension = before.extension
        if extension is not None:
            assert after.extension is not None
            times = after.extension.deliver_at, after.extension.expires_at
            assert all(time is None or time >= 0 for time in times)
            extension = msgspec.structs.replace(extension, deliver_at=times[0], expires_at=times[1])
        assert after == msgspec.structs.replace(before, offset=offset + index, timestamp=timestamp, extension=extension)
