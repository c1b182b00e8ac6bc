"""The bodies of publish_block and fetch_block: golden bytes, round trips, and what is refused."""

import pytest

from goqueue.model import limits
from goqueue.model.errors import ProtocolError
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Producer
from goqueue.wire import blocks
from goqueue.wire.blocks import FetchReply, FetchRequest, PublishReply, PublishRequest, Range

PUBLISH = bytes.fromhex("0102030405060708 00000009 02 01 0003 0000000000000004 00000005")
PUBLISHED = bytes.fromhex(
    "03 00 0002 00000002 0000000000000064 0000018bcfe56800 01 00000001 0000000000000070 0000018bcfe56801 00"
)
FETCH = bytes.fromhex("0102030405060708 00000009 000000000000000a 00001000 00000064 000001f4")
FETCHED = bytes.fromhex("000000000000000c 0000000000000001 000000000000000d 00000002")


def changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


# ---------------------------------------------------------------- publish


def test_a_publish_request_has_these_bytes() -> None:
    request = PublishRequest(0x0102030405060708, 9, Acks.ALL, Producer(4, 3, 5))
    assert request.pack() == PUBLISH
    assert blocks.unpack_publish_request(PUBLISH + b"the block") == request


def test_a_publish_request_without_a_producer_has_zeros_in_its_place() -> None:
    request = PublishRequest(2**64 - 1, 2**32 - 1, Acks.NONE)
    packed = request.pack()
    assert packed == b"\xff" * 12 + bytes(16)
    assert blocks.unpack_publish_request(memoryview(packed)) == request


@pytest.mark.parametrize("acks", list(Acks))
def test_acks_come_back_as_what_they_were(acks: Acks) -> None:
    assert blocks.unpack_publish_request(PublishRequest(1, 2, acks).pack()).acks is acks


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        PUBLISH[:-1],
        changed(PUBLISH, 12, 3),
        changed(PUBLISH, 13, 0),
        changed(PUBLISH, 13, 2),
        changed(PUBLISH, 13, 3),
        changed(PUBLISH, 14, 0x80),
        changed(PUBLISH, 16, 0x80),
        changed(PUBLISH, 24, 0x80),
    ],
)
def test_a_publish_request_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        blocks.unpack_publish_request(payload)


@pytest.mark.parametrize(
    "request_",
    [
        PublishRequest(-1, 0, Acks.ALL),
        PublishRequest(2**64, 0, Acks.ALL),
        PublishRequest(0, 2**32, Acks.ALL),
        PublishRequest(0, 0, Acks.ALL, Producer(0, 2**15, 0)),
        PublishRequest(0, 0, Acks.ALL, Producer(0, 0, 2**31)),
    ],
)
def test_a_publish_request_that_does_not_fit_is_not_sent(request_: PublishRequest) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        request_.pack()


def test_a_publish_reply_has_these_bytes() -> None:
    ranges = (Range(2, 100, 1_700_000_000_000, True), Range(1, 112, 1_700_000_000_001))
    reply = PublishReply(Durability.DURABLE, ranges)
    assert reply.pack() == PUBLISHED
    assert blocks.unpack_publish_reply(PUBLISHED) == reply


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("count", [1, 2, 3, 65535])
def test_a_publish_reply_comes_back_as_it_was(durability: Durability, count: int) -> None:
    reply = PublishReply(durability, tuple(Range(1, number, 5, number % 2 == 1) for number in range(count)))
    again = blocks.unpack_publish_reply(memoryview(reply.pack()))
    assert again == reply
    assert again.durability is durability
    assert all(type(each.duplicate) is bool for each in again.ranges)


def test_more_ranges_than_can_be_counted_are_not_sent() -> None:
    with pytest.raises(ProtocolError, match="65536 ranges"):
        PublishReply(Durability.WRITTEN, (Range(1, 0, 0),) * 65536).pack()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        PUBLISHED[:3],
        PUBLISHED[:-1],
        PUBLISHED + b"\x00",
        PUBLISHED[:4],
        b"\x01\x00\x00\x00",
        changed(PUBLISHED, 0, 4),
        changed(PUBLISHED, 1, 1),
        changed(PUBLISHED, 3, 1),
        changed(PUBLISHED, 3, 3),
        changed(PUBLISHED, 7, 0),
        changed(PUBLISHED, 8, 0x80),
        changed(PUBLISHED, 24, 2),
    ],
)
def test_a_publish_reply_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        blocks.unpack_publish_reply(payload)


# ---------------------------------------------------------------- fetch


def test_a_fetch_request_has_these_bytes() -> None:
    request = FetchRequest(0x0102030405060708, 9, 10, 4096, 100, 500)
    assert request.pack() == FETCH
    assert blocks.unpack_fetch_request(FETCH) == request


def test_the_flags_of_a_fetch_may_be_left_out() -> None:
    request = FetchRequest(0x0102030405060708, 9, 10, 4096, 100, 500)
    assert blocks.unpack_fetch_request(FETCH + b"\x00") == request
    wanting = request._replace(uncommitted=True)
    assert wanting.pack() == FETCH + b"\x01"
    assert blocks.unpack_fetch_request(FETCH + b"\x01") == wanting


def test_bounds_over_the_limits_mean_the_limits() -> None:
    request = FetchRequest(1, 2, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    expected = FetchRequest(1, 2, 3, blocks.MAX_FETCH_BYTES, limits.MAX_READ_COUNT, limits.MAX_WAIT_MS)
    assert blocks.unpack_fetch_request(request.pack()) == expected
    assert blocks.unpack_fetch_request(expected.pack()) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        FETCH[:-1],
        FETCH + b"\x02",
        FETCH + b"\x00\x00",
        changed(FETCH, 12, 0x80),
        FetchRequest(1, 2, 3, 0, 1).pack(),
        FetchRequest(1, 2, 3, 1, 0).pack(),
    ],
)
def test_a_fetch_request_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        blocks.unpack_fetch_request(payload)


def test_a_fetch_request_that_does_not_fit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        FetchRequest(1, 2, 3, -1, 1).pack()


def test_a_fetch_reply_has_these_bytes() -> None:
    reply = FetchReply(12, 1, 13, 2)
    assert reply.pack() == FETCHED
    assert blocks.unpack_fetch_reply(FETCHED + b"the block") == reply


def test_a_fetch_reply_without_records_has_no_block() -> None:
    reply = FetchReply(13, 1, 13, 0)
    assert blocks.unpack_fetch_reply(reply.pack()) == reply
    with pytest.raises(ProtocolError):
        blocks.unpack_fetch_reply(reply.pack() + b"a block")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        FETCHED[:-1],
        FETCHED,
        changed(FETCHED, 0, 0x80) + b"block",
        changed(FETCHED, 8, 0x80) + b"block",
        changed(FETCHED, 15, 14) + b"block",
    ],
)
def test_a_fetch_reply_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        blocks.unpack_fetch_reply(payload)


def test_a_fetch_reply_that_does_not_fit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        FetchReply(2**63, 0, 0, 0).pack()
