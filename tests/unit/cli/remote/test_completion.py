"""Scripts for shells, and what they complete."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.remote.terminal import NOBODY, Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(NOBODY, tmp_path / "cli.yaml")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command_and_parses(terminal: Terminal, shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(terminal.good("completion", shell))
    assert "goqueue-cli" in script.read_text()
    found = shutil.which(shell)
    if found is not None:
        done = subprocess.run([found, "-n", str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def complete(words: str, at: int, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from goqueue.cli.remote.main import main; main()"],
        env={"_GOQUEUE_CLI_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_options_and_contexts_are_completed(terminal: Terminal, tmp_path: Path) -> None:
    assert complete("goqueue-cli to", 1) == ["topic"]
    assert complete("goqueue-cli topic add", 2) == ["add-partitions"]
    terminal.good("context", "set", "production", "--address", "a:1")
    config = str(tmp_path / "cli.yaml")
    assert complete("goqueue-cli context use p", 3, GOQUEUE_CLI_CONFIG=config) == ["production"]


def test_where_no_broker_answers_no_names_are_completed() -> None:
    assert complete("goqueue-cli topic describe o", 3, GOQUEUE_ADDRESS=NOBODY) == []


def test_another_shell_is_refused(terminal: Terminal) -> None:
    assert "bash" in terminal.bad("completion", "cmd", code=2)
