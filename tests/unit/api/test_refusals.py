"""A request that does not fit is told what would be right, not only what is wrong."""

from typing import Any

import msgspec
import pytest

from goqueue.api import shapes
from goqueue.api.operations import OPERATIONS
from goqueue.api.refusals import HINTS, OTHER_HINTS, PLANNED_VALUES, refuse
from goqueue.model.errors import NotBuilt


@pytest.mark.parametrize(
    ("request_type", "fields", "words"),
    [
        (shapes.PublishBatch, {"messages": [{"value": {"a": 1}}]}, "send JSON as a string"),
        (shapes.Publish, {"value": "x", "priority": "urgent"}, "critical, high, normal, low or background"),
        (shapes.Publish, {"value": "x", "acks": "quorum"}, "none, leader or all"),
        (shapes.CreateTopic, {"name": "a b"}, "use letters, digits"),
        (shapes.CreateTopic, {"name": "a", "replication_factor": 3}, "several nodes are not available"),
        (shapes.CreateTopic, {"name": "a", "partitions": 3}, "did you mean num_partitions?"),
        (shapes.TopicSettingsFields, {"num_partitions": 3}, "POST /admin/topics/{topic}/partitions"),
        (shapes.ReadPartition, {"from_time": "2026-01-01"}, "write RFC 3339 with a zone"),
        (shapes.JoinGroup, {"topics": ["a"]}, "missing required field `client_id`; use letters, digits"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a b"]}, "a list of the names of one or more topics"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "mode": "queue"}, "it is partition"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "assignor": "best"}, "sticky, range or round-robin"),
        (shapes.JoinGroup, {"client_id": "a", "topics": ["a"], "session_timeout": [1]}, "a number and a unit"),
        (shapes.Poll, {}, "missing required field `member_id`; it is what joining the group answered"),
        (shapes.Poll, {"member_id": "a", "received": "x"}, "the last poll whose answer arrived has as `poll`"),
        (shapes.Poll, {"member_id": "a", "max_messages": 0}, "from 1 to 10000"),
        (shapes.Commit, {"member_id": "a", "offsets": {"t": {"0": -1}}}, 'write {"topic": {"0": 5}}'),
        (shapes.Commit, {"member_id": "a", "offsets": {"t": {"x": 1}}}, 'write {"topic": {"0": 5}}'),
        (shapes.Commit, {"member_id": "a", "offsets": {"t": 5}}, 'write {"topic": {"0": 5}}'),
        (shapes.Commit, {"member_id": "a", "generation": "x", "offsets": {}}, "joining answered last"),
        (shapes.Heartbeat, {"member_id": "a", "revoked": "t-0"}, 'write ["topic-0"]'),
        (shapes.ResetOffsets, {"topic": "t", "to": "start"}, "earliest, latest, offset, timestamp or duration"),
        (shapes.ResetOffsets, {"topic": "t", "to": "offset", "value": -1}, "an offset, a time or a duration"),
    ],
)
def test_it_says_what_would_be_right(request_type: type[shapes.Request], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, request_type)
    assert words in str(refuse(caught.value, request_type))


def test_every_hint_is_about_a_field_there_is() -> None:
    requests = [kind for kind in vars(shapes).values() if isinstance(kind, type) and issubclass(kind, shapes.Request)]
    fields = {field for kind in requests for field in kind.__struct_fields__}
    assert set(HINTS) <= fields
    for kind, field in OTHER_HINTS:
        assert field in kind.__struct_fields__


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, all in PLANNED_VALUES.items() for value in all])
def test_a_value_whose_feature_is_not_built_is_refused_by_name(field: str, value: str) -> None:
    having = [operation.request for operation in OPERATIONS if field in operation.request.__struct_fields__]
    assert having, "a field that no request has"
    for kind in having:
        required = {"client_id": "a", "topics": ["t"]}
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.convert({**required, field: value}, kind)
        error = refuse(caught.value, kind)
        assert isinstance(error, NotBuilt)
        assert error.details == {"field": f"{field} {value}"}
