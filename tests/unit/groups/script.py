"""A group of one broker, told step by step: who joins, leaves, gives up, and how time passes.

`has("m1")` is what a member owns, as text: "orders-0 orders-1 ~orders-2". A tilde is before what it is to give up.
"""

from collections.abc import Iterable
from typing import Any

from goqueue.groups import records
from goqueue.groups.commands import Create, Delete, Join, Leave, Rebalance, Release, Renew
from goqueue.groups.group import Group, Part
from goqueue.groups.groups import Groups
from goqueue.groups.rebalancing import TopicShape
from goqueue.machine.shape import Tick
from goqueue.model.groups import Assignor, GroupState, Mode
from goqueue.model.names import TopicId

NOW = 1_000_000
SESSION_MS = 30_000
REBALANCE_MS = 20_000
GROUP = "billing"


class Topics:
    """A catalogue to which topics come, and where they grow and go."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicShape] = {}
        self._last_id = 0

    def shape_of(self, name: str) -> TopicShape | None:
        return self.by_name.get(name)

    def create(self, name: str, partitions: int) -> TopicId:
        self._last_id += 1
        self.by_name[name] = TopicShape(TopicId(self._last_id), partitions)
        return TopicId(self._last_id)

    def grow(self, name: str, partitions: int) -> None:
        self.by_name[name] = self.by_name[name]._replace(partitions=partitions)

    def delete(self, name: str) -> TopicId:
        return self.by_name.pop(name).topic_id

    def name_of(self, topic_id: TopicId) -> str:
        return next((name for name, shape in self.by_name.items() if shape.topic_id == topic_id), f"gone {topic_id}")


class Script:
    """One machine with one group."""

    def __init__(self, mode: Mode | None = None, **partitions: int) -> None:
        self.topics = Topics()
        for name, count in (partitions or {"orders": 4}).items():
            self.topics.create(name, count)
        self.now = NOW
        self.log: list[bytes] = []
        self.machine = Groups(self.topics)
        self.machine.begin_life(self.now)
        self.run(Create(group=GROUP, mode=mode))

    @property
    def group(self) -> Group:
        return self.machine.group(GROUP)

    def run(self, command: Any) -> Any:
        """Decide and apply, as a host does; deciding alone must change nothing that is in the log."""
        before = list(self.machine.snapshot())
        try:
            decision = self.machine.decide(command, self.now)
        finally:
            assert list(self.machine.snapshot()) == before
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(record)
        return decision.reply

    def would_write(self, command: Any) -> list[str]:
        """The types of the records that a command would lead to."""
        decision = self.machine.decide(command, self.now)
        return [type(records.decode(record)).__name__ for record in decision.records]

    # --- what members do

    def join(
        self,
        new_id: str,
        *topics: str,
        again: bool = False,
        instance_id: str | None = None,
        assignor: Assignor | None = None,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        **more: Any,
    ) -> Any:
        """A new member; or, `again`, one that is there says something else."""
        command = Join(
            group=GROUP,
            client_id="client",
            topics=topics or ("orders",),
            new_id="unused" if again else new_id,
            session_ms=session_ms,
            rebalance_ms=rebalance_ms,
            member_id=new_id if again else None,
            instance_id=instance_id,
            assignor=assignor,
            **more,
        )
        return self.run(command)

    def leave(self, member_id: str) -> None:
        self.run(Leave(GROUP, member_id))

    def release(self, member_id: str, *names: str) -> None:
        """Give up these partitions, or all that it is asked for."""
        asked = self.group.revoking(self.group.member(member_id))
        self.run(Release(GROUP, member_id, tuple(map(self.part, names)) if names else tuple(asked)))

    def touch(self, *member_ids: str) -> None:
        for member_id in member_ids:
            self.machine.touch(self.group.member(member_id), self.now)

    # --- what happens around them

    def rebalance(self, *ended: TopicId) -> None:
        self.run(Rebalance(GROUP, ended))

    def renew(self, *names: str) -> None:
        self.run(Renew(GROUP, tuple(self.part(name) for name in names)))

    def delete(self) -> Any:
        return self.run(Delete(GROUP))

    def tick(self) -> Any:
        return self.run(Tick())

    def wait(self, ms: int) -> Any:
        self.now += ms
        return self.tick()

    def restart(self, kept: Iterable[bytes] | None = None) -> None:
        """Another life of the broker, from the whole log or from these records; hours later."""
        self.machine = Groups(self.topics)
        for offset, record in enumerate(self.log if kept is None else kept):
            self.machine.apply(record, offset)
        self.now += 10_000_000
        self.machine.begin_life(self.now)

    # --- looking

    def part(self, name: str) -> Part:
        topic, _, number = name.rpartition("-")
        return Part(self.topics.by_name[topic].topic_id, int(number))

    def has(self, member_id: str) -> str:
        group = self.group
        return " ".join(
            f"{'~' if group.is_revoking(part) else ''}{self.topics.name_of(part.topic_id)}-{part.partition}"
            for part in group.member(member_id).parts
        )

    def state(self) -> GroupState:
        return self.group.state

    def everybody(self) -> dict[str, str]:
        return {member_id: self.has(member_id) for member_id in self.group.members}

    def epochs(self, member_id: str) -> list[int]:
        return [self.group.epoch(part) for part in self.group.member(member_id).parts]
