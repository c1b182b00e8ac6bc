"""`goqueue` with something planted in it: bugs that a rig must notice, or a machine that makes bugs show.

Run as a program its first argument names what is planted, separated by commas; the rest is for `goqueue`.
"""

import ctypes
import gc
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from pyroaring import BitMap64

from goqueue.broker.participants import Participants
from goqueue.broker.partition import Partition
from goqueue.cli.main import main
from goqueue.delivery.commands import Ack, Cancel, Redeem
from goqueue.delivery.delays import Delays
from goqueue.delivery.sidecar import Sidecar
from goqueue.delivery.tries import Tries, Try
from goqueue.machine.host import Outcome
from goqueue.model.record import Record
from goqueue.storage import store
from goqueue.transactions.ending import Durable
from tests.support.faulty_disk import FaultyDisk
from tests.support.group_forgetful import plant as plant_forgetting

_EARLY_MS: Final = 150
_SLOW_S: Final = 0.1


def program(*planted: str) -> list[str]:
    """What to run instead of `goqueue`."""
    return [sys.executable, "-m", "tests.support.delivery_planted", ",".join(planted)]


def _forgets_ack(sidecar: Sidecar, command: Any) -> bool:
    """Not where keys are in line, which cannot bear two heads."""
    return isinstance(command, Ack) and not sidecar.deliveries.delivery(command.group).keys


def _plant_uncounted() -> None:
    """Of the deliveries that failed only one counts."""

    def fail(self: Tries, offsets: Iterable[int], poll: int) -> None:
        for offset in offsets:
            self[offset] = Try(1, poll)

    Tries.fail = fail  # type: ignore[method-assign]


def _plant_early() -> None:
    """Delayed messages fire before their time."""
    fire = Delays.fire

    def fire_early(self: Delays, *, wall: int, now: int, limit: int) -> BitMap64:
        return fire(self, wall=wall + _EARLY_MS, now=now + _EARLY_MS, limit=limit)

    Delays.fire = fire_early  # type: ignore[method-assign]


def _plant_no_fence() -> None:
    """Where the data ended is not written down."""
    Sidecar.fence = lambda *_: None  # type: ignore[method-assign]


def _plant_slow() -> None:
    """A busy disk: syncs of messages begin late, those of what groups have done with them do not."""

    def hold(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log") and "/logs/" in path and "/sidecar/" not in path:
            time.sleep(random.uniform(0, _SLOW_S))

    def make() -> FaultyDisk:
        disk = FaultyDisk()
        disk.before = hold
        return disk

    vars(store)["LocalDisk"] = make


def _plant_tidying() -> None:
    """On SIGUSR2 garbage is collected, and what is free is given back: then its memory is what it needs."""

    def tidy(*_: object) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)

    signal.signal(signal.SIGUSR2, tidy)


def _plant_hasty_pledges() -> None:
    """An ack in a transaction counts, also if that is aborted."""
    submit = Sidecar.submit

    def submit_hastily(self: Sidecar, command: Any, *, wall: int, now: int) -> Outcome:
        if isinstance(command, Redeem):
            command = Redeem(command.transaction, True)
        return submit(self, command, wall=wall, now=now)

    Sidecar.submit = submit_hastily  # type: ignore[method-assign]


def _plant_all_commit() -> None:
    """Messages of every transaction that ends are seen; acks of those that were aborted do not count."""
    tell, submit = Participants.tell, Sidecar.submit
    aborted: set[int] = set()

    def commit(self: Participants, partition: Partition, number: int, commits: bool, marker: Record) -> list[Durable]:
        if not commits:
            aborted.add(number)
        return tell(self, partition, number, True, msgspec.structs.replace(marker, commit=True))

    def redeem(self: Sidecar, command: Any, *, wall: int, now: int) -> Outcome:
        if isinstance(command, Redeem) and command.transaction in aborted:
            command = Redeem(command.transaction, False)
        return submit(self, command, wall=wall, now=now)

    Participants.tell = commit  # type: ignore[method-assign]
    Sidecar.submit = redeem  # type: ignore[method-assign]


PLANTS: Final[dict[str, Callable[[], None]]] = {
    "forgets-acks": lambda: plant_forgetting(_forgets_ack),
    "forgets-cancels": lambda: plant_forgetting(lambda _, command: isinstance(command, Cancel)),
    "uncounted": _plant_uncounted,
    "early": _plant_early,
    "no-fence": _plant_no_fence,
    "slow": _plant_slow,
    "tidying": _plant_tidying,
    "hasty-pledges": _plant_hasty_pledges,
    "all-commit": _plant_all_commit,
}

if __name__ == "__main__":
    for name in sys.argv.pop(1).split(","):
        PLANTS[name]()
    main()
