"""Bugs to plant: proof that the checkers see what they are there to see.

Each belongs to a room and replaces one function at a seam: the disk port, one named function of the product, or of
what stands for the rest of it in a room. Product code has no switch for any of them. A bug that no seed finds means a
blind checker: the simulation's tests plant all.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import pack, unpack
from goqueue.broker import transactions as running
from goqueue.broker.partition import Partition as BrokerPartition
from goqueue.broker.transactions import TransactionRunner
from goqueue.delivery import decisions
from goqueue.delivery.commands import Cancel, Lease, Settle
from goqueue.delivery.delays import Delays
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.delivery import Delivery
from goqueue.delivery.holds import Hold, Wait
from goqueue.delivery.holds import Lease as HeldLease
from goqueue.delivery.key_lines import KeyedSelection, Runs
from goqueue.delivery.records import Pledged, Redeemed, Released
from goqueue.delivery.selection import Selection
from goqueue.delivery.sidecar import Sidecar
from goqueue.groups import changes, groups
from goqueue.groups.group import Group, Part
from goqueue.groups.records import Grant, GroupRestored, Reassigned
from goqueue.io.disk import File
from goqueue.machine.host import Outcome
from goqueue.machine.shape import Decision
from goqueue.model import limits
from goqueue.model.errors import OutOfSequence
from goqueue.model.names import GroupNumber
from goqueue.model.record import Producer
from goqueue.producers.sequences import ProducerTable, Verdict
from goqueue.storage import cleaner, recovery
from goqueue.storage.delays import AS_WRITTEN, DueTimes
from goqueue.storage.index import OffsetIndex
from goqueue.storage.log import Log
from goqueue.storage.segment import Segment
from goqueue.storage.synced import Synced, SyncedMark
from goqueue.storage.transactions import COMMIT, TransactionView
from goqueue.storage.transactions import Run as TransactionRun
from goqueue.storage.walk import Extent
from goqueue.transactions import coordinator
from goqueue.transactions.coordinator import Transaction, Transactions, ended
from goqueue.transactions.ending import Durable as DurableUpTo
from goqueue.transactions.ending import Site, Step, orphan_marker
from goqueue.transactions.in_partition import Ended, PartitionTransactions
from sim.disk import SimDisk, SimFile
from sim.rooms.core import Core
from sim.rooms.polling import Poller
from sim.rooms.topics import Partition

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
    def submit(sidecar: Sidecar, command: Any, *, wall: int, now: int) -> Outcome:
        """A commit is called safe when it is written, whatever the mode."""
        outcome: Outcome = right(sidecar, command, wall=wall, now=now)
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


def _lapses_do_not_count(right: Function) -> Function:
    def fail(delivery: Delivery, offsets: BitMap64, poll: int) -> None:
        """A lease that lapsed never was."""
        if poll:
            delivery._let_go(offsets)
        else:
            right(delivery, offsets, poll)

    return fail


def _unwritten_cancels(right: Function) -> Function:
    def decide(deliveries: Deliveries, command: Any, now: int) -> Decision:
        """What is cancelled is known in memory only."""
        decision: Decision = right(deliveries, command, now)
        if not isinstance(command, Cancel):
            return decision
        for record in decision.records:
            deliveries.apply(record, 0)
        return Decision((), decision.reply)

    return decide


def _no_heads(right: Function) -> Function:
    def begin(selection: KeyedSelection, low: int, _: dict[int, int], uncommitted: BitMap64) -> None:
        """What was delivered and is not settled does not hold up its key."""
        right(selection, low, {}, uncommitted)

    return begin


def _oldest_later(right: Function) -> Function:
    def stage(selection: Selection, *arguments: Any, **more: Any) -> None:
        """The oldest of a lane comes after the next one."""
        right(selection, *arguments, **more)
        for staged in selection._staged:
            if len(staged) > 1:
                selection._unsorted.add(staged.min())
                staged.discard(staged.min())

    return stage


def _as_written(_: Function) -> Function:
    def due_times(*_: object) -> DueTimes:
        """Whatever was moved or cancelled: the records say when they are due."""
        return AS_WRITTEN

    return due_times


def _all_new(_: Function) -> Function:
    def check(*_: object) -> Verdict:
        """Nothing was written before."""
        return Verdict(())

    return check


def _no_gaps(right: Function) -> Function:
    def check(table: ProducerTable, producer: Producer, count: int) -> Verdict:
        verdict: Verdict = right(table, producer, count)
        if verdict.missing:
            raise OutOfSequence("it waits for a number that nobody will send", expected=0)
        return verdict

    return check


def _hasty(right: Function) -> Function:
    def fire(delays: Delays, *, wall: int, now: int, limit: int) -> BitMap64:
        """Delays are over before their time."""
        fired: BitMap64 = right(delays, wall=wall + 200, now=now + 200, limit=limit)
        return fired

    return fire


def _from_append_times(right: Function) -> Function:
    def append(log: Log, block: bytearray, *, now: int, producer: Producer | None = None) -> Any:
        """Delays count from append times, which never go back."""
        return right(log, block, now=max(now, log.last_timestamp), producer=producer)

    return append


def _no_waits(right: Function) -> Function:
    def end(hold: Hold, now: int) -> int:
        """Whatever failed is tried again at once."""
        return now if isinstance(hold, Wait) else int(right(hold, now))

    return end


def _endless_leases(right: Function) -> Function:
    def end(hold: Hold, now: int) -> int:
        """Whoever has a message has it for good."""
        return int(right(hold, now)) + (limits.MAX_VISIBILITY_MS if isinstance(hold, HeldLease) else 0)

    return end


def _any_handle(_: Function) -> Function:
    def of_poll(delivery: Delivery, _: int, offsets: BitMap64) -> BitMap64:
        """Whatever is leased or was tried can be settled by whoever had it once."""
        return offsets & (delivery.taken | delivery.tries.offsets)

    return of_poll


def _nothing_lapsed(_: Function) -> Function:
    def lapsed_of(*_: object) -> list[int]:
        """A reply that was lost, and whose lease has lapsed, counts as received."""
        return []

    return lapsed_of


def _never(_: Function) -> Function:
    def give_up(*_: object) -> BitMap64:
        """What kills its consumers is delivered for ever."""
        return BitMap64()

    return give_up


# ---------------------------------------------------------------- transactions


def _undecided(_: Function) -> Function:
    def decide_commit(_: Log, sites: Iterable[Site], decide: Callable[[], Outcome]) -> Iterator[Step]:
        """The markers do not wait for the decision."""
        yield [each for site in sites for each in site.saved()]
        decide()

    return decide_commit


def _unsaved(_: Function) -> Function:
    def decide_commit(log: Log, _: Iterable[Site], decide: Callable[[], Outcome]) -> Iterator[Step]:
        """The decision does not wait for the messages and acks."""
        yield [DurableUpTo(log, decide().position)]

    return decide_commit


def _presumes_abort(_: Function) -> Function:
    def adopt(runner: TransactionRunner, partition: BrokerPartition, number: int) -> None:
        """After a restart only those are known that are open."""
        if runner._is_open(number):
            runner.take_part(number, partition)
        else:
            runner._participants.tell(partition, number, False, orphan_marker(number))

    return adopt


def _shows_aborted(right: Function) -> Function:
    def end(known: PartitionTransactions, run: TransactionRun) -> Ended:
        """Whatever ends may be seen."""
        ended: Ended = right(known, run._replace(flags=COMMIT))
        return ended._replace(commits=run.commits)

    return end


def _misses_one(right: Function) -> Function:
    def tell(transactions: Any, sites: Any) -> list[DurableUpTo]:
        """One partition never hears of it."""
        told: list[DurableUpTo] = right(transactions, [site for site in sites if not site.partition.number])
        return told

    return tell


def _stays_open(right: Function) -> Function:
    def decide(machine: Transactions, command: Any, now: int) -> Decision:
        """What somebody left open who was replaced goes on."""
        decision: Decision = right(machine, command, now)
        return Decision(decision.records[-1:], decision.reply)

    return decide


def _always_new(_: Function) -> Function:
    def is_again(*_: object) -> bool:
        """Whoever asks is another program."""
        return False

    return is_again


def _any_token(right: Function) -> Function:
    def check_many(machine: Transactions, name: str, token: int, numbers: Iterable[int]) -> bool:
        """A token is good whatever came before."""
        last = machine.tokens.pop(name, None)
        try:
            return bool(right(machine, name, token, numbers))
        finally:
            if last is not None:
                machine.tokens[name] = last

    return check_many


def _settles_at_once(_: Function) -> Function:
    def pledged(deliveries: Deliveries, event: Pledged) -> None:
        """An ack counts at once."""
        deliveries._settle(event.group, deliveries._active[event.group], unpack(event.offsets))

    return pledged


def _keeps_pledges(right: Function) -> Function:
    def redeemed(deliveries: Deliveries, event: Redeemed) -> None:
        """What was pledged to an aborted transaction is nobody's."""
        if event.commits:
            right(deliveries, event)

    return redeemed


def _forgives(_: Function) -> Function:
    def give_back(delivery: Delivery, group: GroupNumber, transaction: int, *_: object) -> Iterator[Released]:
        """What was pledged to an aborted transaction was never delivered."""
        yield Released(group, pack(delivery.pledges[transaction].offsets))

    return give_back


def _never_again(_: Function) -> Function:
    def end_again(*_: object) -> int:
        """Whoever was open before a restart has all the time in the world."""
        return limits.MAX_OFFSET

    return end_again


def _shows_again(right: Function) -> Function:
    def restore(transactions: PartitionTransactions, views: Iterable[TransactionView]) -> None:
        """What was aborted is forgotten at a restart."""
        right(transactions, views)
        transactions.hidden.clear()

    return restore


def _writes_on(_: Function) -> Function:
    def writing(_: TransactionRunner, found: Transaction) -> Transaction:
        """Also while it is being committed."""
        if not found.is_open:
            raise ended(found)
        return found

    return writing


def _asks_nothing(_: Function) -> Function:
    async def check_whole(*_: object) -> None:
        """Whatever was lost."""

    return check_whole


def _no_open_keys(right: Function) -> Function:
    def line_up(selection: KeyedSelection, scan: codec.Scan, wanted: BitMap64, runs: Runs) -> None:
        """What is not decided about does not hold up its key."""
        right(selection, scan, wanted - selection._uncommitted, runs)

    return line_up


def _counts_open(_: Function) -> Function:
    def is_uncommitted(*_: object) -> bool:
        """Compaction takes what is not decided about for the newest of its key."""
        return False

    return is_uncommitted


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
    Bug("log", "drop-delayed", "retention removes records still to be delivered", cleaner, "_awaited", _none_delayed),
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
        Core,
        "settled",
        _tells_at_once,
        "one owner",
    ),
    Bug("groups", "keep-lost", "what a lost reply took stays leased", Poller, "_give_back", _does_nothing, "worked"),
    Bug(
        "groups",
        "keep-lapsed",
        "what a lost reply took counts as received once it has lapsed",
        Delivery,
        "lapsed_of",
        _nothing_lapsed,
    ),
    Bug(
        "groups",
        "lapse-forgets",
        "a lease that lapses is not counted",
        Delivery,
        "fail",
        _lapses_do_not_count,
        "attempts",
    ),
    Bug(
        "groups",
        "never-given-up",
        "what kills its consumers is delivered for ever",
        Poller,
        "_give_up",
        _never,
        "attempts",
    ),
    Bug("groups", "endless-leases", "leases do not lapse", Hold, "end", _endless_leases, "on time"),
    Bug("groups", "any-handle", "stale handles are good", Delivery, "of_poll", _any_handle, "handles"),
    Bug("groups", "no-backoff", "retries do not wait", Hold, "end", _no_waits, "early"),
    Bug("groups", "hasty-delays", "delays are over too early", Delays, "fire", _hasty, "early"),
    Bug("groups", "late-delays", "delays count from append times", Log, "append", _from_append_times, "on time"),
    Bug(
        "groups",
        "unwritten-cancel",
        "cancels are not written down",
        Deliveries,
        "decide",
        _unwritten_cancels,
        "cancelled",
    ),
    Bug("groups", "stale-times", "retention does not know of moves", Partition, "due_times", _as_written, "survivors"),
    Bug("groups", "letters-twice", "dead letters have no sequence", ProducerTable, "check", _all_new, "letters"),
    Bug("groups", "letters-stuck", "nobody goes on behind damage", ProducerTable, "check", _no_gaps, "drained"),
    Bug("groups", "letters-early", "dead letters do not wait for the disk", Core, "durable", _tells_at_once, "letters"),
    Bug("groups", "headless-keys", "keys forget who is under way", KeyedSelection, "__init__", _no_heads, "order"),
    Bug("transactions", "undecided", "markers do not wait for the decision", running, "decide_commit", _undecided),
    Bug("transactions", "unsaved", "decisions do not wait for the messages", running, "decide_commit", _unsaved),
    Bug(
        "transactions",
        "presumed-abort",
        "committing transactions are forgotten at a restart",
        TransactionRunner,
        "_adopt",
        _presumes_abort,
        "all or nothing",
    ),
    Bug(
        "transactions",
        "shown-aborts",
        "aborted messages are seen",
        PartitionTransactions,
        "_end",
        _shows_aborted,
        "derived",
    ),
    Bug("transactions", "missed-partition", "a partition is not told", running, "tell", _misses_one, "all or nothing"),
    Bug(
        "transactions", "no-epochs", "who was replaced may go on", Transactions, "check_epoch", _does_nothing, "fenced"
    ),
    Bug(
        "transactions",
        "left-open",
        "who is replaced leaves a transaction open",
        Transactions,
        "_decide_identify",
        _stays_open,
        "fenced",
    ),
    Bug("transactions", "always-new", "who asks again is a stranger", coordinator, "is_again", _always_new, "fenced"),
    Bug("transactions", "any-token", "tokens do not count", Transactions, "check_many", _any_token, "tokens"),
    Bug(
        "transactions",
        "numbers-again",
        "numbers are given out again",
        Transactions,
        "begin_life",
        _does_nothing,
        "numbers",
    ),
    Bug(
        "transactions",
        "early-acks",
        "pledged acks count at once",
        Deliveries,
        "_apply_pledged",
        _settles_at_once,
        "all or nothing",
    ),
    Bug(
        "transactions",
        "kept-pledges",
        "aborted acks are not given back",
        Deliveries,
        "_apply_redeemed",
        _keeps_pledges,
        "all or nothing",
    ),
    Bug(
        "transactions",
        "forgiven",
        "aborted acks do not count as deliveries",
        decisions,
        "_give_back_pledged",
        _forgives,
        "all or nothing",
    ),
    Bug("transactions", "no-rearm", "timeouts end with a life", Transaction, "end_again", _never_again, "outlived"),
    Bug(
        "transactions",
        "shown-again",
        "what is hidden is not restored",
        PartitionTransactions,
        "restore",
        _shows_again,
        "derived",
    ),
    Bug(
        "transactions",
        "unchecked",
        "commits do not ask what is lost",
        TransactionRunner,
        "_check_whole",
        _asks_nothing,
        "all or nothing",
    ),
    Bug("transactions", "never-closed", "commits keep nobody out", TransactionRunner, "writing", _writes_on, "fenced"),
    Bug("transactions", "open-keys", "keys pass what is open", KeyedSelection, "_line_up", _no_open_keys, "key holds"),
    Bug("transactions", "open-counts", "compaction counts what is open", DueTimes, "is_uncommitted", _counts_open),
    Bug("groups", "oldest-later", "the oldest of a lane is overtaken", Selection, "stage", _oldest_later, "order"),
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
