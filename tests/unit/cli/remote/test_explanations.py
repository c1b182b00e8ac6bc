"""Errors of the broker in the words of the command line."""

import asyncio
import socket
from typing import Any

import pytest

from goqueue.cli.remote.explanations import explain, unreachable
from goqueue.model.errors import (
    GoQueueError,
    InvalidRequest,
    ProtocolError,
    RequestTimeout,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)


def explained(error: GoQueueError, known: list[str], **fields: Any) -> GoQueueError:
    async def look_up(operation: str) -> dict[str, Any]:
        if not known:
            raise Unavailable("gone")
        return {"topics": known, "groups": known}

    return asyncio.run(explain(error, fields, look_up))


def test_an_unknown_name_is_guessed_or_a_few_are_named() -> None:
    topics = [f"topic-{number}" for number in range(20)]
    near = explained(UnknownTopic("?"), ["orders", "bills"], topic="ordres")
    assert str(near) == "there is no topic 'ordres'; did you mean orders?"
    assert isinstance(near, UnknownTopic)
    assert str(explained(UnknownTopic("?"), topics, topics=["zzz"])).endswith("topic-7 and 12 more")
    assert str(explained(UnknownGroup("?"), ["billing"], group="x")) == "there is no group 'x'; there is: billing"


def test_of_offsets_the_topic_is_guessed_if_there_is_one() -> None:
    near = explained(UnknownTopic("?"), ["orders"], name="nightly", offsets={"ordres": {"0": 1}})
    assert str(near) == "there is no topic 'ordres'; did you mean orders?"
    several = {"orders": {"0": 1}, "ordres": {"0": 1}}
    assert str(explained(UnknownTopic("?"), ["orders"], name="nightly", offsets=several)) == "?"


def test_where_nothing_can_be_looked_up_the_error_stays() -> None:
    error = UnknownTopic("there is no topic")
    assert explained(error, [], topic="x") is error
    assert explained(error, ["a"], redrive="x") is error


def test_a_field_is_called_by_its_option_where_the_error_names_it() -> None:
    error = InvalidRequest("from 1 to 1000")
    assert explained(error, ["x"], num_partitions=0) is error
    error.field = "num_partitions"
    assert str(explained(error, ["x"])) == "--partitions: from 1 to 1000"
    error.field = "max_retries"
    assert str(explained(error, ["x"])) == "--max-retries: from 1 to 1000"


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        ("name", {"name": "a b"}, "TOPIC is 'a b', which is too bad"),
        ("count", {"count": 0}, "COUNT is 0, which is too bad"),
        ("num_partitions", {"num_partitions": 0}, "--partitions is 0, which is too bad"),
        ("backoff.base", {"backoff": {"base": "x"}}, "--backoff-base is 'x', which is too bad"),
        ("message.partition", {"message": {"partition": -1}}, "--partition is -1, which is too bad"),
        ("filter.from_time", {}, "--from-time is too bad"),
    ],
)
def test_an_error_says_what_was_typed_and_no_field(field: str, given: dict[str, Any], said: str) -> None:
    error = InvalidRequest(f"{field} is too bad")
    error.field = field
    assert str(explained(error, ["x"], **given)) == said


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), "(me): nothing listens there;"),
        (socket.gaierror(-2, "Name or service not known"), "(me): no such host;"),
        (OSError(113, "No route to host"), "(me): No route to host;"),
        (None, "(me); start one"),
    ],
)
def test_nobody_there_says_how_to_start_one(cause: OSError | None, words: str) -> None:
    error = Unavailable("cannot reach a broker")
    error.__cause__ = cause
    found = str(unreachable(error, "a:1", "me"))
    assert words in found
    assert "`goqueue serve`" in found


def test_one_that_is_slow_is_told_from_nobody() -> None:
    assert "within the time given; start one" in str(unreachable(RequestTimeout("late"), "a:1", "me"))


def test_another_port_is_told_from_nobody() -> None:
    found = str(unreachable(ProtocolError("the answer begins with b'HTTP'"), "a:1", "me"))
    assert found == "what listens at a:1 (me) is no wire port of a broker; say where one is with --address"
