"""Replies as people read them."""

import time

import pytest

from goqueue.cli.remote.showing import ago, headers, seconds, text, when
from goqueue.model.times import show_time


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.25, "250 ms"),
        (1.24, "1.2 s"),
        (59.9, "59 s"),
        (245, "4m5s"),
        (86_400 + 3_660, "1d1h1m"),
        (3 * 86_400 + 3_660, "3d1h"),
    ],
)
def test_seconds_are_as_short_as_they_can_be_read(number: float, shown: str) -> None:
    assert seconds(number) == shown


def test_times_are_told_by_their_distance() -> None:
    now = time.time_ns() // 1_000_000
    assert ago(show_time(now - 90_000)).endswith(" ago")
    assert ago(show_time(now + 90_500)) == "in 1m30s"
    assert ago(None) == "-"
    assert when(None) == "-"
    assert when("1970-01-01T00:00:00.000Z").startswith("1970-01-01T00:00:00.000Z (")


@pytest.mark.parametrize(
    ("given", "shown"),
    [(None, "-"), ("", '""'), ("-", '"-"'), (" x", '" x"'), ("a\x1b[2J", r"a\x1b[2J"), (5, "5"), ("plain", "plain")],
)
def test_text_is_safe_and_told_apart_from_nothing(given: object, shown: str) -> None:
    assert text(given) == shown


def test_headers_are_an_object_or_pairs() -> None:
    assert headers({"headers": {"a": "1", "b": "\n"}}) == r"a=1, b=\n"
    assert headers({"headers": [["a", "1"], ["a", "2"]]}) == "a=1, a=2"
    assert headers({"headers": None}) == ""
