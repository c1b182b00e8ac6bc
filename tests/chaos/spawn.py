"""Starting and killing writers quickly: a process that has everything imported forks one per life.

Run as a module it is that process: a job per line in, the lines of the writers out, and its own:
  P pid             a writer was started
  X status          it ended; everything it said came before this
Whatever happens to the parent, no writer outlives it.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.chaos.writer import Job, Writer
from tests.support.patience import PATIENCE_S

_PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).parents[2]


class Hung(Exception):
    """A writer neither said anything nor died in time."""


class Ended(NamedTuple):
    """How a writer ended: the signal that killed it, or its exit code."""

    signal: int | None
    code: int | None


Decide = Callable[[str, list[str]], float | None]
"""Told each line (its first word, the others); answers after how many seconds to kill, or None for not yet."""


class Spawner:
    """The parent's end. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.spawn"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._rest = b""
        self._due: float | None = None

    def run(self, job: Job, decide: Decide, instead_of_kill: Callable[[], None] | None = None) -> Ended:
        """One life. At the time `decide` names the writer is killed, after `instead_of_kill` if there is one."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        pid_fd = -1
        self._due = None
        ended = False
        try:
            for kind, words in self._lines():
                if kind == "P":
                    pid_fd = _pid_fd(int(words[0]))
                elif kind == "X":
                    status = int(words[0])
                    ended = True
                    if os.WIFSIGNALED(status):
                        return Ended(os.WTERMSIG(status), None)
                    return Ended(None, os.WEXITSTATUS(status))
                elif kind == "":
                    self._due = None
                    if instead_of_kill is not None:
                        instead_of_kill()
                    if pid_fd >= 0:
                        _kill(pid_fd)
                    continue
                answer = decide(kind, words)
                if answer is not None:
                    self._due = time.monotonic() + answer
            raise Hung("the process that starts writers has ended")
        finally:
            if pid_fd >= 0:
                _kill(pid_fd)
                os.close(pid_fd)
                if not ended:
                    self._wait_for_end()

    def _wait_for_end(self) -> None:
        """After a failure: the next life must not hear the last words of this one."""
        self._due = None
        for kind, _ in self._lines():
            if kind == "X":
                return

    def _lines(self) -> Iterator[tuple[str, list[str]]]:
        """Lines as they come; an empty one when the time to kill has come."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        patience = time.monotonic() + PATIENCE_S
        while True:
            *lines, self._rest = self._rest.split(b"\n")
            for at, line in enumerate(lines):
                words = line.decode().split(" ")
                if words == [""]:
                    continue
                if words[0] == "X":
                    self._rest = b"\n".join([*lines[at + 1 :], self._rest])
                yield words[0], words[1:]
            until = self._due
            now = time.monotonic()
            if now > patience:
                raise Hung(f"nothing ended for {PATIENCE_S} s")
            timeout = patience - now if until is None else max(until - now, 0)
            if not select.select([fd], [], [], timeout)[0] or (until is not None and time.monotonic() >= until):
                if until is not None:
                    yield "", []
                continue
            data = os.read(fd, 1 << 16)
            if not data:
                return
            self._rest += data

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "Spawner":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _pid_fd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _kill(pid_fd: int) -> None:
    try:
        signal.pidfd_send_signal(pid_fd, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def serve() -> None:
    """The process that forks."""
    _die_with_parent()
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=Job)
        pid = os.fork()
        if pid == 0:
            _die_with_parent()
            Writer(job, 1).run()
            os._exit(0)
        os.write(1, b"P %d\n" % pid)
        status = os.waitpid(pid, 0)[1]
        os.write(1, b"\nX %d\n" % status)


if __name__ == "__main__":
    serve()
