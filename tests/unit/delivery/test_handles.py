"""Receipt handles: golden texts, nothing but the text that was issued is accepted, and hostile texts are refused."""

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from goqueue.delivery.handles import Handle, HandleKey
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.limits import MAX_HANDLE_CHARS
from goqueue.model.names import GroupNumber, TopicId

SECRET = bytes(range(16))
KEY = HandleKey(SECRET)
TOPIC = TopicId(0x0123_4567_89AB_CDEF)
HANDLE = Handle("orders", 3, 1042, 2, GroupNumber(7), 1_700_000_000_000_000)
LARGEST = limits.MAX_OFFSET - 1
MAC_CHARS = 10
"""The end of a nonce that has nothing but the MAC in it."""
OTHERS = string.ascii_letters + string.digits + "._-:=+/ \n\x00٣é\udc80"
"""What a character of a handle may be changed into: what handles are made of, and what they are not."""

# A handle may be with a consumer while the broker is replaced by a newer one: a line may be added here, never changed.
GOLDEN: dict[str, tuple[TopicId, Handle]] = {
    "orders:3:1042:2:AAAAAAAAAAcABgokGB5AAGr1U1GPqBDA": (TOPIC, HANDLE),
    "a.b_C-9:0:0:1:AAAAAAAAAAEAAAAAAAAAAN4_x-2ImGCp": (
        TopicId(2**64 - 1),
        Handle("a.b_C-9", 0, 0, 1, GroupNumber(1), 0),
    ),
    "__dead:999:4611686018427387903:1000000:AAABAAAAAAA__________zmwMJ_q57rt": (
        TopicId(0),
        Handle("__dead", 999, LARGEST, 1_000_000, GroupNumber(2**40), LARGEST),
    ),
}

numbers = st.integers(0, 20) | st.integers(0, LARGEST)
topic_ids = st.integers(0, 2**64 - 1).map(TopicId)
handles = st.builds(
    Handle,
    topic=st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=limits.MAX_NAME_PART),
    partition=numbers,
    offset=numbers,
    deliveries=numbers,
    group=numbers.map(GroupNumber),
    lease=numbers,
)


def accepts(text: str, topic_id: TopicId = TOPIC, key: HandleKey = KEY) -> bool:
    """What the broker does with a text, whatever topic of this id it would find."""
    try:
        handle = key.parse(text)
    except InvalidRequest:
        return False
    return key.check(topic_id, text, handle)


# --- Issuing


@pytest.mark.parametrize("text", GOLDEN)
def test_a_handle_stays_as_it_is_for_good(text: str) -> None:
    topic_id, handle = GOLDEN[text]
    assert KEY.issue(topic_id, handle) == text
    assert KEY.parse(text) == handle
    assert KEY.check(topic_id, text, handle)


@settings(deadline=None)
@given(topic_id=topic_ids, handle=handles)
@example(topic_id=TOPIC, handle=Handle("x" * limits.MAX_NAME_PART, LARGEST, LARGEST, LARGEST, GroupNumber(1), LARGEST))
def test_what_is_issued_is_known_again(topic_id: TopicId, handle: Handle) -> None:
    text = KEY.issue(topic_id, handle)
    assert len(text) <= MAX_HANDLE_CHARS
    assert text.split(":")[:4] == [handle.topic, str(handle.partition), str(handle.offset), str(handle.deliveries)]
    assert set(text.split(":")[4]) <= set(string.ascii_letters + string.digits + "_-")
    assert KEY.parse(text) == handle
    assert KEY.check(topic_id, text, handle)


def test_another_key_of_the_same_secret_knows_them_too() -> None:
    assert accepts(KEY.issue(TOPIC, HANDLE), key=HandleKey(SECRET))


# --- Checking


def test_every_changed_character_is_refused() -> None:
    text = KEY.issue(TOPIC, HANDLE)
    assert accepts(text)
    for at, character in enumerate(text):
        for other in OTHERS:
            if other != character:
                assert not accepts(text[:at] + other + text[at + 1 :]), (at, other)


def test_every_character_left_out_or_put_in_is_refused() -> None:
    text = KEY.issue(TOPIC, HANDLE)
    for at in range(len(text)):
        assert not accepts(text[:at] + text[at + 1 :]), at
    for at in range(len(text) + 1):
        for other in OTHERS:
            assert not accepts(text[:at] + other + text[at:]), (at, other)


@settings(deadline=None)
@given(topic_id=topic_ids, handle=handles, other_id=topic_ids, other=handles)
def test_a_nonce_belongs_to_one_handle_of_one_topic(
    topic_id: TopicId, handle: Handle, other_id: TopicId, other: Handle
) -> None:
    text = KEY.issue(topic_id, handle)
    assert KEY.check(other_id, text, handle) == (other_id == topic_id)
    assert KEY.check(topic_id, text, other) == (other == handle)
    start, _, _ = KEY.issue(topic_id, other).rpartition(":")
    moved = f"{start}:{text.rpartition(':')[2]}"
    assert accepts(moved, topic_id) == (moved == text)


@pytest.mark.parametrize("field", Handle._fields)
def test_every_field_is_part_of_what_is_checked(field: str) -> None:
    value = getattr(HANDLE, field)
    other = HANDLE._replace(**{field: value + "s" if field == "topic" else value + 1})
    assert not KEY.check(TOPIC, KEY.issue(TOPIC, HANDLE), other)
    assert KEY.issue(TOPIC, HANDLE)[-MAC_CHARS:] != KEY.issue(TOPIC, other)[-MAC_CHARS:]


def test_another_secret_and_another_topic_of_the_same_name_refuse_it() -> None:
    text = KEY.issue(TOPIC, HANDLE)
    assert not accepts(text, key=HandleKey(SECRET + b"\x00"))
    assert not accepts(text, key=HandleKey(bytes(16)))
    assert not accepts(text, TopicId(TOPIC + 1))


@pytest.mark.parametrize("text", ["", ":", "é" * 60, "\udc80", "orders:3:1042:2:\u0663", "x" * 1_000_000])
def test_a_text_that_was_not_parsed_is_refused_too(text: str) -> None:
    assert not KEY.check(TOPIC, text, HANDLE)


# --- Parsing

NONCE = KEY.issue(TOPIC, HANDLE).rpartition(":")[2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders:3:1042",
        "orders:3:1042:2",
        "orders:3:1042:2:",
        f"3:1042:2:{NONCE}",
        f":3:1042:2:{NONCE}",
        f"a:b:3:1042:2:{NONCE}",
        f"orders:3:1042:2:{NONCE}:",
        f"or ders:3:1042:2:{NONCE}",
        f"ordérs:3:1042:2:{NONCE}",
        f"orders:x:1042:2:{NONCE}",
        f"orders:-3:1042:2:{NONCE}",
        f"orders:+3:1042:2:{NONCE}",
        f"orders:03:1042:2:{NONCE}",
        f"orders:3:1_042:2:{NONCE}",
        f"orders:3: 1042:2:{NONCE}",
        f"orders:3:1042:٢:{NONCE}",
        f"orders:3:1042.0:2:{NONCE}",
        f"orders:3:104٢:2:{NONCE}",
        f"orders::1042:2:{NONCE}",
        f"orders:3:{2**62}:2:{NONCE}",
        f"orders:3:{2**63}:2:{NONCE}",
        f"orders:3:{10**20}:2:{NONCE}",
        f"orders:3:{'1' * 5000}:2:{NONCE}",
        f"orders:3:1042:2:{NONCE[:-1]}",
        f"orders:3:1042:2:{NONCE}A",
        f"orders:3:1042:2:{NONCE[:-1]}=",
        f"orders:3:1042:2:{NONCE[:-1]}+",
        f"orders:3:1042:2:{NONCE[:-1]}é",
        f"orders:3:1042:2:{'_' * 32}",
        f"orders:3:1042:2:{NONCE}\n",
        f" orders:3:1042:2:{NONCE}",
        f"{'x' * (limits.MAX_NAME_PART + 1)}:3:1042:2:{NONCE}",
        "orders:3:1042:2:" * 100_000,
    ],
)
def test_what_is_no_handle_is_refused_with_what_one_looks_like(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        KEY.parse(text)
    message = str(caught.value)
    assert message.startswith(f"{text[:80]!r} is not a receipt handle: one looks like topic:partition:offset:")
    assert len(message) < 700


def test_a_made_up_nonce_has_the_shape_of_one_and_is_not_accepted() -> None:
    text = f"orders:3:1042:2:{'A' * 32}"
    assert KEY.parse(text) == Handle("orders", 3, 1042, 2, GroupNumber(0), 0)
    assert not accepts(text)


pieces = st.sampled_from([*"0129:-_.A=\n٣", "orders", "1042", NONCE, NONCE[:-1], str(2**62), str(2**64)])


@settings(deadline=None)
@given(text=st.text() | st.lists(pieces, max_size=12).map("".join) | st.lists(pieces, max_size=6).map(":".join))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        handle = KEY.parse(text)
    except InvalidRequest:
        return
    assert text.startswith(f"{handle.topic}:{handle.partition}:{handle.offset}:{handle.deliveries}:")
    assert max(handle[1:]) < limits.MAX_OFFSET
    assert not KEY.check(TOPIC, text, handle) or text == KEY.issue(TOPIC, handle)


# --- Tokens and keys


def test_a_token_stays_as_it_is_for_good() -> None:
    assert KEY.token(TOPIC, 3, GroupNumber(7), 1_700_000_000_000_000) == 8441518815838255837
    assert KEY.token(TopicId(2**64 - 1), 0, GroupNumber(1), 0) == 2465864188851978241


@settings(deadline=None)
@given(topic_id=topic_ids, partition=numbers, group=numbers.map(GroupNumber), lease=numbers)
def test_a_token_fits_in_63_bits(topic_id: TopicId, partition: int, group: GroupNumber, lease: int) -> None:
    assert 0 <= KEY.token(topic_id, partition, group, lease) < 2**63


def test_a_token_belongs_to_one_lease() -> None:
    group = GroupNumber
    tokens = {
        KEY.token(TOPIC, 3, group(7), 9),
        KEY.token(TopicId(TOPIC + 1), 3, group(7), 9),
        KEY.token(TOPIC, 4, group(7), 9),
        KEY.token(TOPIC, 3, group(8), 9),
        KEY.token(TOPIC, 3, group(7), 10),
        KEY.token(TOPIC, 7, group(3), 9),
        HandleKey(bytes(16)).token(TOPIC, 3, group(7), 9),
    }
    assert len(tokens) == 7


def test_a_short_secret_is_refused_and_a_long_one_counts_to_its_end() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        HandleKey(bytes(15))
    assert not accepts(HandleKey(bytes(1000) + b"a").issue(TOPIC, HANDLE), key=HandleKey(bytes(1000) + b"b"))


def test_a_key_does_not_show_its_secret() -> None:
    assert SECRET.hex() not in repr(KEY)
    assert repr(SECRET)[2:-1] not in repr(KEY)
