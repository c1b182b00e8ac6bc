"""Polling, as a broker does it: wait until there is something for a member, pick and read it, lease it, hand it out.

A lease never waits, but is given only to who durably may have it. What a lost reply took is durably given back before
anybody of the group receives something else.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import column, gathered, ranged, runs
from goqueue.codec import Picked
from goqueue.delivery.commands import Expire, GiveBack, GiveUp, Lease, Open, Skip
from goqueue.delivery.delivery import pack_keys
from goqueue.delivery.key_lines import KeyedSelection, ReadAhead
from goqueue.delivery.selection import Pick, Policy, Selection, ready_of
from goqueue.groups.group import Group, Member, Part
from goqueue.model import limits
from goqueue.model.errors import Conflict, OffsetOutOfRange
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from goqueue.model.topic import LanePolicy, OnExpiry
from goqueue.storage.lane_index import ViewMissing
from goqueue.storage.log import Log
from sim.checkers import attempts, cancelled, early, kept, one_owner, order
from sim.rooms.core import Core
from sim.rooms.exchanges import Batch, Reply, Steps
from sim.rooms.ledger import Value
from sim.rooms.settling import Settlement
from sim.rooms.tenures import Tenure
from sim.rooms.topics import Partition

_POLLS_PER_MS: Final = 1000
_NO_EPOCH: Final = 0
_REPLY_BYTES: Final = 1000
_TRIES: Final = 20
_READ_AHEAD_BYTES: Final = 300

Messages = list[tuple[int, Value]]


class Turn(NamedTuple):
    """A poll."""

    group: Group
    member: Member
    number: int

    @property
    def is_newest(self) -> bool:
        return self.member.poll == self.number


class _Read(NamedTuple):
    lane: int
    picked: Picked


class Poller:
    def __init__(self, core: Core, settlement: Settlement) -> None:
        self._core = core
        self._settlement = settlement
        sidecars = [each.sidecar for each in core.partitions.values() if each.sidecar is not None]
        self._last_number = max((sidecar.deliveries.last_poll for sidecar in sidecars), default=0)
        self._given_back: dict[GroupNumber, list[tuple[Log, int]]] = {}

    def poll(self, group_name: str, member_id: str, received: int, max_messages: int) -> Steps[Reply]:
        core = self._core
        group, member = yield from core.find(group_name, member_id)
        core.touch(group, member)
        turn = Turn(group, member, max(self._next_number(received), member.poll + 1))
        member.poll = turn.number
        if received < member.took or not member.took:
            self._give_back(group, member, received, turn.number - 1)
        yield from self._keep_given_back(group)
        self.acknowledge(group, member)
        yield from self._settlement.auto_commit(group, member, received)
        yield from core.release(group, member)
        yield from core.settled()
        yield from self._park(turn)
        return (yield from self._take(turn, max_messages))

    def _next_number(self, received: int) -> int:
        """Larger than all before; larger than what one member says it received only for that member."""
        self._last_number = max(self._last_number + 1, self._core.clock.now * _POLLS_PER_MS)
        return max(self._last_number, received + 1)

    def acknowledge(self, group: Group, member: Member) -> None:
        mine = {part for part in member.told if group.owner(part) is member}
        member.acknowledged |= {part for part in mine if group.is_revoking(part)}
        member.told = frozenset()

    def tell(self, group: Group, member: Member) -> tuple[frozenset[Part], frozenset[Part]]:
        """Where it is delivered from, and what of that it is to give up. It counts as told, and is durable by now."""
        member.told = frozenset(group.revoking(member))
        member.told_version = member.version
        owned = frozenset(self._core.parts_of(group, member))
        for part in sorted(owned):
            self._check_served(group, member, part)
        return owned, member.told

    def _check_served(self, group: Group, member: Member, part: Part) -> None:
        if group.mode is Mode.PARTITION:
            tenure = Tenure(group.epoch(part), member.member_id)
            one_owner.check_served(self._core.tenures, (group.number, part), tenure)

    # --- waiting

    def _park(self, turn: Turn) -> Steps[None]:
        """While it waits it is there."""
        group, member, rng = turn.group, turn.member, self._core.rng
        member.parked += 1
        try:
            for _ in range(rng.choice((0, 0, 1, 4))):
                if not turn.is_newest or member.version != member.told_version:
                    break
                if (yield from self._has_messages(turn)):
                    break
                yield rng.choice((10, 100, 400))
        finally:
            member.parked -= 1
        self._core.touch(group, member)

    def _has_messages(self, turn: Turn) -> Steps[bool]:
        group = turn.group
        if self._credit(group, turn.member) <= 0:
            return False
        for part, epoch in list(self._deliverable(turn)):
            partition = self._core.partitions[part]
            if partition.sidecar is None and partition.data.start_offset == partition.data.end_offset:
                continue
            yield from self._core.sidecar(partition)
            if self._is_drained(group, partition, epoch):
                continue
            if self._core.needs_open(group, partition) or (yield from self._staged(group, partition, 1)).has_staged:
                return True
        return False

    def _is_drained(self, group: Group, partition: Partition, epoch: int) -> bool:
        assert partition.sidecar is not None
        return partition.sidecar.deliveries.is_drained(group.number, epoch, partition.data.end_offset)

    def _deliverable(self, turn: Turn) -> Iterator[tuple[Part, int]]:
        """Partitions, and the epochs in which they are this member's."""
        group = turn.group
        for part in self._core.parts_of(group, turn.member):
            if not group.is_revoking(part):
                yield part, group.epoch(part) if group.mode is Mode.PARTITION else _NO_EPOCH

    def _credit(self, group: Group, member: Member) -> int:
        """How many more messages the member may hold."""
        most = limits.MAX_UNACKED if member.joined.auto_commit_ms is not None else member.joined.max_unacked
        sidecars = (self._core.partitions[part].sidecar for part in self._core.parts_of(group, member))
        held = (each.deliveries.held_by(group.number, member.member_id) for each in sidecars if each is not None)
        return most - sum(held)

    def _staged(self, group: Group, partition: Partition, want: int) -> Steps[Selection]:
        """What there is for the group."""
        sidecar, rng = partition.sidecar, self._core.rng
        assert sidecar is not None
        deliveries = sidecar.deliveries
        has_skipped = False
        while True:
            try:
                selection = sidecar.stage(group.number, group.mode, want)
                if has_skipped or (selection.has_staged and deliveries.is_in_order(group.number)):
                    return selection
                hole = sidecar.hole_at(deliveries.low(group.number) or 0)
                if hole is None:
                    return selection
                has_skipped = True
                self._skip(group, partition, ready_of(ranged(*hole), deliveries.delivery(group.number), deliveries))
            except ViewMissing as missing:
                if rng.random() < 0.3:
                    yield 1
                partition.data.derived(missing.segment)
            except ReadAhead as wanted:
                yield from self._read_ahead(group, partition, wanted)

    def _read_ahead(self, group: Group, partition: Partition, wanted: ReadAhead) -> Steps[None]:
        assert partition.sidecar is not None
        deliveries = partition.sidecar.deliveries
        selection = deliveries.selection(group.number, group.mode)
        assert isinstance(selection, KeyedSelection)
        try:
            chunk = partition.data.read(wanted.first, max_bytes=_READ_AHEAD_BYTES, to_offset=wanted.end)
        except OffsetOutOfRange:
            return
        if self._core.rng.random() < 0.1:
            yield 1
        if deliveries.selections.get(group.number) is selection:
            following = max(chunk.next_offset, wanted.first + 1)
            delivery, scan = deliveries.delivery(group.number), codec.scan(chunk.data)
            runs = codec.transaction_runs(chunk.data, scan)
            selection.feed(wanted, scan, following, runs, delivery, deliveries)

    # --- taking

    def _take(self, turn: Turn, max_messages: int) -> Steps[Reply]:
        core = self._core
        group, member, number = turn
        yield from core.settled()
        yield from core.find(group.name, member.member_id)
        budget = min(max_messages, self._credit(group, member))
        parts = list(self._deliverable(turn))
        generation = group.generation
        first = member.turn % len(parts) if parts else 0
        batches: list[Batch] = []
        for count, (part, epoch) in enumerate((*parts[first:], *parts[:first]), first + 1):
            messages = yield from self._take_from(turn, part, epoch, budget)
            if messages:
                budget -= len(messages)
                member.turn = count
                voided = core.ledger.accounts[group.number, part].voided
                tenure = Tenure(epoch, member.member_id)
                batches.append(Batch(group.number, part, tenure, generation, number, voided, sorted(messages)))
        yield from core.settled()
        group, member = yield from core.find(group.name, member.member_id)
        if batches and turn.is_newest:
            member.answered = number
        owned, revoke = self.tell(group, member)
        return Reply(number, owned, revoke, batches)

    def _take_from(self, turn: Turn, part: Part, epoch: int, budget: int) -> Steps[Messages]:
        """From one partition, only while its assignment epoch is the one that was durable when the poll began."""
        partition = self._core.partitions[part]
        if budget <= 0 or (partition.sidecar is None and partition.data.start_offset == partition.data.end_offset):
            return []
        yield from self._core.sidecar(partition)
        taken: Messages = []
        if self._is_drained(turn.group, partition, epoch):
            return taken
        while len(taken) < budget and self._still(turn, part, epoch):
            messages = yield from self._serve(turn, partition, epoch, budget - len(taken))
            if not messages:
                break
            turn.member.took = turn.number
            taken += messages
        return taken

    def _still(self, turn: Turn, part: Part, epoch: int) -> bool:
        """Whether it may be served."""
        return turn.is_newest and (turn.group.mode is not Mode.PARTITION or turn.group.is_serving(part, epoch))

    def _serve(self, turn: Turn, partition: Partition, epoch: int, count: int) -> Steps[Messages]:
        core, group, part = self._core, turn.group, partition.part
        self._check_served(group, turn.member, part)
        if core.needs_open(group, partition):
            core.write(partition, Open(group.number, epoch))
        messages = self._serve_ahead(turn, partition, epoch, count)
        if messages:
            return messages
        for _ in range(_TRIES):
            selection = yield from self._staged(group, partition, count)
            if not selection.has_staged or not self._still(turn, part, epoch):
                break
            found = yield from self._serve_staged(turn, partition, epoch, selection, count)
            if found is not None:
                return found
        return []

    def _serve_ahead(self, turn: Turn, partition: Partition, epoch: int, count: int) -> Messages:
        """The short way, without a wait; none when it must be the long one."""
        sidecar, group = partition.sidecar, turn.group
        assert sidecar is not None
        row = sidecar.ahead(group.number, group.mode)
        if row is None or row.end - row.first > count or self._core.rng.random() < 0.3:
            return []
        chunk = partition.data.read(row.first, max_bytes=_REPLY_BYTES, max_count=count, to_offset=row.end)
        now, ttl_ms = self._core.clock.now, partition.rules.message_ttl_ms or -1
        wanted = column(ranged(row.first, row.end))
        picked = codec.pick(chunk.data, wanted, max_bytes=_REPLY_BYTES, now=now, ttl_ms=ttl_ms)
        if chunk.next_offset < row.end or not picked.is_whole:
            return []
        selection = sidecar.deliveries.selection(group.number, group.mode)
        try:
            self._lease(turn, partition, epoch, selection, [Pick(row.lane, ranged(row.first, row.end))])
        except Conflict:
            return []
        selection.take(row)
        return [(each.offset, Value(int(each.value or b""))) for each in codec.decode(picked.data, verified=True)]

    def _serve_staged(
        self, turn: Turn, partition: Partition, epoch: int, selection: Selection, count: int
    ) -> Steps[Messages | None]:
        """None when what was picked turned out to be gone, and it is worth looking again."""
        core, group, rules = self._core, turn.group, partition.rules
        assert partition.sidecar is not None
        deliveries = partition.sidecar.deliveries
        policy = Policy(rules.lane_weights, rules.lane_policy is LanePolicy.STRICT)
        left = picks = selection.pick(count, policy, core.monotonic())
        try:
            worn = self._give_up(group, partition, picks)
            rest = [Pick(lane, offsets - worn) for lane, offsets in picks if offsets - worn]
            reads = yield from self._read(group, partition, rest)
            gone = self._pass_over(group, partition, reads)
            leased = [Pick(read.lane, gathered(read.picked.offsets)) for read in reads if len(read.picked.offsets)]
            if not self._still(turn, partition.part, epoch) or deliveries.selections.get(group.number) is not selection:
                return []
            if not leased:
                return None if worn or gone or not reads else []
            self._lease(turn, partition, epoch, selection, leased)
            selection.keep(leased, core.monotonic())
            taken = BitMap64().union(*(pick.offsets for pick in leased))
            left = [Pick(pick.lane, pick.offsets - taken) for pick in picks]
            records = [record for read in reads for record in codec.decode(read.picked.data, verified=True)]
            return [(record.offset, Value(int(record.value or b""))) for record in records]
        except Conflict:  # an operator moved the group, or it was settled after it had lapsed
            return []
        finally:
            if deliveries.selections.get(group.number) is selection:
                selection.put_back(left, deliveries.delivery(group.number), deliveries)

    def _lease(self, turn: Turn, partition: Partition, epoch: int, selection: Selection, picks: Sequence[Pick]) -> None:
        group, member = turn.group, turn.member
        offsets = BitMap64().union(*(pick.offsets for pick in picks))
        keys = pack_keys(selection.keys_of(offsets)) if isinstance(selection, KeyedSelection) else b""
        span_ms = member.joined.visibility_ms or partition.rules.visibility_ms
        command = Lease(
            group=group.number,
            poll=turn.number,
            holder=member.member_id,
            start=partition.data.start_offset,
            offsets=offsets,
            span_ms=span_ms,
            assignment_epoch=epoch,
            keys=keys,
        )
        assert partition.sidecar is not None
        delivery = partition.sidecar.deliveries.delivery(group.number)
        if not offsets or not delivery.is_free(offsets):
            raise Conflict("somebody was faster")
        self._check(group, partition, offsets)
        self._core.write(partition, command)

    def _check(self, group: Group, partition: Partition, offsets: BitMap64) -> None:
        ledger, part, number = self._core.ledger, partition.part, group.number
        assert partition.sidecar is not None
        delivery = partition.sidecar.deliveries.delivery(number)
        kept.check_delivery(ledger, number, part, ledger.contents[part].find(offsets))
        for offset in offsets:
            told = delivery.deliveries_of(offset) + 1
            attempts.check_delivery(ledger, number, part, offset, told=told, max_retries=partition.rules.max_retries)
            early.check_delivery(ledger, number, part, offset, self._core.moment())
            cancelled.check_delivery(ledger, number, part, offset)
        if group.mode is Mode.KEY:
            order.check_keys(ledger, number, part, set(offsets))
        elif group.mode is Mode.PARTITION:
            order.check_lanes(ledger, number, part, set(offsets))

    # --- reading

    def _read(self, group: Group, partition: Partition, picks: Iterable[Pick]) -> Steps[list[_Read]]:
        reads: list[_Read] = []
        left = _REPLY_BYTES
        for lane, offsets in picks:
            if left <= 0:
                break
            first, end = offsets.min(), offsets.max() + 1
            try:
                chunk = partition.data.read(first, max_bytes=left, max_count=end - first, to_offset=end)
            except OffsetOutOfRange:  # retention went past it meanwhile
                continue
            if self._core.rng.random() < 0.1:  # it was cold, and others went on
                yield self._core.rng.choice((1, 10))
            if not chunk.count:  # the cleaner took them since they were found
                self._skip(group, partition, offsets)
                continue
            now, ttl_ms = self._core.clock.now, partition.rules.message_ttl_ms or -1
            picked = codec.pick(chunk.data, column(offsets), max_bytes=left, now=now, ttl_ms=ttl_ms)
            reads.append(_Read(lane, picked))
            left -= len(picked.data)
        return reads

    def _pass_over(self, group: Group, partition: Partition, reads: Iterable[_Read]) -> bool:
        """What cannot be delivered any more."""
        expired, gone = BitMap64(), BitMap64()
        for _, picked in reads:
            expired |= gathered(picked.expired)
            gone |= gathered(picked.missing) | gathered(picked.controls)
        self._skip(group, partition, gone)
        if expired:
            dead_letters = partition.rules.on_expiry is OnExpiry.DLQ and partition.rules.dlq_enabled
            self._core.write(partition, Expire(group.number, expired, dead_letters))
        return bool(expired or gone)

    def _give_up(self, group: Group, partition: Partition, picks: Iterable[Pick]) -> BitMap64:
        """What was delivered as often as it may be, by consumers that died."""
        assert partition.sidecar is not None
        delivery = partition.sidecar.deliveries.delivery(group.number)
        most = partition.retries.most
        worn = BitMap64([each for pick in picks for each in pick.offsets if delivery.deliveries_of(each) > most])
        if worn:
            self._core.write(partition, GiveUp(group.number, worn, partition.retries.dead_letters))
        return worn

    def _skip(self, group: Group, partition: Partition, offsets: BitMap64) -> None:
        for first, end in runs(offsets):
            try:
                self._core.write(partition, Skip(group.number, first, end))
            except Conflict:
                continue  # somebody else was faster

    # --- giving back

    def give_back(self, group_name: str, member_id: str, number: int) -> None:
        """The reply of a poll could not be written."""
        group = self._core.groups.by_name.get(group_name)
        member = group.members.get(member_id) if group is not None else None
        if group is not None and member is not None:
            self._give_back(group, member, number - 1, number)

    def give_back_after(self, group: Group, member: Member, received: int) -> None:
        self._give_back(group, member, received, limits.MAX_OFFSET)

    def _give_back(self, group: Group, member: Member, after: int, to: int) -> None:
        holder = "" if group.mode is Mode.PARTITION else member.member_id
        for part in list(self._core.parts_of(group, member)):
            partition = self._core.partitions[part]
            if partition.sidecar is None or self._core.needs_open(group, partition):
                continue
            log = partition.sidecar.log
            end = log.end_offset
            self._core.write(partition, GiveBack(group.number, after, to, holder))
            if log.end_offset > end:
                self._given_back.setdefault(group.number, []).append((log, log.end_offset))

    def _keep_given_back(self, group: Group) -> Steps[None]:
        """A power cut must not bring a lease back, once its member has heard of later ones."""
        while positions := self._given_back.get(group.number):
            first = positions[0]
            yield from self._core.durable(*first)
            if positions and positions[0] is first:
                positions.pop(0)
