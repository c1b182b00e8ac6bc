"""Processes a bench starts: watched, measured, and gone when it ends, however it ends.

A child says on its standard output when it is ready; what it logs is kept for the message when it is not.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

ROOT: Final = Path(__file__).parents[1]
_PREFIX: Final = "goqueue-bench-"
"""The process id of its owner follows."""
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
_BECOME: Final = """\
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Turns into the wanted program, which the kernel kills when the bench is gone."""
_CPU_CLOCK: Final = 2
"""The kernel's number of the clock that counts what a process used of the cores, all threads together."""
_LOG_TAIL_BYTES: Final = 2000
_READ_BYTES: Final = 1 << 16


class Failed(Exception):
    """A child did not start, ended too early, or did not answer in time."""


@contextmanager
def scratch() -> Iterator[str]:
    """A directory that is removed afterwards; GOQUEUE_BENCH_DIR says on which disk."""
    where = os.environ.get("GOQUEUE_BENCH_DIR") or tempfile.gettempdir()
    _remove_orphans(where)
    directory = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=where)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _remove_orphans(where: str) -> None:
    """What a bench left that was killed."""
    for path in Path(where).glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            shutil.rmtree(path, ignore_errors=True)


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def resident_mib(pid: int | str = "self") -> float:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Child:
    """A Python module, or a piece of Python, as a process. Use it in `with`."""

    def __init__(self, arguments: Sequence[str], *, name: str, log: str) -> None:
        self.name = name
        self._log = log
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GOQUEUE_")}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-ISc", _BECOME, sys.executable, *arguments],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
            )
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    @property
    def kept_waiting_s(self) -> float:
        """How long its first thread, a server's loop, was ready to run and had no core: what others took from it."""
        with open(f"/proc/{self.pid}/schedstat") as schedstat:
            return int(schedstat.read().split()[1]) / 1e9

    def tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    def hear(self, timeout_s: float) -> bytes:
        """The next line it says."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            if not select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise self._failure(f"said nothing for {timeout_s:.0f} s")
            data = os.read(fd, _READ_BYTES)
            if not data:
                raise self._failure("ended")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def stop(self) -> float:
        """Ask it to end as a user would; how long it took."""
        begin = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not stop within {STOP_TIMEOUT_S:.0f} s") from None
        if status not in (0, -signal.SIGTERM):
            raise self._failure(f"stopped with status {status}")
        return time.perf_counter() - begin

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it unless it has ended, and let go of its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _failure(self, what: str) -> Failed:
        tail = Path(self._log).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return Failed(f"the {self.name} {what}" + (f"; its last words:\n{tail}" if tail else ""))


class BrokerProcess(Child):
    """`goqueue serve` with everything at its default, on free ports."""

    def __init__(self, directory: str, **flags: str) -> None:
        doors = dict.fromkeys(("http", "grpc", "wire"), "127.0.0.1:0")
        chosen = {**doors, "metrics": "off", "log_level": "warn", **flags}
        words = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", value)]
        begin = time.perf_counter()
        super().__init__(
            ["-c", "from goqueue.cli.main import main; main()", "serve", "--data-dir", f"{directory}/data", *words],
            name="broker",
            log=f"{directory}/broker.log",
        )
        try:
            self.hear(START_TIMEOUT_S)  # "GoQueue is ready"
            self.start_s = time.perf_counter() - begin
            """From nothing until its doors were open."""
            endpoints = msgspec.json.decode(Path(directory, "data", "endpoints.json").read_bytes(), type=dict[str, str])
        except BaseException:
            self.close()
            raise
        self.http = endpoints["http"]
        self.wire = endpoints["wire"]
        self.grpc = endpoints.get("grpc", "")
        """Empty where that door is closed."""
