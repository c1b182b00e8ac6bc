"""The bodies of poll_block: golden bytes, round trips, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from goqueue.model import limits
from goqueue.model.errors import ProtocolError
from goqueue.wire import polls
from goqueue.wire.polls import MAX_POLL_BYTES, UNKNOWN, PollReply, PollRequest, Row

REQUEST = bytes.fromhex(
    "0102030405060708 0000000000000009 00001000 00000064 000001f4 00007530 07 08 62696c6c696e67 772d303030303031"
)
ASKED = PollRequest("billing", "w-000001", 4096, 100, 500, 0x0102030405060708, 9, 30_000)
REPLY = bytes.fromhex(
    "0102030405060708 0000000000000009 0000000000000003 0000000000000005 00000002 0002 7b7d"
    "0807060504030201 00000004 1112131415161718 0000000000000003 000000000000000c 00000001 00000002 00000003 616263"
    "0807060504030202 00000000 0000000000000000 0000000000000001 0000000000000001 00000005 00000001 00000001 64"
)
TOLD = PollReply(0x0102030405060708, 9, 3, 5, b"{}", 2)
ROWS = [
    Row(0x0807060504030201, 4, 0x1112131415161718, 3, 12, 1, 2, b"abc"),
    Row(0x0807060504030202, 0, 0, 1, 1, 5, 1, b"d"),
]
FIRST_ROW = polls.POLL_REPLY.size + 2
NAMES_AT = polls.POLL_REQUEST.size


def changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


def packed(reply: PollReply, rows: list[Row]) -> bytes:
    return reply.pack() + b"".join(row.pack_head() + bytes(row.block) for row in rows)


def asked(**fields: Any) -> bytes:
    return replace(ASKED, **fields).pack()


# ---------------------------------------------------------------- the request


def test_a_poll_request_has_these_bytes() -> None:
    assert ASKED.pack() == REQUEST
    assert polls.unpack_poll_request(REQUEST) == ASKED
    assert polls.unpack_poll_request(memoryview(REQUEST)) == ASKED


def test_a_client_that_keeps_no_track_says_so() -> None:
    request = PollRequest("g", "m", 1, 1)
    assert request.pack() == b"\xff" * 16 + bytes.fromhex("00000001 00000001 00000000 00000000 01 01 67 6d")
    again = polls.unpack_poll_request(request.pack())
    assert (again.received, again.version) == (UNKNOWN, UNKNOWN)


def test_bounds_over_the_limits_mean_the_limits() -> None:
    most = 2**32 - 1
    request = PollRequest("g", "m", most, most, most, 0, 0, most)
    expected = PollRequest(
        "g", "m", MAX_POLL_BYTES, limits.MAX_POLL_MESSAGES, limits.MAX_WAIT_MS, 0, 0, limits.MAX_VISIBILITY_MS
    )
    assert polls.unpack_poll_request(request.pack()) == expected
    assert polls.unpack_poll_request(expected.pack()) == expected


def test_what_a_poll_may_ask_for_fits_a_frame_with_the_news_of_the_largest_group() -> None:
    partition = limits.MAX_TOPIC_NAME + len('"-1000",')
    topic = limits.MAX_TOPIC_NAME + len('"":"0123456789abcdef",')
    news = limits.MAX_PARTITIONS * partition + limits.MAX_SUBSCRIBED_TOPICS * topic + 1000
    heads = polls.POLL_REPLY.size + limits.MAX_POLL_BLOCKS * polls.ROW.size
    assert max(MAX_POLL_BYTES, limits.MAX_RECORD_BYTES) + heads + news < limits.MAX_FRAME_BYTES


def test_names_have_at_most_255_bytes_of_utf_8() -> None:
    request = PollRequest("ü" * 127, "m" * 255, 1, 1)
    assert polls.unpack_poll_request(request.pack()) == request
    for name in ("m" * 256, "ü" * 128, "half a pair: \ud800"):
        for fields in ({"group": name}, {"member_id": name}):
            with pytest.raises(ProtocolError, match="does not fit"):
                asked(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_bytes": -1},
        {"max_bytes": 2**32},
        {"max_count": 2**32},
        {"max_wait_ms": 2**32},
        {"visibility_ms": 2**32},
        {"visibility_ms": -1},
        {"received": 2**63},
        {"version": -(2**63) - 1},
    ],
    ids=str,
)
def test_a_poll_request_that_does_not_fit_is_not_sent(fields: dict[str, int]) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        asked(**fields)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        REQUEST[: NAMES_AT - 1],
        REQUEST[:NAMES_AT],
        REQUEST[:-1],
        REQUEST + b"\x00",
        changed(REQUEST, NAMES_AT - 2, 6),
        changed(REQUEST, NAMES_AT - 1, 9),
        changed(REQUEST, NAMES_AT, 0xFF),
        changed(REQUEST, len(REQUEST) - 1, 0xC3),
        asked(max_bytes=0),
        asked(max_count=0),
        asked(received=-2),
        asked(received=limits.MAX_OFFSET),
        asked(received=2**63 - 1),
        asked(version=-2),
        asked(version=-(2**63)),
    ],
    ids=range(16),
)
def test_a_poll_request_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        polls.unpack_poll_request(payload)


# ---------------------------------------------------------------- the reply


def test_a_poll_reply_has_these_bytes() -> None:
    assert packed(TOLD, ROWS) == REPLY
    assert polls.unpack_poll_reply(REPLY) == (TOLD, ROWS)


def test_a_poll_reply_may_say_nothing_at_all() -> None:
    reply = PollReply(0, 0, 0, 0, b"", 0)
    assert reply.pack() == bytes(38)
    assert polls.unpack_poll_reply(bytes(38)) == (reply, [])


def test_the_blocks_of_a_reply_lie_where_it_lies() -> None:
    payload = bytearray(REPLY)
    _, rows = polls.unpack_poll_reply(payload)
    payload[-1] = ord("e")
    assert bytes(rows[1].block) == b"e"


@pytest.mark.parametrize(
    "fields",
    [
        {"number": 2**63},
        {"version": -(2**63) - 1},
        {"generation": 2**63},
        {"group": 2**63},
        {"rows": 65536},
        {"rows": -1},
    ],
    ids=str,
)
def test_a_poll_reply_that_does_not_fit_is_not_sent(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        TOLD._replace(**fields).pack()


@pytest.mark.parametrize(
    "fields",
    [
        {"topic_id": -1},
        {"topic_id": 2**64},
        {"partition": 2**32},
        {"token": -1},
        {"token": 2**64},
        {"epoch": 2**63},
        {"next_offset": 2**63},
        {"deliveries": 2**32},
        {"records": -1},
    ],
    ids=str,
)
def test_a_row_that_does_not_fit_is_not_sent(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        ROWS[0]._replace(**fields).pack_head()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        REPLY[: polls.POLL_REPLY.size - 1],
        REPLY[: polls.POLL_REPLY.size],
        REPLY[:FIRST_ROW],
        REPLY[: FIRST_ROW + polls.ROW.size - 1],
        REPLY[: FIRST_ROW + polls.ROW.size + 3],
        REPLY[:-1],
        REPLY + b"\x00",
        changed(REPLY, 32, 0xFF),
        changed(REPLY, 35, 1),
        changed(REPLY, 37, 1),
        changed(REPLY, 37, 3),
        changed(REPLY, 36, 0xFF),
        changed(REPLY, FIRST_ROW + 44, 0xFF),
        packed(TOLD._replace(number=-1), ROWS),
        packed(TOLD._replace(version=-1), ROWS),
        packed(TOLD._replace(generation=-1), ROWS),
        packed(TOLD._replace(group=-1), ROWS),
        *(
            packed(TOLD, [ROWS[0], ROWS[1]._replace(**fields)])
            for fields in ({"epoch": -1}, {"next_offset": 0}, {"deliveries": 0}, {"records": 0}, {"block": b""})
        ),
    ],
    ids=range(23),
)
def test_a_poll_reply_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        polls.unpack_poll_reply(payload)


# ---------------------------------------------------------------- anything

NUMBERS = st.integers(0, 2**62 - 1)
COUNTS = st.integers(1, 2**32 - 1)


@st.composite
def requests(draw: st.DrawFn) -> PollRequest:
    name = st.text(max_size=63)
    track = st.just(UNKNOWN) | NUMBERS
    spans = st.integers(0, 2**32 - 1)
    return PollRequest(
        draw(name), draw(name), draw(COUNTS), draw(COUNTS), draw(spans), draw(track), draw(track), draw(spans)
    )


@st.composite
def replies(draw: st.DrawFn) -> tuple[PollReply, list[Row]]:
    rows = draw(
        st.lists(
            st.builds(
                Row,
                topic_id=st.integers(0, 2**64 - 1),
                partition=st.integers(0, 2**32 - 1),
                token=st.integers(0, 2**64 - 1),
                epoch=NUMBERS,
                next_offset=st.integers(1, 2**62),
                deliveries=COUNTS,
                records=COUNTS,
                block=st.binary(min_size=1, max_size=50),
            ),
            max_size=5,
        )
    )
    number, version, generation, group = (draw(NUMBERS) for _ in range(4))
    return PollReply(number, version, generation, group, draw(st.binary(max_size=50)), len(rows)), rows


@given(requests())
def test_any_request_comes_back_as_it_was_but_for_its_bounds(request: PollRequest) -> None:
    again = polls.unpack_poll_request(request.pack())
    bounded = replace(
        request,
        max_bytes=min(request.max_bytes, MAX_POLL_BYTES),
        max_count=min(request.max_count, limits.MAX_POLL_MESSAGES),
        max_wait_ms=min(request.max_wait_ms, limits.MAX_WAIT_MS),
        visibility_ms=min(request.visibility_ms, limits.MAX_VISIBILITY_MS),
    )
    assert again == bounded


@given(replies())
def test_any_reply_comes_back_as_it_was(told: tuple[PollReply, list[Row]]) -> None:
    assert polls.unpack_poll_reply(packed(*told)) == told


def refused_or_understood(payload: bytes) -> None:
    """Whatever is not refused as no protocol is understood, to the last byte."""
    for unpack in (polls.unpack_poll_request, polls.unpack_poll_reply):
        try:
            unpacked: Any = unpack(payload)
        except ProtocolError:
            continue
        if unpack is polls.unpack_poll_reply:
            assert packed(*unpacked) == payload
        else:
            assert len(unpacked.pack()) == len(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_no_protocol(payload: bytes) -> None:
    refused_or_understood(payload)


@given(
    st.one_of(requests().map(PollRequest.pack), replies().map(lambda told: packed(*told))),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 7)), max_size=4),
    st.integers(0, 60),
)
def test_bytes_that_are_nearly_right_are_understood_or_no_protocol(
    payload: bytes, flips: list[tuple[int, int]], cut: int
) -> None:
    bent = bytearray(payload)
    for position, bit in flips:
        bent[position % len(bent)] ^= 1 << bit
    refused_or_understood(bytes(bent))
    refused_or_understood(bytes(bent[: max(len(bent) - cut, 0)]))
