"""A line holds whatever is in its fields: nothing ends it early, nothing raises, nothing secret is shown."""

import json
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.model.publishing import Acks
from goqueue.model.settings import Fsync
from goqueue.telemetry import lines
from goqueue.telemetry.lines import MASK, MAX_ITEMS, MAX_TEXT_CHARS, Event, as_json, as_text, show

NOON = 1_795_867_200.1239


def event(message: str = "topic created", /, **fields: object) -> Event:
    return Event(NOON, "info", "broker", message, fields, None)


def failure(error: BaseException) -> Event:
    return event()._replace(error=error)


def fields_of(**fields: object) -> dict[str, Any]:
    shown = json.loads(as_json(event(**fields)))["fields"]
    assert isinstance(shown, dict)
    return shown


def text_of(**fields: object) -> str:
    return as_text(event(**fields)).partition(": topic created ")[2]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


# --- the two forms


def test_text_is_the_time_the_level_who_and_what() -> None:
    assert as_text(event(topic="orders", partitions=3)) == (
        "2026-11-28T12:00:00.123Z info  broker: topic created topic=orders partitions=3"
    )


@pytest.mark.parametrize(("level", "column"), [("debug", "debug"), ("warn", "warn "), ("error", "error")])
def test_levels_have_five_columns_in_text(level: str, column: str) -> None:
    assert as_text(event()._replace(level=level)).startswith(f"2026-11-28T12:00:00.123Z {column} broker: ")


def test_json_is_one_object() -> None:
    assert json.loads(as_json(event(topic="orders", partitions=3))) == {
        "time": "2026-11-28T12:00:00.123Z",
        "level": "info",
        "logger": "broker",
        "message": "topic created",
        "fields": {"topic": "orders", "partitions": 3},
    }


def test_an_error_comes_with_its_traceback() -> None:
    failed = failure(raised(ValueError("no space")))
    shown = json.loads(as_json(failed))
    assert shown["error"] == "ValueError: no space"
    assert shown["traceback"].startswith("Traceback (most recent call last):\n")
    assert shown["traceback"].endswith("\nValueError: no space")
    first, *below = as_text(failed).split("\n")
    assert first.endswith('topic created error="ValueError: no space"')
    assert [line.removeprefix("    | ") for line in below] == shown["traceback"].split("\n")


def test_an_error_that_was_never_raised_has_no_traceback() -> None:
    failed = failure(KeyError())
    assert "traceback" not in json.loads(as_json(failed))
    assert as_text(failed).endswith("topic created error=KeyError")


def test_of_a_long_traceback_the_end_is_shown() -> None:
    error = raised(ValueError("x" * 2 * lines.MAX_TRACEBACK_CHARS + "end"))
    trace = json.loads(as_json(failure(error)))["traceback"]
    assert len(trace) == lines.MAX_TRACEBACK_CHARS + len("... ")
    assert trace.endswith("end")


# --- values


@pytest.mark.parametrize(
    ("value", "text", "plain"),
    [
        ("orders", "orders", "orders"),
        ("two words", '"two words"', "two words"),
        ("", '""', ""),
        ("a=b", '"a=b"', "a=b"),
        ('say "x"', '"say \\"x\\""', 'say "x"'),
        ("a\\n", '"a\\\\n"', "a\\n"),
        ("a\nb", '"a\\nb"', "a\nb"),
        ("grün", "grün", "grün"),
        (b"k\xff", '"k\\\\xff"', "k\\xff"),
        (bytearray(b"key"), "key", "key"),
        (memoryview(b"key"), "key", "key"),
        (None, "null", None),
        (True, "true", True),
        (0.25, "0.25", 0.25),
        (math.inf, "inf", "inf"),
        (math.nan, "nan", "nan"),
        (2**63, str(2**63), 2**63),
        (2**200, hex(2**200), hex(2**200)),
        (Acks.LEADER, "1", 1),
        (Fsync.EVERY, "every", "every"),
        ([1, "a"], '"[1, \\"a\\"]"', [1, "a"]),
        ((1, 2), '"[1, 2]"', [1, 2]),
        ({"a": {"b": 1}}, '"{\\"a\\": {\\"b\\": 1}}"', {"a": {"b": 1}}),
        (frozenset({7}), "[7]", [7]),
        (ValueError("bad"), '"ValueError: bad"', "ValueError: bad"),
        pytest.param(re.compile, None, str(re.compile), id="function"),
    ],
)
def test_a_value_is_shown(value: object, text: str | None, plain: object) -> None:
    assert fields_of(value=value) == {"value": plain}
    assert text is None or text_of(value=value) == f"value={text}"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BrokenMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("no item")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")

    def __len__(self) -> int:
        return 3


class Colour(Enum):
    RED = Broken()


class Shouting(str):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Failing(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("value", [Broken(), BrokenMapping(), Colour.RED, Failing(), {1: Broken()}, [Broken()]])
def test_a_value_that_raises_is_shown_as_such(value: object) -> None:
    assert "<unprintable " in str(fields_of(value=value)["value"])
    assert "<unprintable " in text_of(value=value)


def test_a_value_that_does_not_say_what_it_is_is_shown_as_such() -> None:
    class Proxy:
        """As proxies of contexts do, outside of theirs. Local: pytest asks what everything in a module is."""

        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("no context")

    assert fields_of(value=Proxy()) == {"value": "<unprintable Proxy>"}
    assert text_of(value=[Proxy()]) == 'value="[\\"<unprintable Proxy>\\"]"'


def test_a_number_or_text_of_a_class_of_its_own_is_shown_without_asking_it() -> None:
    assert fields_of(value=Shouting("hello")) == {"value": "hello"}


def test_an_error_that_cannot_be_shown_is_named() -> None:
    failed = failure(raised(Failing()))
    assert json.loads(as_json(failed))["error"] == "<unprintable Failing>"
    assert as_text(failed)


def test_a_number_too_long_for_decimals_is_shown() -> None:
    shown = fields_of(value=10**10_000)["value"]
    assert shown.startswith("0x")
    assert shown.endswith("characters)")


# --- bounds


def test_long_texts_are_cut_and_say_so() -> None:
    long = "x" * (MAX_TEXT_CHARS + 1)
    assert fields_of(value=long)["value"] == "x" * MAX_TEXT_CHARS + f"... ({MAX_TEXT_CHARS + 1} characters)"
    assert fields_of(value=long.encode())["value"] == "x" * MAX_TEXT_CHARS + f"... ({MAX_TEXT_CHARS + 1} bytes)"
    assert json.loads(as_json(event(long)))["message"].endswith("characters)")
    assert len(as_text(event(long))) < MAX_TEXT_CHARS + 100


def test_large_collections_are_cut_and_say_so() -> None:
    numbers = fields_of(value=list(range(1000)))["value"]
    assert numbers == [*range(MAX_ITEMS), f"... {1000 - MAX_ITEMS} more"]
    names = fields_of(value={str(number): number for number in range(1000)})["value"]
    assert len(names) == MAX_ITEMS + 1
    assert names["..."] == f"{1000 - MAX_ITEMS} more"
    nested = fields_of(value=[[0] * 1000 for _ in range(1000)])["value"]
    assert sum(len(part) for part in nested) < 3 * MAX_ITEMS + 3000


def test_a_collection_that_holds_itself_ends() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert fields_of(value=loop) == {"value": [[[["..."]]]]}


# --- forging


FORGED = "x\n2026-11-28T12:00:00.000Z error broker: all data lost"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\0", "\x1b[2K"])
def test_no_sign_ends_a_line(end: str) -> None:
    for line in (
        as_text(event(value=f"a{end}b")),
        as_text(event(f"a{end}b")),
        as_text(event(value={f"a{end}b": [end]})),
        as_text(event(**{f"a{end}b": 1})),
        as_text(event()._replace(logger=f"a{end}b")),
        as_json(event(value=f"a{end}b")),
    ):
        assert len(line.splitlines()) == 1
        assert line.isprintable()


def test_an_error_forges_no_line() -> None:
    failed = raised(ValueError(FORGED))
    first, *below = as_text(failure(failed)).splitlines()
    assert first.startswith("2026-11-28T12:00:00.123Z info  broker: topic created error=")
    assert below
    assert all(line.startswith("    | ") for line in below)


def test_a_value_forges_no_field() -> None:
    assert text_of(key='a" admin="yes', other="b") == 'key="a\\" admin=\\"yes" other=b'


@given(value=st.text(st.characters(codec=None)), name=st.text(st.characters(codec=None), min_size=1))
def test_any_text_stays_in_its_line_and_json_gives_it_back(value: str, name: str) -> None:
    held = event()._replace(fields={name: value})
    text = as_text(held)
    assert text.isprintable()
    text.encode()
    shown = json.loads(as_json(held))["fields"]
    assert shown == {name: value} or shown == {name: MASK}


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(Broken),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary() | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(value=_ANYTHING)
def test_anything_is_one_line(value: object) -> None:
    assert as_text(event(value=value)).isprintable()
    json.loads(as_json(event(value=value)))


# --- secrets


@pytest.mark.parametrize(
    "name",
    ["token", "access_token", "secret", "clientSecret", "password", "PASSWORD", "api_key", "apiKey", "x-api-key",
     "authorization", "Authorization", "private_key", "Set-Cookie", "credentials"],
)  # fmt: skip
def test_secrets_are_masked(name: str) -> None:
    for fields in ({name: "hunter2"}, {"headers": {name: "hunter2"}}, {"all": [{"deep": {name.encode(): "hunter2"}}]}):
        for line in (as_text(event(**fields)), as_json(event(**fields))):
            assert "hunter2" not in line
            assert MASK in line


def test_secrets_too_deep_to_mask_are_left_out() -> None:
    deep: object = {"token": "hunter2"}
    for _ in range(lines.MAX_DEPTH):
        deep = [deep]
    assert "hunter2" not in as_json(event(value=deep))
    assert "hunter2" not in as_text(event(value=deep))


@pytest.mark.parametrize("name", ["topic", "key", "partition", "author", "passed"])
def test_other_names_are_not_masked(name: str) -> None:
    assert fields_of(**{name: "shown"}) == {name: "shown"}


def test_show_names_an_object_that_has_no_text() -> None:
    assert show(Broken()) == "<unprintable Broken>"
