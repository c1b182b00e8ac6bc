"""A person at a terminal who types `goqueue-cli`, inside this process; and a broker to talk to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner, Result

import goqueue
from goqueue.cli.remote.chosen import Chosen, choose
from goqueue.cli.remote.commands import app

NOBODY = "127.0.0.1:1"
"""Where no broker is."""


class Terminal:
    def __init__(self, address: str, config: Path) -> None:
        self.address = address
        self.environment: dict[str, str | None] = {
            "GOQUEUE_ADDRESS": address,
            "GOQUEUE_CLI_CONFIG": str(config),
            "GOQUEUE_CLI_HINTS": None,
            "COLUMNS": None,
            "NO_COLOR": "1",
        }

    def type(self, *words: str, stdin: str | bytes | None = None, **environment: str | None) -> Result:
        """No traceback may come out of it."""
        choose(Chosen())
        env = {**self.environment, **environment}
        result = CliRunner().invoke(app, list(words), input=stdin, prog_name="goqueue-cli", env=env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def good(self, *words: str, stdin: str | bytes | None = None, **environment: str | None) -> str:
        """What it prints when it works."""
        result = self.type(*words, stdin=stdin, **environment)
        assert result.exit_code == 0, result.output
        return result.stdout

    def rows(self, *words: str, stdin: str | bytes | None = None) -> list[list[str]]:
        """The lines of a table, split at the gaps between columns."""
        lines = self.good(*words, stdin=stdin).splitlines()
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]

    def objects(self, *words: str, stdin: str | bytes | None = None) -> list[Any]:
        """What it prints with -o json."""
        lines = self.good(*words, "-o", "json", stdin=stdin).splitlines()
        return [msgspec.json.decode(line) for line in lines]

    def object(self, *words: str, stdin: str | bytes | None = None) -> Any:
        (found,) = self.objects(*words, stdin=stdin)
        return found

    def bad(self, *words: str, code: int = 1, stdin: str | bytes | None = None) -> str:
        """The one line it complains with."""
        result = self.type(*words, stdin=stdin)
        assert result.exit_code == code, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")


@contextmanager
def live_terminal(directory: Path) -> Iterator[Terminal]:
    """With a broker that runs on a thread of this process, and doors of its own."""
    with goqueue.embedded(str(directory / "data")) as broker:
        yield Terminal(broker.endpoints["wire"], directory / "cli.yaml")
