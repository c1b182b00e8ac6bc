"""What a broker does for consumer groups, without a loop: requests that take several turns because they wait for the
disk.

It stands for `goqueue.broker`, part for part, and keeps the rules that it must keep.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from goqueue.delivery.commands import Forget, ResetTo, Start
from goqueue.groups.commands import Create, Delete, Join, Leave, Rebalance, Renew
from goqueue.groups.group import Group, Part
from goqueue.machine.shape import Tick
from goqueue.model.errors import UnknownMember
from goqueue.model.record import Extension, Record
from goqueue.model.settings import LogSettings
from sim.checkers import one_owner
from sim.clock import SimClock
from sim.disk import SimDisk
from sim.rooms.core import Core
from sim.rooms.exchanges import Steps
from sim.rooms.ledger import Ledger, Message
from sim.rooms.polling import Poller
from sim.rooms.settling import Settlement
from sim.rooms.tenures import Tenures, stand
from sim.rooms.timing import Alarms
from sim.rooms.topics import Partition, Topics
from sim.rooms.undertaking import Undertaker
from sim.trace import Trace


class Post(NamedTuple):
    """A message to be published; times are from now on."""

    key: bytes | None
    lane: int
    delay_ms: int | None
    ttl_ms: int | None


class GroupBroker(Core):
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
        super().__init__(disk, clock, monotonic, topics, settings, ledger, tenures, rng, trace)
        self.settlement = Settlement(self)
        self.poller = Poller(self, self.settlement)
        self.alarms = Alarms(self)
        self.undertaker = Undertaker(self)

    def start(self) -> None:
        """Once the models know what was found: members go on where they were."""
        now = self.monotonic()
        self.groups.begin_life(now)
        self.groups.observer = self
        self.tenures.begin_life(stand(self.groups, self.topics.names), now)
        one_owner.confirm(self.tenures, self.host.log.durable.value)
        for group in list(self.groups.by_number.values()):
            if group.members:
                self.submit(Rebalance(group.name))
        for partition in self.partitions.values():
            if partition.sidecar is None:
                continue
            for number in partition.sidecar.deliveries.groups:
                if number not in self.groups.by_number and number < self.groups.next_number:
                    self.write(partition, Forget(number))
            for number in partition.sidecar.voided:
                if number in self.groups.by_number:
                    self.submit(Renew(self.groups.by_number[number].name, (partition.part,)))

    # --- publishing

    def publish(self, part: Part, posts: Sequence[Post]) -> None:
        at = self.moment()
        records = []
        values = []
        for post in posts:
            deliver_at = None if post.delay_ms is None else at.wall + post.delay_ms
            expires_at = None if post.ttl_ms is None else (deliver_at or at.wall) + post.ttl_ms
            value = self.ledger.new_value(Message(post.key, post.lane, deliver_at))
            extension = Extension(  # as clients send them; the ledger knows what must become of that
                deliver_at=-post.delay_ms if post.delay_ms else deliver_at,
                expires_at=None if post.ttl_ms is None else -post.ttl_ms,
            )
            plain = deliver_at is None and expires_at is None
            records.append(
                Record(key=post.key, value=b"%d" % value, priority=post.lane, extension=None if plain else extension)
            )
            values.append(value)
        self.trace.event("publish", *part, *zip(values, posts, strict=True))
        self.partitions[part].append(records, wall=at.wall, now=at.now)
        self.ledger.publish(part, values, at)

    # --- members

    def join(self, command: Join, *, latest: bool) -> Steps[str]:
        if command.member_id is not None and command.group not in self.groups.by_name:
            raise UnknownMember("there is no such group yet")
        yield from self.run(Create(group=command.group, mode=command.mode))
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
        self.poller.tell(group, member)
        return member_id

    def _start_latest(self, group: Group, partition: Partition) -> Steps[None]:
        """Durable whatever the mode: that the group has begun will be."""
        sidecar = yield from self.sidecar(partition)
        written = self.write(partition, Start(group.number, partition.data.end_offset))
        yield from self.durable(sidecar.log, written.position)

    def leave(self, group_name: str, member_id: str, received: int) -> Steps[None]:
        group, member = yield from self.find(group_name, member_id)
        self.poller.give_back_after(group, member, received)
        yield from self.settlement.auto_commit(group, member, received, leaving=True)
        yield from self.run(Leave(group_name, member_id))
        self.abandon(group, member_id)

    def heartbeat(self, group_name: str, member_id: str) -> Steps[tuple[frozenset[Part], frozenset[Part]]]:
        group, member = yield from self.find(group_name, member_id)
        self.touch(group, member)
        self.poller.acknowledge(group, member)
        yield from self.release(group, member)
        yield from self.settled()
        return self.poller.tell(*(yield from self.find(group_name, member_id)))

    def tick(self) -> Steps[None]:
        yield from self.run(Tick())

    # --- operators

    def delete(self, name: str) -> Steps[None]:
        group: Group = yield from self.run(Delete(name))
        for partition in self.partitions.values():
            if partition.sidecar is not None and group.number in partition.sidecar.deliveries:
                self.write(partition, Forget(group.number))

    def reset(self, group: Group, part: Part, low: int) -> Steps[None]:
        partition = self.partitions[part]
        sidecar = yield from self.sidecar(partition)
        written = self.write(partition, ResetTo(group.number, low))
        yield from self._renew(group, part)
        yield from self.durable(sidecar.log, written.position)

    def _renew(self, group: Group, part: Part) -> Steps[Any]:
        """Offsets mean something else now: commits of before are refused."""
        return (yield from self.run(Renew(group.name, (part,))))

    def grow(self, name: str) -> None:
        """One partition more."""
        shape = self.topics.shapes[name]
        part = Part(shape.topic_id, shape.partitions)
        self.open_partition(part)
        self.topics.make(name, shape.partitions + 1)
        for group in list(self.groups.by_number.values()):
            if any(name in member.joined.topics for member in group.members.values()):
                self.submit(Rebalance(group.name))
