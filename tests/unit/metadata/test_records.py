"""The records of the metadata log: golden bytes, and what another version may have written."""

import msgspec
import pytest

from goqueue.metadata import records
from goqueue.metadata.records import (
    ClusterNamed,
    Event,
    PartitionsAdded,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
    TopicRemoved,
)
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync
from goqueue.model.topic import CleanupPolicy, TopicSettings

ID = TopicId(0xFEDCBA9876543210)
SETTINGS = TopicSettings(
    retention_hours=1.5,
    retention_bytes=None,
    cleanup_policy=CleanupPolicy.BOTH,
    segment_bytes=4096,
    fsync=Fsync.EVERY,
    max_message_bytes=1000,
)
_SETTINGS = (
    b'{"retention_hours":1.5,"retention_bytes":null,"cleanup_policy":"both","segment_bytes":4096,'
    b'"fsync":"every","max_message_bytes":1000}'
)

# What is in a log one day must be readable for good: a line may be added here, never changed.
GOLDEN: dict[bytes, Event] = {
    b'{"type":"cluster_named","cluster_id":"00000000000000ff"}': ClusterNamed(cluster_id="00000000000000ff"),
    b'{"type":"topic_created","name":"orders","topic_id":18364758544493064720,"partitions":3,"settings":'
    + _SETTINGS
    + b',"created_ms":1700000000000}': TopicCreated(
        name="orders", topic_id=ID, partitions=3, settings=SETTINGS, created_ms=1_700_000_000_000
    ),
    b'{"type":"topic_changed","topic_id":18364758544493064720,"settings":' + _SETTINGS + b"}": TopicChanged(
        topic_id=ID, settings=SETTINGS
    ),
    b'{"type":"partitions_added","topic_id":18364758544493064720,"partitions":6}': PartitionsAdded(
        topic_id=ID, partitions=6
    ),
    b'{"type":"topic_deleted","topic_id":18364758544493064720,"name":"orders","partitions":6}': TopicDeleted(
        topic_id=ID, name="orders", partitions=6
    ),
    b'{"type":"topic_removed","topic_id":18364758544493064720}': TopicRemoved(topic_id=ID),
}


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=lambda part: type(part).__name__)
def test_the_bytes_are_the_golden_ones(encoded: bytes, event: Event) -> None:
    assert records.encode(event) == encoded
    assert records.decode(encoded) == event


def test_every_kind_of_record_has_golden_bytes() -> None:
    assert {type(event) for event in GOLDEN.values()} == set(Event.__args__)


def test_settings_that_were_not_written_have_their_defaults() -> None:
    """How a setting is added: a record from before it was there must still be read."""
    found = records.decode(b'{"type":"topic_changed","topic_id":1,"settings":{}}')
    assert found == TopicChanged(topic_id=TopicId(1), settings=TopicSettings())


def test_fields_of_a_later_version_are_passed_over() -> None:
    found = records.decode(b'{"type":"topic_removed","topic_id":1,"reason":"expired"}')
    assert found == TopicRemoved(topic_id=TopicId(1))


@pytest.mark.parametrize(
    "strange",
    [b"", b"{}", b"[]", b'{"type":"topic_renamed","topic_id":1}', b'{"type":"topic_removed"}', b'{"topic_id":1}'],
)
def test_what_is_no_record_is_refused(strange: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(strange)
