"""What a broker does for consumer groups, without a loop: the machine of groups, partitions with their sidecars, and
requests that take several turns because they wait for the disk.

It stands for `goqueue.broker` and keeps the rules that it must keep: whoever is told something is told it when the
groups log is durable up to there; a commit is answered when it is as safe as the messages are; a lease never waits, but
is given only to an owner who durably is one. Everything it writes goes through the models, which check it.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

import msgspec

from goqueue import codec
from goqueue.delivery.deliveries import Forget, GiveBack, Lease, Open, ResetTo, Settle, Start
from goqueue.delivery.sidecar import Sidecar, sidecar_settings
from goqueue.groups.commands import Create, Delete, Join, Leave, Rebalance, Release
from goqueue.groups.group import Group, Member, Part
from goqueue.groups.groups import Groups
from goqueue.machine.host import Host, Outcome
from goqueue.machine.shape import Tick
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, OffsetOutOfRange, UnknownMember
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from sim.checkers import handover, kept, one_owner, worked, zombies
from sim.checkers.delivered import show
from sim.clock import SimClock
from sim.disk import SimDisk
from sim.rooms.exchanges import Batch, Commit, Reply, Steps
from sim.rooms.ledger import Ledger, Value
from sim.rooms.tenures import Tenure, Tenures, stand
from sim.rooms.topics import Partition, Topics
from sim.trace import Trace

GROUPS_LOG: Final = "/data/meta/groups"
_POLLS_PER_MS: Final = 1000


class GroupBroker:
    """One life of it. Made with everything opened and recovered."""

    def __init__(
        self,
        disk: SimDisk,
        clock: SimClock,
        monotonic: Callable[[], int],
        topics: Topics,
        settings: LogSettings,
        ledger: Ledger,
        tenures: Tenures,
        rng: Random,
        trace: Trace,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.monotonic = monotonic
        self.topics = topics
        self.settings = settings
        self.ledger = ledger
        self.tenures = tenures
        self.rng = rng
        self.trace = trace
        self.urgent: list[Log] = []
        """Logs somebody waits for."""
        self.syncing: Log | None = None
        self.partitions: dict[Part, Partition] = {}
        for part in topics.parts:
            self._open_partition(part)
        groups_log = self._open_log(GROUPS_LOG, LogSettings(fsync=Fsync.EVERY))
        self.groups = Groups(topics)
        self.host = Host(groups_log, (self.groups,))
        sidecars = [each.sidecar for each in self.partitions.values() if each.sidecar is not None]
        self._last_poll = max((sidecar.deliveries.last_poll for sidecar in sidecars), default=0)
        self._answered: dict[str, int] = {}
        """By member, the number of its last poll that was answered with messages, as far as this life knows."""
        self._returned: dict[str, list[tuple[Log, int]]] = {}
        """By member, what was given back. It must be durable before the member receives something else: afterwards
        nobody could tell that an earlier reply did not arrive."""

    def _open_log(self, directory: str, settings: LogSettings) -> Log:
        return Log.open(directory, disk=self.disk, settings=settings, on_dirty=self._on_dirty)

    def _on_dirty(self, log: Log, urgent: bool) -> None:
        if urgent and log not in self.urgent:
            self.urgent.append(log)

    def _open_partition(self, part: Part) -> None:
        directory = f"/data/logs/{self.topics.names[part.topic_id]}/{part.partition}"
        partition = self.partitions[part] = Partition(part, self._open_log(directory, self.settings))
        if self.disk.list(partition.directory):
            self._open_sidecar(partition)

    def _open_sidecar(self, partition: Partition) -> Sidecar:
        log = self._open_log(partition.directory, sidecar_settings(self.settings))
        partition.sidecar = Sidecar.open(log, partition.data, self.clock.now)
        return partition.sidecar

    @property
    def logs(self) -> list[Log]:
        logs = [self.host.log]
        for partition in self.partitions.values():
            logs.append(partition.data)
            if partition.sidecar is not None:
                logs.append(partition.sidecar.log)
        return logs

    def start(self) -> None:
        """Once the models know what was found: members go on where they were."""
        now = self.monotonic()
        self.groups.begin_life(now)
        self.tenures.begin_life(stand(self.groups, self.topics.names), now)
        one_owner.confirm(self.tenures, self.host.log.durable.value)
        for group in list(self.groups.by_number.values()):
            if group.members:
                self.submit(Rebalance(group.name))
        for partition in self.partitions.values():
            if partition.sidecar is not None:
                for number in partition.sidecar.deliveries.groups:
                    if number not in self.groups.by_number and number < self.groups.next_number:
                        self._write(partition, Forget(number))

    # Writing

    def submit(self, command: Any) -> Outcome:
        """To the machine of groups, and to the model of it."""
        now = self.monotonic()
        self.tenures.doubt = command
        outcome = self.host.submit(self.groups, command, now)
        self.tenures.doubt = None
        refused = type(outcome.refusal).__name__ if outcome.refusal is not None else ""
        self.trace.event("group", type(command).__name__, outcome.position, refused)
        standing = stand(self.groups, self.topics.names)
        one_owner.check(self.groups)
        handover.check(self.tenures, standing, command, now)
        self.tenures.follow(standing, outcome.position, now)
        if isinstance(command, Join) and outcome.refusal is None:
            self.tenures.seen[standing.names[command.group], outcome.reply] = now
        return outcome

    def run(self, command: Any) -> Steps[Any]:
        outcome = self.submit(command)
        yield from self._reached(self.host.log, outcome.position)
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.reply

    def _write(self, partition: Partition, command: Any) -> tuple[Any, int, list[Value]]:
        """To a sidecar, and to the model: the reply, the position to wait for, and what was settled."""
        part, sidecar = partition.part, partition.sidecar
        assert sidecar is not None
        self.ledger.begin(part, command)
        outcome = sidecar.submit(command, self.clock.now)
        if outcome.refusal is not None:
            raise outcome.refusal
        low = sidecar.deliveries.low(command.group)
        settled = self.ledger.end(part, command, sidecar.log.end_offset, low)
        if isinstance(command, Lease):
            self.ledger.accounts[command.group, part].renumber(show(sidecar.deliveries)[command.group].leased)
        self.trace.event("sidecar", *part, type(command).__name__, outcome.position, low, len(settled))
        worked.check_settled(self.ledger, command.group, part, settled)
        return outcome.reply, outcome.position, settled

    # Waiting

    def _reached(self, log: Log, position: int) -> Steps[None]:
        while log.durable.value < position:
            yield self.rng.choice((1, 3, 10))
        if log is self.host.log:
            one_owner.confirm(self.tenures, log.durable.value)

    def settled(self) -> Steps[None]:
        """Until everything the machine of groups knows is durable, also what it learned meanwhile."""
        while self.host.log.durable.value < self.host.log.end_offset:
            yield self.rng.choice((1, 3, 10))
        one_owner.confirm(self.tenures, self.host.log.durable.value)

    def _safe(self, partition: Partition, position: int) -> Steps[None]:
        if self.settings.fsync is Fsync.EVERY and partition.sidecar is not None:
            yield from self._reached(partition.sidecar.log, position)

    # Publishing

    def publish(self, part: Part, count: int) -> None:
        values = [self.ledger.new_value() for _ in range(count)]
        block = codec.encode([Record(value=b"%d" % value) for value in values])
        self.trace.event("publish", *part, *values)
        self.partitions[part].data.append(block, now=self.clock.now)
        self.ledger.contents[part].append(values)

    # Members

    def find(self, group_name: str, member_id: str) -> Steps[tuple[Group, Member]]:
        """A refusal is told when it is sure, as everything is."""
        try:
            group = self.groups.group(group_name)
            return group, group.member(member_id)
        except GoQueueError:
            yield from self.settled()
            raise

    def join(self, command: Join, *, latest: bool) -> Steps[str]:
        if command.member_id is not None and command.group not in self.groups.by_name:
            raise UnknownMember("there is no such group yet")
        yield from self.run(Create(group=command.group))
        group = self.groups.group(command.group)
        new = [shape for name in command.topics if (shape := self.topics.shapes[name]).topic_id not in group.started]
        if latest:
            for shape in new:
                for number in range(shape.partitions):
                    yield from self._start_latest(group, self.partitions[Part(shape.topic_id, number)])
        started = tuple(shape.topic_id for shape in new)
        member_id: str = yield from self.run(msgspec.structs.replace(command, started=started))
        yield from self.settled()
        group, member = yield from self.find(command.group, member_id)
        self.touch(group, member)
        self.tell(group, member)
        return member_id

    def _start_latest(self, group: Group, partition: Partition) -> Steps[None]:
        """Durable whatever the mode: that the group has begun will be."""
        yield from self._sidecar(partition)
        _, position, _ = self._write(partition, Start(group.number, partition.data.end_offset))
        assert partition.sidecar is not None
        partition.sidecar.log.hasten()
        yield from self._reached(partition.sidecar.log, position)

    def leave(self, group_name: str, member_id: str, received: int) -> Steps[None]:
        group, member = yield from self.find(group_name, member_id)
        self._give_back_after(group, member, received)
        yield from self._auto_commit(group, member, leaving=True)
        yield from self.run(Leave(group_name, member_id))

    def delete(self, name: str) -> Steps[None]:
        group: Group = yield from self.run(Delete(name))
        for partition in self.partitions.values():
            if partition.sidecar is not None and group.number in partition.sidecar.deliveries:
                self._write(partition, Forget(group.number))

    def touch(self, group: Group, member: Member) -> None:
        self.groups.touch(member, self.monotonic())
        self.tenures.seen[group.number, member.member_id] = self.monotonic()

    def tell(self, group: Group, member: Member) -> tuple[frozenset[Part], frozenset[Part]]:
        """What it owns, and what of that it is to give up. It counts as told, and must be durable by now."""
        member.told = frozenset(group.revoking(member))
        member.told_version = member.version
        owned = frozenset(member.parts)
        for part in sorted(owned):
            one_owner.check_served(self.tenures, (group.number, part), Tenure(group.epoch(part), member.member_id))
        return owned, member.told

    def heartbeat(self, group_name: str, member_id: str) -> Steps[tuple[frozenset[Part], frozenset[Part]]]:
        group, member = yield from self.find(group_name, member_id)
        self.touch(group, member)
        self._acknowledge(group, member)
        yield from self._release(group, member)
        yield from self.settled()
        return self.tell(*(yield from self.find(group_name, member_id)))

    def _acknowledge(self, group: Group, member: Member) -> None:
        mine = {part for part in member.told if group.owner(part) is member}
        member.acknowledged |= {part for part in mine if group.is_revoking(part)}
        member.told = frozenset()

    def _release(self, group: Group, member: Member) -> Steps[None]:
        parts = tuple(sorted(part for part in member.acknowledged if not self._has_in_flight(group, part)))
        if parts:
            yield from self.run(Release(group.name, member.member_id, parts))

    def _has_in_flight(self, group: Group, part: Part) -> bool:
        sidecar = self.partitions[part].sidecar
        if sidecar is None or group.owner(part) is None:
            return False
        deliveries = sidecar.deliveries
        return deliveries.has_in_flight(group.number) and not deliveries.needs_open(group.number, group.epoch(part))

    def tick(self) -> Steps[None]:
        yield from self.run(Tick())

    # Polling

    def poll(self, group_name: str, member_id: str, received: int, max_messages: int) -> Steps[Reply]:
        group, member = yield from self.find(group_name, member_id)
        self.touch(group, member)
        if received != self._answered.get(member_id):
            self._give_back_after(group, member, received)
        self._acknowledge(group, member)
        yield from self._auto_commit(group, member)
        yield from self._release(group, member)
        yield from self.settled()
        yield from self._park(group, member)
        return (yield from self._take(group_name, member_id, max_messages))

    def _park(self, group: Group, member: Member) -> Steps[None]:
        """While it waits it is there."""
        member.parked += 1
        try:
            for _ in range(self.rng.choice((0, 0, 1, 4))):
                if member.version != member.told_version or any(self._ready(group, member)):
                    break
                yield self.rng.choice((10, 100, 400))
        finally:
            member.parked -= 1
        self.touch(group, member)

    def _ready(self, group: Group, member: Member) -> Iterator[Part]:
        for part in member.parts:
            partition = self.partitions[part]
            start = first = partition.data.start_offset
            if partition.sidecar is not None:
                first = partition.sidecar.deliveries.next_ready(group.number, start).first
            if first < partition.data.end_offset and not group.is_revoking(part):
                yield part

    def _take(self, group_name: str, member_id: str, max_messages: int) -> Steps[Reply]:
        for log, position in self._returned.pop(member_id, ()):
            yield from self._reached(log, position)
        yield from self.settled()
        group, member = yield from self.find(group_name, member_id)
        owned, revoke = self.tell(group, member)
        generation = group.generation
        epochs = [(part, group.epoch(part)) for part in sorted(owned - revoke)]
        answered = self._answered.get(member_id, 0)
        number = self._last_poll = max(self._last_poll + 1, answered + 1, self.clock.now * _POLLS_PER_MS)
        batches: list[Batch] = []
        turn = number % len(epochs) if epochs else 0
        for part, epoch in (*epochs[turn:], *epochs[:turn]):
            while max_messages > 0:
                messages = yield from self._take_from(group, member, part, epoch, number, max_messages)
                if not messages:
                    break
                max_messages -= len(messages)
                voided = self.ledger.accounts[group.number, part].voided
                batches.append(
                    Batch(group.number, part, Tenure(epoch, member_id), generation, number, voided, messages)
                )
                self._answered[member_id] = number
        return Reply(number, owned, revoke, batches)

    def _take_from(
        self, group: Group, member: Member, part: Part, epoch: int, number: int, max_messages: int
    ) -> Steps[list[tuple[int, Value]]]:
        partition = self.partitions[part]
        sidecar = yield from self._sidecar(partition)
        if not self._may_serve(group, member, part, epoch):
            return []
        one_owner.check_served(self.tenures, (group.number, part), Tenure(epoch, member.member_id))
        if sidecar.deliveries.needs_open(group.number, epoch):
            self._write(partition, Open(group.number, epoch))
        start = partition.data.start_offset
        ready = sidecar.deliveries.next_ready(group.number, start)
        if ready.first >= (ready.end or partition.data.end_offset):
            return []
        records = partition.data.records(
            ready.first, max_bytes=1000, max_count=max_messages, to_offset=ready.end or None
        )
        if not records:
            return []
        if self.rng.random() < 0.1:  # the read was cold, and others went on
            yield self.rng.choice((1, 10))
            if not self._may_serve(group, member, part, epoch):
                return []
        messages = [(record.offset, Value(int(record.value or b""))) for record in records]
        kept.check_delivery(self.ledger, group.number, part, (value for _, value in messages))
        span = (ready.first, records[-1].offset + 1)
        try:
            self._write(partition, Lease(group.number, epoch, number, start, (span,)))
        except GoQueueError:  # it is no longer ready: the group was put elsewhere
            self.ledger.doubts.pop(part)
            return []
        return messages

    def _may_serve(self, group: Group, member: Member, part: Part, epoch: int) -> bool:
        return group.owner(part) is member and not group.is_revoking(part) and group.epoch(part) == epoch

    def _sidecar(self, partition: Partition) -> Steps[Sidecar]:
        """Made when the first group comes by. The data log is synced for it, which may have to wait."""
        while partition.sidecar is None:
            if self.syncing is None:
                return self._open_sidecar(partition)
            yield 1
        return partition.sidecar

    def give_back(self, group_name: str, number: int) -> None:
        """The reply of a poll could not be written."""
        group = self.groups.by_name.get(group_name)
        if group is not None:
            for member in list(group.members.values()):
                self._give_back(group, member, number - 1, number)

    def _give_back_after(self, group: Group, member: Member, received: int) -> None:
        self._give_back(group, member, received, limits.MAX_OFFSET)
        self._answered[member.member_id] = received

    def _give_back(self, group: Group, member: Member, after: int, to: int) -> None:
        for part in list(member.parts):
            partition = self.partitions[part]
            sidecar = partition.sidecar
            if sidecar is not None and not sidecar.deliveries.needs_open(group.number, group.epoch(part)):
                end = sidecar.log.end_offset
                _, position, _ = self._write(partition, GiveBack(group.number, after, to))
                if position > end:
                    sidecar.log.hasten()
                    self._returned.setdefault(member.member_id, []).append((sidecar.log, position))

    # Committing

    def commit(self, group_name: str, member_id: str, commits: Sequence[Commit]) -> Steps[list[Commit]]:
        """Those that were refused."""
        group, member = yield from self.find(group_name, member_id)
        self.touch(group, member)
        for commit in commits:
            data = self.partitions[commit.batch.part].data
            if commit.below > data.end_offset:
                raise OffsetOutOfRange(commit.below, start=data.start_offset, end=data.end_offset)
        refused: list[Commit] = []
        answers: list[tuple[Partition, int, list[Value]]] = []
        for commit in commits:
            part = commit.batch.part
            partition = self.partitions[part]
            accepted = group.owns(member, part, commit.batch.generation if commit.fenced else None)
            zombies.check(
                self.tenures, (group.number, part), commit.batch.tenure, fenced=commit.fenced, accepted=accepted
            )
            if not accepted:
                refused.append(commit)
            elif partition.sidecar is not None:
                to = commit.batch.poll if commit.fenced else limits.MAX_OFFSET
                _, position, settled = self._write(partition, Settle(group.number, commit.below, to))
                answers.append((partition, position, settled))
        yield from self._release(group, member)
        for partition, position, settled in answers:
            yield from self._safe(partition, position)
            if self.settings.fsync is Fsync.EVERY:
                self.ledger.answered(group.number, partition.part, settled)
        yield from self.settled()
        return refused

    def _auto_commit(self, group: Group, member: Member, *, leaving: bool = False) -> Steps[None]:
        """What earlier polls delivered; all is written before anything is waited for."""
        interval_ms = member.joined.auto_commit_ms
        if interval_ms is None:
            return
        now = self.monotonic()
        is_time = leaving or now - member.auto_committed_at >= interval_ms
        if is_time:
            member.auto_committed_at = now
        waits = []
        for part in list(member.parts) if is_time else sorted(member.acknowledged):
            if self._has_in_flight(group, part):
                partition = self.partitions[part]
                waits.append((partition, self._write(partition, Settle(group.number, limits.MAX_OFFSET))[1]))
        for partition, position in waits:
            yield from self._safe(partition, position)

    # Operators

    def reset(self, group: Group, part: Part, low: int) -> Steps[None]:
        partition = self.partitions[part]
        yield from self._sidecar(partition)
        _, position, _ = self._write(partition, ResetTo(group.number, low))
        assert partition.sidecar is not None
        partition.sidecar.log.hasten()
        yield from self._reached(partition.sidecar.log, position)

    def grow(self, name: str) -> None:
        """One partition more."""
        shape = self.topics.shapes[name]
        part = Part(shape.topic_id, shape.partitions)
        self._open_partition(part)
        self.topics.make(name, shape.partitions + 1)
        for group in list(self.groups.by_number.values()):
            if any(name in member.joined.topics for member in group.members.values()):
                self.submit(Rebalance(group.name))
