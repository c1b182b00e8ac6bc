"""Preface, welcome, frame headers, and the parser that takes bytes in any pieces."""

import pytest

from goqueue.model import limits
from goqueue.model.errors import ProtocolError, TooLarge
from goqueue.wire import frames
from goqueue.wire.frames import FrameParser, Preface, Welcome


def frame(correlation: int, payload: bytes, *, operation: int = 2, status: int = frames.OK) -> bytes:
    return frames.pack_header(operation, status, correlation, len(payload)) + payload


def feed(parser: FrameParser, data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Give it bytes as a socket would: as many as there is room for. Payloads are copied before they go."""
    found = []
    rest = memoryview(data)
    while rest:
        room = parser.room()
        count = min(len(room), len(rest))
        assert count, "a parser that has no room would never get on"
        room[:count] = rest[:count]
        rest = rest[count:]
        found += [(each.operation, each.status, each.correlation, bytes(each.payload)) for each in parser.wrote(count)]
    return found


# ---------------------------------------------------------------- preface and welcome


def test_the_preface_has_these_bytes() -> None:
    assert frames.pack_preface() == b"GQWP\x01\x01\x00\x00"
    assert frames.unpack_preface(b"GQWP\x01\x03\x00\x00") == Preface(1, 3)


def test_the_welcome_has_these_bytes() -> None:
    welcome = Welcome(1, 0x0200_1000, 0x0400_0000)
    assert frames.pack_welcome(welcome) == b"GQWP\x01\x00\x00\x00\x02\x00\x10\x00\x04\x00\x00\x00"
    assert frames.unpack_welcome(frames.pack_welcome(welcome)) == welcome


@pytest.mark.parametrize(
    ("preface", "version"), [(Preface(1, 1), 1), (Preface(1, 9), 1), (Preface(2, 9), 0), (Preface(255, 255), 0)]
)
def test_a_version_both_speak_is_chosen_or_none(preface: Preface, version: int) -> None:
    assert frames.choose_version(preface) == version


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GQWP\x01\x01\x00",
        b"GQWP\x01\x01\x00\x00\x00",
        b"GET / HT",
        b"GQWP\x00\x01\x00\x00",
        b"GQWP\x02\x01\x00\x00",
        b"GQWP\x01\x01\x00\x01",
    ],
)
def test_what_is_no_preface_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.unpack_preface(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GQWP",
        b"HTTP/1.1 400 Bad",
        b"GQWP\x01\x01\x00\x00\x02\x00\x10\x00\x04\x00\x00\x00",
        b"GQWP\x01\x00\x00\x01\x02\x00\x10\x00\x04\x00\x00\x00",
    ],
)
def test_what_is_no_welcome_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.unpack_welcome(data)


# ---------------------------------------------------------------- headers


def test_a_header_has_these_bytes() -> None:
    header = frames.pack_header(0x0102, frames.ERROR, 0x0A0B_0C0D, 5)
    assert header == b"\x00\x00\x00\x0d\x01\x02\x00\x01\x0a\x0b\x0c\x0d"
    assert frames.unpack_header(header) == (13, 0x0102, frames.ERROR, 0x0A0B_0C0D)
    assert frames.unpack_header(b"xyz" + header, 3) == frames.unpack_header(header)


def test_a_header_may_promise_the_largest_frame_and_no_more() -> None:
    largest = limits.MAX_FRAME_BYTES - frames.MIN_FRAME_BYTES
    assert frames.unpack_header(frames.pack_header(1, 0, 0, largest))[0] == limits.MAX_FRAME_BYTES
    with pytest.raises(TooLarge, match="at most"):
        frames.unpack_header(frames.pack_header(1, 0, 0, largest + 1))
    with pytest.raises(TooLarge, match="at most 20"):
        frames.unpack_header(frames.pack_header(1, 0, 0, 13), max_frame_bytes=20)


@pytest.mark.parametrize("length", [0, 7])
def test_a_frame_shorter_than_its_own_header_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="at least 8"):
        frames.unpack_header(frames.HEADER.pack(length, 1, 0, 0))


# ---------------------------------------------------------------- the parser

STREAM = frame(1, b"one") + frame(2, b"") + frame(3, b"three" * 30, status=frames.ERROR) + frame(2**32 - 1, b"\x00")
EXPECTED = [(2, 0, 1, b"one"), (2, 0, 2, b""), (2, 1, 3, b"three" * 30), (2, 0, 2**32 - 1, b"\x00")]


def test_a_stream_fed_whole_gives_every_frame() -> None:
    assert feed(FrameParser(), STREAM) == EXPECTED


@pytest.mark.parametrize("size", [1, 2, 3, 7, 11, 12, 13, 50])
def test_a_stream_fed_in_pieces_gives_the_same_frames(size: int) -> None:
    parser = FrameParser()
    found = []
    for start in range(0, len(STREAM), size):
        found += feed(parser, STREAM[start : start + size])
    assert found == EXPECTED


def test_bytes_behind_a_frame_wait_for_the_rest_of_theirs() -> None:
    parser = FrameParser()
    second = frame(2, b"second")
    assert feed(parser, frame(1, b"first") + second[:5]) == [(2, 0, 1, b"first")]
    assert feed(parser, second[5:-1]) == []
    assert feed(parser, second[-1:]) == [(2, 0, 2, b"second")]


def test_frames_larger_than_the_buffer_come_out_whole_also_between_small_ones() -> None:
    large = bytes(range(256)) * (2 * frames.KEPT_BYTES // 256)
    stream = frame(1, b"a") + frame(2, large) + frame(3, b"b") + frame(4, large[:70_000]) + frame(5, b"c")
    parser = FrameParser()
    found = []
    for start in range(0, len(stream), 50_000):
        found += feed(parser, stream[start : start + 50_000])
    assert [payload for *_, payload in found] == [b"a", large, b"b", large[:70_000], b"c"]


@pytest.mark.parametrize("size", [1000, 30_000, 70_000])
def test_frames_that_cross_the_end_of_the_buffer_come_out_whole(size: int) -> None:
    payloads = [bytes([number]) * size for number in range(200)]
    stream = b"".join(frame(number, payload) for number, payload in enumerate(payloads))
    assert [payload for *_, payload in feed(FrameParser(), stream)] == payloads


def test_a_buffer_that_grew_for_one_large_frame_goes_with_it() -> None:
    parser = FrameParser()
    feed(parser, frame(1, bytes(frames.KEPT_BYTES)))
    assert len(parser.room()) == frames.RECEIVE_BYTES


def test_a_promised_length_is_refused_before_anything_is_kept_for_it() -> None:
    parser = FrameParser(max_frame_bytes=100)
    with pytest.raises(TooLarge):
        feed(parser, frames.pack_header(1, 0, 1, 93))
    assert len(parser.room()) < frames.RECEIVE_BYTES


def test_frames_before_a_broken_one_still_come_out() -> None:
    parser = FrameParser()
    data = frame(1, b"good") + b"\x00\x00\x00\x00garbage!"
    room = parser.room()
    room[: len(data)] = data
    coming = parser.wrote(len(data))
    assert bytes(next(coming).payload) == b"good"
    with pytest.raises(ProtocolError):
        next(coming)


def test_a_status_nobody_has_defined_is_refused() -> None:
    with pytest.raises(ProtocolError, match="status is 2"):
        feed(FrameParser(), frame(1, b"", status=2))


def test_a_payload_cannot_be_written_to() -> None:
    parser = FrameParser()
    data = frame(1, b"abc")
    parser.room()[: len(data)] = data
    (found,) = parser.wrote(len(data))
    assert found.payload.readonly
