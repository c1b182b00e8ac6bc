"""Members of groups as little actors: they poll, work and settle; some are slow or silent, some come back as zombies.

A consumer outlives the broker: after a crash it goes on with its member id and with what it has in hand.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from goqueue.groups.commands import Join
from goqueue.groups.group import Part
from goqueue.model.errors import GoQueueError, MemberFenced, NotFound, OffsetOutOfRange, UnknownMember
from goqueue.model.groups import Mode
from sim.rooms.broker import GroupBroker
from sim.rooms.exchanges import Batch, Commit, Reply, Steps
from sim.rooms.ledger import Ledger
from sim.rooms.settling import Handles, claims_of
from sim.scheduler import Scheduler, Task
from sim.trace import Trace


class Way(Enum):
    """How a consumer settles."""

    BY_ITSELF = auto()
    """It does not: what it polled before is settled when it polls again."""
    COMMITS = auto()
    """Up to an offset."""
    HANDLES = auto()
    """One by one."""


@dataclass
class World:
    """What all consumers share."""

    rng: Random
    trace: Trace
    ledger: Ledger
    scheduler: Scheduler
    modes: dict[str, Mode] = field(default_factory=dict)
    """Of each group."""
    latest: set[str] = field(default_factory=set)
    """Groups that begin at the end."""
    steady: bool = False
    """From now on everybody does its best."""
    ids: int = 0

    def new_id(self, name: str) -> str:
        self.ids += 1
        return f"{name}-{self.ids}"


class Consumer:
    def __init__(self, world: World, name: str, group: str, topics: tuple[str, ...]) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.group = group
        self.topics = topics
        self.instance_id = name if rng.random() < 0.3 else None
        self.session_ms = rng.choice((400, 1000))
        self.rebalance_ms = rng.choice((200, 600))
        self.visibility_ms = rng.choice((None, 150, 1000))
        self.max_unacked = rng.choice((3, 20, 1000))
        self.way = rng.choice((Way.BY_ITSELF, Way.COMMITS, Way.COMMITS, Way.HANDLES, Way.HANDLES))
        self.fenced = rng.random() < 0.8
        """It says in which generation, and by which poll, it was delivered what it commits."""
        self.hoards = rng.random() < 0.2
        """It holds on to what it was delivered, and goes on polling."""
        self.member_id: str | None = None
        self.subscribed: tuple[str, ...] = ()
        self.received = 0
        self.hand: list[Batch] = []

    def live(self, broker: GroupBroker) -> Task:
        """Until the broker dies."""
        rng = self.world.rng
        while True:
            yield rng.choice((0, 1, 10, 50, 150))
            try:
                yield from self._turn(broker)
            except (NotFound, MemberFenced) as refusal:
                self.world.trace.event("refused", self.name, type(refusal).__name__)
                self._forget()
            except GoQueueError as refusal:
                self.world.trace.event("refused", self.name, str(refusal))

    def _turn(self, broker: GroupBroker) -> Steps[None]:
        if self.member_id is None or (self.world.steady and self.subscribed != self.topics):
            yield from self._join(broker)
            return
        if self.world.steady:
            yield from self._poll(broker, self.member_id)
            while self.hand:
                yield from self._work(broker, self.member_id)
            return
        luck = self.world.rng.random()
        if luck < 0.45:
            yield from self._poll(broker, self.member_id)
        elif luck < 0.8:
            if self.hand and not self.hoards:
                yield from self._work(broker, self.member_id)
        elif luck < 0.88:
            owned, _ = yield from broker.heartbeat(self.group, self.member_id)
            self._drop(owned)
        elif luck < 0.91:
            self._finish()
            yield from broker.leave(self.group, self.member_id, self.received)
            self._haunt(broker, self.member_id)
            self._forget()
        elif luck < 0.93:
            yield from self._join(broker)  # it wants other topics, or says nothing new
        elif luck < 0.96:  # it is started again
            self._haunt(broker, self.member_id)
            self._forget()
        else:
            self._haunt(broker, self.member_id)
            yield self.session_ms + self.world.rng.choice((0, 300))

    # --- what it asks for

    def _join(self, broker: GroupBroker) -> Steps[None]:
        world = self.world
        topics = self.topics
        if len(topics) > 1 and not world.steady and world.rng.random() < 0.2:
            topics = topics[: world.rng.randint(1, len(topics))]
        command = Join(
            group=self.group,
            client_id=self.name,
            topics=topics,
            new_id=world.new_id(self.name),
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
            member_id=self.member_id,
            instance_id=self.instance_id,
            mode=world.modes.get(self.group),
            auto_commit_ms=50 if self.way is Way.BY_ITSELF else None,
            visibility_ms=self.visibility_ms,
            max_unacked=self.max_unacked,
        )
        self.subscribed = topics
        member_id = yield from broker.join(command, latest=self.group in world.latest)
        if world.steady or world.rng.random() < 0.9:  # or the answer is lost, and nobody is this member
            self.member_id = member_id

    def _poll(self, broker: GroupBroker, member_id: str) -> Steps[None]:
        rng, world = self.world.rng, self.world
        self._finish()
        count = 50 if world.steady else rng.choice((1, 3, 10))
        poll = broker.poller.poll(self.group, member_id, self.received, count)
        luck = 1.0 if world.steady else rng.random()
        if luck < 0.04:  # it gives up waiting for the reply, which is on its way all the same
            world.scheduler.spawn(f"{member_id} orphan", self._orphan(poll))
            return
        reply = yield from poll
        if luck < 0.14:
            world.trace.event("lost", self.name, reply.number)
            if luck < 0.09:
                broker.poller.give_back(self.group, member_id, reply.number)
            return
        if luck < 0.3:
            yield rng.choice((1, 30))
        self._receive(reply)

    def _orphan(self, poll: Steps[Reply]) -> Task:
        try:
            yield from poll
        except GoQueueError as refusal:
            self.world.trace.event("refused", f"{self.name} orphan", type(refusal).__name__)

    def _receive(self, reply: Reply) -> None:
        self._drop(reply.owned)
        for batch in reply.batches:
            self.received = reply.number
            self.hand.append(batch)
            self.world.ledger.received[batch.group].update(value for _, value in batch.messages)
            self.world.trace.event("receive", self.name, reply.number, *batch.part, batch.tenure, batch.messages)

    # --- its work

    def _work(self, broker: GroupBroker, member_id: str) -> Steps[None]:
        """Work some messages of one partition off, and say so."""
        rng = self.world.rng
        batch = rng.choice(list({batch.part: batch for batch in reversed(self.hand)}.values()))
        yield rng.choice((0, 1, 50))
        if self.way is Way.HANDLES:
            rest = yield from self._settle(broker, batch)
        else:
            rest = yield from self._commit_some(broker, member_id, batch)
        self.hand = [rest if other is batch else other for other in self.hand if other is not batch or rest.messages]

    def _commit_some(self, broker: GroupBroker, member_id: str, batch: Batch) -> Steps[Batch]:
        """In order. What is left of the batch."""
        count = len(batch.messages) if self.world.steady else self.world.rng.randint(1, len(batch.messages))
        try:
            done = yield from self._commit(broker, member_id, batch._replace(messages=batch.messages[:count]))
        except OffsetOutOfRange as lost:
            return batch._replace(messages=[message for message in batch.messages if message[0] < lost.end])
        return batch._replace(messages=batch.messages[count:] if done else [])

    def _commit(self, broker: GroupBroker, member_id: str, batch: Batch) -> Steps[bool]:
        """Whether it was taken. Who does not say what the commit is about must not be late when offsets get another
        meaning, or something else was delivered below: it would settle other messages."""
        self._work_off(batch)
        commit = Commit(batch, batch.messages[-1][0] + 1, self.fenced)
        if not self.fenced and not self._is_sure(commit):
            raise UnknownMember("it begins anew")
        return not (yield from broker.settlement.commit(self.group, member_id, [commit]))

    def _is_sure(self, commit: Commit) -> bool:
        batch, ledger = commit.batch, self.world.ledger
        account = ledger.accounts[batch.group, batch.part]
        delivered = [offset for offset in (*account.places.held, *account.places.tries) if offset < commit.below]
        values = ledger.contents[batch.part].find(delivered)
        return batch.voided == account.voided and ledger.worked[batch.group].issuperset(values)

    def _settle(self, broker: GroupBroker, batch: Batch) -> Steps[Batch]:
        """Some of a batch, in any order. What is left of it."""
        rng, settlement = self.world.rng, broker.settlement
        luck = 0.0 if self.world.steady else rng.random()
        count = len(batch.messages) if self.world.steady else rng.randint(1, len(batch.messages))
        chosen = rng.sample(batch.messages, count)
        handles = self._handles(batch, [offset for offset, _ in chosen])
        if luck < 0.6:
            self._work_off(batch._replace(messages=chosen))
            yield from settlement.ack(handles)
        elif luck < 0.8:
            yield from settlement.nack(handles, rng.choice((None, None, 0, 100, 700)))
        elif luck < 0.88:
            yield from settlement.reject(handles)
        else:
            yield from settlement.extend(handles, rng.choice((50, 400, 2000)))
            return batch
        return batch._replace(messages=[message for message in batch.messages if message not in chosen])

    def _handles(self, batch: Batch, offsets: list[int]) -> Handles:
        return Handles(batch.group, batch.part, batch.tenure, claims_of(batch.poll, offsets))

    def _finish(self) -> None:
        """What is settled by itself, at the next poll or a clean leave, is worked off before."""
        if self.way is Way.BY_ITSELF:
            for batch in self.hand:
                self._work_off(batch)
            self.hand.clear()

    def _work_off(self, batch: Batch) -> None:
        self.world.ledger.worked[batch.group].update(value for _, value in batch.messages)

    # --- what becomes of it

    def _drop(self, owned: Collection[Part]) -> None:
        """If it is quick, it does no more about what is no longer its own. Where nobody owns anything all is kept."""
        shares = self.world.modes.get(self.group) not in (None, Mode.PARTITION)
        if not shares and (self.world.steady or self.world.rng.random() < 0.5):
            self.hand = [batch for batch in self.hand if batch.part in owned]

    def _forget(self) -> None:
        """It begins anew, as a new process does."""
        self.member_id = None
        self.received = 0
        self.hand = []

    def _haunt(self, broker: GroupBroker, member_id: str) -> None:
        """Another part of the same process, or one that was thought dead, goes on with what it has in hand."""
        if self.hand:
            self.world.scheduler.spawn(f"{member_id} zombie", self._zombie(broker, member_id, list(self.hand)))

    def _zombie(self, broker: GroupBroker, member_id: str, hand: list[Batch]) -> Task:
        for batch in hand:
            yield self.world.rng.choice((1, 100, 500, 1500))
            try:
                if self.way is Way.HANDLES:
                    self._work_off(batch)
                    yield from broker.settlement.ack(self._handles(batch, [offset for offset, _ in batch.messages]))
                else:
                    yield from self._commit(broker, member_id, batch)
            except GoQueueError as refusal:
                self.world.trace.event("refused", f"{member_id} zombie", type(refusal).__name__)
