"""The records of the metadata log: golden bytes, and what another version may have written."""

import msgspec
import pytest

from goqueue.metadata import records
from goqueue.metadata.records import (
    ClusterNamed,
    Event,
    HandleKeyMade,
    PartitionsAdded,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
    TopicRemoved,
)
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync
from goqueue.model.topic import Backoff, CleanupPolicy, LanePolicy, OnExpiry, TopicSettings

ID = TopicId(0xFEDCBA9876543210)
HANDLE_KEY = "00112233445566778899aabbccddeeff" * 2
SETTINGS = TopicSettings(
    retention_hours=1.5,
    retention_bytes=None,
    cleanup_policy=CleanupPolicy.BOTH,
    segment_bytes=4096,
    fsync=Fsync.EVERY,
    max_message_bytes=1000,
    visibility_ms=45_000,
    max_retries=5,
    backoff=Backoff(base_ms=500, factor=1.5, max_ms=30_000),
    dlq_enabled=False,
    message_ttl_ms=86_400_000,
    on_expiry=OnExpiry.DLQ,
    lane_weights=(5, 4, 3, 2, 1),
    lane_policy=LanePolicy.STRICT,
)
_SETTINGS = (
    b'{"retention_hours":1.5,"retention_bytes":null,"cleanup_policy":"both","segment_bytes":4096,'
    b'"fsync":"every","max_message_bytes":1000,"visibility_ms":45000,"max_retries":5,'
    b'"backoff":{"base_ms":500,"factor":1.5,"max_ms":30000},"dlq_enabled":false,"message_ttl_ms":86400000,'
    b'"on_expiry":"dlq","lane_weights":[5,4,3,2,1],"lane_policy":"strict"}'
)
BEFORE_DELIVERY = TopicSettings(
    retention_hours=1.5,
    retention_bytes=None,
    cleanup_policy=CleanupPolicy.BOTH,
    segment_bytes=4096,
    fsync=Fsync.EVERY,
    max_message_bytes=1000,
)
_BEFORE_DELIVERY = (
    b'{"retention_hours":1.5,"retention_bytes":null,"cleanup_policy":"both","segment_bytes":4096,'
    b'"fsync":"every","max_message_bytes":1000}'
)
"""As it was written before topics had settings of delivery."""

# What is in a log one day must be readable for good: a line may be added to one of these, never changed. One that is no
# longer written like this moves to OLD.
GOLDEN: dict[bytes, Event] = {
    b'{"type":"cluster_named","cluster_id":"00000000000000ff"}': ClusterNamed(cluster_id="00000000000000ff"),
    b'{"type":"handle_key_made","key":"' + HANDLE_KEY.encode() + b'"}': HandleKeyMade(key=HANDLE_KEY),
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
OLD: dict[bytes, Event] = {
    b'{"type":"topic_created","name":"orders","topic_id":18364758544493064720,"partitions":3,"settings":'
    + _BEFORE_DELIVERY
    + b',"created_ms":1700000000000}': TopicCreated(
        name="orders", topic_id=ID, partitions=3, settings=BEFORE_DELIVERY, created_ms=1_700_000_000_000
    ),
    b'{"type":"topic_changed","topic_id":18364758544493064720,"settings":' + _BEFORE_DELIVERY + b"}": TopicChanged(
        topic_id=ID, settings=BEFORE_DELIVERY
    ),
}


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=lambda part: type(part).__name__)
def test_the_bytes_are_the_golden_ones(encoded: bytes, event: Event) -> None:
    assert records.encode(event) == encoded
    assert records.decode(encoded) == event


@pytest.mark.parametrize(("encoded", "event"), OLD.items(), ids=lambda part: type(part).__name__)
def test_what_an_earlier_version_wrote_is_read_with_the_defaults_of_today(encoded: bytes, event: Event) -> None:
    assert records.decode(encoded) == event
    assert records.decode(records.encode(event)) == event


def test_the_settings_of_delivery_have_these_defaults_in_an_old_record() -> None:
    """Written out: a topic that is there must not be delivered in another way because a default has changed."""
    (found,) = (event.settings for event in map(records.decode, OLD) if isinstance(event, TopicCreated))
    assert (found.visibility_ms, found.max_retries, found.dlq_enabled) == (30_000, 3, True)
    assert found.backoff == Backoff(base_ms=1000, factor=2.0, max_ms=60_000)
    assert (found.message_ttl_ms, found.on_expiry) == (None, OnExpiry.DROP)
    assert (found.lane_weights, found.lane_policy) == ((50, 25, 15, 7, 3), LanePolicy.WEIGHTED)


def test_parts_of_a_backoff_that_were_not_written_have_their_defaults() -> None:
    found = records.decode(b'{"type":"topic_changed","topic_id":1,"settings":{"backoff":{"factor":3}}}')
    assert found == TopicChanged(topic_id=TopicId(1), settings=TopicSettings(backoff=Backoff(factor=3.0)))


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
