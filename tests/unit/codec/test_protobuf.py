"""Plain messages of protobuf become records; whatever is not plain is left to others."""

from array import array
from types import ModuleType
from typing import Any

import pytest

from goqueue.api.grpc.translating import pb
from goqueue.codec import reference
from goqueue.codec.layout import SortedBlock
from goqueue.codec.partitioning import partition_of
from goqueue.model.record import Extension, Producer, Record

FIELDS = {"messages": 2, "value": 1, "key": 2, "partition": 3}


SETTINGS: dict[str, Any] = {
    "partition_count": 4,
    "given": None,
    "keyless": lambda: 3,
    "max_bytes": 1000,
    "numbered": False,
}


def blocks(codec: ModuleType, frame: Any, **changed: Any) -> list[SortedBlock] | None:
    settings = SETTINGS | {"count": len(frame.messages)} | changed
    found: list[SortedBlock] | None = codec.from_protobuf(frame.SerializeToString(), **FIELDS, **settings)
    return found


def frame_of(*messages: Any, **fields: Any) -> Any:
    return pb.PublishFrame(topic="orders", messages=messages, **fields)


def contents(block: SortedBlock) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in reference.decode(block.block)]


PLAIN = pb.Message(key=b"k", value=b"v")


def test_the_numbers_of_the_fields_are_those_of_the_schema() -> None:
    assert pb.PublishFrame.DESCRIPTOR.fields_by_name["messages"].number == FIELDS["messages"]
    for name in ("value", "key", "partition"):
        assert pb.Message.DESCRIPTOR.fields_by_name[name].number == FIELDS[name]


def test_messages_are_the_records_that_encode_makes(codec: ModuleType) -> None:
    made = blocks(codec, frame_of(PLAIN, pb.Message(value=b"no key"), pb.Message(key=b"", value=b"empty key")), given=1)
    records = [Record(key=b"k", value=b"v"), Record(value=b"no key"), Record(key=b"", value=b"empty key")]
    assert made == [SortedBlock(1, array("H", [0, 1, 2]), reference.encode(records))]


def test_messages_with_a_producer_have_room_for_its_fields(codec: ModuleType) -> None:
    made = blocks(codec, frame_of(PLAIN), given=1, numbered=True)
    assert made is not None
    record = Record(key=b"k", value=b"v", extension=Extension(producer=Producer(0, 0, 0)))
    assert made[0].block == reference.encode([record])


def test_a_partition_that_is_named_comes_before_the_one_given_and_that_before_the_key(codec: ModuleType) -> None:
    named = pb.Message(key=b"k", value=b"0", partition=0)
    made = blocks(codec, frame_of(named, PLAIN), given=2)
    assert made is not None
    assert [(block.partition, contents(block)) for block in made] == [(0, [(b"k", b"0")]), (2, [(b"k", b"v")])]
    made = blocks(codec, frame_of(PLAIN))
    assert made is not None
    assert made[0].partition == partition_of(b"k", 4)


def test_messages_keep_their_order_in_each_partition(codec: ModuleType) -> None:
    messages = [pb.Message(key=b"%d" % (number % 7), value=b"%d" % number) for number in range(100)]
    made = blocks(codec, frame_of(*messages))
    assert made is not None
    assert sorted(ordinal for block in made for ordinal in block.ordinals) == [*range(100)]
    for block in made:
        assert [*block.ordinals] == sorted(block.ordinals)
        assert contents(block) == [(messages[at].key, messages[at].value) for at in block.ordinals]
        assert {partition_of(messages[at].key, 4) for at in block.ordinals} == {block.partition}


def test_messages_without_a_key_go_together_and_the_turn_is_asked_for_once(codec: ModuleType) -> None:
    turns = iter((2,))
    frame = frame_of(pb.Message(value=b"a"), pb.Message(value=b"b"))
    made = blocks(codec, frame, keyless=lambda: next(turns))
    assert made is not None
    assert [(block.partition, [*block.ordinals]) for block in made] == [(2, [0, 1])]
    assert blocks(codec, frame_of(PLAIN), keyless=lambda: next(turns)) is not None, "nobody asks without need"


def test_the_last_of_a_field_counts_as_protobuf_says(codec: ModuleType) -> None:
    body = b"\x12\x08\x0a\x01x\x0a\x03new"
    assert [message.value for message in pb.PublishFrame.FromString(body).messages] == [b"new"]
    made = codec.from_protobuf(body, **FIELDS, **SETTINGS | {"count": 1})
    assert made is not None
    assert contents(made[0]) == [(None, b"new")]


@pytest.mark.parametrize(
    "message",
    [
        pb.Message(key=b"k"),
        pb.Message(key=b"k", value=b""),
        pb.Message(value=b"v", priority="high"),
        pb.Message(value=b"v", headers=[pb.Header(name="a", value=b"b")]),
        pb.Message(value=b"v", delay="1s"),
        pb.Message(value=b"v", partition=4),
        pb.Message(value=b"v", partition=-1),
        pb.Message(key=b"k" * 500, value=b"v" * 501),
    ],
)
def test_what_is_not_plain_is_left_to_others(codec: ModuleType, message: Any) -> None:
    assert blocks(codec, frame_of(PLAIN, message, PLAIN)) is None


def test_fields_that_nobody_knows_are_left_to_others(codec: ModuleType) -> None:
    message = pb.Message.FromString(PLAIN.SerializeToString() + b"\xf8\x07\x01")
    assert blocks(codec, frame_of(message)) is None


def test_with_a_producer_a_message_that_names_no_partition_is_left_to_others(codec: ModuleType) -> None:
    assert blocks(codec, frame_of(PLAIN), numbered=True) is None


def test_with_a_producer_messages_for_two_partitions_are_left_to_others(codec: ModuleType) -> None:
    first, second = pb.Message(value=b"a", partition=0), pb.Message(value=b"b", partition=1)
    assert blocks(codec, frame_of(first, second), numbered=True) is None
    assert blocks(codec, frame_of(PLAIN, second), numbered=True, given=0) is None
    assert blocks(codec, frame_of(PLAIN, second), numbered=True, given=1) is not None


def test_nobody_is_asked_for_a_turn_when_others_have_to_ask_again(codec: ModuleType) -> None:
    def fail() -> int:
        raise AssertionError("it was asked")

    frame = frame_of(pb.Message(value=b"no key"), pb.Message(value=b"v", priority="high"))
    assert blocks(codec, frame, keyless=fail) is None


@pytest.mark.parametrize("turn", [-1, 4])
def test_a_turn_that_is_no_partition_is_an_error(codec: ModuleType, turn: int) -> None:
    with pytest.raises(ValueError, match="that is not there"):
        blocks(codec, frame_of(pb.Message(value=b"no key")), keyless=lambda: turn)


@pytest.mark.parametrize(
    "changed",
    [{"given": -1}, {"given": 4}, {"count": 0}, {"count": 2}, {"count": 70_000}, {"count": -1}, {"partition_count": 0},
     {"max_bytes": 65_536}],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_the_frame_or_a_record_is_left_to_others(codec: ModuleType, changed: dict[str, int]) -> None:
    assert blocks(codec, frame_of(PLAIN), **changed) is None


def test_bytes_that_are_cut_short_are_left_to_others(codec: ModuleType) -> None:
    whole = frame_of(PLAIN, pb.Message(key=b"other", value=b"w", partition=1)).SerializeToString()
    assert codec.from_protobuf(whole, **FIELDS, **SETTINGS | {"count": 2}) is not None
    for end in range(len(whole)):
        assert codec.from_protobuf(whole[:end], **FIELDS, **SETTINGS | {"count": 2}) is None, end
