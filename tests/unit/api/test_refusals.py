"""A request that does not fit is told what would be right, not only what is wrong."""

from typing import Any

import msgspec
import pytest

from goqueue.api import shapes
from goqueue.api.refusals import HINTS, refuse


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
