"""What `encode` refuses, and what it writes at the limits."""

from types import ModuleType

import msgspec
import pytest

from goqueue.codec.layout import Refusal
from goqueue.model.errors import InvalidRecord
from goqueue.model.limits import MAX_RECORD_BYTES
from goqueue.model.record import Extension, Lane, Producer, Record
from tests.unit.codec.samples import SAMPLES, refusal

INT64 = 2**63
REFUSED = {
    "priority below 0": (Record(priority=-1), Refusal.PRIORITY),
    "priority above 4": (Record(priority=5), Refusal.PRIORITY),
    "huge priority": (Record(priority=2**70), Refusal.PRIORITY),
    "commit without control": (Record(commit=True), Refusal.COMMIT),
    "key": (Record(key=bytes(0x10000)), Refusal.KEY),
    "header name": (Record(headers=(("\ud800", b""),)), Refusal.HEADER_NAME),
    "long header name": (Record(headers=(("x" * 0x10000, b""),)), Refusal.HEADERS),
    "long header value": (Record(headers=(("x", bytes(0x10000)),)), Refusal.HEADERS),
    "headers one byte over": (Record(headers=(("", bytes(0xFFFF - 5)),)), Refusal.HEADERS),
    "many headers": (Record(headers=(("", b""),) * 0x10000), Refusal.HEADERS),
    "offset": (Record(offset=INT64), Refusal.NUMBER),
    "negative offset": (Record(offset=-INT64 - 1), Refusal.NUMBER),
    "timestamp": (Record(timestamp=INT64), Refusal.NUMBER),
    "deliver_at": (Record(extension=Extension(deliver_at=INT64)), Refusal.NUMBER),
    "expires_at": (Record(extension=Extension(expires_at=INT64)), Refusal.NUMBER),
    "event_time": (Record(extension=Extension(event_time=INT64)), Refusal.NUMBER),
    "transaction": (Record(extension=Extension(transaction=INT64)), Refusal.NUMBER),
    "producer id": (Record(extension=Extension(producer=Producer(INT64, 0, 0))), Refusal.NUMBER),
    "producer epoch": (Record(extension=Extension(producer=Producer(0, 2**15, 0))), Refusal.NUMBER),
    "producer sequence": (Record(extension=Extension(producer=Producer(0, 0, 2**31))), Refusal.NUMBER),
    "blob": (Record(extension=Extension(blob=bytes(4097))), Refusal.BLOB),
    "record": (Record(value=bytes(MAX_RECORD_BYTES - 33)), Refusal.RECORD),
    "record with extension": (
        Record(value=bytes(MAX_RECORD_BYTES - 34), extension=Extension(transaction=1)),
        Refusal.RECORD,
    ),
    "number before blob": (Record(offset=INT64, extension=Extension(blob=bytes(4097))), Refusal.NUMBER),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_record_out_of_bounds_is_refused_by_its_index(codec: ModuleType, name: str) -> None:
    record, reason = REFUSED[name]
    with pytest.raises(InvalidRecord) as caught:
        codec.encode([*SAMPLES, record])
    assert refusal(caught.value) == (reason, len(SAMPLES), len(codec.encode(SAMPLES)))
    assert type(caught.value.reason) is str


@pytest.mark.parametrize(
    "record",
    [
        Record(key=bytes(0xFFFF)),
        Record(headers=(("", bytes(0xFFFF - 6)),)),
        Record(headers=(("", b""),) * ((0xFFFF - 2) // 4)),
        Record(extension=Extension(blob=bytes(4096))),
        Record(value=bytes(MAX_RECORD_BYTES - 34)),
        Record(offset=INT64 - 1, timestamp=-INT64),
        Record(extension=Extension(producer=Producer(-INT64, -(2**15), -(2**31)))),
    ],
    ids=["key", "header value", "header count", "blob", "record", "numbers", "producer"],
)
def test_a_record_at_its_limit_is_accepted(codec: ModuleType, record: Record) -> None:
    assert codec.decode(codec.encode([record])) == [record]


def test_no_records_make_an_empty_block(codec: ModuleType) -> None:
    assert codec.encode([]) == b""
    assert codec.decode(b"") == []


def test_an_extension_with_nothing_set_is_no_extension(codec: ModuleType) -> None:
    assert codec.encode([Record(extension=Extension())]) == codec.encode([Record()])


def test_a_lane_is_written_as_its_number(codec: ModuleType) -> None:
    (record,) = codec.decode(codec.encode([Record(priority=Lane.LOW)]))
    assert type(record.priority) is int
    assert record.priority == Lane.LOW


def test_both_twins_write_the_same_bytes(codec: ModuleType, compiled: ModuleType) -> None:
    assert codec.encode(SAMPLES) == compiled.encode(SAMPLES)


def test_a_failing_iterable_fails_the_call(codec: ModuleType) -> None:
    def records() -> object:
        yield SAMPLES[0]
        raise LookupError("no more")

    with pytest.raises(LookupError):
        codec.encode(records())


@pytest.mark.parametrize("change", [{"key": "text"}, {"value": "text"}, {"headers": ((b"a", b"b"),)}])
def test_text_where_bytes_belong_is_a_type_error(codec: ModuleType, change: dict[str, object]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        codec.encode([msgspec.structs.replace(Record(), **change)])
