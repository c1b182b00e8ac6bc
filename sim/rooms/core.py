"""The core of a simulated broker: one life of its logs and machines, written to through the models, and waited for.

It keeps two rules for all that is built on it: whoever is told something about a group is told it when the groups log
is durable up to there; and everything that is written to a sidecar is written to the ledger beside it.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from goqueue.delivery.commands import Abandon
from goqueue.delivery.sidecar import Sidecar, sidecar_settings
from goqueue.groups.commands import Join, Release
from goqueue.groups.group import Group, Member, Part
from goqueue.groups.groups import Groups
from goqueue.machine.host import Host, Outcome
from goqueue.model.errors import GoQueueError
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from goqueue.model.settings import Fsync, LogSettings
from goqueue.producers.views import ProducerView, ProducerViews, restore
from goqueue.storage.log import Log
from sim.checkers import handover, one_owner, worked
from sim.clock import SimClock
from sim.disk import SimDisk
from sim.rooms.exchanges import Steps
from sim.rooms.ledger import Ended, Ledger
from sim.rooms.places import Moment
from sim.rooms.tenures import Tenures, stand
from sim.rooms.topics import Partition, Topics
from sim.trace import Trace

GROUPS_LOG: Final = "/data/meta/groups"


class Written(NamedTuple):
    """Something was written to a sidecar; it is safe when the sidecar is durable up to `position`."""

    reply: Any
    position: int
    ended: Ended


class Core:
    """Made with everything opened and recovered."""

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
            self.open_partition(part)
        groups_log = self._open_log(GROUPS_LOG, LogSettings(fsync=Fsync.EVERY))
        self.groups = Groups(topics)
        self.host = Host(groups_log, (self.groups,))
        self._silent: list[tuple[Group, str]] = []
        """Members that were found to be gone by the last command."""

    def moment(self) -> Moment:
        return Moment(self.clock.now, self.monotonic())

    # --- logs

    def _open_log(self, directory: str, settings: LogSettings, *, produced: bool = False) -> Log:
        views = (ProducerViews(),) if produced else ()
        return Log.open(directory, disk=self.disk, settings=settings, views=views, on_dirty=self._on_dirty)

    def _on_dirty(self, log: Log, urgent: bool) -> None:
        if urgent and log not in self.urgent:
            self.urgent.append(log)

    def open_partition(self, part: Part) -> None:
        directory = f"/data/logs/{self.topics.names[part.topic_id]}/{part.partition}"
        data = self._open_log(directory, self.settings)
        partition = self.partitions[part] = Partition(part, data, self.topics.rules[part.topic_id])
        if self.disk.list(partition.directory):
            self._open_sidecar(partition)
        if self.disk.list(partition.letters_directory):
            self._open_letters(partition)
        partition.find_delays(wall=self.clock.now, now=self.monotonic())

    def _open_sidecar(self, partition: Partition) -> Sidecar:
        log = self._open_log(partition.directory, sidecar_settings(self.settings))
        partition.sidecar = Sidecar.open(
            log, partition.data, wall=self.clock.now, now=self.monotonic(), delays=partition.delays
        )
        return partition.sidecar

    def sidecar(self, partition: Partition) -> Steps[Sidecar]:
        """Made when the first group comes by. The data log is synced for it, which may have to wait."""
        while partition.sidecar is None:
            if self.syncing is None:
                return self._open_sidecar(partition)
            yield 1
        return partition.sidecar

    def letters(self, partition: Partition) -> Steps[Log]:
        """Where its dead letters go; made with the first one."""
        while partition.letters is None:
            if self.syncing is None:
                return self._open_letters(partition)
            yield 1
        return partition.letters

    def _open_letters(self, partition: Partition) -> Log:
        log = partition.letters = self._open_log(partition.letters_directory, self.settings, produced=True)
        views = (log.derived(segment).views[ProducerViews.name] for segment in reversed(log.segments))
        partition.producers = restore(view for view in views if isinstance(view, ProducerView))
        return log

    @property
    def logs(self) -> list[Log]:
        logs = [self.host.log]
        for partition in self.partitions.values():
            sidecar = partition.sidecar
            found = (partition.data, sidecar.log if sidecar is not None else None, partition.letters)
            logs += [log for log in found if log is not None]
        return logs

    # --- writing

    def submit(self, command: Any) -> Outcome:
        """To the machine of groups, and to the model of it."""
        now = self.monotonic()
        self.tenures.doubt = command
        outcome = self.host.submit(self.groups, command, now, written_at=self.clock.now)
        self.tenures.doubt = None
        refused = type(outcome.refusal).__name__ if outcome.refusal is not None else ""
        self.trace.event("group", type(command).__name__, outcome.position, refused)
        standing = stand(self.groups, self.topics.names)
        one_owner.check(self.groups)
        handover.check(self.tenures, standing, command, now)
        self.tenures.follow(standing, outcome.position, now)
        if isinstance(command, Join) and outcome.refusal is None:
            self.tenures.seen[standing.names[command.group], outcome.reply] = now
        while self._silent:
            self.abandon(*self._silent.pop())
        return outcome

    def run(self, command: Any) -> Steps[Any]:
        outcome = self.submit(command)
        yield from self.reached(self.host.log, outcome.position)
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.reply

    def write(self, partition: Partition, command: Any) -> Written:
        """To a sidecar, and to the model of it."""
        part, sidecar, at = partition.part, partition.sidecar, self.moment()
        assert sidecar is not None
        self.ledger.begin(part, command, at)
        outcome = sidecar.submit(command, wall=at.wall, now=at.now)
        if outcome.refusal is not None:
            self.ledger.refused(part)
            raise outcome.refusal
        deliveries = sidecar.deliveries
        lows = {group: low for group in deliveries.groups if (low := deliveries.low(group)) is not None}
        left = outcome.reply if hasattr(command, "group") is False and outcome.reply is not None else ()
        ended = self.ledger.end(part, sidecar.log.end_offset, lows, at, left)
        self.trace.event("sidecar", *part, type(command).__name__, outcome.position, *lows.values(), ended)
        if ended.settled:
            worked.check_settled(self.ledger, command.group, part, ended.settled)
        return Written(outcome.reply, outcome.position, ended)

    # --- what the machine of groups tells

    def moved(self, group: Group, pause_ms: int) -> None:
        """Nobody counts here."""

    def rebalanced(self, group: Group, duration_ms: int) -> None:
        """Nor here."""

    def expired(self, group: Group, member_id: str) -> None:
        self._silent.append((group, member_id))

    def abandon(self, group: Group, member_id: str) -> None:
        """Where members share partitions: what one that is gone did not settle is for the others."""
        if group.mode is not Mode.PARTITION:
            for partition in self.partitions.values():
                if partition.sidecar is not None:
                    self.write(partition, Abandon(group.number, member_id))

    # --- waiting

    def reached(self, log: Log, position: int) -> Steps[None]:
        while log.durable.value < position:
            yield self.rng.choice((1, 3, 10))
        if log is self.host.log:
            one_owner.confirm(self.tenures, log.durable.value)

    def settled(self) -> Steps[None]:
        """Until everything the machine of groups knows is durable, also what it learned meanwhile."""
        while self.host.log.durable.value < self.host.log.end_offset:
            yield self.rng.choice((1, 3, 10))
        one_owner.confirm(self.tenures, self.host.log.durable.value)

    def safe(self, partition: Partition, position: int) -> Steps[None]:
        """Until a write to a sidecar is as safe as the messages are."""
        if self.settings.fsync is Fsync.EVERY and partition.sidecar is not None:
            yield from self.reached(partition.sidecar.log, position)

    def durable(self, log: Log, position: int) -> Steps[None]:
        """Whatever the mode."""
        log.hasten()
        yield from self.reached(log, position)

    def answer(self, group: GroupNumber, partition: Partition, written: Written) -> Steps[None]:
        """Until somebody may be told that something is settled."""
        yield from self.safe(partition, written.position)
        if self.settings.fsync is Fsync.EVERY:
            values = [value for ended in written.ended for value in ended]
            self.ledger.answered(group, partition.part, values)

    # --- members and what they have

    def find(self, group_name: str, member_id: str) -> Steps[tuple[Group, Member]]:
        """A refusal is told when it is sure, as everything is."""
        try:
            group = self.groups.group(group_name)
            return group, group.member(member_id)
        except GoQueueError:
            yield from self.settled()
            raise

    def touch(self, group: Group, member: Member) -> None:
        self.groups.touch(member, self.monotonic())
        self.tenures.seen[group.number, member.member_id] = self.monotonic()

    def parts_of(self, group: Group, member: Member) -> list[Part]:
        """Where a member is delivered from: what it owns, or all there is."""
        if group.mode is Mode.PARTITION:
            return member.parts
        return list(self.topics.parts_of(member.joined.topics))

    def needs_open(self, group: Group, partition: Partition) -> bool:
        """Whether what is leased is an earlier owner's."""
        if group.mode is not Mode.PARTITION or partition.sidecar is None or group.owner(partition.part) is None:
            return False
        return partition.sidecar.deliveries.needs_open(group.number, group.epoch(partition.part))

    def release(self, group: Group, member: Member) -> Steps[None]:
        """Take from the member what it was told to give up, as far as nothing of it is under way."""
        parts = tuple(sorted(part for part in member.acknowledged if not self.has_in_flight(group, part)))
        if parts:
            yield from self.run(Release(group.name, member.member_id, parts))

    def has_in_flight(self, group: Group, part: Part) -> bool:
        partition = self.partitions[part]
        if partition.sidecar is None or group.owner(part) is None:
            return False
        return partition.sidecar.deliveries.has_in_flight(group.number) and not self.needs_open(group, partition)
