"""Power cuts while messages are published, delayed, delivered and settled in every way.

    python -m tests.chaos.delivery_powercut --cycles 60 [--seed N] [--plant no-fence]

The load and the demands are those of `delivery_kill`, the disk is a real ext4 whose power is cut (see `powercut`), and
every message is fsynced before it is answered. Messages may be delivered and settled before they are durable, and take
long to be so, as on a busy disk: what a sidecar says of messages that the data lost must not count for those that come
in their place. Leases may be forgotten with the power, and what had no answer may be gone.

To show that it would notice, a build without fences must fail. Needs root, loop devices and mkfs.ext4; without them it
says so and ends with 0.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.broker_kill import free_doors
from tests.chaos.delivery_kill import Outcome, kill_under_load, report
from tests.chaos.ledger import Lost, Violation
from tests.chaos.powercut import CannotRun, Volume
from tests.support.broker import RunningBroker, running_broker
from tests.support.delivery_ledger import WrongLetter
from tests.support.delivery_planted import program

CYCLES_PER_DIRECTORY: Final = 6
BROKEN_DIRECTORIES: Final = 6
"""A build without fences must be caught in so many."""


def cut(volume: Volume, said: Path, broker: RunningBroker) -> None:
    """Nothing more reaches the disk; then the process goes, and the disk comes back."""
    if "Traceback" in broker.stderr:
        raise Violation(broker.stderr)
    struck = volume.cut()
    broker.cut_off()
    os.truncate(said, 0)  # of what met the dead disk nothing is held against it
    volume.unmount()
    volume.mount()
    if not struck:
        raise Violation("the power did not go")


def run_directory(volume: Volume, cycles: int, seed: int, *planted: str) -> Outcome:
    """Some cuts in a data directory of their own; a Violation when something is wrong."""
    directory = volume.path / f"run-{seed}"
    directory.mkdir()
    said = Path(tempfile.mkstemp(prefix="goqueue-delivery-said-")[1])
    try:
        with running_broker(
            directory, *free_doors(random.Random()), stderr=said, program=program("slow", *planted)
        ) as broker:
            return kill_under_load(
                broker, cycles, fsync="every", seed=seed, end=partial(cut, volume, said), forgets=True
            )
    except Violation as error:
        if not planted:
            kept = tempfile.mkdtemp(prefix="goqueue-delivery-kept-")
            shutil.copytree(directory, kept, dirs_exist_ok=True)
            error.add_note(f"The data directory is kept: {kept}")
        raise
    finally:
        said.unlink()
        shutil.rmtree(directory, ignore_errors=True)


def run_honest(cycles: int, seed: int, volume: Volume) -> int:
    """So many cuts under the real thing; how many there were."""
    done = 0
    began = time.monotonic()
    while done < cycles:
        try:
            outcome = run_directory(volume, min(cycles - done, CYCLES_PER_DIRECTORY), seed)
        except Violation as error:
            error.add_note(
                f"To run it again: python -m tests.chaos.delivery_powercut --seed {seed} "
                f"--cycles {CYCLES_PER_DIRECTORY}"
            )
            raise
        done += sum(kill.counts for kill in outcome.kills)
        seed += 1
        print(f"{done}/{cycles} cuts; {report(outcome, 'every')}; {time.monotonic() - began:.0f} s", flush=True)
    return done


def run_planted(seed: int, volume: Volume) -> bool:
    """Cuts under a build without fences; whether that was noticed."""
    for number in range(BROKEN_DIRECTORIES):
        try:
            run_directory(volume, CYCLES_PER_DIRECTORY, seed + number, "no-fence")
        except (Lost, WrongLetter) as error:  # what is written about an old message is told of the new one at its place
            print(f"ok: a build without fences was caught in directory {number}, as it must be ({error})", flush=True)
            return True
        except Violation as error:
            print(f"failed: a build without fences broke otherwise: {error}", file=sys.stderr)
            return False
    print(
        f"failed: {BROKEN_DIRECTORIES * CYCLES_PER_DIRECTORY} cuts under a build without fences, and nothing was "
        f"noticed\nTo run it again: python -m tests.chaos.delivery_powercut --seed {seed} --plant no-fence",
        file=sys.stderr,
    )
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--plant", choices=["no-fence"], help="only this broken build")
    parser.add_argument("--must-run", action="store_true", help="end with 1, not 0, where it cannot run")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        volume = Volume()
    except CannotRun as reason:
        print(f"skipped: {reason}", flush=True)
        return int(arguments.must_run)
    print(f"seed {seed}", flush=True)
    with volume:
        done = 0 if arguments.plant else run_honest(arguments.cycles, seed, volume)
        caught = run_planted(seed, volume)
    if caught:
        print(f"ok: {done} power cuts, nothing lost, nothing settled delivered again; the broken build was found out")
    return int(not caught)


if __name__ == "__main__":
    sys.exit(main())
