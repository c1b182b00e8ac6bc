"""Logging: the right events reach the stream in the right form, and nothing that is logged can stop the broker."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from goqueue.model.errors import InvalidSetting
from goqueue.telemetry import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """`configure` is for a whole process; a test puts things back."""
    root, ours = logging.getLogger(), logging.getLogger("goqueue")
    levels = root.level, ours.level
    yield
    for handler in root.handlers[:]:
        if isinstance(handler, logs._Handler):
            root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@contextmanager
def alone() -> Iterator[None]:
    """Without pytest's own handlers, which raise what they cannot show."""
    root = logging.getLogger()
    others = root.handlers[:]
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = others


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_a_sentence_and_fields(stream: io.StringIO) -> None:
    logs.configure("info", "text", stream)
    logs.get("broker").info("topic created", topic="orders", partitions=3)
    time, _, rest = stream.getvalue().partition(" ")
    assert rest == "info  broker: topic created topic=orders partitions=3\n"
    assert time.endswith("Z")


def test_json_has_the_same_event(stream: io.StringIO) -> None:
    logs.configure("debug", "json", stream)
    logs.get("broker").debug("topic created", topic="orders")
    (event,) = events(stream)
    assert event.pop("time")
    assert event == {"level": "debug", "logger": "broker", "message": "topic created", "fields": {"topic": "orders"}}


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("debug", ["debug", "info", "warn", "error"]),
        ("info", ["info", "warn", "error"]),
        ("warn", ["warn", "error"]),
        ("error", ["error"]),
    ],
)
def test_events_below_the_level_are_not_shown(level: str, seen: list[str], stream: io.StringIO) -> None:
    logs.configure(level, "json", stream)
    log = logs.get("broker")
    log.debug("x")
    log.info("x")
    log.warning("x")
    log.error("x")
    assert [event["level"] for event in events(stream)] == seen


def test_an_exception_brings_its_traceback(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    try:
        raise ValueError("no space")
    except ValueError as error:
        logs.get("broker").error("append failed", error=error, topic="orders")
    (event,) = events(stream)
    assert event["error"] == "ValueError: no space"
    assert "test_an_exception_brings_its_traceback" in event["traceback"]
    assert event["fields"] == {"topic": "orders"}


def test_an_error_that_is_no_exception_is_a_field(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    logs.get("broker").info("refused", error="busy")
    assert [event["fields"] for event in events(stream)] == [{"error": "busy"}]


def test_any_name_may_be_a_field(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    names = {"message": 1, "self": 2, "level": 3, "name": 4, "args": 5, "exc_info": 6, "goqueue_fields": 7}
    logs.get("broker").info("100 % of it: %s", **names)
    (event,) = events(stream)
    assert event["message"] == "100 % of it: %s"
    assert event["fields"] == names


def test_configuring_again_replaces_what_was(stream: io.StringIO) -> None:
    former = io.StringIO()
    logs.configure("error", "json", former)
    logs.configure("info", "text", stream)
    logs.get("broker").info("here")
    assert former.getvalue() == ""
    assert stream.getvalue().count("here") == 1


def test_warnings_of_libraries_have_the_same_form(stream: io.StringIO) -> None:
    with alone():
        logs.configure("debug", "json", stream)
        logging.getLogger("asyncio").warning("slow: %s", "task")
        logging.getLogger("asyncio").info("not interesting")
        logging.getLogger("asyncio").critical("bad: %d", "no number")
    assert [(event["logger"], event["level"], event["message"]) for event in events(stream)] == [
        ("asyncio", "warn", "slow: task"),
        ("asyncio", "error", "bad: %d"),
    ]


def test_who_wants_errors_only_gets_no_warnings_of_libraries(stream: io.StringIO) -> None:
    logs.configure("error", "json", stream)
    logging.getLogger("asyncio").warning("slow")
    assert events(stream) == []


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")


def test_a_stream_that_is_gone_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text", Closed())
    logs.get("broker").info("nobody reads this")
    assert capsys.readouterr() == ("", "")


def test_letters_the_stream_does_not_have_are_escaped() -> None:
    raw = io.BytesIO()
    logs.configure("info", "text", io.TextIOWrapper(raw, encoding="ascii"))
    logs.get("broker").info("topic created", topic="grün")
    assert raw.getvalue().endswith(b"topic=gr\\xfcn\n")


def test_no_error_that_is_given_can_raise(stream: io.StringIO) -> None:
    class Moody(Exception):
        """Is neither true nor false."""

        def __bool__(self) -> bool:
            raise RuntimeError("ask somebody else")

    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("no context")

    with alone():
        logs.configure("info", "text", stream)
        logs.get("broker").error("failed", error=Moody("hm"))
        logs.get("broker").error("failed", error=Proxy())
    assert 'error="Moody: hm"' in stream.getvalue()
    assert 'error="<unprintable Proxy>"' in stream.getvalue()


def test_other_handlers_see_who_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "goqueue"):
        logs.get("broker").info("topic created", topic="orders")
    (record,) = caplog.records
    assert (record.name, record.funcName) == ("goqueue.broker", "test_other_handlers_see_who_logged")


@pytest.mark.parametrize(("level", "form", "wrong"), [("loud", "text", "log level"), ("info", "xml", "log format")])
def test_settings_that_cannot_be_are_refused(level: str, form: Any, wrong: str, stream: io.StringIO) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        logs.configure(level, form, stream)
