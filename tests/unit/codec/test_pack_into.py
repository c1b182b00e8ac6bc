"""A message packed into a buffer is what `encode` makes of the same record; and the values of a block, without more."""

from types import ModuleType
from typing import Any

import pytest

from goqueue.codec.layout import REASONS, Problem, Refusal
from goqueue.model.errors import InvalidRecord
from goqueue.model.limits import MAX_RECORD_BYTES
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES, boundaries, refusal

INT64 = 2**63
MESSAGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "value": {"value": b"value"},
    "empty": {"value": b"", "key": b""},
    "tombstone": {"key": b"k"},
    "priority": {"value": b"v", "priority": 4},
    "headers": {"value": b"v", "headers": (("a", b"1"), ("a", b""), ("", b"\x00\xff"), ("ä", b"x"))},
    "raw header name": {"headers": [("\udcff", b"")]},
    "times": {"value": b"v", "deliver_at": -5, "expires_at": INT64 - 1, "event_time": -INT64},
    "one time": {"value": b"v", "event_time": 7},
    "everything": {
        "value": b"v" * 300,
        "key": b"k" * 0xFFFF,
        "priority": 0,
        "headers": [("h", bytes(1000))],
        "deliver_at": 1,
        "expires_at": 2,
        "event_time": 3,
    },
    "in a transaction": {"value": b"v", "transaction": 17},
    "everything, in a transaction": {
        "value": b"v",
        "headers": (("a", b"b"),),
        "deliver_at": 1,
        "expires_at": 2,
        "event_time": 3,
        "transaction": INT64 - 1,
    },
}
REFUSED: dict[str, tuple[dict[str, Any], Refusal]] = {
    "priority below 0": ({"priority": -1}, Refusal.PRIORITY),
    "priority above 4": ({"priority": 5}, Refusal.PRIORITY),
    "key": ({"key": bytes(0x10000)}, Refusal.KEY),
    "header name": ({"headers": (("\ud800", b""),)}, Refusal.HEADER_NAME),
    "headers one byte over": ({"headers": (("", bytes(0xFFFF - 5)),)}, Refusal.HEADERS),
    "many headers": ({"headers": (("", b""),) * 0x10000}, Refusal.HEADERS),
    "deliver_at": ({"deliver_at": INT64}, Refusal.NUMBER),
    "expires_at": ({"expires_at": -INT64 - 1}, Refusal.NUMBER),
    "event_time": ({"event_time": INT64}, Refusal.NUMBER),
    "transaction": ({"transaction": INT64}, Refusal.NUMBER),
    "record": ({"value": bytes(MAX_RECORD_BYTES)}, Refusal.RECORD),
}


def pack(
    codec: ModuleType, buffer: bytearray | memoryview, position: int, message: dict[str, Any], numbered: bool
) -> int:
    rest = {name: found for name, found in message.items() if name not in ("value", "key", "priority")}
    end: int = codec.pack_into(
        buffer,
        position,
        message.get("value"),
        message.get("key"),
        message.get("priority", 2),
        numbered=numbered,
        **rest,
    )
    return end


def as_record(message: dict[str, Any], numbered: bool) -> Record:
    numbers = {name: message.get(name) for name in ("deliver_at", "expires_at", "event_time", "transaction")}
    extension = Extension(**numbers, producer=Producer(0, 0, 0) if numbered else None)
    return Record(
        key=message.get("key"),
        value=message.get("value"),
        priority=message.get("priority", 2),
        headers=tuple(message.get("headers", ())),
        extension=extension,
    )


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_packed_as_its_record_is_encoded(codec: ModuleType, name: str, numbered: bool) -> None:
    message = MESSAGES[name]
    encoded = bytes(codec.encode([as_record(message, numbered)]))
    for kind in (bytearray, lambda given: memoryview(bytearray(given))):
        buffer = kind(b"\xaa" * (len(encoded) + 20))
        assert pack(codec, buffer, 7, message, numbered) == 7 + len(encoded)
        assert bytes(buffer) == b"\xaa" * 7 + encoded + b"\xaa" * 13


def test_messages_packed_one_behind_the_other_are_a_block(codec: ModuleType) -> None:
    buffer, end = bytearray(100_000), 0
    for message in MESSAGES.values():
        end = pack(codec, buffer, end, message, True)
    assert buffer[:end] == codec.encode([as_record(message, True) for message in MESSAGES.values()])
    assert codec.values(memoryview(buffer)[:end]) == [message.get("value") for message in MESSAGES.values()]


@pytest.mark.parametrize("name", MESSAGES)
def test_what_does_not_fit_gives_what_it_needs_and_changes_no_byte(codec: ModuleType, name: str) -> None:
    size = len(codec.encode([as_record(MESSAGES[name], True)]))
    buffer = bytearray(b"\xaa" * size)
    for position in (1, size // 2, size, size + 1, size + 1000, 2**62, -1, -size):
        assert pack(codec, buffer, position, MESSAGES[name], True) == -size
        assert buffer == b"\xaa" * size
    assert pack(codec, bytearray(), 0, MESSAGES[name], True) == -size
    assert pack(codec, buffer, 0, MESSAGES[name], True) == size


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_out_of_bounds_is_refused_and_changes_no_byte(codec: ModuleType, name: str) -> None:
    message, reason = REFUSED[name]
    buffer = bytearray(b"\xaa" * 200)
    for position, told in ((3, 3), (0, 0), (-5, 0)):
        with pytest.raises(InvalidRecord) as caught:
            pack(codec, buffer, position, message, True)
        assert refusal(caught.value) == (reason, 0, told)
    assert buffer == b"\xaa" * 200


def test_a_message_of_the_largest_size_is_packed(codec: ModuleType) -> None:
    least = -codec.pack_into(bytearray(), 0, b"", None, 2)
    value = bytes(MAX_RECORD_BYTES - least)
    buffer = bytearray(MAX_RECORD_BYTES)
    assert codec.pack_into(buffer, 0, value, None, 2) == MAX_RECORD_BYTES
    with pytest.raises(InvalidRecord):
        codec.pack_into(buffer, 0, value + b"1", None, 2)


def test_a_buffer_that_cannot_be_written_is_refused(codec: ModuleType) -> None:
    with pytest.raises((TypeError, BufferError)):
        codec.pack_into(bytes(1000), 0, b"", None, 2)


# --- values


def test_the_values_of_a_block_are_those_of_its_records(codec: ModuleType) -> None:
    block = codec.encode(SAMPLES)
    expected = [record.value for record in SAMPLES]
    for kind in (bytes, bytearray, memoryview):
        assert codec.values(kind(block)) == expected
    assert codec.values(b"") == []
    assert all(value is None or type(value) is bytes for value in codec.values(block))


def test_values_of_a_damaged_block_are_refused_where_the_damage_is(codec: ModuleType) -> None:
    starts = boundaries(codec)
    block = bytearray(codec.encode(SAMPLES))
    block[starts[3] + 10] ^= 1
    with pytest.raises(InvalidRecord) as caught:
        codec.values(block)
    assert refusal(caught.value) == (REASONS[Problem.CHECKSUM], 3, starts[3])
    with pytest.raises(InvalidRecord) as caught:
        codec.values(codec.encode(SAMPLES)[: starts[2] + 5])
    assert refusal(caught.value) == (REASONS[Problem.INCOMPLETE], 2, starts[2])
