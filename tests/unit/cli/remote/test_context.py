"""Contexts: brokers by name, in a file that is only its owner's."""

import os
from pathlib import Path

import pytest
import yaml

from goqueue.cli.remote import context_file
from tests.unit.cli.remote.terminal import NOBODY, Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(NOBODY, tmp_path / "config" / "cli.yaml")


def file_of(terminal: Terminal) -> Path:
    return Path(str(terminal.environment["GOQUEUE_CLI_CONFIG"]))


def test_the_first_context_is_in_use_and_others_are_when_asked_for(terminal: Terminal) -> None:
    assert terminal.good("context", "set", "here", "--address", "127.0.0.1:9001") == "here is 127.0.0.1:9001\n"
    terminal.good("context", "set", "there", "--address", "there:9001")
    assert terminal.rows("context", "list") == [
        ["context", "address"],
        ["*", "here", "127.0.0.1:9001"],
        ["there", "there:9001"],
    ]
    assert terminal.good("context", "use", "there") == "using there, at there:9001\n"
    terminal.environment["GOQUEUE_ADDRESS"] = "other:1"
    said = terminal.type("context", "use", "there").stderr
    assert said == "note: $GOQUEUE_ADDRESS is set, and wins: commands go to other:1 while it is\n"
    del terminal.environment["GOQUEUE_ADDRESS"]
    assert terminal.object("context", "list") == {
        "current": "there",
        "contexts": {"here": {"address": "127.0.0.1:9001"}, "there": {"address": "there:9001"}},
    }


def test_the_file_is_its_owners_and_is_replaced_as_a_whole(terminal: Terminal) -> None:
    terminal.good("context", "set", "here", "--address", "a:1")
    before = os.stat(file_of(terminal))
    assert before.st_mode & 0o777 == 0o600
    terminal.good("context", "set", "here", "--address", "b:2")
    after = os.stat(file_of(terminal))
    assert after.st_ino != before.st_ino
    assert after.st_mode & 0o777 == 0o600
    assert yaml.safe_load(file_of(terminal).read_text()) == {
        "current": "here",
        "contexts": {"here": {"address": "b:2"}},
    }
    assert [path.name for path in file_of(terminal).parent.iterdir()] == ["cli.yaml"]


def test_a_file_that_could_not_be_replaced_is_as_it_was(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.good("context", "set", "here", "--address", "a:1")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr("os.replace", fail)
    assert "No space left" in terminal.bad("context", "set", "here", "--address", "b:2")
    monkeypatch.undo()
    assert "a:1" in terminal.good("context", "list")
    assert [path.name for path in file_of(terminal).parent.iterdir()] == ["cli.yaml"]


def test_a_deleted_context_is_not_in_use_any_more(terminal: Terminal) -> None:
    terminal.good("context", "set", "here", "--address", "a:1")
    assert terminal.good("context", "delete", "here") == "forgot here\n"
    assert terminal.object("context", "list") == {"current": None, "contexts": {}}
    assert terminal.type("context", "list").stderr == "note: there are no contexts\n"


def test_a_context_that_is_not_there_is_guessed_or_listed(terminal: Terminal) -> None:
    assert "goqueue-cli context set there --address" in terminal.bad("context", "use", "there")
    terminal.good("context", "set", "production", "--address", "a:1")
    assert "did you mean production?" in terminal.bad("context", "use", "produktion")
    assert "there are: production" in terminal.bad("topic", "list", "--context", "x")


@pytest.mark.parametrize("text", ["contexts: [", "contexts: 5", "other: 1", "contexts: {a: {address: 1}}"])
def test_a_file_that_is_no_file_of_contexts_is_said_to_be_so(terminal: Terminal, text: str) -> None:
    file_of(terminal).parent.mkdir()
    file_of(terminal).write_text(text)
    assert "is no file of contexts" in terminal.bad("context", "list", code=2)


def test_an_address_is_needed_and_must_be_one(terminal: Terminal) -> None:
    assert "--address HOST:PORT" in terminal.bad("context", "set", "here", code=2)
    assert "is no address" in terminal.bad("context", "set", "here", "--address", "a:b", code=2)
    assert "cannot name a context" in terminal.bad("context", "set", " x", "--address", "a:1", code=2)


def test_it_is_kept_where_such_files_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOQUEUE_CLI_CONFIG", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert context_file.path() == tmp_path / ".config" / "goqueue" / "cli.yaml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert context_file.path() == Path("/x/goqueue/cli.yaml")
