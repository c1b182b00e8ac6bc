"""The receive buffer: small while nothing comes, large enough without asking, larger only when given."""

import random

import pytest

from goqueue.api.wire.receiving import FIRST_BYTES, FREE_BYTES, ReceiveBuffer
from goqueue.model import limits
from goqueue.wire import frames

GREETING = frames.pack_preface()


def frame(size: int, correlation: int = 1) -> bytes:
    return frames.pack_header(1, frames.OK, correlation, size) + bytes([correlation % 251]) * size


def greeted() -> ReceiveBuffer:
    buffer = ReceiveBuffer()
    feed(buffer, GREETING)
    assert buffer.take_preface() is not None
    assert buffer.lacks() == 0
    return buffer


def feed(buffer: ReceiveBuffer, data: bytes | memoryview) -> int:
    """How much of it went into the room there is."""
    room = buffer.room()
    count = min(len(room), len(data))
    room[:count] = data[:count]
    buffer.wrote(count)
    return count


def receive(buffer: ReceiveBuffer, data: bytes, *, most: int = 1 << 30) -> list[tuple[int, bytes]]:
    """Everything, at most so much at a time, with all the room it wants."""
    found, sent = [], 0
    while sent < len(data):
        sent += feed(buffer, memoryview(data)[sent : sent + most])
        while (got := buffer.take_frame()) is not None:
            found.append((got.correlation, bytes(got.payload)))
        while more := buffer.lacks():
            buffer.grow(more)
        assert len(buffer.room()) > 0
    return found


def test_it_is_small_while_nothing_comes() -> None:
    assert FIRST_BYTES <= 4 * limits.KIB
    assert len(ReceiveBuffer().room()) == FIRST_BYTES
    assert not ReceiveBuffer().large
    buffer = greeted()
    for number in range(100):
        assert len(receive(buffer, frame(500, number))) == 1
    assert not buffer.large, "one small request after another needs no more"


@pytest.mark.parametrize(
    "data", [frame(FIRST_BYTES), frame(FREE_BYTES - frames.HEADER.size), frame(100) * 50], ids=["one", "most", "many"]
)
def test_it_becomes_larger_by_itself_when_more_comes(data: bytes) -> None:
    buffer = greeted()
    sent = feed(buffer, data)
    assert sent == FIRST_BYTES - len(GREETING) or sent == FIRST_BYTES
    while buffer.take_frame() is not None:
        pass
    assert buffer.lacks() == 0, "nobody is asked"
    assert buffer.large
    assert buffer.grown == 0
    rest = data[sent:]
    assert feed(buffer, rest) == len(rest), "the rest comes at once"
    while buffer.take_frame() is not None:
        pass
    assert buffer.held == 0


def test_beyond_that_it_must_be_given() -> None:
    buffer = greeted()
    data = frame(3 * limits.MIB)
    sent = feed(buffer, data)
    assert buffer.take_frame() is None
    assert buffer.lacks() == 0
    sent += feed(buffer, data[sent:])
    assert sent == FREE_BYTES, "also with the preface before it"
    assert buffer.take_frame() is None
    more = buffer.lacks()
    assert more == limits.MIB
    assert buffer.lacks() == more
    assert buffer.grown == 0
    buffer.grow(more)
    assert buffer.grown == more
    assert buffer.lacks() == 0


def test_it_is_small_again_when_it_is_told_that_nothing_comes() -> None:
    buffer = greeted()
    assert len(receive(buffer, frame(3 * limits.MIB))) == 1
    assert buffer.large
    assert buffer.grown
    buffer.shrink()
    assert not buffer.large
    assert buffer.grown == 0
    assert len(receive(buffer, frame(100_000))) == 1


def test_what_it_holds_keeps_it_from_shrinking() -> None:
    buffer = greeted()
    data = frame(10_000, 7)
    assert receive(buffer, data[:5000]) == []
    buffer.shrink()
    assert buffer.large
    assert receive(buffer, data[5000:]) == [(7, data[frames.HEADER.size :])]


@pytest.mark.parametrize("most", [1, 7, 1000, FIRST_BYTES, FIRST_BYTES + 1, FREE_BYTES, 1 << 30])
def test_frames_come_out_as_they_went_in_whatever_the_pieces(most: int) -> None:
    chance = random.Random(most)
    edges = [0, 1, FIRST_BYTES - 12, FIRST_BYTES - 11, FREE_BYTES - 12, FREE_BYTES - 11, FREE_BYTES]
    sizes = edges + [chance.randrange(3000) for _ in range(20)] + [200_000 if most > 1000 else 1000]
    chance.shuffle(sizes)
    sent = [(number, frame(size, number)) for number, size in enumerate(sizes)]
    expected = [(number, data[frames.HEADER.size :]) for number, data in sent]
    stream = b"".join(data for _, data in sent)
    assert receive(greeted(), stream, most=most) == expected
    buffer, found = greeted(), []
    for _, data in sent:
        found += receive(buffer, data, most=most)
        buffer.shrink()
    assert found == expected
