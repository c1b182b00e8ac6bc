"""Bugs to plant: proof that the checkers see what they are there to see.

Each belongs to a room and replaces one function at a seam: the disk port, one named function of the product, or of
what stands for the rest of it in a room. Product code has no switch for any of them. A bug that no seed finds means a
blind checker: the simulation's tests plant all.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from goqueue import codec
from goqueue.delivery.deliveries import Deliveries, Lease, Settle
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.sidecar import Sidecar
from goqueue.groups import changes, groups
from goqueue.groups.group import Group, Part
from goqueue.groups.records import Grant, GroupRestored, Reassigned
from goqueue.io.disk import File
from goqueue.machine.host import Outcome
from goqueue.machine.shape import Decision
from goqueue.model import limits
from goqueue.storage import cleaner, recovery
from goqueue.storage.index import OffsetIndex
from goqueue.storage.log import Log
from goqueue.storage.segment import Segment
from goqueue.storage.synced import Synced, SyncedMark
from goqueue.storage.walk import Extent
from sim.disk import SimDisk, SimFile
from sim.rooms.broker import GroupBroker

Function = Callable[..., Any]


@dataclass(frozen=True)
class Bug:
    room: str
    name: str
    what: str
    owner: object
    function: str
    instead: Callable[[Function], Function]
    """Given the right function, the wrong one."""
    rule: str | None = None
    """The property it breaks, where only one checker is there to see it."""


# ---------------------------------------------------------------- log


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


# ---------------------------------------------------------------- groups


def _granted_early(right: Function) -> Function:
    def reassign(catalogue: Any, group: Group, wanted: Mapping[str, Any], **more: Any) -> list[Any]:
        """What should be another's is granted at once: its owner is not even asked."""
        return [_without_asking(group, wanted, event) for event in right(catalogue, group, wanted, **more)]

    return reassign


def _without_asking(group: Group, wanted: Mapping[str, Any], event: Reassigned) -> Reassigned:
    grants = []
    for parts in event.revoked:
        for number in parts.partitions:
            owner = group.owner(Part(parts.topic_id, number))
            others = [name for name in wanted if owner is not None and name != owner.member_id]
            grants.append(Grant(others[0], parts.topic_id, (number,)))
    return msgspec.structs.replace(event, revoked=(), granted=(*event.granted, *grants))


def _owns_all(_: Function) -> Function:
    def owns(*_: object) -> bool:
        """Whoever commits may."""
        return True

    return owns


def _safe_at_once(right: Function) -> Function:
    def submit(sidecar: Sidecar, command: Any, now: int) -> Outcome:
        """A commit is called safe when it is written, whatever the mode."""
        outcome: Outcome = right(sidecar, command, now)
        return outcome._replace(position=0)

    return submit


def _unwritten_leases(right: Function) -> Function:
    def decide(deliveries: Deliveries, command: Any, now: int) -> Decision:
        """Leases after the first are kept in memory only."""
        decision: Decision = right(deliveries, command, now)
        if not isinstance(command, Lease) or not deliveries.has_in_flight(command.group):
            return decision
        for record in decision.records:
            deliveries.apply(record, 0)
        return Decision((), decision.reply)

    return decide


def _late_commits(right: Function) -> Function:
    def decide(deliveries: Deliveries, command: Any, now: int) -> Decision:
        """A commit settles what was delivered below its offset, also what came after it."""
        if isinstance(command, Settle):
            command = msgspec.structs.replace(command, to=limits.MAX_OFFSET)
        decision: Decision = right(deliveries, command, now)
        return decision

    return decide


def _endless_window(right: Function) -> Function:
    def revoke(group: Group, part: Part, now: int) -> None:
        """Whoever is asked to give something up has all the time in the world."""
        right(group, part, now)
        group.ownerships[part.topic_id].revoking[part.partition] = limits.MAX_OFFSET

    return revoke


def _no_window(_: Function) -> Function:
    def revoke(group: Group, part: Part, now: int) -> None:
        """Whoever should give something up loses it at once, with what it was delivered and has not settled."""
        changes._take(group, part, now)

    return revoke


def _fence_below(right: Function) -> Function:
    def clip(delivery: Delivery, end: int) -> None:
        """The last message that is left counts as lost."""
        right(delivery, max(end - 1, 0))

    return clip


def _first_generation(right: Function) -> Function:
    def restore(machine: groups.Groups, event: GroupRestored) -> None:
        """A snapshot brings a group back, but counts its generations anew."""
        right(machine, msgspec.structs.replace(event, generation=0))

    return restore


def _tells_at_once(_: Function) -> Function:
    def settled(*_: object) -> Iterator[int]:
        """Members are told what the groups log has not made durable."""
        yield from ()

    return settled


_ALL: Final = (
    Bug("log", "skip-fsync", "File.sync does not reach the disk", SimFile, "sync", _does_nothing),
    Bug(
        "log",
        "skip-directory-fsync",
        "sync_directory does not reach the disk",
        SimDisk,
        "sync_directory",
        _does_nothing,
    ),
    Bug("log", "early-ack", "records are called durable before their fsync", Log, "sync", _answers_early),
    Bug("log", "cut-too-much", "recovery cuts one valid record more", recovery._Recovery, "_fold", _cut_one_more),
    Bug(
        "log", "ignore-synced-mark", "recovery takes nothing as synced: damage is cut", recovery, "SyncedMark", _no_mark
    ),
    Bug("log", "unordered-index", "index points are recorded out of order", OffsetIndex, "extend", _late_points),
    Bug("log", "stale-cleaning", "a rewrite is put in place over a truncation", Log, "replace", _stale),
    Bug("log", "drop-delayed", "retention removes records still to be delivered", cleaner, "_delayed", _none_delayed),
    Bug(
        "groups",
        "grant-early",
        "a partition is granted before its owner gave it up",
        groups,
        "reassign",
        _granted_early,
    ),
    Bug("groups", "no-assignment-fence", "commits of zombies are taken", Group, "owns", _owns_all, "zombies"),
    Bug(
        "groups", "early-commit", "commits are answered before they are safe", Sidecar, "submit", _safe_at_once, "kept"
    ),
    Bug("groups", "no-sidecar-fence", "new messages are born settled", Sidecar, "fence", _does_nothing, "worked"),
    Bug("groups", "unwritten-leases", "leases are not written down", Deliveries, "decide", _unwritten_leases, "leases"),
    Bug("groups", "late-commit", "late commits settle what came after", Deliveries, "decide", _late_commits),
    Bug(
        "groups",
        "endless-window",
        "nobody's time to give up is ever over",
        changes,
        "_revoke",
        _endless_window,
        "windows",
    ),
    Bug("groups", "lost-window", "nobody has time to give anything up", changes, "_revoke", _no_window, "handover"),
    Bug("groups", "fence-too-low", "a fence voids what is still there", Delivery, "clip", _fence_below, "marks"),
    Bug(
        "groups",
        "generation-anew",
        "snapshots forget the generation",
        groups.Groups,
        "_apply_restored",
        _first_generation,
    ),
    Bug(
        "groups",
        "told-early",
        "grants are told before they are durable",
        GroupBroker,
        "settled",
        _tells_at_once,
        "one owner",
    ),
    Bug(
        "groups", "keep-lost", "what a lost reply took stays leased", GroupBroker, "_give_back", _does_nothing, "worked"
    ),
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
