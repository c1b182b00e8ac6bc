"""How many values a request has, from its bytes: as many as whoever reads it would make, and never counted for long."""

import json
from array import array
from types import ModuleType

import pytest

from goqueue.api.grpc.translating import pb
from goqueue.codec.counting import FIELD_NUMBERS, MAX_DEPTH, NOT_NESTED, PACKED

MOST = 1_000_000

TEXTS = [
    "", " \n", "1", '"a"', "[]", "{}", "[1]", '{"a":1}', '{"a":"b","c":[1,2,{"d":null}]}', '[[],[[]],{},"x"]',
    '["a,b[c{d"]', '["a\\"b,c"]', '["a\\\\","b"]', '["a\\\\\\",b"]', '["\\\\\\\\",1]', '["", "", ""]',
    '{"a,b":1,"c\\"":2}',
    '["\u00e9\U0001f600,",2]',
]  # fmt: skip


def values(found: object) -> int:
    """Of something that was read: itself and all that is in it."""
    inside = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return 1 + sum(values(each) for each in inside)


@pytest.mark.parametrize("text", TEXTS)
def test_values_of_json_are_counted_and_what_texts_say_is_not(codec: ModuleType, text: str) -> None:
    # What is empty counts for one value more: nothing is ever counted for less than it is.
    found = codec.count_json(text.encode(), MOST)
    least = values(json.loads(text)) if text.strip() else 0
    assert least <= found <= 2 * least
    assert codec.count_json(bytearray(text.encode()), MOST) == found


def test_a_message_of_json_counts_for_its_values(codec: ModuleType) -> None:
    assert codec.count_json(b'{"value": "x", "headers": {"a": "b", "c": "d"}}', MOST) == 1 + 1 + 1 + 2


@pytest.mark.parametrize("text", ['"', '["a', '["a\\', '["a\\"', "[,,,", "}}}{{", '\\"', "\x00"])
def test_what_is_no_json_is_counted_as_far_as_it_makes_sense(codec: ModuleType, text: str) -> None:
    assert 0 <= codec.count_json(text.encode(), MOST) <= len(text) + 1


def test_nobody_counts_further_than_is_allowed(codec: ModuleType) -> None:
    assert codec.count_json(b"[" * 10_000, 10) == 11
    assert codec.count_json(b"[1,2,3]", 4) == codec.count_json(b"[1,2,3]", 10)
    assert codec.count_protobuf(b"\x12\x00" * 10_000, 10, one_kind()) == 11


def one_kind(**nested: int) -> "array[int]":
    table = array("h", [NOT_NESTED]) * FIELD_NUMBERS
    for name, within in nested.items():
        table[int(name[1:])] = within
    return table


def test_fields_of_protobuf_are_counted_in_messages_within_messages(codec: ModuleType) -> None:
    request = pb.PublishBatchRequest(topic="orders", acks="all")
    request.messages.add(value=b"x" * 300, key=b"k", partition=3)
    request.messages.add(value=b"y").headers.add(name="a", value=b"b")
    batch, message = one_kind(_2=1), one_kind(_5=2)
    nested = batch + message + one_kind()
    assert codec.count_protobuf(request.SerializeToString(), MOST, nested) == 2 + (1 + 3) + (1 + 1 + 1 + 2)
    assert codec.count_protobuf(request.SerializeToString(), 6, nested) == 7


def test_numbers_that_are_packed_are_counted_for_a_byte_each(codec: ModuleType) -> None:
    request = pb.CreateTopicRequest(lane_weights=[1, 2, 3, 4, 5])
    number = pb.CreateTopicRequest.DESCRIPTOR.fields_by_name["lane_weights"].number
    assert codec.count_protobuf(request.SerializeToString(), MOST, one_kind(**{f"_{number}": PACKED})) == 1 + 5


def test_groups_hide_nothing(codec: ModuleType) -> None:
    group = b"\x0b" + b"\x12\x00" * 50 + b"\x0c"
    assert codec.count_protobuf(group + b"\x12\x00" * 50, MOST, one_kind()) == 102


def test_messages_within_messages_are_not_followed_for_ever(codec: ModuleType) -> None:
    body = b""
    for _ in range(60):
        body = b"\x12" + bytes([len(body)]) + body
    assert codec.count_protobuf(body, MOST, one_kind(_2=0)) == MAX_DEPTH + 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x12",
        b"\x12\x05ab",
        b"\x12\xff\xff\xff\xff\x7f",
        b"\xff" * 20,
        b"\x17",
        b"\x09abc",
        b"\x0dab",
        b"\x10\x80",
    ],
)
def test_what_is_no_protobuf_is_counted_as_far_as_it_makes_sense(codec: ModuleType, body: bytes) -> None:
    assert 0 <= codec.count_protobuf(body, MOST, one_kind(_2=0)) <= 1
