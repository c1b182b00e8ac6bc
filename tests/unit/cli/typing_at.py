"""A person at a terminal: runs `goqueue log` on a data directory of its own, and writes logs with known times."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from typer.testing import CliRunner, Result

from goqueue import codec
from goqueue.cli.commands import app
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.store import Store


class Person:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def log(self, *words: str, stdin: str | bytes | None = None) -> Result:
        """Run `goqueue log WORDS`; no traceback may come out of it."""
        where = [] if "--data-dir" in words else ["--data-dir", str(self.data_dir)]
        return run("log", *words, *where, stdin=stdin)

    def objects(self, *words: str) -> list[dict[str, object]]:
        """What `goqueue log cat WORDS -o json` prints."""
        result = self.log("cat", *words, "-o", "json")
        return [msgspec.json.decode(line) for line in result.stdout.splitlines()]

    def values(self, *words: str) -> list[object]:
        return [found["value"] for found in self.objects(*words)]

    def write(self, name: str, *blocks: tuple[int, Sequence[Record]], settings: LogSettings | None = None) -> None:
        """Append blocks, each at its time."""
        with Store(str(self.data_dir)) as store:
            log = store.open_log(name, settings)
            for now, records in blocks:
                log.append(codec.encode(records), now=now)

    def segments(self, name: str) -> list[Path]:
        return sorted((self.data_dir / "logs" / name).glob("*.log"))


def run(*words: str, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(app, list(words), input=stdin, prog_name="goqueue")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def valued(*values: str) -> list[Record]:
    return [Record(value=value.encode()) for value in values]


SMALL = LogSettings(segment_bytes=4096, index_interval_bytes=256)
