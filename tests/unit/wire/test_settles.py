"""The bodies of settle_block: golden bytes, round trips, what is refused, and what is not even made."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.model import limits
from goqueue.model.errors import ProtocolError
from goqueue.wire import settles
from goqueue.wire.settles import NO_ARGUMENT, Action, Claim, OffsetRange, SettleRequest, Writer

REQUEST = bytes.fromhex(
    "03 ffffffffffffffff 0003 0002 0000000000000005 c3bc21"
    "0807060504030201 00000004 0102030405060708 1112131415161718 00000002"
    "0000000000000000 0000000000000001 0000000000000005 000000000000000c"
    "0807060504030202 00000000 0000000000000000 ffffffffffffffff 00000001 0000000000000007 0000000000000008"
)
ASKED = SettleRequest(
    Action.REJECT,
    5,
    [
        Claim(0x0807060504030201, 4, 0x0102030405060708, 0x1112131415161718, ((0, 1), (5, 12))),
        Claim(0x0807060504030202, 0, 0, 2**64 - 1, ((7, 8),)),
    ],
    NO_ARGUMENT,
    "ü!",
)
HEAD = settles.SETTLE_REQUEST.size


def asked(**fields: Any) -> bytes:
    return SettleRequest(Action.ACK, 5, ASKED.claims)._replace(**fields).pack()


def claiming(*ranges: OffsetRange) -> bytes:
    return asked(claims=[Claim(1, 0, 2, 3, ranges)])


def changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


# ---------------------------------------------------------------- the request


def test_a_settle_request_has_these_bytes() -> None:
    assert ASKED.pack() == REQUEST
    assert settles.unpack_settle_request(REQUEST) == ASKED
    assert settles.unpack_settle_request(memoryview(REQUEST)) == ASKED


def test_the_actions_keep_their_numbers() -> None:
    assert {action.name: int(action) for action in Action} == {
        "ACK": 1,
        "NACK": 2,
        "REJECT": 3,
        "EXTEND": 4,
        "RELEASE": 5,
        "ACK_AGAIN": 6,
        "PLEDGE": 7,
        "PLEDGE_AGAIN": 8,
    }


PLEDGE = bytes.fromhex(
    "07 0000000000000011 000a 0001 0000000000000005 00000000000003e8 0002"
    "0807060504030201 00000004 0102030405060708 1112131415161718 00000001 0000000000000005 000000000000000c"
)
PLEDGED = SettleRequest(
    Action.PLEDGE,
    5,
    [Claim(0x0807060504030201, 4, 0x0102030405060708, 0x1112131415161718, ((5, 12),))],
    17,
    writer=Writer(1000, 2),
)


def test_a_pledge_has_these_bytes() -> None:
    assert PLEDGED.pack() == PLEDGE
    assert settles.unpack_settle_request(PLEDGE) == PLEDGED
    again = PLEDGED._replace(action=Action.PLEDGE_AGAIN)
    assert settles.unpack_settle_request(again.pack()) == again


@pytest.mark.parametrize("writer", [Writer(-1, 0), Writer(0, -1)])
def test_a_writer_is_not_negative(writer: Writer) -> None:
    with pytest.raises(ProtocolError, match="none may be negative"):
        settles.unpack_settle_request(PLEDGED._replace(writer=writer).pack())


@pytest.mark.parametrize("reason", ["", "x" * 9, "x" * 11])
def test_a_pledge_names_its_writer(reason: str) -> None:
    with pytest.raises(ProtocolError, match="names its writer in 10 bytes"):
        settles.unpack_settle_request(PLEDGED._replace(writer=None, reason=reason).pack())
    with pytest.raises(ProtocolError, match="names its writer in 10 bytes"):
        settles.unpack_settle_request(PLEDGE[: HEAD + 9])


def test_only_a_pledge_has_a_writer() -> None:
    with pytest.raises(ProtocolError, match="ack has no reason"):
        settles.unpack_settle_request(PLEDGED._replace(action=Action.ACK, argument=NO_ARGUMENT).pack())


def test_nothing_of_a_request_lies_in_its_payload() -> None:
    payload = bytearray(REQUEST)
    unpacked = settles.unpack_settle_request(payload)
    payload[:] = bytes(len(payload))
    assert unpacked == ASKED


@pytest.mark.parametrize(
    ("action", "argument"),
    [
        (Action.ACK, NO_ARGUMENT),
        (Action.NACK, NO_ARGUMENT),
        (Action.NACK, 0),
        (Action.NACK, limits.MAX_BACKOFF_MS),
        (Action.REJECT, NO_ARGUMENT),
        (Action.EXTEND, limits.MIN_VISIBILITY_MS),
        (Action.EXTEND, limits.MAX_VISIBILITY_MS),
        (Action.RELEASE, NO_ARGUMENT),
    ],
)
def test_an_action_may_have_these_arguments(action: Action, argument: int) -> None:
    request = settles.unpack_settle_request(asked(action=action, argument=argument))
    assert (request.action, request.argument) == (action, argument)


@pytest.mark.parametrize(
    ("action", "argument"),
    [
        (Action.ACK, 0),
        (Action.NACK, -2),
        (Action.NACK, limits.MAX_BACKOFF_MS + 1),
        (Action.NACK, 2**63 - 1),
        (Action.REJECT, 1000),
        (Action.EXTEND, NO_ARGUMENT),
        (Action.EXTEND, limits.MIN_VISIBILITY_MS - 1),
        (Action.EXTEND, limits.MAX_VISIBILITY_MS + 1),
        (Action.EXTEND, -(2**63)),
        (Action.RELEASE, 0),
        (Action.RELEASE, 1000),
        (Action.PLEDGE, NO_ARGUMENT),
        (Action.PLEDGE_AGAIN, NO_ARGUMENT),
    ],
)
def test_an_argument_that_the_action_does_not_take_is_refused(action: Action, argument: int) -> None:
    with pytest.raises(ProtocolError, match="argument"):
        settles.unpack_settle_request(asked(action=action, argument=argument))


def test_a_reason_has_at_most_so_many_characters_however_many_bytes_they_are() -> None:
    longest = "𝄞" * limits.MAX_REJECT_CHARS
    assert settles.unpack_settle_request(asked(action=Action.REJECT, reason=longest)).reason == longest
    for reason in (longest + "x", "x" * (limits.MAX_REJECT_CHARS + 1), "x" * 65535):
        with pytest.raises(ProtocolError, match="too long"):
            settles.unpack_settle_request(asked(action=Action.REJECT, reason=reason))


@pytest.mark.parametrize("action", [Action.ACK, Action.NACK, Action.EXTEND, Action.RELEASE])
def test_only_a_reject_has_a_reason(action: Action) -> None:
    argument = 1000 if action is Action.EXTEND else NO_ARGUMENT
    with pytest.raises(ProtocolError, match="no reason"):
        settles.unpack_settle_request(asked(action=action, argument=argument, reason="because"))


@pytest.mark.parametrize(
    "ranges",
    [
        ((5, 5),),
        ((5, 4),),
        ((-1, 4),),
        ((-(2**63), 2**63 - 1),),
        ((5, 7), (6, 8)),
        ((5, 7), (3, 4)),
        ((5, 7), (5, 7)),
        ((limits.MAX_OFFSET, limits.MAX_OFFSET + 1),),
        ((2**63 - 2, 2**63 - 1),),
    ],
    ids=str,
)
def test_ranges_that_do_not_ascend_overlap_or_end_nowhere_are_refused(ranges: tuple[OffsetRange, ...]) -> None:
    with pytest.raises(ProtocolError):
        settles.unpack_settle_request(claiming(*ranges))


def test_ranges_may_touch_and_go_up_to_the_last_offset() -> None:
    ranges = ((0, 5), (5, 7), (limits.MAX_OFFSET - 1, limits.MAX_OFFSET))
    (claim,) = settles.unpack_settle_request(claiming(*ranges)).claims
    assert claim.ranges == ranges
    assert claim.messages == 8


def test_a_request_names_at_most_so_many_messages_over_all_its_rows() -> None:
    most = limits.MAX_HANDLES
    row = Claim(1, 0, 2, 3, ((0, most // 2),))
    assert settles.unpack_settle_request(asked(claims=[row, row])).largest_reply == 8 + 16 * most
    for claims in (
        [row, row, row._replace(ranges=((0, 1),))],
        [row._replace(ranges=((0, most + 1),))],
        [row._replace(ranges=((0, limits.MAX_OFFSET),))],
        [row._replace(ranges=tuple((2 * at, 2 * at + 1) for at in range(most + 1)))],
        [row._replace(ranges=((at, at + 1),)) for at in range(most + 1)],
    ):
        with pytest.raises(ProtocolError):
            settles.unpack_settle_request(asked(claims=claims))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        REQUEST[: HEAD - 1],
        REQUEST[:HEAD],
        REQUEST[: HEAD + 2],
        REQUEST[: HEAD + 3],
        REQUEST[:-1],
        REQUEST[:-16],
        REQUEST + b"\x00",
        REQUEST + REQUEST[-48:],
        changed(REQUEST, 0, 0),
        changed(REQUEST, 0, 6),
        changed(REQUEST, 10, 2),
        changed(REQUEST, 10, 4),
        changed(REQUEST, 12, 0),
        changed(REQUEST, 12, 1),
        changed(REQUEST, 12, 3),
        changed(REQUEST, 11, 0xFF),
        changed(REQUEST, HEAD, 0xFF),
        changed(REQUEST, HEAD + 3 + 31, 0),
        changed(REQUEST, HEAD + 3 + 31, 3),
        changed(REQUEST, HEAD + 3 + 28, 0xFF),
        asked(group=-1),
        asked(group=limits.MAX_OFFSET),
        asked(claims=[]),
        claiming(),
        asked(claims=[ASKED.claims[0]._replace(poll=-1)]),
        asked(claims=[ASKED.claims[0]._replace(poll=limits.MAX_OFFSET)]),
    ],
    ids=range(27),
)
def test_a_settle_request_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        settles.unpack_settle_request(payload)


@pytest.mark.parametrize(
    "payload",
    [
        asked(claims=[Claim(1, 0, 2, 3, ((0, 1),))])[:-20] + b"\xff\xff\xff\xff" + bytes(1 << 20),
        claiming((0, limits.MAX_OFFSET)),
        changed(changed(REQUEST, 11, 0xFF), 12, 0xFF) + bytes(1 << 20),
    ],
    ids=["ranges", "offsets", "rows"],
)
def test_a_count_is_refused_before_anything_is_made_of_it(payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            settles.unpack_settle_request(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * limits.KIB


@pytest.mark.parametrize(
    "fields",
    [{"argument": 2**63}, {"group": 2**63}, {"reason": "x" * 65536}, {"reason": "\ud800"}],
    ids=["argument", "group", "reason", "half a pair"],
)
def test_a_settle_request_that_does_not_fit_is_not_sent(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        asked(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic_id": -1},
        {"partition": 2**32},
        {"poll": 2**63},
        {"token": -1},
        {"token": 2**64},
        {"ranges": ((0, 2**63),)},
    ],
    ids=str,
)
def test_a_row_that_does_not_fit_is_not_sent(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        asked(claims=[ASKED.claims[0]._replace(**fields)])


# ---------------------------------------------------------------- the reply

REFUSED: list[tuple[OffsetRange, ...]] = [((0, 1), (5, 12)), (), ((7, 8),)]
REPLY = bytes.fromhex(
    "00000002 0000000000000000 0000000000000001 0000000000000005 000000000000000c"
    "00000000"
    "00000001 0000000000000007 0000000000000008"
)


def test_a_settle_reply_has_these_bytes() -> None:
    assert settles.pack_settle_reply(REFUSED) == REPLY
    assert settles.unpack_settle_reply(REPLY, 3) == REFUSED


def test_a_reply_that_refuses_nothing_is_short() -> None:
    assert settles.pack_settle_reply([(), ()]) == bytes(8)
    assert settles.unpack_settle_reply(bytes(8), 2) == [(), ()]


@pytest.mark.parametrize(
    ("payload", "rows"),
    [
        (b"", 1),
        (REPLY, 2),
        (REPLY, 4),
        (REPLY[:-1], 3),
        (REPLY + b"\x00", 3),
        (changed(REPLY, 0, 0xFF), 3),
        (changed(REPLY, 3, 1), 3),
        (settles.pack_settle_reply([((5, 5),)]), 1),
        (settles.pack_settle_reply([((5, 6), (3, 4))]), 1),
        (settles.pack_settle_reply([((-1, 6),)]), 1),
    ],
    ids=range(10),
)
def test_a_settle_reply_that_makes_no_sense_is_refused(payload: bytes, rows: int) -> None:
    with pytest.raises(ProtocolError):
        settles.unpack_settle_reply(payload, rows)


# ---------------------------------------------------------------- anything


@st.composite
def some_ranges(draw: st.DrawFn) -> tuple[OffsetRange, ...]:
    position, ranges = draw(st.integers(0, 2**61)), []
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5)):
        ranges.append((position + gap, position + gap + length))
        position += gap + length
    return tuple(ranges)


@st.composite
def requests(draw: st.DrawFn) -> SettleRequest:
    action, argument, reason = draw(
        st.sampled_from(
            [
                (Action.ACK, NO_ARGUMENT, ""),
                (Action.NACK, NO_ARGUMENT, ""),
                (Action.NACK, 5000, ""),
                (Action.REJECT, NO_ARGUMENT, "nö"),
                (Action.EXTEND, 30_000, ""),
                (Action.RELEASE, NO_ARGUMENT, ""),
            ]
        )
    )
    wide, narrow, number = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**62 - 1)
    claims = draw(st.lists(st.builds(Claim, wide, narrow, number, wide, some_ranges()), min_size=1, max_size=4))
    return SettleRequest(action, draw(number), claims, argument, reason)


@given(requests())
def test_any_request_comes_back_as_it_was(request: SettleRequest) -> None:
    assert settles.unpack_settle_request(request.pack()) == request


@given(st.lists(some_ranges() | st.just(()), max_size=5))
def test_any_reply_comes_back_as_it_was(refused: list[tuple[OffsetRange, ...]]) -> None:
    assert settles.unpack_settle_reply(settles.pack_settle_reply(refused), len(refused)) == refused


def refused_or_understood(payload: bytes) -> None:
    """Whatever is not refused as no protocol is understood, to the last byte."""
    try:
        assert settles.unpack_settle_request(payload).pack() == payload
    except ProtocolError:
        pass
    for rows in (0, 1, 3):
        try:
            assert settles.pack_settle_reply(settles.unpack_settle_reply(payload, rows)) == payload
        except ProtocolError:
            pass


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_no_protocol(payload: bytes) -> None:
    refused_or_understood(payload)


@given(
    requests().map(SettleRequest.pack) | st.lists(some_ranges(), min_size=1, max_size=3).map(settles.pack_settle_reply),
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
