"""Replay equals live: a machine made anew from the log has the state of the one that wrote it, and so has one made
from its snapshot."""

from collections.abc import Callable
from typing import Any

from goqueue.machine.host import Host
from goqueue.machine.shape import Machine
from goqueue.storage.log import Log
from sim.checkers import require

RULE = "replayed"


def _records(machine: Machine) -> Any:
    return list(machine.snapshot())


def _as_it_is(machine: Machine) -> None:
    """Time changes nothing that would not be written down."""


def check(
    log: Log,
    live: Machine,
    anew: Machine,
    restored: Machine,
    *,
    see: Callable[[Any], Any] = _records,
    age: Callable[[Any], None] = _as_it_is,
) -> None:
    """`anew` and `restored` are empty machines of the same kind.

    `see` says what there is to compare. `age` makes happen what time does to a machine without writing it down.
    """
    Host(log, (anew,))
    for record in live.snapshot():
        restored.apply(record, 0)
    state, found = see(live), see(restored)
    require(found == state, RULE, f"a snapshot of {log.directory} becomes {found}, it was made of {state}")
    age(anew)
    age(restored)
    state, found = see(restored), see(anew)
    require(found == state, RULE, f"{log.directory} replays to {found}, live it is {state}")
