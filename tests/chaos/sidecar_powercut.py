"""Power cuts under a consumer group: what a sidecar says of messages that the data lost must not count for new ones.

    python -m tests.chaos.sidecar_powercut --cycles 200 [--seed N] [--first N] [--plant no-fence]

A broker with fsync of every message works on a real ext4 (see `powercut`). A group is delivered messages as soon as
they are written and commits at once, so that a commit may reach the disk before the messages do; in most cycles the
disk is late with large blocks, as busy ones are. Then the power goes: at any moment, or, in most cycles, soon after a
commit was answered whose messages still wait. A new process opens the directory, publishes new messages where the lost
ones were, and a new member polls. Messages are known by their values, never by their offsets: whatever is there and was
not committed must be delivered, what was committed and answered must not be delivered again, and nothing acknowledged
is lost. In half of the cycles the old member, whose consumer has lost nothing, first goes on and commits late what it
was delivered before the cut.

Where the sidecar had settled messages that the data lost the fence has voided something: these cuts are counted, and a
run with too few of them fails. To show that it would notice, a build without fences must fail within as many cycles.
Needs root, loop devices and mkfs.ext4; without them it says so and ends with 0.
"""

import argparse
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tests.chaos.ledger import Violation
from tests.chaos.powercut import CannotRun, Volume
from tests.chaos.sidecar_life import PARTITIONS, STORAGE_FAILED, Job, Late, Life
from tests.chaos.spawn import _die_with_parent
from tests.support.patience import PATIENCE_S

CYCLES_PER_DIRECTORY: Final = 3
FEW_CYCLES: Final = 24
"""Fewer may happen to miss; a build without fences is given so many at least. Of more, one in ten must hit."""
_IDS_PER_LIFE: Final = 1_000_000


class Moment(NamedTuple):
    """When the power goes: how likely this is, and between which powers of two of a second later."""

    weight: int
    after_exponents: tuple[int, int]


_MOMENTS: Final = {
    "opening": Moment(1, (-10, -4)),
    "load": Moment(2, (-9, -2)),
    "ahead": Moment(9, (-16, -8)),
}
"""After the directory was opened, after the load began, or after a commit that overtook its messages."""
_SLOW_MS: Final = (0, 20, 100, 100, 100, 100, 100, 100)
"""How late the disk may be with large blocks, at most."""
_NEVER_AHEAD_S: Final = 1.0
"""After so much load without one the power goes anyway."""


class Undelivered(Violation):
    """A message that is there, and that nobody committed, was not delivered."""


class Ledger:
    """What the parent knows of one data directory, and what it therefore demands."""

    def __init__(self) -> None:
        self._appended: dict[int, list[int]] = {number: [] for number in PARTITIONS}
        """What may be in each partition, in order."""
        self._acknowledged: set[int] = set()
        self._committed: set[int] = set()
        """A commit was sent: these may or may not be settled."""
        self._settled: set[int] = set()
        """A commit was answered."""
        self.member_id: str | None = None
        self.received = 0
        self._held: dict[int, Late] = {}
        """What the member was delivered and has no answer about, by partition."""
        self._fresh: list[int] | None = None
        """What a new member was delivered so far, while it catches up."""
        self.acknowledged = self.delivered = self.checks = self.hits = self.late_commits = 0

    @property
    def late(self) -> list[Late]:
        return list(self._held.values())

    def hear(self, kind: str, words: list[str]) -> None:
        match kind:
            case "V":
                self.hits += int(words[1]) > 0
            case "R":
                self._find(int(words[0]), _ids(words[1]))
            case "P":
                self._appended[int(words[0])] += _ids(words[1])
            case "A":
                self._acknowledged.update(_ids(words[0]))
                self.acknowledged += len(_ids(words[0]))
            case "M":
                self.member_id, self.received = words[0], 0
                self._held.clear()
            case "D":
                self._deliver(int(words[0]), int(words[1]), int(words[2]), _ids(words[3]))
            case "T":
                self._committed.update(_ids(words[0]))
            case "L":
                self._committed.update(_ids(words[0]))
                self.late_commits += 1
            case "S":
                self._answer(set(_ids(words[0])))
            case "N":
                self._fresh = []
            case "Q":
                self._check()
            case "W":
                raise Violation("the broker's process: " + " ".join(words))

    def _find(self, partition: int, found: list[int]) -> None:
        """After a cut there is what was acknowledged, and of the rest the first so many."""
        appended = self._appended[partition]
        if found != appended[: len(found)]:
            raise Violation(f"partition {partition} has {found}, of {appended} that were appended")
        lost = self._acknowledged.intersection(appended[len(found) :])
        if lost:
            raise Violation(f"partition {partition} has lost {sorted(lost)}, which were acknowledged")
        self._appended[partition] = found

    def _deliver(self, partition: int, poll: int, next_offset: int, ids: list[int]) -> None:
        unknown = set(ids).difference(self._appended[partition])
        if unknown:
            raise Violation(f"partition {partition} delivers {sorted(unknown)}, which it does not hold")
        self.received = max(self.received, poll)
        self.delivered += len(ids)
        before = self._held.get(partition)
        end = max(next_offset, before.next_offset if before is not None else 0)
        self._held[partition] = Late(partition, end, poll, [*(before.ids if before is not None else ()), *ids])
        if self._fresh is not None:
            self._fresh += ids

    def _answer(self, ids: set[int]) -> None:
        self._settled |= ids
        for number, held in list(self._held.items()):
            left = [each for each in held.ids if each not in ids]
            if left:
                self._held[number] = Late(held.partition, held.next_offset, held.poll, left)
            else:
                del self._held[number]

    def _check(self) -> None:
        assert self._fresh is not None
        fresh, self._fresh = self._fresh, None
        there = {number for ids in self._appended.values() for number in ids}
        missing = there - self._committed - set(fresh)
        if missing:
            raise Undelivered(
                f"{len(missing)} messages are there, were never committed, and are not delivered: {_few(missing)}"
            )
        again = self._settled.intersection(fresh)
        if again:
            raise Violation(f"commits were answered, and yet these are delivered again: {_few(again)}")
        if len(set(fresh)) != len(fresh):
            raise Violation("one member was delivered the same message twice")
        self.checks += 1


def _ids(listed: str) -> list[int]:
    return [] if listed == "-" else [int(each) for each in listed.split(",")]


def _few(ids: set[int]) -> str:
    return ", ".join(map(str, sorted(ids)[:10])) + (" ..." if len(ids) > 10 else "")


# ---------------------------------------------------------------- processes


class Ended(NamedTuple):
    signal: int | None
    code: int | None


Decide = Callable[[str, list[str]], float | None]
"""Told each line (its first word, the others); answers after how many seconds to cut the power, or None for not yet."""


def live(job: Job, decide: Decide, cut: Callable[[], None]) -> Ended:
    """One life in a process of its own, which is killed when the power was cut."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        os.close(reading)
        Life(job, writing).run()
    os.close(writing)
    lines = Lines(reading)
    try:
        for kind, words in lines:
            if kind:
                answer = decide(kind, words)
                if answer is not None:
                    lines.due = time.monotonic() + answer
                continue
            cut()
            lines.due = None
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(reading)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Ended(os.WTERMSIG(status), None)
    return Ended(None, os.WEXITSTATUS(status))


class Lines:
    """What a process says, until it is gone; an empty line when something is due."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.due: float | None = None

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        rest = b""
        patience = time.monotonic() + PATIENCE_S
        while True:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                kind, _, words = line.decode().partition(" ")
                yield kind, words.split(" ") if kind not in "FW" else [words]
            now = time.monotonic()
            if now > patience:
                raise Violation(f"nothing ended for {PATIENCE_S} s")
            if self.due is not None and now >= self.due:
                yield "", []
                continue
            if select.select([self._fd], [], [], (self.due or patience) - now)[0]:
                data = os.read(self._fd, 1 << 20)
                if not data:
                    return
                rest += data


# ---------------------------------------------------------------- cycles


class Run:
    """Cycles from one seed on one volume, with fences or without."""

    def __init__(self, seed: int, volume: Volume, *, fenced: bool = True) -> None:
        self.seed = seed
        self._volume = volume
        self._fenced = fenced
        self.cycles = self.hits = self.late_commits = self.checks = self.acknowledged = self.delivered = 0

    def directory(self, number: int, cycles: int) -> None:
        """Some cuts in a data directory of their own, then an orderly stop."""
        data_dir = str(self._volume.path / f"data-{number}")
        ledger = Ledger()
        try:
            for life in range(cycles):
                self._cycle(ledger, data_dir, number, life)
                self.cycles += 1
            self._check(ledger, data_dir, number, cycles)
        except Violation as error:
            if self._fenced:
                kept = tempfile.mkdtemp(prefix="goqueue-sidecar-kept-")
                shutil.copytree(data_dir, kept, dirs_exist_ok=True)
                error.add_note(f"The data directory is kept: {kept}")
            raise
        finally:
            self.hits += ledger.hits
            self.late_commits += ledger.late_commits
            self.checks += ledger.checks
            self.acknowledged += ledger.acknowledged
            self.delivered += ledger.delivered
            shutil.rmtree(data_dir, ignore_errors=True)

    def _cycle(self, ledger: Ledger, data_dir: str, number: int, life: int) -> None:
        rng = random.Random(f"{self.seed}/{number}/{life}/cut")
        moment = rng.choices(list(_MOMENTS), [each.weight for each in _MOMENTS.values()])[0]
        after_s = 2 ** rng.uniform(*_MOMENTS[moment].after_exponents)
        loaded = started = cut = False

        def decide(kind: str, words: list[str]) -> float | None:
            nonlocal loaded, started
            ledger.hear(kind, words)
            loaded = loaded or kind == "G"
            if started:
                return None
            if kind == "G" and moment == "ahead":
                return _NEVER_AHEAD_S
            started = {"opening": kind == "V", "load": loaded, "ahead": loaded and kind == "S" and words[1] == "1"}[
                moment
            ]
            return after_s if started else None

        def cut_the_power() -> None:
            nonlocal cut
            cut = self._volume.cut()

        try:
            ended = live(self._job(ledger, data_dir, number, life), decide, cut_the_power)
        finally:
            self._volume.unmount()
            self._volume.mount()
        if not cut or (ended.signal != signal.SIGKILL and ended.code != STORAGE_FAILED):
            raise Violation(f"the broker ended by itself: {ended}")

    def _check(self, ledger: Ledger, data_dir: str, number: int, life: int) -> None:
        checks = ledger.checks
        ended = live(self._job(ledger, data_dir, number, life, load=False), lambda *line: ledger.hear(*line), _never)
        if ended != Ended(None, 0) or ledger.checks != checks + 1:
            raise Violation(f"an orderly check ended with {ended}")

    def _job(self, ledger: Ledger, data_dir: str, number: int, life: int, *, load: bool = True) -> Job:
        seed = f"{self.seed}/{number}/{life}"
        rng = random.Random(f"{seed}/job")
        return Job(
            data_dir=data_dir,
            seed=seed,
            first_id=(life + 1) * _IDS_PER_LIFE,
            load=load,
            fenced=self._fenced,
            slow_ms=rng.choice(_SLOW_MS),
            member_id=ledger.member_id,
            received=ledger.received,
            late=ledger.late if rng.random() < 0.5 else [],
        )


def _never() -> None:
    raise AssertionError("nobody wanted the power cut")


def run_honest(cycles: int, seed: int, volume: Volume, *, first: int = 0) -> Run:
    """So many cuts under the real thing; a Violation when something is wrong."""
    began = time.monotonic()
    done = Run(seed, volume)
    number = first
    while done.cycles < cycles:
        try:
            done.directory(number, min(cycles - done.cycles, CYCLES_PER_DIRECTORY))
        except Violation as error:
            error.add_note(
                f"To run it again: python -m tests.chaos.sidecar_powercut --seed {seed} --first {number} "
                f"--cycles {CYCLES_PER_DIRECTORY}"
            )
            raise
        number += 1
        seconds = time.monotonic() - began
        print(
            f"{done.cycles}/{cycles} cuts, {done.hits} where a sidecar had settled what was lost; {done.acknowledged} "
            f"messages acknowledged, all there; {done.delivered} delivered, {done.checks} times all that had to be; "
            f"{done.late_commits} late commits; {seconds:.0f} s",
            flush=True,
        )
    return done


def run_planted(cycles: int, seed: int, volume: Volume) -> bool:
    """Cuts under a build without fences; whether that was noticed."""
    broken = Run(seed, volume, fenced=False)
    number = 0
    try:
        while broken.cycles < cycles:
            broken.directory(number, min(cycles - broken.cycles, CYCLES_PER_DIRECTORY))
            number += 1
    except Undelivered as error:
        print(f"ok: a build without fences was caught after {broken.cycles} cuts, as it must be ({error})", flush=True)
        return True
    except Violation as error:
        print(f"failed: a build without fences broke otherwise: {error}", file=sys.stderr)
        return False
    print(
        f"failed: {broken.cycles} cuts under a build without fences, {broken.hits} where one was needed, and nothing "
        f"was noticed\nTo run it again: python -m tests.chaos.sidecar_powercut --seed {seed} --plant no-fence",
        file=sys.stderr,
    )
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first directory: skips those before it")
    parser.add_argument("--plant", choices=["no-fence"], help="only this broken build")
    parser.add_argument("--must-run", action="store_true", help="end with 1, not 0, where it cannot run")
    arguments = parser.parse_args()
    if arguments.cycles < 1:
        print(f"nothing was done: --cycles is {arguments.cycles}")
        return 0
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        volume = Volume()
    except CannotRun as reason:
        print(f"skipped: {reason}", flush=True)
        return int(arguments.must_run)
    print(f"seed {seed}", flush=True)
    with volume:
        done = None if arguments.plant else run_honest(arguments.cycles, seed, volume, first=arguments.first)
        caught = run_planted(max(arguments.cycles, FEW_CYCLES), seed, volume)
    if done is not None and done.cycles >= FEW_CYCLES and done.hits * 10 < done.cycles:
        print(f"failed: in only {done.hits} of {done.cycles} cuts had a sidecar settled what was lost", file=sys.stderr)
        return 1
    if caught:
        cuts = "" if done is None else f"{done.cycles} power cuts, {done.hits} with settled messages to void; "
        print(f"ok: {cuts}the broken build was found out", flush=True)
    return int(not caught)


if __name__ == "__main__":
    sys.exit(main())
