"""Schedules of one broker, told step by step: what is created, changed and published, and how time passes."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from goqueue.jobs import records
from goqueue.jobs.records import ScheduleId
from goqueue.jobs.schedule import PendingRun, Schedule
from goqueue.jobs.schedules import ChangeSchedule, CreateSchedule, FailRun, FinishRun, Schedules
from goqueue.machine.shape import Tick
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NOW = int(datetime(2026, 5, 4, 12, 0, tzinfo=UTC).timestamp() * 1000)
"""A Monday, at noon."""
MESSAGE = {"key": "k", "value": {"n": 1}}


class Script:
    """One machine. Schedules are called "a", "b" and so on."""

    def __init__(self) -> None:
        self.now = NOW
        self.log: list[bytes] = []
        self.machine = Schedules()

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

    # --- what users do

    def create(self, name: str = "a", *, every_ms: int | None = None, topic_id: int = 1, **fields: Any) -> Schedule:
        command = CreateSchedule(
            schedule_id=ScheduleId(name),
            topic=fields.pop("topic", "orders"),
            topic_id=TopicId(topic_id),
            message=fields.pop("message", MESSAGE),
            every_ms=every_ms,
            missed=Missed(fields.pop("missed", "skip")),
            **fields,
        )
        reply = self.run(command)
        assert reply == self.machine.by_id[ScheduleId(name)], "the reply is what is there afterwards"
        assert isinstance(reply, Schedule)
        return reply

    def change(self, name: str = "a", **fields: Any) -> Schedule:
        reply = self.run(ChangeSchedule(schedule_id=ScheduleId(name), **fields))
        assert reply == self.machine.by_id[ScheduleId(name)], "the reply is what is there afterwards"
        assert isinstance(reply, Schedule)
        return reply

    # --- what happens around them

    def tick(self) -> list[tuple[int, int]]:
        """What is intended: numbers, and how long after NOW it was due."""
        return shown(self.run(Tick()))

    def wait(self, ms: int) -> list[tuple[int, int]]:
        self.now += ms
        return self.tick()

    def publish(self) -> list[tuple[int, int]]:
        """All pending runs, in order."""
        runs = self.machine.pending_runs
        for offset, run in enumerate(runs):
            self.finish(run.run, run.schedule_id, offset=offset)
        return shown(runs)

    def finish(self, run: int, name: str = "a", *, partition: int = 0, offset: int = 0) -> None:
        self.run(FinishRun(schedule_id=ScheduleId(name), run=run, partition=partition, offset=offset))

    def fail(self, run: int, error: str = "refused", name: str = "a") -> None:
        self.run(FailRun(schedule_id=ScheduleId(name), run=run, error=error))

    def restart(self, *, away_ms: int = 0, kept: Iterable[bytes] | None = None) -> None:
        """Another life of the broker, from the whole log, or from these records."""
        self.machine = revived(self.log if kept is None else kept)
        self.now += away_ms

    # --- looking

    def schedule(self, name: str = "a") -> Schedule:
        return self.machine.schedule(ScheduleId(name))

    def next_run(self, name: str = "a") -> int | None:
        """How long after NOW."""
        due_ms = self.schedule(name).next_run_ms
        return None if due_ms is None else due_ms - NOW

    def deadline(self) -> int | None:
        deadline = self.machine.next_deadline()
        return None if deadline is None else deadline - NOW

    def pending(self) -> list[tuple[int, int]]:
        return shown(self.machine.pending_runs)


def shown(runs: list[PendingRun]) -> list[tuple[int, int]]:
    return [(run.run, run.due_ms - NOW) for run in runs]


def revived(kept: Iterable[bytes]) -> Schedules:
    machine = Schedules()
    for offset, record in enumerate(kept):
        machine.apply(record, offset)
    return machine


def state(machine: Schedules) -> tuple[object, ...]:
    """All of it, in order."""
    return (
        list(machine.by_id.items()),
        machine.pending_runs,
        machine.pending_count,
        machine.message_bytes,
        machine.next_deadline(),
    )


def content(message: msgspec.Raw) -> Any:
    return msgspec.json.decode(message)
