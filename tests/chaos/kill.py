"""kill -9, again and again: a real process writes several logs under load and dies at random points.

    python -m tests.chaos.kill --cycles 200 [--seed N] [--first N]

It dies while it writes, rolls, seals, cleans, and while it recovers from the last time; by a signal from outside at
a random moment, or at exactly the n-th disk operation, sometimes in the middle of a write. What was acknowledged
must be there afterwards, in the next process, by every way of reading; see `ledger`.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from goqueue.model.limits import KIB
from goqueue.model.settings import Fsync, LogSettings
from tests.chaos.ledger import Ledger, Violation
from tests.chaos.spawn import Ended, Hung, Spawner
from tests.chaos.writer import Job, LogSpec, now_ms
from tests.support.records import Shape

CYCLES_PER_DIRECTORY = 12

LOGS = [
    LogSpec(name="every", shape=Shape(0), settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=8 * KIB)),
    LogSpec(
        name="interval/0",
        shape=Shape(1, max_value_bytes=1500),
        settings=LogSettings(fsync=Fsync.INTERVAL, fsync_interval_ms=20, segment_bytes=16 * KIB),
        promises_durable=False,
        pause_ms=1,
    ),
    LogSpec(
        name="retained",
        shape=Shape(2, delayed_one_in=40, max_delay_ms=300),
        settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=4 * KIB, retention_bytes=24 * KIB),
        epochs_one_in=30,
    ),
    LogSpec(
        name="compacted",
        shape=Shape(3, keys=20, max_value_bytes=100),
        settings=LogSettings(fsync=Fsync.INTERVAL, fsync_interval_ms=5, segment_bytes=4 * KIB, compact=True),
        promises_durable=False,
        pause_ms=1,
    ),
]


class Plan:
    """How one life ends."""

    def __init__(self, rng: random.Random) -> None:
        self.in_opening = rng.random() < 0.35
        self.by_operation = rng.random() < 0.5
        self.die_at = 0
        self.tear_bytes = 0
        self.after_s = 0.0
        if self.by_operation:
            self.die_at = int(2 ** rng.uniform(0, 5.5 if self.in_opening else 11))
            self.tear_bytes = rng.choice((0, 1, 20, 40, 300, 2000))
        else:
            self.after_s = rng.uniform(0, 0.006) if self.in_opening else 2 ** rng.uniform(-10, -2)

    def decide(self, kind: str) -> float | None:
        """After how many seconds to kill, told a line's first word."""
        if self.by_operation:
            return 2.0 if kind == "C" else None  # should its operation never come
        return self.after_s if kind == ("O" if self.in_opening else "C") else None


class Run:
    """A number of cycles from one seed."""

    def __init__(self, seed: int, spawner: Spawner, parent_directory: str | None = None) -> None:
        self.seed = seed
        self._spawner = spawner
        self._parent_directory = parent_directory
        self.hits: Counter[str] = Counter()
        self.acknowledged = 0
        self.cuts = 0

    def directory(self, number: int, cycles: int) -> None:
        """Some cycles in a data directory of their own, then an orderly stop and a last check."""
        base = Path(tempfile.mkdtemp(prefix="goqueue-kill-", dir=self._parent_directory))
        ledger = Ledger(LOGS)
        try:
            for life in range(1, cycles + 1):
                self._cycle(ledger, str(base / "data"), number, life)
            for life in (cycles + 1, cycles + 2):
                self._check(ledger, str(base / "data"), number, life)
        except (Violation, Hung):
            print(f"The data directory is kept: {base}", file=sys.stderr)
            raise
        shutil.rmtree(base)
        self.acknowledged += ledger.acknowledged
        self.cuts += ledger.cuts

    def _cycle(self, ledger: Ledger, data_dir: str, number: int, life: int) -> None:
        plan = Plan(random.Random(f"{self.seed}/{number}/{life}"))
        job = Job(
            data_dir=data_dir,
            seed=f"{self.seed}/{number}",
            life=life,
            logs=LOGS,
            die_at=plan.die_at,
            die_in_opening=plan.in_opening,
            tear_bytes=plan.tear_bytes,
        )
        phase = "before opening"

        def decide(kind: str, words: list[str]) -> float | None:
            nonlocal phase
            phase = {"O": "in recovery", "R": "after recovery", "C": "while writing"}.get(kind, phase)
            ledger.hear(life, kind, words, now_ms())
            return plan.decide(kind)

        ended = self._spawner.run(job, decide)
        if ended.signal != signal.SIGKILL:
            raise Violation(f"the writer was not killed, it ended by itself: {ended}")
        self.hits[phase] += 1
        self.hits["at a disk operation" if plan.by_operation else "at a moment"] += 1

    def _check(self, ledger: Ledger, data_dir: str, number: int, life: int) -> None:
        job = Job(data_dir=data_dir, seed=f"{self.seed}/{number}", life=life, logs=LOGS, write=False)
        checks = ledger.checks

        def decide(kind: str, words: list[str]) -> None:
            ledger.hear(life, kind, words, now_ms())

        ended = self._spawner.run(job, decide)
        if ended != Ended(None, 0) or ledger.checks != checks + 1:
            raise Violation(f"an orderly check ended with {ended}")


def run(cycles: int, seed: int, *, first: int = 0, quiet: bool = False, parent_directory: str | None = None) -> Run:
    """So many cycles, in directories of CYCLES_PER_DIRECTORY each; Violation or Hung when something is wrong."""
    began = time.monotonic()
    with Spawner() as spawner:
        done = Run(seed, spawner, parent_directory)
        number = first
        left = cycles
        while left > 0:
            part = min(left, CYCLES_PER_DIRECTORY)
            try:
                done.directory(number, part)
            except (Violation, Hung) as error:
                error.add_note(
                    f"To run it again: python -m tests.chaos.kill --seed {seed} --first {number} "
                    f"--cycles {CYCLES_PER_DIRECTORY}"
                )
                raise
            left -= part
            number += 1
            if not quiet:
                print(
                    f"{cycles - left}/{cycles} kills, {done.acknowledged} records acknowledged, all there; "
                    f"{done.cuts} torn ends cut; {time.monotonic() - began:.0f} s",
                    flush=True,
                )
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first directory: skips those before it")
    arguments = parser.parse_args()
    if arguments.cycles < 1:
        print(f"nothing was done: --cycles is {arguments.cycles}")
        return 0
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    done = run(arguments.cycles, seed, first=arguments.first)
    for where, count in sorted(done.hits.items()):
        print(f"killed {where}: {count}")
    if arguments.cycles >= 50 and not (done.hits["in recovery"] and done.hits["while writing"] and done.cuts):
        print("This run proves little: not every kind of kill has struck.", file=sys.stderr)
        return 1
    print(f"ok: {arguments.cycles} kills, nothing acknowledged was lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
