"""Bugs to plant: proof that the checkers see what they are there to see.

Each replaces one function at a seam: the disk port, or one named function of the product. Product code has
no switch for any of them. A bug that no seed finds means a blind checker: the simulation's tests plant all.
"""

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from goqueue import codec
from goqueue.io.disk import File
from goqueue.storage import cleaner, recovery
from goqueue.storage.index import OffsetIndex
from goqueue.storage.log import Log
from goqueue.storage.segment import Segment
from goqueue.storage.synced import Synced, SyncedMark
from goqueue.storage.walk import Extent
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


def _does_nothing(_: Function) -> Function:
    def nothing(*_: object) -> None:
        """Says it is done."""

    return nothing


def _no_mark(_: Function) -> Function:
    class NoMark(SyncedMark):
        def load(self) -> Synced | None:
            return None if super().load() is None else Synced(0, 0, 0)

    return NoMark


def _late_points(right: Function) -> Function:
    def extend(index: OffsetIndex, offsets: "array[int]", positions: "array[int]") -> None:
        """Two writers without an order between them: positions are recorded in another order than offsets."""
        before = len(index.positions)
        right(index, offsets, positions)
        column = index.positions
        for at in range(max(before, 1), len(column)):
            if at % 2:
                column[at], column[at - 1] = column[at - 1], column[at]

    return extend


def _cut_one_more(right: Function) -> Function:
    def fold(recovery: Any, segment: Segment, file: File, extent: Extent, *, until_damage: bool = False) -> Any:
        """Above the mark the last valid record is taken for the beginning of the tear."""
        if until_damage:
            scan = codec.scan(file.read(extent.position, extent.size - extent.position))
            if scan.end < extent.size - extent.position and len(scan):
                extent = extent._replace(limit=scan.offsets[-1])
        return right(recovery, segment, file, extent, until_damage=until_damage)

    return fold


def _answers_early(right: Function) -> Function:
    def sync(log: Log) -> None:
        """Producers get their answer when the fsync begins."""
        log.durable.advance(log.end_offset)
        right(log)

    return sync


def _stale(right: Function) -> Function:
    def replace(log: Log, *arguments: Any, **more: Any) -> Any:
        """What the cleaner concluded counts, although the records it concluded it from were truncated since."""
        return right(log, *arguments, **more | {"truncations": log.truncations})

    return replace


def _none_delayed(_: Function) -> Function:
    def delayed(*_: object) -> list[int]:
        """Retention sees no record that is still to be delivered."""
        return []

    return delayed


_ALL: Final = (
    Bug("skip-fsync", "File.sync does not reach the disk", SimFile, "sync", _does_nothing),
    Bug("skip-directory-fsync", "sync_directory does not reach the disk", SimDisk, "sync_directory", _does_nothing),
    Bug("early-ack", "records are called durable before their fsync", Log, "sync", _answers_early),
    Bug("cut-too-much", "recovery cuts one valid record more", recovery._Recovery, "_fold", _cut_one_more),
    Bug("ignore-synced-mark", "recovery takes nothing as synced: damage is cut", recovery, "SyncedMark", _no_mark),
    Bug("unordered-index", "index points are recorded out of order", OffsetIndex, "extend", _late_points),
    Bug("stale-cleaning", "a rewrite is put in place over a truncation", Log, "replace", _stale),
    Bug("drop-delayed", "retention removes records still to be delivered", cleaner, "_delayed", _none_delayed),
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
