"""Which broker a command talks to, and where that may be said."""

from pathlib import Path

import pytest

from goqueue.cli.remote.chosen import DEFAULT_ADDRESS
from goqueue.client import client
from tests.unit.cli.remote.terminal import NOBODY, Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(NOBODY, tmp_path / "cli.yaml")


def shown(terminal: Terminal, *words: str, **environment: str | None) -> tuple[str, str]:
    lines = dict(line.split(None, 1) for line in terminal.good(*words, "context", "show", **environment).splitlines())
    return lines["address"], lines["said"].removeprefix("by").strip()


def test_the_option_counts_before_all_else(terminal: Terminal) -> None:
    terminal.good("context", "set", "far", "--address", "far:1")
    assert shown(terminal, "--address", "near:2") == ("near:2", "--address")
    assert shown(terminal, "--context", "far") == ("far:1", "the context far")
    assert shown(terminal) == (NOBODY, "$GOQUEUE_ADDRESS")
    assert shown(terminal, GOQUEUE_ADDRESS=None) == ("far:1", "the context far")


def test_without_anything_it_is_this_machine(terminal: Terminal) -> None:
    assert shown(terminal, GOQUEUE_ADDRESS=None) == ("127.0.0.1:9001", "the default")


def test_options_may_stand_behind_a_command_and_count_before_those_in_front(terminal: Terminal) -> None:
    found = terminal.good("--address", "a:1", "-o", "yaml", "context", "show", "--address", "b:2", "-o", "json")
    assert found.startswith('{"address":"b:2","source":"--address"')


def test_a_context_behind_a_command_counts_before_an_address_in_front(terminal: Terminal) -> None:
    terminal.good("context", "set", "far", "--address", "far:1")
    assert "far:1" in terminal.good("--address", "a:1", "context", "show", "--context", "far")


def test_the_default_is_that_of_the_client() -> None:
    assert DEFAULT_ADDRESS == client.DEFAULT_ADDRESS


@pytest.mark.parametrize("text", ["host", "host:", "host:0", "host:99999", "::1", "tcp://host:7"])
def test_what_is_no_address_is_refused(terminal: Terminal, text: str) -> None:
    assert "is no address; write host:port, like" in terminal.bad("--address", text, "topic", "list", code=2)
    assert "is no address" in terminal.bad("context", "set", "far", "--address", text, code=2)


def test_nobody_there_is_one_line_that_says_what_to_do(terminal: Terminal) -> None:
    line = terminal.bad("topic", "list")
    assert line.startswith("no broker answers at 127.0.0.1:1 ($GOQUEUE_ADDRESS): nothing listens there; start one with")
    assert "goqueue serve" in line
    assert "--address" in line


def test_a_timeout_that_is_none_is_refused(terminal: Terminal) -> None:
    assert terminal.bad("topic", "list", "--timeout", "soon", code=2).startswith("--timeout: 'soon' is no duration")
    assert terminal.bad("topic", "list", "--timeout", "nan", code=2).startswith("--timeout: 'nan' is no duration")
    for nothing in ("0", "0s", "0.0001"):
        said = terminal.bad("topic", "list", "--timeout", nothing, code=2)
        assert said == f"--timeout: {nothing} leaves no time for an answer; write at least 1ms"


@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "redrive", "orders", "--rate", "nan"),
        ("dlq", "redrive", "orders", "--rate", "inf"),
        ("bench", "end-to-end", "--rate", "nan"),
        ("bench", "end-to-end", "--rate", "inf"),
        ("topic", "alter", "orders", "--backoff-factor", "nan"),
    ],
)
def test_what_is_no_finite_number_is_refused_before_a_broker_is_asked(
    terminal: Terminal, words: tuple[str, ...]
) -> None:
    said = terminal.bad(*words, code=2)
    assert said.startswith(f"{words[-2]} is {words[-1]}; it must be a number, ")


def test_a_message_has_some_time_to_live(terminal: Terminal) -> None:
    said = terminal.bad("produce", "orders", "a", "--ttl", "0", code=2)
    assert said == "--ttl is 0; it must be from 1ms to 36500d"


@pytest.mark.parametrize("place", ["-1", "-2", "-0", "-1.5"])
def test_a_negative_number_is_no_offset(terminal: Terminal, place: str) -> None:
    said = terminal.bad("group", "reset-offsets", "billing", "--topic", "orders", "--to", place, code=2)
    assert said.startswith(f"--to: {place} is no offset, they begin with 0; write earliest or latest, or {place}s for")


def test_what_was_mistyped_is_guessed(terminal: Terminal) -> None:
    assert terminal.bad("topc", code=2) == "there is no command 'topc'; did you mean topic? See goqueue-cli --help"
    crate = "there is no command 'crate'; did you mean create or alter? See goqueue-cli topic --help"
    assert terminal.bad("topic", "crate", "foo", code=2) == crate
    assert "there is no option --partition" in terminal.bad("topic", "list", "--partition", "1", code=2)
    assert "TOPIC is missing" in terminal.bad("topic", "describe", code=2)


def test_nothing_typed_shows_the_help_page(terminal: Terminal) -> None:
    result = terminal.type()
    assert result.exit_code == 2
    assert "Commands:" in result.stderr
