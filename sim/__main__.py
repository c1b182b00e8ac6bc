"""`python -m sim`: run seeds of the simulation, say which failed and how to see it again."""

import argparse
import sys
import time

from sim.planted import BUGS
from sim.rooms import ROOMS
from sim.run import Result, run_seed, run_seeds


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    if options.bugs:
        for bug in BUGS.values():
            print(f"{bug.room:12} {bug.name:24} {bug.what}")
        return 0
    if options.seed is not None:
        result = run_seed(options.seed, room=options.room, bug=options.bug, show=print if options.trace else None)
        print(f"seed {result.seed}: {result.events} events, trace {result.digest}")
        return _report(result) if result.failure else 0
    return max(_many(options, room) for room in ([options.room] if options.room else sorted(ROOMS)))


def _many(options: argparse.Namespace, room: str) -> int:
    started = time.monotonic()
    shown = started
    failed = 0
    done = 0
    for result in run_seeds(options.seeds, room=room, bug=options.bug, jobs=options.jobs):
        done += 1
        if result.failure:
            failed += 1
            _report(result)
            if not options.keep_going:
                break
        if time.monotonic() - shown > 2:
            shown = time.monotonic()
            print(f"{done} of {len(options.seeds)} seeds, {done / (shown - started):.0f} a second", file=sys.stderr)
    seconds = time.monotonic() - started
    print(f"{done} seeds of room {room} in {seconds:.1f} s ({done / seconds:.0f} a second), {failed} failed")
    return 1 if failed else 0


def _report(result: Result) -> int:
    print(f"seed {result.seed} FAILED after {result.events} events: {result.failure}")
    print(f"to see it again: {result.command}")
    return 1


def _range(text: str) -> range:
    """`A..B`, B not included, or how many."""
    first, dots, end = text.partition("..")
    return range(int(first), int(end)) if dots else range(int(text))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description="Run GoQueue's simulation.")
    parser.add_argument("--room", choices=sorted(ROOMS), help="what to simulate (default: all, or the bug's)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="run this one seed")
    which.add_argument("--seeds", type=_range, default=range(2000), metavar="A..B", help="or a count; default: 0..2000")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug; a checker should find it")
    parser.add_argument("--bugs", action="store_true", help="list the bugs that can be planted")
    parser.add_argument("--trace", action="store_true", help="show every event (with --seed)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (default: 1)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args(arguments)
    if options.bug:
        home = BUGS[options.bug].room
        options.room = options.room or home
        if options.room != home:
            parser.error(f"{options.bug} is a bug of room {home}")
    elif options.seed is not None:
        options.room = options.room or "log"
    return options


if __name__ == "__main__":
    sys.exit(main())
