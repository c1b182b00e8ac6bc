"""A busy machine: runs a command while every core is kept at work and its processes are stopped at random for a while.

    python -m tests.chaos.busy_machine -- python -m pytest tests/unit

Burning cores makes everything late by little and often; a stopped process is late by much, and alone: what a test
believes to be faster than something else is then slower. A test that fails here depends on how fast the machine is.
"""

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_MARK: Final = "BUSY_MACHINE"
"""In the environment of the command, and so of every process it starts. The broker would ask what `GOQUEUE_` is for."""
_LONGEST_GAP_S: Final = 0.4
"""Between two stops."""
_SEARCH_EVERY_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1


def _burn() -> None:
    """Until its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    while True:
        pass


@contextlib.contextmanager
def burning(processes: int) -> Iterator[None]:
    """So many processes that do nothing but take time from others."""
    context = multiprocessing.get_context("fork")
    burners = [context.Process(target=_burn, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _marked(mark: bytes) -> list[int]:
    """The processes that the command has started, however far down, also those whose parent has ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it already, whom it belongs to then."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return stat.rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z")


class Outcome(NamedTuple):
    code: int
    stops: int
    """How often processes were stopped."""


def disturb(words: Sequence[str], dice: random.Random, longest_s: float) -> Outcome:
    """Run a command, and stop its processes for up to so long; never for 0."""
    mark = secrets.token_hex(8)
    with subprocess.Popen(words, env={**os.environ, _MARK: mark}) as command:
        stops = _stop_at_random(f"{_MARK}={mark}".encode(), dice, longest_s, command) if longest_s else 0
        return Outcome(command.wait(), stops)


def _stop_at_random(mark: bytes, dice: random.Random, longest_s: float, command: "subprocess.Popen[bytes]") -> int:
    """Until the command ends: stop one of its processes, or all, for a while. How often that was done."""
    stops, searched_at, processes = 0, 0.0, list[int]()
    while command.poll() is None:
        time.sleep(dice.uniform(0, _LONGEST_GAP_S))
        if time.monotonic() - searched_at > _SEARCH_EVERY_S:
            processes, searched_at = _marked(mark), time.monotonic()
        if not processes:
            continue
        chosen = processes if dice.random() < 0.1 else [dice.choice(processes)]
        stopped = [pid for pid in chosen if not _is_stopped(pid) and _signal(pid, signal.SIGSTOP)]
        time.sleep(dice.uniform(0, longest_s) ** 2 / longest_s)  # mostly short ones
        for pid in stopped:
            _signal(pid, signal.SIGCONT)
        stops += bool(stopped)
    return stops


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--burners", type=int, default=2 * (os.cpu_count() or 1), help="processes that burn time")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds for which a process is stopped; 0: never")
    parser.add_argument("--times", type=int, default=1, help="how often, until it fails")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("command", nargs="+", help="what to run, after --")
    asked = parser.parse_args()
    print(f"{asked.burners} burners, stops of up to {asked.longest:g} s, seed {asked.seed}", flush=True)
    dice = random.Random(asked.seed)
    with burning(asked.burners):
        for number in range(1, asked.times + 1):
            outcome = disturb(asked.command, dice, asked.longest)
            print(
                f"{number}/{asked.times}: exit code {outcome.code}; {outcome.stops} times processes were stopped",
                flush=True,
            )
            if outcome.code:
                sys.exit(outcome.code if outcome.code > 0 else 128 - outcome.code)


if __name__ == "__main__":
    main()
