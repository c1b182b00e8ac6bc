"""Messages from words, lines and JSON lines."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from goqueue.cli.remote.outgoing import Outgoing, from_contents, from_json_lines, from_lines
from goqueue.model.errors import InvalidRequest


def read_json(*messages: dict[str, Any], **same: Any) -> list[Outgoing]:
    lines = b"\n".join(msgspec.json.encode(message) for message in messages)
    source = io.BufferedReader(io.BytesIO(lines))
    return [one for batch in from_json_lines(source, same) for one in batch.messages]


def test_lines_share_what_all_have_in_common() -> None:
    source = io.BufferedReader(io.BytesIO(b"a\nb"))
    batches = list(from_lines(source, {"key": b"k"}, separator=None))
    found = [one for batch in batches for one in batch.messages]
    assert found == [Outgoing(value, {"key": b"k"}) for value in (b"a", b"b")]


def test_bytes_of_values_are_counted() -> None:
    assert from_contents([b"a\xff", None], {}) == ([Outgoing(b"a\xff", {}), Outgoing(None, {})], 2)


def test_a_json_line_counts_before_the_options() -> None:
    (one,) = read_json({"value": "v", "key": "own", "delay": "5s"}, key=b"all", deliver_at=7, priority="low")
    assert one == Outgoing(b"v", {"key": b"own", "delay": 5.0, "priority": "low"})
    (other,) = read_json({"value": "w", "deliverAt": "1970-01-01T00:00:01Z", "ttl": 2, "event_time": 9}, delay=1.0)
    assert other == Outgoing(b"w", {"deliver_at": 1000, "ttl": 2.0, "event_time": 9})


def test_a_line_without_a_value_is_a_tombstone_if_it_says_so() -> None:
    wanted = Outgoing(None, {"key": b"alice"})
    assert read_json({"key": "alice", "tombstone": True}) == [wanted]
    assert read_json({"key": "alice", "value": None, "tombstone": True}) == [wanted]
    assert read_json({"value": "", "tombstone": False}, key=b"alice") == [Outgoing(b"", {"key": b"alice"})]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({}, "value is missing; .* tombstone is true"),
        ({"key": "alice"}, "value is missing; .* tombstone is true"),
        ({"key": "alice", "value": None}, "value is missing; .* tombstone is true"),
        ({"key": "alice", "value": None, "tombstone": False}, "value is missing; .* tombstone is true"),
        ({"key": "alice", "value": "plum", "tombstone": True}, "a tombstone has no value; leave out one of the two"),
        ({"key": "alice", "value": "", "tombstone": True}, "a tombstone has no value; leave out one of the two"),
    ],
)
def test_a_line_whose_value_and_tombstone_contradict_is_refused(line: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"line 2 is no message \({why}\)"):
        read_json({"value": "v"}, line)


def test_base64_is_decoded_in_all_parts() -> None:
    (one,) = read_json({"value": "/w==", "key": "aw==", "headers": {"a": "Yg=="}, "encoding": "base64"})
    assert one == Outgoing(b"\xff", {"key": b"k", "headers": [("a", b"b")]})


def test_a_lane_that_a_line_names_counts_before_the_options() -> None:
    (one,) = read_json({"value": "v", "priority": "normal"}, priority="high")
    assert one.options == {"priority": "normal"}
    assert read_json({"value": "v"}, priority="high")[0].options == {"priority": "high"}


@pytest.mark.parametrize(
    ("text", "read", "why"),
    [
        (b"a=1\nb=2\nc\nd=4\n", partial(from_lines, same={}, separator=b"="), "line 3 has no '=' between"),
        (b'{"value": "1"}\n{"value": "2"}\n{\n', partial(from_json_lines, same={}), r"line 3 is no message \("),
    ],
)
def test_what_stands_before_a_bad_line_is_handed_on(text: bytes, read: Callable[..., Any], why: str) -> None:
    batches = read(io.BufferedReader(io.BytesIO(text)))
    assert [message.value for message in next(batches).messages] == [b"1", b"2"]
    with pytest.raises(InvalidRequest, match=why):
        next(batches)
