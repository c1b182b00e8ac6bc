"""Bugs to plant: proof that the checkers see what they are there to see.

Each replaces one function at a seam: the disk port, or one named function of the product. Product code has
no switch for any of them. A bug that no seed finds means a blind checker: the simulation's tests plant all.
"""

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from goqueue.storage.index import OffsetIndex
from goqueue.storage.synced import Synced, SyncedMark
from sim.disk import SimDisk, SimFile

Function = Callable[..., Any]


@dataclass(frozen=True)
class Bug:
    name: str
    what: str
    owner: object
    function: str
    instead: Callable[[Function], Function]
    """Given the right function, the wrong one."""


def _does_nothing(right: Function) -> Function:
    def nothing(*_: object) -> None:
        """Says it is done."""

    return nothing


def _no_mark(right: Function) -> Function:
    def load(mark: SyncedMark) -> Synced | None:
        found = right(mark)
        return None if found is None else Synced(0, 0, 0)

    return load


def _late_points(right: Function) -> Function:
    def extend(index: OffsetIndex, offsets: "array[int]", positions: "array[int]") -> None:
        """Two writers without an order between them: a point ends up behind its successor."""
        right(index, offsets, positions)
        if len(index.offsets) > 2:
            for column in (index.offsets, index.positions):
                column[-1], column[-2] = column[-2], column[-1]

    return extend


_ALL: Final = (
    Bug("skip-fsync", "File.sync does not reach the disk", SimFile, "sync", _does_nothing),
    Bug("skip-directory-fsync", "sync_directory does not reach the disk", SimDisk, "sync_directory", _does_nothing),
    Bug("ignore-synced-mark", "recovery takes nothing as synced: damage is cut", SyncedMark, "load", _no_mark),
    Bug("unordered-index", "index points are recorded out of order", OffsetIndex, "extend", _late_points),
)
BUGS: Final = {bug.name: bug for bug in _ALL}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The bug is there inside the block; None plants nothing."""
    if name is None:
        yield
        return
    bug = BUGS[name]
    right = getattr(bug.owner, bug.function)
    setattr(bug.owner, bug.function, bug.instead(right))
    try:
        yield
    finally:
        setattr(bug.owner, bug.function, right)
