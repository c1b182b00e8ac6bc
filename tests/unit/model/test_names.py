"""Names and ids: what may name a topic, and how ids look."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import (
    DLQ_SUFFIX,
    LOG_FILE,
    TOPIC_PATTERN,
    TopicId,
    check_topic_name,
    dlq_name,
    format_topic_id,
    is_dlq,
    message_id,
)
from goqueue.storage.store import log_directory


@pytest.mark.parametrize("name", ["a", "orders", "Orders.EU-1_x", "-", "_", "...", "orders.dlq", "0", "a" * 241, "_a"])
def test_a_good_name_passes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "../x", "ä", "a\n", "\n", "a\0", "a" * 242, "a:b", "a%2Fb", "日本"]
)
def test_a_bad_name_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"cannot name a topic: use letters, digits, '\.', '_' and '-', at most 241"
    ):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["__", "__offsets", "___"])
def test_names_that_begin_with_two_underscores_are_reserved(name: str) -> None:
    with pytest.raises(InvalidRequest, match="names that begin with __ are GoQueue's own"):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["synced", "log.state", "log.state.tmp", "0" * 20 + ".log", "1" * 20 + "-5.cut"])
def test_names_of_a_logs_own_files_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="files of GoQueue's logs are called so"):
        check_topic_name(name)


def test_names_that_only_resemble_them_pass() -> None:
    for name in ("synced.", "log.states", "0" * 20, "0" * 19 + ".log", "0" * 21 + ".log", "a" + "0" * 20 + ".log"):
        check_topic_name(name)


# --- dead-letter topics


def test_the_longest_name_has_room_for_the_ending_of_its_dead_letters() -> None:
    longest = "a" * limits.MAX_TOPIC_NAME
    check_topic_name(longest)
    check_topic_name(dlq_name(longest))
    assert len(dlq_name(longest)) == limits.MAX_DLQ_NAME == 245
    assert limits.MAX_TOPIC_NAME + len(DLQ_SUFFIX) == limits.MAX_DLQ_NAME


@pytest.mark.parametrize(
    "name",
    ["a" * 242, "a" * 245, "a" * 241 + ".dlx", "a" * 241 + "-dlq", "a" * 241 + ".DLQ", "a" * 242 + ".dlq",
     "a" * 241 + ".dlq.dlq", "a" * 241 + ".dlq\n", "a" * 241 + ".dl"],
)  # fmt: skip
def test_no_other_name_is_longer_than_users_may_choose(name: str) -> None:
    with pytest.raises(InvalidRequest, match="at most 241"):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["orders.dlq", "a.dlq", "..dlq", "orders.dlq.dlq", "a" * 241 + ".dlq"])
def test_a_dead_letter_topic_is_known_by_its_ending(name: str) -> None:
    assert is_dlq(name)
    assert dlq_name(name.removesuffix(DLQ_SUFFIX)) == name


@pytest.mark.parametrize("name", ["orders", "dlq", ".dlq", "orders.dlq2", "orders-dlq", "orders.DLQ", ""])
def test_other_names_are_no_dead_letter_topics(name: str) -> None:
    assert not is_dlq(name)


def test_dead_letters_of_a_reserved_name_are_reserved_too() -> None:
    with pytest.raises(InvalidRequest, match="GoQueue's own"):
        check_topic_name("__offsets.dlq")


def test_a_topic_called_by_twenty_digits_may_have_dead_letters_too() -> None:
    """A log's segments are called by twenty digits and an ending, but never by this one."""
    check_topic_name(dlq_name("0" * 20))
    assert not LOG_FILE.fullmatch("0" * 20 + ".dlq")
    for name in ("0" * 20 + ".dlq.tmp", "0" * 20 + "-dlq", "0" * 20 + ".log", "0" * 20 + "-5.cut"):
        assert LOG_FILE.fullmatch(name)


def test_a_refusal_does_not_repeat_a_long_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_topic_name("x" * 10**6)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=260) | st.from_regex(TOPIC_PATTERN, fullmatch=True))
def test_every_name_that_passes_can_be_stored(name: str) -> None:
    """The check is all that stands between a client's text and a path."""
    try:
        check_topic_name(name)
    except InvalidRequest:
        return
    assert log_directory("/data", f"{name}/{format_topic_id(TopicId(1))}/0") == f"/data/logs/{name}/{1:016x}/0"
    assert "/" not in name
    assert len(name.encode()) <= limits.MAX_DLQ_NAME <= limits.MAX_NAME_PART, "a file name may have this many bytes"
    if not is_dlq(name):
        check_topic_name(dlq_name(name))


def test_the_pattern_is_one_that_other_languages_understand() -> None:
    """It stands in the description of the API."""
    assert TOPIC_PATTERN == r"^[A-Za-z0-9._-]{1,241}(\.dlq)?$"
    assert re.compile(TOPIC_PATTERN)
    assert LOG_FILE.fullmatch("synced")


def test_an_id_has_sixteen_digits() -> None:
    assert [format_topic_id(TopicId(number)) for number in (0, 255, 2**64 - 1)] == [
        "0000000000000000",
        "00000000000000ff",
        "ffffffffffffffff",
    ]


def test_a_message_id_is_topic_partition_and_offset() -> None:
    assert message_id("orders", 3, 42) == "orders:3:42"
