"""The records of named readers: golden bytes, and what another version may have written."""

import msgspec
import pytest

from goqueue.metadata import reader_records as records
from goqueue.metadata.reader_records import Event, ReaderDeleted, ReaderPut, ReadersLeftTopic
from goqueue.model.names import TopicId

ID = TopicId(0xFEDCBA9876543210)

# What is in a log one day must be readable for good: a line may be added, never changed.
GOLDEN: dict[bytes, Event] = {
    b'{"type":"reader_put","name":"nightly-load","offsets":{"7":{"0":12,"1":0},"18364758544493064720":{"0":5}},'
    b'"created_ms":1700000000000,"changed_ms":1700000060000}': ReaderPut(
        name="nightly-load",
        offsets={TopicId(7): {0: 12, 1: 0}, ID: {0: 5}},
        created_ms=1_700_000_000_000,
        changed_ms=1_700_000_060_000,
    ),
    b'{"type":"reader_deleted","name":"nightly-load"}': ReaderDeleted(name="nightly-load"),
    b'{"type":"readers_left_topic","topic_id":18364758544493064720}': ReadersLeftTopic(topic_id=ID),
}


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=lambda part: type(part).__name__)
def test_the_bytes_are_the_golden_ones(encoded: bytes, event: Event) -> None:
    assert records.encode(event) == encoded
    assert records.decode(encoded) == event


def test_every_kind_of_record_has_golden_bytes() -> None:
    assert {type(event) for event in GOLDEN.values()} == set(Event.__args__)


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert records.decode(b'{"type":"reader_deleted","name":"a","reason":"idle"}') == ReaderDeleted(name="a")


@pytest.mark.parametrize(
    "strange",
    [b"", b"{}", b'{"type":"reader_renamed","name":"a"}', b'{"type":"reader_deleted"}',
     b'{"type":"reader_put","name":"a","offsets":{"x":{}},"created_ms":1,"changed_ms":1}'],
)  # fmt: skip
def test_what_is_no_record_is_refused(strange: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(strange)
