"""What arguments may be: what is wrong is refused by its name, and spans of time are said in every way."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from goqueue.client.arguments import (
    RULES,
    check,
    to_delay,
    to_extension,
    to_json,
    to_list,
    to_reason,
    to_seconds,
    to_span_ms,
    to_timeout,
)
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.groups import Mode
from goqueue.wire.settles import NO_ARGUMENT

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("name", RULES)
def test_what_is_of_no_kind_is_refused_by_name_with_what_is_wanted(name: str) -> None:
    for value in (object(), [], 1.5, NAN, b"x", -1):
        with pytest.raises(InvalidRequest, match=rf"^{name} is .*; it is \w"):
            check(**{name: value})


@pytest.mark.parametrize(
    ("name", "right", "not_right"),
    [
        ("acks", ["none", "leader", "all"], ["ALL", 1, None, []]),
        ("address", ["127.0.0.1:9001"], [9001, None, ("127.0.0.1", 9001)]),
        ("batch_bytes", [1, limits.APPENDED_AT_ONCE_BYTES], [0, limits.APPENDED_AT_ONCE_BYTES + 1, "1", True, None]),
        ("exist_ok", [True, False], ["no", None, 2]),
        ("follow", [True, False, 1, 0], ["yes", None, 2]),
        ("from_offset", [None, 0, 1 << 60], [-1, "0", 0.0]),
        ("client_id", ["worker"], ["", None, 5]),
        ("instance_id", [None, "worker"], ["", 5]),
        ("mode", [None, "partition", "shared", "key", Mode.KEY], ["x", "", "SHARED", 5]),
        ("on_batch", [None, print], [3, "print"]),
        ("to", ["earliest", "latest"], [None, 5, "offset"]),
        ("topic", ["orders"], [None, 5, ["orders"]]),
        ("wait", [True, False], ["no", None]),
    ],
)
def test_a_rule_says_what_is_right(name: str, right: list[Any], not_right: list[Any]) -> None:
    for value in right:
        check(**{name: value})
    for value in not_right:
        with pytest.raises(InvalidRequest, match=f"^{name} is "):
            check(**{name: value})


async def awaited(_: object) -> None:
    pass


class Awaited:
    async def __call__(self, _: object) -> None:
        pass


@pytest.mark.parametrize("name", ["on_ack_error", "on_batch"])
def test_what_would_have_to_be_awaited_is_no_plain_function(name: str) -> None:
    for value in (awaited, Awaited(), Awaited().__call__, partial(awaited)):
        with pytest.raises(InvalidRequest, match=rf"^{name} is .*; it is a plain function, or None: it is called, not"):
            check(**{name: value})
    check(on_assigned=awaited, on_revoked=awaited)
    check(**{name: [].append})


def test_a_long_argument_is_not_repeated_as_a_whole() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(topic=["x" * 1000] * 1000)
    assert len(str(caught.value)) < 1000


def test_a_list_is_not_empty_and_text_is_none() -> None:
    assert to_list("topics", (name for name in "ab"), str.islower, "a list") == ["a", "b"]
    assert to_list("topics", [], str.islower, "a list", or_empty=True) == []
    several: list[Any] = [[], "ab", None, 5, b"ab", ["a", "B"]]
    for values in several:
        with pytest.raises(InvalidRequest, match=r"^topics is .*; it is a list"):
            to_list("topics", values, str.islower, "a list")


def test_what_json_cannot_carry_is_found() -> None:
    assert to_json({"group": "g"}) == b'{"group":"g"}'
    fields: dict[str, Any] = {"topic is <object": {"group": "g", "topic": object()}, "names of fields are": {(1,): 5}}
    for said, unsendable in fields.items():
        with pytest.raises(InvalidRequest, match=said):
            to_json(unsendable)


# --- spans of time


@pytest.mark.parametrize("span", [90, 90.0, "90", "90s", "1m30s", "90000ms", timedelta(minutes=1.5)])
def test_a_span_is_said_in_every_way(span: Any) -> None:
    assert to_span_ms("delay", span) == 90_000
    assert to_seconds("delay", span) == to_timeout(span) == 90


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ("soon", "delay: 'soon' is no duration: write a number and a unit"),
        ("", "delay: '' is no duration"),
        ("40000d", "delay: '40000d' is too long"),
        (None, 'delay is None; it is seconds, text like "30s"'),
        ([], "delay is \\[\\]; it is seconds"),
        (object(), "delay is <object.*; it is seconds"),
        (NAN, "delay is nan; it is seconds"),
        (INF, "delay is inf; it is seconds"),
        (True, "delay is True; it is seconds"),
        (False, "delay is False; it is seconds"),
        (-1, "delay is -1; it is from 0s to 36500d"),
        (1e12, "delay is 1000000000000.0; it is from 0s to 36500d"),
        (timedelta(-1), "delay is datetime.timedelta.*; it is from 0s"),
    ],
)
def test_other_spans_are_refused(span: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        to_span_ms("delay", span)


def test_seconds_are_as_exact_as_they_were_given() -> None:
    assert to_seconds("linger", 0.0004) == 0.0004
    with pytest.raises(InvalidRequest, match="delivery_timeout is 0; it is from 1ms"):
        to_seconds("delivery_timeout", 0, least_ms=1)


def test_a_timeout_that_is_over_is_now_and_none_is_for_ever() -> None:
    assert to_timeout(None) is None
    assert to_timeout(-5) == to_timeout(timedelta(-1)) == 0
    several: list[Any] = ["x", NAN, INF, [], True]
    for span in several:
        with pytest.raises(InvalidRequest, match=r"^timeout"):
            to_timeout(span)


# --- of settlements


def test_a_settlement_says_milliseconds() -> None:
    assert (to_delay(None), to_delay(0), to_delay(1.5), to_delay("2s")) == (NO_ARGUMENT, 0, 1500, 2000)
    assert to_extension(1.5) == to_extension("1500ms") == to_extension(timedelta(seconds=1.5)) == 1500


@pytest.mark.parametrize("seconds", [-1, limits.MAX_BACKOFF_MS / 1000 + 1])
def test_a_delay_has_bounds(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match=r"delay is .*; it is from 0s to 7d"):
        to_delay(seconds)


@pytest.mark.parametrize("seconds", [-1, 0, limits.MAX_VISIBILITY_MS / 1000 + 1])
def test_an_extension_has_bounds(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match=r"seconds is .*; it is from "):
        to_extension(seconds)


def test_a_reason_is_text_and_has_a_length() -> None:
    longest = "x" * limits.MAX_REJECT_CHARS
    assert to_reason(longest) == longest
    assert to_reason("käse \udcff") == "käse \\udcff", "what is no UTF-8 does not break those sent with it"
    with pytest.raises(InvalidRequest, match="shorten it"):
        to_reason(longest + "x")
    several: list[Any] = [None, 5, ValueError("no")]
    for reason in several:
        with pytest.raises(InvalidRequest, match=r"^reason is .*; it is text"):
            to_reason(reason)
