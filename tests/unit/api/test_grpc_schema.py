"""What the gRPC door offers: derived from the table, written down in `proto/`, and never renumbered."""

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from goqueue.api.grpc.__main__ import description
from goqueue.api.grpc.generate import compile_proto, proto_text
from goqueue.api.grpc.proto import FILE, NUMBERS, Numbers, list_numbers, read_numbers, write
from goqueue.api.grpc.schema import Field, Label, Message, Schema
from goqueue.api.grpc.streams import SCHEMA
from goqueue.api.grpc.translating import pb

PROTO = Path(__file__).parents[3] / "proto"
COMMITTED = (PROTO / FILE).read_text(encoding="utf-8")
ADVICE = "run python -m goqueue.api.grpc.generate"


def kinds(message: str) -> dict[str, str]:
    return {field.name: f"{field.label.value} {field.kind}".strip() for field in SCHEMA.messages[message].fields}


def test_the_committed_file_is_up_to_date() -> None:
    assert proto_text(PROTO / FILE) == COMMITTED, ADVICE


def test_the_committed_code_is_that_of_the_file(tmp_path: Path) -> None:
    compile_proto(PROTO, tmp_path / "set", "--descriptor_set_out")
    (made,) = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    committed = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for message in made.message_type:
        forget_json_names(message)
    assert made == committed, ADVICE


def forget_json_names(message: DescriptorProto) -> None:
    """Only one of the two says them."""
    for field in message.field:
        field.ClearField("json_name")
    for inner in message.nested_type:
        forget_json_names(inner)


def test_no_number_and_no_type_of_a_field_ever_changed() -> None:
    listed = (PROTO / NUMBERS).read_text(encoding="utf-8").splitlines()
    numbers = read_numbers(COMMITTED)
    now = set(list_numbers(SCHEMA, numbers))
    for line in listed:
        message, number = re.fullmatch(r"(\w+)\.\w+ = (\d+): .*", line).group(1, 2)  # type: ignore[union-attr]
        assert line in now or int(number) in numbers[message].gone, line
    assert now <= set(listed), ADVICE


def test_fields_keep_their_numbers_and_those_that_go_leave_theirs_unused() -> None:
    def text(before: str, *names: str) -> str:
        message = Message("Thing", tuple(Field(name, "string") for name in names))
        return write(Schema({"Thing": message}, ()), read_numbers(before))

    first = text("", "a", "b", "c")
    second = text(first, "c", "new", "a")
    assert read_numbers(second)["Thing"] == Numbers({"c": 3, "new": 4, "a": 1}, frozenset({2}))
    third = text(text(second, "c"), "c", "d")
    assert read_numbers(third)["Thing"] == Numbers({"c": 3, "d": 5}, frozenset({1, 2, 4}))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Message", {"value": "optional bytes", "key": "optional bytes", "headers": "repeated Header"}),
        ("ReadMessage", {"value": "optional bytes", "offset": "int64", "deliver_at": "optional string"}),
        ("DelayedMessage", {"key": "optional string"}),
        ("PollRequest", {"group": "optional string", "timeout": "optional string", "max_messages": "optional int32"}),
        ("JoinGroupRequest", {"start": "optional string", "start_offset": "optional int64"}),
        ("CommitRequest", {"offsets": "map Int64Map"}),
        ("LetterFilter", {"offsets": "map Int64List", "header": "map string"}),
        ("ListDeadLettersRequest", {"filter": "LetterFilter"}),
        ("CancelManyDelayedRequest", {"ids": "repeated PartitionOffset"}),
        ("CreateTopicRequest", {"lane_weights": "repeated int32", "backoff": "BackoffFields"}),
        ("MetadataReply", {"producer": "google.protobuf.Struct"}),
        ("Settled", {"results": "repeated Settled", "acknowledged": "optional bool"}),
    ],
)
def test_shapes_become_messages_by_the_rules(message: str, expected: dict[str, str]) -> None:
    found = kinds(message)
    assert {name: found[name] for name in expected} == expected


def test_messages_that_carry_bytes_have_no_encoding() -> None:
    carriers = [message for message in SCHEMA.messages.values() if message.has_content]
    assert {message.name for message in carriers} >= {"Message", "PublishRequest", "ReadMessage", "PolledMessage"}
    for message in carriers:
        assert "encoding" not in kinds(message.name)


def test_every_single_value_of_a_request_may_be_left_out() -> None:
    requests = [message for name, message in SCHEMA.messages.items() if name.endswith("Request")]
    scalars = ("bool", "bytes", "double", "int32", "int64", "string")
    for message in requests:
        bare = [field.name for field in message.fields if field.label is Label.ONE and field.kind in scalars]
        assert not bare, f"{message.name}: {bare}"


def test_a_field_of_a_shape_is_called_the_same_here() -> None:
    for message in SCHEMA.messages.values():
        fields: Any = set(message.shape.__struct_fields__) if message.shape is not None else set()
        assert fields - set(kinds(message.name)) <= {"encoding"}, message.name


def test_who_has_only_the_package_can_print_the_file() -> None:
    assert description() == COMMITTED
