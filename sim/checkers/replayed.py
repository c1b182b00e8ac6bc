"""Replay equals live: a machine made anew from the log has the state of the one that wrote it, and so has one made
from its snapshot."""

from goqueue.machine.host import Host
from goqueue.machine.shape import Machine
from goqueue.storage.log import Log
from sim.checkers import require

RULE = "replayed"


def check(log: Log, live: Machine, anew: Machine, restored: Machine) -> None:
    """`anew` and `restored` are empty machines of the same kind."""
    Host(log, (anew,))
    state = list(live.snapshot())
    found = list(anew.snapshot())
    require(found == state, RULE, f"{log.directory} replays to {found}, live it is {state}")
    for record in state:
        restored.apply(record, 0)
    found = list(restored.snapshot())
    require(found == state, RULE, f"a snapshot of {log.directory} becomes {found}, it was made of {state}")
