"""Between protobuf and the shapes: nothing is lost on the way in, or on the way out."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, inspect

from goqueue.api.grpc.schema import Label, request_name
from goqueue.api.grpc.streams import SCHEMA
from goqueue.api.grpc.translating import pb, read_message, read_request, write_reply
from goqueue.api.operations import BY_NAME, OPERATIONS, Operation
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.groups import GroupState
from goqueue.model.names import message_id
from goqueue.wire import shapes


def read(operation: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was said, without the defaults; and the path."""
    message = getattr(pb, request_name(operation))(**fields)
    request, path = read_request(BY_NAME[operation], message)
    defaults = {field.name: field.default for field in msgspec.structs.fields(request)}
    said = {name: value for name, value in msgspec.structs.asdict(request).items() if value != defaults[name]}
    return {name: value for name, value in said.items() if value is not UNSET}, path


def test_text_arrives_as_text() -> None:
    said, path = read("publish", topic="orders", value=b"v", key=b"k", headers=[{"name": "a", "value": b"1"}])
    assert said == {"value": "v", "key": "k", "headers": [("a", "1")]}
    assert path == {"topic": "orders"}


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xa0\x80", b"\x00\x80"])
def test_bytes_that_are_no_text_arrive_too(data: bytes) -> None:
    said, _ = read("publish", topic="orders", value=data, key=b"k", headers=[{"name": "a", "value": b"1"}])
    request = shapes.Publish(**said)
    assert request.encoding == "base64"
    record = msgspec.structs.asdict(request)
    shown = shapes.ReadMessage(
        offset=0, partition=0, timestamp="", priority="normal", message_id="",
        **{name: record[name] for name in ("key", "value", "headers", "encoding")},
    )  # fmt: skip
    written = write_reply(shown)
    assert (written.value, written.key, written.headers[0].value) == (data, b"k", b"1")


def test_a_value_that_is_empty_is_not_one_that_is_missing() -> None:
    assert read("publish", topic="t", value=b"")[0]["value"] == ""
    assert "value" not in read("publish", topic="t")[0]


def test_a_priority_is_a_name_or_a_number() -> None:
    assert read("publish", topic="t", value=b"", priority="high")[0]["priority"] == "high"
    assert read("publish", topic="t", value=b"", priority="1")[0]["priority"] == 1
    with pytest.raises(InvalidRequest, match="critical, high, normal, low or background"):
        read("publish", topic="t", value=b"", priority="7")


def test_an_offset_to_start_at_is_told_from_a_time() -> None:
    join: dict[str, Any] = {"group": "g", "client_id": "c", "topics": ["t"]}
    assert read("join_group", **join, start_offset=5)[0]["start"] == 5
    assert read("join_group", **join, start="5")[0]["start"] == "5"


def test_maps_within_maps_and_pairs_arrive() -> None:
    said, path = read("commit", group="g", member_id="m", offsets={"t": pb.Int64Map(entries={"0": 5})})
    assert (said["offsets"], path) == ({"t": {"0": 5}}, {"group": "g"})
    said, _ = read("cancel_many_delayed", topic="t", ids=[{"partition": 1, "offset": 2}])
    assert said["ids"] == [(1, 2)]


def test_a_filter_is_a_message_wherever_it_stands() -> None:
    wanted = {"reason": "nacked", "offsets": {"0": {"entries": [1, 2]}}}
    said, _ = read("list_dead_letters", topic="t", filter=wanted)
    assert msgspec.json.decode(said["filter"]) == {"reason": "nacked", "offsets": {"0": [1, 2]}}
    said, _ = read("start_redrive", topic="t", filter=wanted)
    assert said["filter"].offsets == {"0": [1, 2]}


def test_an_empty_ttl_is_none() -> None:
    assert read("change_topic", topic="t", message_ttl="")[0] == {"message_ttl": None}
    assert read("change_topic", topic="t")[0] == {}


def test_a_poll_gives_what_clients_take_unless_it_says_otherwise() -> None:
    said, _ = read("poll", group="g", member_id="m", max_messages=10_000)
    assert (said["max_bytes"], said["max_messages"]) == (limits.GRPC_READ_BYTES, limits.GRPC_READ_MESSAGES)
    said, _ = read("poll", group="g", member_id="m", max_messages=10_000, max_bytes=7)
    assert (said["max_bytes"], said["max_messages"]) == (7, 10_000)
    assert read("read_partition", topic="t", partition=0)[0]["max_bytes"] == limits.GRPC_READ_BYTES
    with pytest.raises(InvalidRequest, match="max_messages"):
        read("poll", group="g", member_id="m", max_messages=10_001)


@pytest.mark.parametrize("size", [0, limits.GRPC_READ_BYTES // limits.GRPC_READ_MESSAGES])
def test_the_largest_reply_to_a_poll_that_does_not_say_is_one_that_clients_take(size: int) -> None:
    name, long = "t" * limits.MAX_DLQ_NAME, 2**62
    time = "2026-01-31T12:00:00.000Z"
    message = shapes.PolledMessage(
        offset=long, partition=limits.MAX_PARTITIONS_PER_TOPIC, timestamp=time, priority="background",
        message_id=message_id(name, limits.MAX_PARTITIONS_PER_TOPIC, long), topic=name, key=None, headers=[],
        value="x" * size, delivery_count=limits.MAX_RETRIES, receipt_handle="h" * limits.MAX_HANDLE_CHARS,
        event_time=time, deliver_at=time,
    )  # fmt: skip
    reply = shapes.Polled(
        group_id="g", state=GroupState.STABLE, rebalance_required=False, member_id="m" * 64, generation=long, poll=long,
        assigned_partitions=[name] * 1000, revoke=[], messages=[message] * limits.GRPC_READ_MESSAGES,
    )  # fmt: skip
    assert write_reply(reply).ByteSize() < 4 * limits.MIB


def test_a_group_begins_at_one_place() -> None:
    join: dict[str, Any] = {"group": "g", "client_id": "c", "topics": ["t"]}
    with pytest.raises(InvalidRequest, match="start_offset stands for start"):
        read("join_group", **join, start="latest", start_offset=5)


@pytest.mark.parametrize(
    ("operation", "fields", "words"),
    [
        ("create_topic", {}, "name is missing"),
        ("describe_topic", {}, "topic is missing"),
        ("get_delayed", {"topic": "t", "offset": 1}, "partition is missing"),
        ("poll", {"group": "g", "member_id": "m", "timeout": "soon"}, "write a number and a unit"),
        ("ack", {"receipt_handles": ["x" * 1000]}, r"receipt_handles\[0\] has more than 348 letters"),
    ],
)
def test_what_does_not_fit_is_refused_as_over_http(operation: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read(operation, **fields)


def test_of_many_fields_that_nobody_knows_the_first_ten_numbers_are_named_once_each() -> None:
    numbers = [*range(100, 120)] * 2
    fields = b"".join([bytes([number << 3 & 0x7F | 0x80, number >> 4, 1]) for number in numbers])
    with pytest.raises(InvalidRequest) as refused:
        read_request(BY_NAME["publish"], pb.PublishRequest.FromString(fields))
    assert f"({', '.join(map(str, range(100, 110)))}, ...)" in str(refused.value)


def test_fields_nobody_knows_are_refused_also_inside() -> None:
    newer = pb.PublishRequest.FromString(b"\xfa\x3e\x01x")  # field 1007
    with pytest.raises(InvalidRequest, match="does not know \\(1007\\)"):
        read_request(BY_NAME["publish"], newer)
    batch = pb.PublishBatchRequest(topic="t", messages=[pb.Message.FromString(b"\xfa\x3e\x01x")])
    request: Any = read_request(BY_NAME["publish_batch"], batch)[0]
    with pytest.raises(InvalidRequest, match="Message has fields"):
        list(request.messages)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_field_of_every_request_is_read(operation: Operation) -> None:
    message = filled(request_name(operation.name))
    if operation.name == "join_group":
        message.ClearField("start_offset")  # stands for start
    fields = set(read_message(message))
    assert fields >= set(operation.path_fields)
    assert fields - set(operation.path_fields) | {"encoding"} == set(operation.request.__struct_fields__) | {"encoding"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_field_of_every_reply_is_written(operation: Operation) -> None:
    reply = msgspec.convert(sample(inspect.type_info(operation.reply)), operation.reply)
    written = write_reply(reply)
    said = {field.name for field, _ in written.ListFields()}
    assert said | {"encoding"} == set(operation.reply.__struct_fields__) | {"encoding"}


def sample(info: Any, depth: int = 0) -> Any:
    """Plain values for a shape, nothing of it left out."""
    match info:
        case inspect.StructType():
            names = [field for field in info.fields if depth < 3 or field.required]
            return {field.name: sample(field.type, depth + 1) for field in names if field.name != "encoding"}
        case inspect.Metadata():
            return sample(info.type, depth)
        case inspect.UnionType():
            return sample(next(each for each in info.types if not isinstance(each, inspect.NoneType)), depth)
        case inspect.DictType():
            return {sample(info.key_type, depth): sample(info.value_type, depth)}
        case inspect.ListType():
            return [sample(info.item_type, depth)] * (info.min_length or 1)
        case inspect.TupleType():
            return [sample(each, depth) for each in info.item_types]
        case inspect.LiteralType():
            return info.values[0]
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
    return "1"


def filled(name: str, depth: int = 0) -> Any:
    """A message with every field set."""
    message = getattr(pb, name)()
    samples: dict[str, Any] = {"string": "1", "bytes": b"1", "bool": True, "double": 1.0, "int32": 1, "int64": 1}
    for field in SCHEMA.messages[name].fields:
        if field.kind == "google.protobuf.Struct":
            getattr(message, field.name).update({"a": 1})
            continue
        if field.kind not in samples and depth > 2:
            continue
        value = samples[field.kind] if field.kind in samples else filled(field.kind, depth + 1)
        if field.label is Label.MANY:
            getattr(message, field.name).extend([value])
        elif field.label is Label.MAP and field.kind in samples:
            getattr(message, field.name)["1"] = value
        elif field.label is Label.MAP:
            getattr(message, field.name)["1"].CopyFrom(value)
        elif field.kind in samples:
            setattr(message, field.name, value)
        else:
            getattr(message, field.name).CopyFrom(value)
    return message


def test_what_is_null_or_left_out_is_not_there() -> None:
    written = write_reply(shapes.Settled(acknowledged=True))
    assert [field.name for field, _ in written.ListFields()] == ["acknowledged"]
    lag = shapes.PartitionLag(committed=1, end=2, lag=3, lag_seconds=0.5, delayed=0, in_flight=0)
    lags = write_reply(shapes.GroupLag(group_id="g", total_lag=3, topics={"t": {"0": lag}}))
    assert lags.topics["t"].entries["0"].lag == 3
    free = write_reply(shapes.Metadata(cluster_id="c", node_id="n", topics=[], producer={"a": 1}, consumer={"b": "x"}))
    assert (free.producer["a"], free.consumer["b"]) == (1, "x")
    assert write_reply(shapes.DelaysCancelled(cancelled=1, failed=[[3, 4]])).failed[0].offset == 4
