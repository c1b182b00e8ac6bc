"""Groups and their members: joining, being there, leaving, and getting what the assignor says.

Decisions are the machine's; here they are written down, waited for, and told: a member hears of a partition only when
its grant is durable. Topics that come, grow and go are followed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from goqueue.base.entropy import Entropy
from goqueue.broker.parks import Parks
from goqueue.broker.partition import Partition
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.timer import Timer
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.broker.waiting import until, while_open
from goqueue.delivery.commands import Abandon, Forget
from goqueue.groups.commands import Create, Delete, Join, Leave, Rebalance, Release, Renew, StartTopics
from goqueue.groups.group import Group, Member, Part
from goqueue.groups.groups import Groups
from goqueue.groups.rebalancing import TopicShape
from goqueue.machine.host import Host
from goqueue.machine.shape import Tick
from goqueue.model.errors import LogClosed, StorageFailed, Unavailable, UnknownGroup, UnknownMember
from goqueue.model.groups import GroupState, Mode
from goqueue.model.names import GroupNumber, TopicId, format_topic_id, partition_name
from goqueue.storage.driver import OnFailure
from goqueue.storage.log import Log
from goqueue.storage.store import Store
from goqueue.telemetry import logs
from goqueue.telemetry.meters import GroupMeterSet

log = logs.get("groups")


class View(NamedTuple):
    """What a member is told about itself."""

    member_id: str
    generation: int
    version: int
    state: GroupState
    leader: str
    assigned: list[str]
    """Partitions it is delivered from."""
    revoke: list[str]
    """Partitions it is to give up: finish, commit, and poll or send a heartbeat."""

    @property
    def is_rebalancing(self) -> bool:
        return self.state is GroupState.REBALANCING


class Coordination:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        store: Store,
        groups_log: Log,
        topics: TopicCatalogue,
        sidecars: Sidecars,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        entropy: Entropy,
        meters: GroupMeterSet,
        on_failure: OnFailure,
    ) -> None:
        self._store = store
        self._topics = topics
        self._sidecars = sidecars
        self._clock = clock
        self._monotonic = monotonic
        self._entropy = entropy
        self._meters = meters
        self._on_failure = on_failure
        self.machine = Groups(self)
        self.host = Host(groups_log, (self.machine,))
        self.parks = Parks()
        self._timer = Timer(self.machine.next_deadline, monotonic, self._tick)
        self._behind: dict[GroupNumber, set[TopicId]] = {}
        """Groups that have yet to follow their topics, each with those that were deleted."""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Once the topics are open: members go on where they were; what changed meanwhile is followed."""
        self.machine.begin_life(self._monotonic())
        self.machine.observer = self
        self._topics.on_change = self._follow
        for group in self.machine.by_number.values():
            names = map(self._topics.name_of, group.started)
            self._meters.open(group.name, [name for name in names if name is not None])
            ended = {topic_id for topic_id in group.started if self._topics.name_of(topic_id) is None}
            if group.members or ended:
                self._behind[group.number] = ended
        await self.retry()
        await self._renew_voided(list(self._topics.by_id.values()))
        self._timer.arm()

    async def _renew_voided(self, topics: Iterable[OpenTopic]) -> None:
        """Where a power cut took messages, their offsets come again: commits for what was there are refused.

        Groups that were deleted, and whose sidecars do not know yet, are forgotten on the way.
        """
        voided: dict[str, list[Part]] = {}
        for topic in topics:
            for partition in topic.partitions:
                if partition.sidecar is None:
                    continue
                for number in partition.deliveries.groups:
                    if number not in self.machine.by_number and number < self.machine.next_number:
                        self._forget(partition, number)
                for number in partition.sidecar.voided:
                    if number in self.machine.by_number:
                        part = Part(topic.meta.topic_id, partition.number)
                        voided.setdefault(self.machine.by_number[number].name, []).append(part)
                partition.sidecar.voided = []
        for name, parts in voided.items():
            await self.run(Renew(name, tuple(parts)))

    async def retry(self) -> None:
        """Have groups follow their topics, also those that could not before, for want of space."""
        for number, ended in list(self._behind.items()):
            group = self.machine.by_number.get(number)
            try:
                if group is not None:
                    new = sorted(set(self._wanted(group)) - group.started)
                    if new:  # created under its members: all of it is theirs
                        await self.run(StartTopics(group.name, tuple(new)))
                    await self.run(Rebalance(group.name, tuple(sorted(ended))))
            except UnknownGroup:
                pass  # it was deleted meanwhile
            except Unavailable as error:
                log.warning("a group cannot follow its topics yet", group=number, reason=str(error))
                continue
            if group is not None and group.mode is not Mode.PARTITION:
                self.parks.wake_group(number)  # nobody is told of a new partition, but everybody has it
            if self._behind.get(number) is ended:
                del self._behind[number]

    def _wanted(self, group: Group) -> Iterator[TopicId]:
        for member in group.members.values():
            for shape in map(self.shape_of, member.joined.topics):
                if shape is not None:
                    yield shape.topic_id

    async def stop(self) -> None:
        self._timer.stop()
        self.parks.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what the machine asks

    def shape_of(self, name: str) -> TopicShape | None:
        shape = self._topics.shape_of(name)
        return None if shape is None else TopicShape(*shape)

    # --- members

    def new_member_id(self, client_id: str) -> str:
        return f"{client_id}-{self._entropy(8):016x}"

    async def join(self, command: Join, begin: Callable[[Group, OpenTopic], Awaitable[None]]) -> View:
        """`begin` writes down where the group begins in a topic that is new to it."""
        topics = [self._topics.named(name) for name in command.topics]
        if command.member_id is not None and command.group not in self.machine.by_name:
            raise UnknownMember(f"there is no group {command.group!r} yet; leave member_id out to join it")
        await self.run(Create(group=command.group, mode=command.mode, assignor=command.assignor))
        group = self.machine.group(command.group)
        self._meters.open(group.name, command.topics)
        new = [topic for topic in topics if topic.meta.topic_id not in group.started]
        if new:
            self.machine.decide(command, self._monotonic())  # refused? Then before anything is written
        for topic in new:
            await begin(group, topic)
        started = tuple(topic.meta.topic_id for topic in new)
        member_id = await self.run(msgspec.structs.replace(command, started=started))
        group = self.machine.group(command.group)
        await self.sure(group)
        member = group.member(member_id)
        self.touch(member)
        if member.joined.replaced_id is not None:
            self._abandon(group, member.joined.replaced_id)
        if group.mode is not Mode.PARTITION:
            self.parks.wake_group(group.number)  # it may want another topic than before
        log.info("member joined", group=group.name, member=member_id, members=len(group.members))
        return self.view(group, member)

    async def heartbeat(
        self,
        group: Group,
        member: Member,
        given_up: Iterable[str],
        finishing: Iterable[str] = (),
        generation: int | None = None,
    ) -> View:
        """`generation` is that of the last answer that reached the member, if it keeps track."""
        self.touch(member)
        has_heard = generation is None or generation >= member.told_generation
        self.acknowledge(group, member, given_up, finishing, has_heard=has_heard)
        await self.release(group, member)
        await self.sure(group)
        return self.view(group, group.member(member.member_id))

    async def leave(self, group: Group, member: Member) -> None:
        await self.run(Leave(group.name, member.member_id))
        self._abandon(group, member.member_id)
        log.info("member left", group=group.name, member=member.member_id, members=len(group.members))

    async def delete(self, name: str) -> None:
        group = await self.run(Delete(name))
        if name not in self.machine.by_name:
            self._meters.close(name)
        for topic_id in group.started:
            topic = self._topics.by_id.get(topic_id)
            for partition in topic.partitions if topic is not None else ():
                if partition.sidecar is not None:
                    self._forget(partition, group.number)
        log.info("group deleted", group=name)

    def _forget(self, partition: Partition, number: GroupNumber) -> None:
        try:
            self._sidecars.write(partition, Forget(number))
        except Unavailable as error:  # the group is gone all the same, and the next start tries again
            log.warning("a deleted group is not forgotten yet", log=partition.log_name, reason=str(error))

    async def renew(self, group: Group, topic: OpenTopic, partitions: Iterable[Partition]) -> None:
        """Offsets of these partitions mean something else now: commits of before are refused."""
        parts = tuple(Part(topic.meta.topic_id, partition.number) for partition in partitions)
        await self.run(Renew(group.name, parts))

    async def start_topic(self, group: Group, topic: OpenTopic) -> None:
        """From now on the group counts as having begun in this topic."""
        await self.run(StartTopics(group.name, (topic.meta.topic_id,)))

    def touch(self, member: Member) -> None:
        self.machine.touch(member, self._monotonic())

    def acknowledge(
        self,
        group: Group,
        member: Member,
        given_up: Iterable[str] = (),
        finishing: Iterable[str] = (),
        *,
        has_heard: bool = True,
    ) -> None:
        """The member was told what to give up, and has been heard of since; or it says so itself, or that it is not yet
        done with it. Not if it `has_heard` nothing of that: it asked while the answer that tells it was on its way.
        """
        told = set(member.told) if has_heard else set[Part]()
        if busy := set(finishing):
            unfinished = {part for part in member.parts if self.part_name(part) in busy}
            told -= unfinished
            member.acknowledged -= unfinished
        if named := set(given_up):
            told |= {part for part in member.parts if self.part_name(part) in named}
        member.acknowledged |= {part for part in told if group.owner(part) is member and group.is_revoking(part)}
        if has_heard:
            member.told = frozenset()

    async def release(self, group: Group, member: Member) -> None:
        """Take from the member what it was told to give up, as far as nothing of it is under way."""
        if not member.acknowledged:
            return
        parts = tuple(part for part in member.acknowledged if not self._sidecars.has_in_flight(group, part))
        if parts:
            await self.run(Release(group.name, member.member_id, parts))

    def parts_of(self, group: Group, member: Member) -> list[Part]:
        """Where a member is delivered from: what it owns, or all there is."""
        if group.mode is Mode.PARTITION:
            return member.parts
        shapes = map(self.shape_of, member.joined.topics)
        return [Part(shape.topic_id, number) for shape in shapes if shape for number in range(shape.partitions)]

    def view(self, group: Group, member: Member, known_version: int | None = None) -> View:
        """What to tell a member now; without partitions if it has this version already. It counts as told."""
        leader = group.leader
        revoking = group.revoking(member)
        member.told = frozenset(revoking)
        member.told_version, member.told_generation = member.version, group.generation
        return View(
            member.member_id,
            group.generation,
            member.version,
            group.state,
            leader.member_id if leader is not None else "",
            [] if member.version == known_version else self._names(self.parts_of(group, member), but=member.told),
            [] if member.version == known_version else self._names(revoking),
        )

    def _names(self, parts: Iterable[Part], *, but: Collection[Part] = ()) -> list[str]:
        return [self.part_name(part) for part in parts if part not in but]

    def part_name(self, part: Part) -> str:
        return partition_name(self._topics.name_of(part.topic_id) or format_topic_id(part.topic_id), part.partition)

    # --- the machine

    async def run(self, command: Any) -> Any:
        """A command's reply, or its refusal, once both are sure. Goes through also when whoever asked has left."""
        return await asyncio.shield(self._spawn(self._run(command)))

    async def _run(self, command: Any) -> Any:
        try:
            with while_open():
                outcome = self._store.spending(
                    lambda: self.host.submit(self.machine, command, self._monotonic(), written_at=self._clock())
                )
            self._timer.arm()
            concerned = [] if outcome.refusal is not None else self._concerned(command, outcome.reply)
            for group in concerned:
                group.changed_at = outcome.position
            await until(self.host.log.durable, outcome.position)
        except StorageFailed as failure:
            self._on_failure(failure)
            raise
        if outcome.refusal is not None:
            raise outcome.refusal
        for group in concerned:
            self.parks.wake_changed(group)
        return outcome.reply

    def _concerned(self, command: Any, reply: Any) -> list[Group]:
        if isinstance(command, Tick):
            return list(reply)
        group = self.machine.by_name.get(command.group)
        return [] if group is None else [group]

    async def sure(self, group: Group) -> None:
        """Until everything about a group is durable: only then may it be told. What others do does not matter."""
        while self.host.log.durable.value < group.changed_at:
            await until(self.host.log.durable, group.changed_at)

    async def all_sure(self) -> None:
        """The same for all groups there are by now."""
        await until(self.host.log.durable, self.host.log.end_offset)

    # --- what the machine tells

    def moved(self, group: Group, pause_ms: int) -> None:
        self._meters.moved(group, pause_ms)

    def rebalanced(self, group: Group, duration_ms: int) -> None:
        self._meters.rebalanced(group, duration_ms)

    def expired(self, group: Group, member_id: str) -> None:
        self._abandon(group, member_id)
        log.warning("member gone: it was silent for too long", group=group.name, member=member_id)

    def has_room(self, group: Group, member_id: str) -> None:
        """A member settled something: it may be given more, and where keys wait for each other others may too."""
        if group.mode is Mode.KEY:
            self.parks.wake_group(group.number)
        else:
            self.parks.wake_member(group.number, member_id)

    def _abandon(self, group: Group, member_id: str) -> None:
        """Where members share partitions: what one that is gone did not settle is for the others."""
        if group.mode is Mode.PARTITION:
            return  # whoever owns its partitions next takes it back
        for topic_id in group.started:
            topic = self._topics.by_id.get(topic_id)
            for partition in topic.partitions if topic is not None else ():
                if partition.sidecar is not None:
                    try:
                        self._sidecars.write(partition, Abandon(group.number, member_id))
                    except Unavailable as error:  # then it lapses
                        log.warning("a lease is not taken back yet", group=group.name, reason=str(error))
        self.parks.wake_group(group.number)

    # --- what happens by itself

    def _tick(self) -> None:
        self._spawn(self._run(Tick()), alone=True)

    def _follow(self, topic: OpenTopic) -> None:
        """A topic was opened, has grown, or is gone."""
        topic_id = topic.meta.topic_id
        ended = {topic_id} if self._topics.name_of(topic_id) is None else set()
        if topic.meta.name not in self._topics.by_name:
            self._meters.close_topic(topic.meta.name)
        for group in self.machine.by_number.values():
            wants = any(topic.meta.name in member.joined.topics for member in group.members.values())
            if wants or topic_id in group.started:
                self._behind[group.number] = self._behind.get(group.number, set()) | ended
        if any(partition.sidecar is not None and partition.sidecar.voided for partition in topic.partitions):
            self._spawn(self._renew_voided([topic]))  # it was opened only now
        if self._behind:
            self._spawn(self.retry(), alone=True)

    def _spawn(self, work: Coroutine[Any, Any, Any], *, alone: bool = False) -> "asyncio.Task[Any]":
        """`alone`: nobody waits for it, so nobody else hears how it ended."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done_alone if alone else self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have left: then nobody else looks at it

    def _done_alone(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LogClosed):
            log.warning("groups will be looked at again", error=error)
            self._timer.arm()
