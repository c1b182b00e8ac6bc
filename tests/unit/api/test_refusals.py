"""A request that does not fit is told what would be right, not only what is wrong."""

from typing import Any

import msgspec
import pytest

from goqueue.api.bodies import Bodies
from goqueue.api.operations import BY_NAME
from goqueue.api.refusals import HINTS, OTHER_HINTS, refuse, unreadable
from goqueue.model.errors import InvalidRequest
from goqueue.wire import shapes


@pytest.mark.parametrize(
    ("request_type", "fields", "words"),
    [
        (shapes.PublishBatch, {"messages": [{"value": {"a": 1}}]}, "send JSON as a string"),
        (shapes.Publish, {"value": "x", "priority": "urgent"}, "critical, high, normal, low or background"),
        (shapes.Publish, {"value": "x", "acks": "quorum"}, "none, leader or all"),
        (shapes.CreateTopic, {"name": "a b"}, "use letters, digits"),
        (shapes.CreateTopic, {"name": "a", "replication_factor": 3}, "several nodes are not available"),
        (shapes.CreateTopic, {"name": "a", "partitions": 3}, "did you mean num_partitions?"),
        (shapes.TopicSettingsFields, {"num_partitions": 3}, "the operation add_partitions gives a topic more"),
        (shapes.TopicSettingsFields, {"visibility_timeout": "soon"}, "a number and a unit, like 250ms, 30s or 1h30m"),
        (shapes.TopicSettingsFields, {"max_retries": 1001}, "it is a whole number from 0 to 1000"),
        (shapes.TopicSettingsFields, {"backoff": "1s"}, 'write {"base": "1s", "factor": 2, "max": "1m"}, or the parts'),
        (shapes.TopicSettingsFields, {"backoff": {"least": 1}}, "'least' in backoff; write {"),
        (shapes.TopicSettingsFields, {"backoff": {"base": "x"}}, "a number and a unit"),
        (shapes.TopicSettingsFields, {"backoff": {"max": []}}, "a number and a unit"),
        (shapes.TopicSettingsFields, {"backoff": {"factor": 0}}, "it is a number from 1 to 100"),
        (shapes.TopicSettingsFields, {"dlq_enabled": "yes"}, "it is true or false"),
        (shapes.TopicSettingsFields, {"message_ttl": "x"}, "seconds as a number, or null for none"),
        (shapes.TopicSettingsFields, {"on_expiry": "keep"}, "it is drop or dlq"),
        (shapes.TopicSettingsFields, {"lane_weights": [1]}, "write five whole numbers from 1 to 1000, like [50, 25"),
        (shapes.TopicSettingsFields, {"lane_weights": [0, 1, 1, 1, 1]}, "write five whole numbers from 1 to 1000"),
        (shapes.TopicSettingsFields, {"lane_policy": "fair"}, "it is weighted or strict"),
        (shapes.CreateTopic, {"name": "a" * 242}, "at most 241 of them"),
        (shapes.CommitTransaction, {"producer_id": 1, "acks": "leader"}, "how many messages were acknowledged in the"),
        (
            shapes.CommitTransaction,
            {"producer_id": 1, "messages": "x"},
            "how many messages were published in the trans",
        ),
        (
            shapes.CommitMany,
            {"token": {"name": "a", "number": 1}, "acks": 1},
            'write {"txn-17": 3}: by transaction, how',
        ),
        (shapes.ListSchedules, {"next": "x"}, "it is what the page before it said as `next`"),
        (shapes.Publish, {"value": "x", "partition": 1000}, "it is a whole number from 0 to 999, below the topic's"),
        (shapes.ReadPartition, {"limit": 0}, "limit is less than 1; it is a whole number from 1 to 1000"),
        (shapes.ListDeadLetters, {"limit": 10**8}, "limit is more than 1000; it is a whole number from 1 to 1000"),
        (shapes.AddPartitions, {}, "count is missing; it is a whole number from 1 to 1000"),
        (shapes.ReadPartition, {"from_time": "2026-01-01"}, "write RFC 3339 with a zone"),
        (shapes.JoinGroup, {"topics": ["a"]}, "client_id is missing; use letters, digits"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a b"]}, "a list of the names of one or more topics"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "mode": "queue"}, "it is partition, shared or key"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "assignor": "best"}, "sticky, range or round-robin"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "session_timeout": [1]}, "a number and a unit"),
        (shapes.Poll, {}, "member_id is missing; it is what joining the group answered"),
        (shapes.Poll, {"member_id": "a", "received": "x"}, "the last poll whose answer arrived has as `poll`"),
        (shapes.Poll, {"member_id": "a", "max_messages": 0}, "from 1 to 10000"),
        (shapes.Commit, {"member_id": "a", "offsets": {"t": {"0": -1}}}, 'write {"topic": {"0": 5}}'),
        (shapes.Commit, {"member_id": "a", "offsets": {"t": {"x": 1}}}, 'write {"topic": {"0": 5}}'),
        (shapes.Commit, {"member_id": "a", "offsets": {"t": 5}}, 'write {"topic": {"0": 5}}'),
        (shapes.Commit, {"member_id": "a", "generation": "x", "offsets": {}}, "joining answered last"),
        (shapes.PutReader, {"offsets": {"t": {"0": -1}}}, "by topic and partition, the offset to begin at"),
        (shapes.PutReader, {"offsets": {}}, "offsets has fewer than 1 entries; write"),
        (shapes.PutReader, {}, "offsets is missing; write"),
        (shapes.PutReader, {"offsets": {"t": {"0": 1}}, "if_absent": "yes"}, "it is true or false"),
        (shapes.Heartbeat, {"member_id": "a", "revoked": "t-0"}, 'write ["topic-0"]'),
        (shapes.Heartbeat, {"member_id": "a", "finishing": "t-0"}, 'write ["topic-0"]'),
        (shapes.Publish, {"value": "x", "delay": "soon"}, "a number and a unit, like 250ms, 30s or 1h30m"),
        (shapes.Publish, {"value": "x", "deliverAt": "tomorrow"}, "write RFC 3339 with a zone"),
        (shapes.Publish, {"value": "x", "ttl": "ever"}, "a number and a unit"),
        (shapes.ReadPartition, {"include": "all"}, "it is delayed, or left out"),
        (shapes.ReadPartition, {"order": "newest"}, "it is offset or priority"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "visibility": "x"}, "a number and a unit"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "max_unacked": 0}, "from 1 to 50000"),
        (shapes.Poll, {"member_id": "a", "visibility": []}, "a number and a unit"),
        (shapes.Ack, {"receipt_handle": 5}, "what a poll answered with the message"),
        (shapes.Ack, {"receipt_handles": "a:0:0:1:x"}, "a list of what polls answered"),
        (shapes.Nack, {"receipt_handle": "a", "delay": "x"}, "a number and a unit"),
        (shapes.Reject, {"receipt_handle": "a", "reason": "x" * 1001}, "it is text, at most 1000 letters"),
        (shapes.ExtendVisibility, {"receipt_handle": "a"}, "timeout is missing; write a number"),
        (shapes.MoveDelayed, {"deliverAt": "x"}, "write RFC 3339 with a zone"),
        (shapes.CancelDelayed, {"ids": [5]}, "write [[partition, offset], ...]"),
        (shapes.CancelDelayed, {"ids": [[0, -1]]}, "write [[partition, offset], ...]"),
        (shapes.CancelDelayed, {}, "write [[partition, offset], ...]"),
        (shapes.ResetOffsets, {"topic": "t", "to": "start"}, "earliest, latest, offset, timestamp or duration"),
        (shapes.ResetOffsets, {"topic": "t", "to": "offset", "value": -1}, "an offset, a time or a duration"),
    ],
)
def test_it_says_what_would_be_right(request_type: type[shapes.Request], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, request_type)
    assert words in str(refuse(caught.value, request_type))


@pytest.mark.parametrize(
    ("request_type", "fields", "said", "field"),
    [
        (shapes.CreateTopic, {"name": "a b"}, "name is not written as it may be; use letters", "name"),
        (shapes.CreateTopic, {"name": "a", "num_partitions": 0}, "num_partitions is less than 1; ", "num_partitions"),
        (shapes.CreateTopic, {"name": "a", "num_partitions": 1001}, "num_partitions is more than 1000; ", None),
        (shapes.CreateTopic, {"name": "a", "colour": 1}, "there is no field 'colour' here", "colour"),
        (shapes.CreateTopic, {}, "name is missing; use letters", "name"),
        (shapes.CreateSchedule, {"message": {"value": 1}}, "message.value is a whole number", "message.value"),
        (shapes.TopicSettingsFields, {"backoff": {"base": "x"}}, "backoff.base is not written as", "backoff.base"),
        (
            shapes.TopicSettingsFields,
            {"backoff": {"least": 1}},
            "there is no field 'least' in backoff",
            "backoff.least",
        ),
        (shapes.TopicSettingsFields, {"lane_weights": [1]}, "lane_weights has 1 entries, not 5; ", "lane_weights"),
        (shapes.TopicSettingsFields, {"dlq_enabled": "yes"}, "dlq_enabled is text, not true or false; ", None),
        (shapes.JoinGroup, {"client_id": "a", "topics": []}, "topics has fewer than 1 entries; ", "topics"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"] * 1001}, "topics has more than 1000 entries; ", None),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a", 5]}, "topics[1] is a whole number, not text; ", "topics"),
        (shapes.Reject, {"receipt_handle": "a", "reason": "x" * 1001}, "reason has more than 1000 letters; ", None),
        (shapes.Publish, {"value": 5}, "value is a whole number, not text or null; ", "value"),
        (shapes.Publish, {"value": "x", "acks": "quorum"}, "acks cannot be 'quorum'; it is none", "acks"),
        (
            shapes.Publish,
            {"value": "x", "headers": {"a": 1}},
            "a value of headers is a whole number, not text; ",
            "headers",
        ),
        (
            shapes.Publish,
            {"value": "x", "headers": [["a", 1]]},
            "headers[0][1] is a whole number, not text; ",
            "headers",
        ),
        (shapes.Publish, {"value": "x", "headers": 1}, "headers is a whole number, not an object", "headers"),
        (
            shapes.Commit,
            {"member_id": "a", "offsets": {"t": {"0": -1}}},
            "a value of offsets is less than 0",
            "offsets",
        ),
        (shapes.Commit, {"member_id": "a", "offsets": {"t": 5}}, "a value of offsets is a whole number", "offsets"),
        (shapes.PublishBatch, {"messages": [{"value": []}]}, "messages[0].value is a list", "messages.value"),
        (
            shapes.Commit,
            {"member_id": "a", "offsets": {"t": {"x": 1}}},
            "a key of offsets is not written as",
            "offsets",
        ),
        (shapes.StartRedrive, {"rate": 0}, "rate is not more than 0; it is a number of messages", "rate"),
        (shapes.StartRedrive, {"filter": {"reason": "x"}}, "filter.reason cannot be 'x'; it is rejected", None),
    ],
)
def test_it_says_what_is_wrong_in_words_and_names_the_field(
    request_type: type[shapes.Request], fields: dict[str, Any], said: str, field: str | None
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, request_type)
    refused = refuse(caught.value, request_type)
    assert str(refused).startswith(said)
    assert (refused.code, "$" in str(refused), "regex" in str(refused)) == ("invalid_request", False, False)
    assert refused.details == {"field": field or said.split()[0]}


def test_what_is_no_object_at_all_has_no_field() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert([], shapes.CreateTopic)
    refused = refuse(caught.value, shapes.CreateTopic)
    assert (str(refused), refused.details) == ("what was sent is a list, not an object", {})


@pytest.mark.parametrize("fields", [{"value": "x", "acks": "q" * 100_000}, {"value": "x", "q" * 100_000: 1}])
def test_what_was_sent_is_not_repeated_as_a_whole(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, shapes.Publish)
    refused = refuse(caught.value, shapes.Publish)
    assert len(str(refused)) + len(refused.details["field"]) < 1000
    assert refused.details["field"] in ("acks", "q" * 300)


@pytest.mark.parametrize(
    "text",
    [r"\ud800", r"\uDBFFx", r"\ud800\n", r"\ud800 and more text", r"\udc00", r"\ud800\u0041", r"\\\ud800"],
)
def test_half_a_character_is_called_so(text: str) -> None:
    for body in (f'{{"value":"{text}"}}', f'{{"value":"{text}"}}\n', f'{{"value":"x","key":"{text}"}}'):
        with pytest.raises(msgspec.DecodeError) as caught:
            msgspec.json.decode(body.encode(), type=shapes.Publish)
        said = str(unreadable("the body", body.encode(), caught.value))
        with pytest.raises(InvalidRequest, match="the request has text that is not valid Unicode"):
            Bodies(BY_NAME["publish"], what="the request").decode(body.encode())
        assert said.startswith("the body has text that is not valid Unicode: an escape like \\ud800 is half of a char")


@pytest.mark.parametrize("body", ['{"value":"x', r'{"value":"\ud8', r'{"value":"\ud800\u', r'{"value":"\\ud800"', "{]"])
def test_what_is_cut_off_or_no_json_is_not_called_half_a_character(body: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body.encode(), type=shapes.Publish)
    said = str(unreadable("the body", bytearray(body.encode()), caught.value))
    assert said == f"the body is not valid JSON in UTF-8: {caught.value}"


@pytest.mark.parametrize("hint", [*HINTS.values(), *OTHER_HINTS.values()])
def test_a_hint_is_for_every_door(hint: str) -> None:
    assert not any(method in hint for method in ("GET ", "POST ", "PUT ", "PATCH ", "DELETE "))


def test_every_hint_is_about_a_field_there_is() -> None:
    kinds = [*vars(shapes).values(), *vars(shapes.topics).values()]
    requests = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, shapes.Request)]
    fields = {field for kind in requests for field in kind.__struct_fields__}
    assert set(HINTS) <= fields
    for kind, field in OTHER_HINTS:
        assert field in kind.__struct_fields__
