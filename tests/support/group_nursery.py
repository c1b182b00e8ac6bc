"""Member processes that start quickly and die hard: a process that has everything imported forks one per job.

Run as a module it is that process. It takes one command per line and answers with one line:
  start JOB         the pid of a new member
  kill PID          kill -9; the signal that ended it, negative, or its exit code
  end PID           SIGTERM, to leave in order; 0
  wait PID          how it ended
Whatever happens to whoever started it, no member outlives it.
"""

import asyncio
import ctypes
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from goqueue.model.errors import GoQueueError, RequestTimeout, Unavailable, UnknownMember
from tests.support.group_consumer import Consumer, now
from tests.support.group_doors import DOORS
from tests.support.group_ledger import EventFile, Failed
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
RECONNECT_S = 0.02
_PR_SET_PDEATHSIG = 1


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One member process."""

    door: str
    address: str
    group: str
    topic: str
    ledger: str
    """The file it writes down what it sees in."""
    session_timeout: str
    instance_id: str | None = None
    work_s: float = 0.01
    behind: int = 0
    may_expire: bool = False
    """Whether it may be told that it is no member, and joins again."""


# ---------------------------------------------------------------- a member


async def serve_member(job: Job) -> None:
    """Goes on over the broker's deaths with the same member id; leaves when it is told to end."""
    until = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, until.set)
    file = EventFile(Path(job.ledger))
    door = DOORS[job.door](job.address, job.group, job.topic)
    fields: dict[str, Any] = {"session_timeout": job.session_timeout}
    if job.instance_id is not None:
        fields["instance_id"] = job.instance_id
    consumer = Consumer(door, file.write, work_s=job.work_s, behind=job.behind, **fields)
    try:
        await _work(consumer, until, may_expire=job.may_expire)
    except Exception:
        file.write(Failed(now(), traceback.format_exc()))
        raise


async def _work(consumer: Consumer, until: asyncio.Event, *, may_expire: bool) -> None:
    is_connected = False
    while True:
        try:
            if not consumer.member_id:
                await consumer.join()
            elif not is_connected:
                await consumer.reconnect()
            is_connected = True
            if until.is_set():
                return await consumer.leave()
            await consumer.step()
        except (Unavailable, RequestTimeout):
            is_connected = False
            await asyncio.sleep(RECONNECT_S)
        except UnknownMember:
            if not may_expire:
                raise
            consumer.forget()


# ---------------------------------------------------------------- the process that forks


def serve() -> None:
    _die_with_parent()
    for line in sys.stdin.buffer:
        command, _, argument = line.decode().strip().partition(" ")
        os.write(1, b"%d\n" % _COMMANDS[command](argument))


def _start(argument: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    _die_with_parent()
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        asyncio.run(serve_member(msgspec.json.decode(argument, type=Job)))
        code = 0
    except GoQueueError as error:
        print(f"a member could not go on: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def _kill(argument: str) -> int:
    os.kill(int(argument), signal.SIGKILL)  # it is this process's child and was not waited for: the pid is its own
    return _wait(argument)


def _end(argument: str) -> int:
    os.kill(int(argument), signal.SIGTERM)
    return 0


def _wait(argument: str) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(int(argument), 0)[1])


_COMMANDS = {"start": _start, "kill": _kill, "end": _end, "wait": _wait}


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# ---------------------------------------------------------------- whoever starts it


class Nursery:
    """A context manager: at its end every member is dead."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.group_nursery"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def start(self, job: Job) -> int:
        """The pid."""
        return self._ask("start " + msgspec.json.encode(job).decode())

    def kill(self, pid: int) -> None:
        code = self._ask(f"kill {pid}")
        assert code == -signal.SIGKILL, f"it had ended before, with {code}"

    def end(self, pid: int) -> None:
        self._ask(f"end {pid}")

    def wait(self, pid: int) -> int:
        """The exit code."""
        return self._ask(f"wait {pid}")

    def _ask(self, command: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command.encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            assert select.select([self._process.stdout], [], [], PATIENCE_S)[0], f"no answer to {command!r}"
            part = os.read(self._process.stdout.fileno(), 64)
            assert part, "the process that starts members has ended"
            answer += part
        return int(answer)

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    serve()
