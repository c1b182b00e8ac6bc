"""The directory a run keeps: its checkpoint, and `status.json`, which says how far it is and how it went.

One process at a time has it. What is in it is replaced as a whole, so that whoever looks finds the old or the new.
"""

import fcntl
import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from goqueue.model.errors import Conflict, DamagedState, InvalidRequest, Unavailable
from goqueue.model.times import show_time

STATUS: Final = "status.json"
METRICS: Final = "metrics.prom"
_LOCK: Final = "lock"
"""Who has it is at work here. Nobody else touches it, or a run could be refused because somebody was looking."""
_ALIVE: Final = "alive"
"""Locked for as long, for those who look."""
_NAME_LETTERS: Final = 8

StateWord = Literal["running", "done", "failed", "stopped", "killed"]
"""`killed` is never written down: it is what a run is that says it runs, and does not."""


class Status(msgspec.Struct, kw_only=True):
    """What `status.json` has. Times are RFC 3339."""

    id: str
    """Of this directory's run, the same for as long as the directory is there; what it writes is known by it."""
    pipeline: str
    options: dict[str, str]
    """Those that say what is done."""
    state: StateWord = "running"
    starts: int = 0
    started: str = ""
    updated: str = ""
    finished: str | None = None
    pid: int = 0
    doing: str = ""
    done: int = 0
    total: int | None = None
    rate: float = 0.0
    counters: dict[str, int] = {}
    summary: dict[str, Any] | None = None
    error: str | None = None


def home() -> Path:
    """Where runs are that were not told where."""
    named = os.environ.get("XDG_STATE_HOME")
    return (Path(named) if named else Path.home() / ".local" / "state") / "goqueue" / "pipelines"


def run_name(pipeline: str, counts: Mapping[str, str]) -> str:
    """The same for the same work."""
    digest = hashlib.sha256(msgspec.json.encode(sorted(counts.items()))).hexdigest()
    return f"{pipeline}-{digest[:_NAME_LETTERS]}"


def replace(path: Path, data: bytes) -> None:
    """The whole file, or nothing of it."""
    number, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise


def for_spark(path: Path) -> str:
    """A local path, also where Spark's own paths are elsewhere. Hadoop takes the text as it is: nothing is quoted."""
    return f"file://{path.absolute()}"


def read_status(directory: Path) -> Status | None:
    """None when no run was there. One that was killed says so."""
    try:
        status = msgspec.json.decode((directory / STATUS).read_bytes(), type=Status)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.MsgspecError as error:
        raise DamagedState(
            f"{directory / STATUS} is not understood ({error}); it was written by something else"
        ) from None
    if status.state == "running" and not _is_alive(directory):
        status.state = "killed"
    return status


def known_runs(under: Path) -> dict[str, Status]:
    """By name, those that were changed last first."""
    found = {each.name: read_status(each) for each in under.iterdir()} if under.is_dir() else {}
    runs = {name: status for name, status in found.items() if status is not None}
    return dict(sorted(runs.items(), key=lambda item: item[1].updated, reverse=True))


def _is_alive(directory: Path) -> bool:
    try:
        with (directory / _ALIVE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class StateDirectory:
    """Make it with `opened`."""

    def __init__(self, path: Path, status: Status, *, is_dry: bool = False) -> None:
        self.path = path
        self.status = status
        self._is_dry = is_dry
        """It can be read; nothing is written."""

    @property
    def id(self) -> str:
        return self.status.id

    @property
    def checkpoint(self) -> Path:
        """Where a streaming query keeps its own."""
        return self.path / "checkpoint"

    @property
    def bad_rows(self) -> Path:
        """Where rows go that are left out."""
        return self.path / "bad"

    @property
    def report(self) -> Path:
        """A page about how it went."""
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        """What Spark has to say."""
        return self.path / "spark.log"

    def save(self) -> None:
        if self._is_dry:
            return
        self.status.updated = show_time(int(time.time() * 1000))
        replace(self.path / STATUS, msgspec.json.format(msgspec.json.encode(self.status)))
        replace(self.path / METRICS, _exposition(self.path.name, self.status).encode())

    def read(self, name: str, kind: type[Any]) -> Any:
        """What was kept under a name; None if nothing was."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise DamagedState(f"{self.path / name} is not understood ({error})") from None

    def keep(self, name: str, what: object) -> None:
        assert not self._is_dry, "a dry run changes nothing"
        replace(self.path / name, msgspec.json.format(msgspec.json.encode(what)))


def _exposition(run: str, status: Status) -> str:
    """Its counters, as Prometheus reads them from files."""
    label = f'{{run="{run}",pipeline="{status.pipeline}"}}'
    lines = []
    for name, value in sorted(status.counters.items()):
        metric = f"goqueue_pipeline_{name}_total"
        lines += [f"# TYPE {metric} counter", f"{metric}{label} {value}"]
    return "\n".join(lines) + "\n"


@contextmanager
def opened(path: Path, pipeline: str, counts: dict[str, str], *, is_dry: bool = False) -> Iterator[StateDirectory]:
    """The directory, for this process alone. Unavailable if another one has it, Conflict if it is another run's.

    For a dry run it is as it is, also if it is not there at all.
    """
    before = read_status(path)
    if before is None and path.is_dir() and any(map(_is_foreign, path.iterdir())):
        raise InvalidRequest(f"{path} has files in it that no run has left; choose an empty directory")
    _compare(path, before, pipeline, counts)
    status = before or Status(id=uuid.uuid4().hex[:16], pipeline=pipeline, options=counts)
    if is_dry:
        yield StateDirectory(path, status, is_dry=True)
        return
    path.mkdir(parents=True, exist_ok=True)
    with (path / _LOCK).open("ab") as lock, (path / _ALIVE).open("ab") as alive:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"another process is at work in {path}; wait for its end, or choose another one"
            ) from None
        fcntl.flock(alive, fcntl.LOCK_EX)  # those who look have it for a moment
        status = read_status(path) or status  # as another process may have left it just now
        status.state, status.starts, status.pid = "running", status.starts + 1, os.getpid()
        status.finished = status.summary = status.error = None
        status.doing, status.done, status.total, status.rate = "", 0, None, 0.0
        status.started = show_time(int(time.time() * 1000))
        directory = StateDirectory(path, status)
        directory.save()
        yield directory


def _is_foreign(path: Path) -> bool:
    """Whether no run can have left it that was killed before it said what it is."""
    return path.name not in (_LOCK, _ALIVE) and not path.name.startswith(f".{STATUS}.")


def _compare(path: Path, before: Status | None, pipeline: str, counts: dict[str, str]) -> None:
    if before is None or (before.pipeline, before.options) == (pipeline, counts):
        return
    if before.pipeline != pipeline:
        raise Conflict(f"{path} is of a run of {before.pipeline}; choose another directory")
    different = sorted(
        name for name in before.options.keys() | counts.keys() if before.options.get(name) != counts.get(name)
    )
    changes = ", ".join(f"{name} was {before.options.get(name)}, is {counts.get(name)}" for name in different)
    raise Conflict(f"{path} is of a run with other options: {changes}; choose another directory, or the same options")
