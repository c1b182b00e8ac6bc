"""`python -m tests.scale [PART...]`: deliveries at scale, with figures beside their limits.

A part fails when what it demands is not so: a message that is early, lost, or comes twice; or when a limit is missed.
Needs some gigabytes of disk, 11 for `stopped-reader` (GOQUEUE_BENCH_DIR says where), and some minutes of a quiet
machine.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rich.console import Console

from bench.report import Figure, show
from goqueue import codec
from tests.chaos.ledger import Violation
from tests.scale import burst, costly, delays, lanes, open_transactions, stopped
from tests.scale.stage import BLOCK


def _share(default: int, share: float) -> int:
    """Whole blocks."""
    return max(round(default * share / BLOCK), 1) * BLOCK


def _delays(share: float) -> Iterator[Figure]:
    plan = delays.Plan(messages=_share(1_000_000, share))
    yield from delays.figures(delays.run(plan._replace(lead_s=10 + plan.lead_s * share)))


def _burst(share: float) -> Iterator[Figure]:
    plan = burst.Plan(messages=_share(500_000, share))
    for cold in (False, True):
        yield from burst.figures(burst.run(plan._replace(lead_s=15 + plan.lead_s * share, cold=cold)))


def _behind(share: float) -> Iterator[Figure]:
    yield from lanes.figures_behind(lanes.run_behind(lanes.Plan(_share(10_000_000, share))))


def _between(share: float) -> Iterator[Figure]:
    yield from lanes.figures_between(lanes.run_between(lanes.Plan(_share(10_000_000, share))))


def _stopped_reader(share: float) -> Iterator[Figure]:
    plan = stopped.Plan()
    yield from stopped.figures(stopped.run(plan._replace(mib=max(round(plan.mib * share), 1))))


def _open_transaction(share: float) -> Iterator[Figure]:
    plan = open_transactions.Plan()
    shorter = plan._replace(before_s=plan.before_s * share, open_s=plan.open_s * share)
    yield from open_transactions.figures(open_transactions.run(shorter))


def _open_transactions(share: float) -> Iterator[Figure]:
    yield from open_transactions.figures_many(open_transactions.run_many(round(10_000 * share)))


def _costly_requests(share: float) -> Iterator[Figure]:
    plan = costly.Plan()
    for outcome in costly.run(plan._replace(each_s=plan.each_s * share)):
        yield from costly.figures(outcome)


PARTS: Final[dict[str, Callable[[float], Iterable[Figure]]]] = {
    "delays": _delays,
    "burst": _burst,
    "behind": _behind,
    "between": _between,
    "stopped-reader": _stopped_reader,
    "open-transaction": _open_transaction,
    "open-transactions": _open_transactions,
    "costly-requests": _costly_requests,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--share", type=float, default=1.0, help="of the messages, for a shorter run")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(PARTS)}")
    if not codec.COMPILED:
        print("this needs the compiled codec: install gcc and run make scale again", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    console = Console(width=max(Console().width, 150))
    failed = []
    for part in arguments.parts or PARTS:
        print(f"{part} ...", file=sys.stderr, flush=True)
        try:
            found = list(PARTS[part](arguments.share))
        except Violation as wrong:
            failed.append(f"{part}: {type(wrong).__name__}: {wrong}")
            continue
        show(console, part, found)
        failed += [f"{part}: {figure.name}" for figure in found if figure.met is False]
    for each in failed:
        print(f"failed: {each}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
