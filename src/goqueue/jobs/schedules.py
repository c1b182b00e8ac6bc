"""The machine that knows every recurring schedule and decides its runs.

It is an outbox. A run that is due is *intended*: a record says so, with its number. When that is durable it is
published, as often as it takes, always under the same number, by which a second time is recognised; then it is *done*,
or has failed for good. A restart hands out again what was intended and is neither. So a run is published exactly once,
whatever is killed when.

Invariants: runs of a schedule are numbered from 0 without a gap, in the order of their due times; none is intended
before it is due; a due time that was decided, intended or left out, is not looked at again. Only where the clock was
set back does a schedule go on by what it shows now: times that come again have their runs again, but the last run's.
While a schedule has pending runs no others are intended: what falls due meanwhile is late, and may be missed. A
run has one partition, fixed when it is intended: another one would not know that it was published.

Time comes in as `now`, Unix milliseconds. Topics are known by their ids: a new one of an old name has nothing to do
with the schedules of the old one. What is in a message is not known here, nor how it is published.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from goqueue.base.deadlines import Deadlines
from goqueue.jobs import records
from goqueue.jobs.records import (
    AS_SCHEDULED,
    Event,
    LastRun,
    RunDone,
    RunFailed,
    RunIntended,
    RunsMissed,
    ScheduleChanged,
    Scheduled,
    ScheduleId,
    ScheduleRemoved,
    ScheduleRestored,
    TopicEnded,
)
from goqueue.jobs.schedule import PendingRun, Schedule, find_due
from goqueue.jobs.timetable import Cron, Every
from goqueue.machine.shape import Decision, Tick
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, InvalidRequest, TooLarge, UnknownSchedule
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId

_RETRY_MS: Final = 1000
"""When something was due and could not be written down, or there was no room for it."""
_TICK_RUNS: Final = 250
"""What one Tick intends. If there is more to do, another one is due at once; others get a turn before it."""

Place = Callable[[Schedule, int], int]
"""Which partition a run of a schedule goes to, by its message or the run's number: not known here."""


# --- commands


class CreateSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """With `cron`, perhaps in a time zone, or with `every_ms`. Replies with the schedule."""

    schedule_id: ScheduleId
    topic: str
    topic_id: TopicId
    message: dict[str, Any] | msgspec.Struct
    cron: str | None = None
    time_zone: str | None = None
    every_ms: int | None = None
    missed: Missed = Missed.SKIP
    paused: bool = False


class ChangeSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """None leaves a thing as it is. Replies with the schedule.

    With another timetable, or when it is no longer paused, it goes on with the first run after now.
    """

    schedule_id: ScheduleId
    message: dict[str, Any] | msgspec.Struct | None = None
    cron: str | None = None
    time_zone: str | None = None
    every_ms: int | None = None
    missed: Missed | None = None
    paused: bool | None = None


class RemoveSchedule(msgspec.Struct, frozen=True):
    """Replies with the schedule. Its pending runs are not handed out again; one that is under way may still arrive."""

    schedule_id: ScheduleId


class SetBack(msgspec.Struct, frozen=True):
    """The clock was set back: schedules that have decided about later times than now go on from now.

    Some at a time; those with pending runs wait for them. Replies with how many went on.
    """


class TopicGone(msgspec.Struct, frozen=True):
    """A topic was deleted, and so are its schedules. Replies with them."""

    topic_id: TopicId


class FinishRun(msgspec.Struct, frozen=True, kw_only=True):
    """A pending run is published, durably. Others are passed over."""

    schedule_id: ScheduleId
    run: int
    partition: int
    offset: int


class FailRun(msgspec.Struct, frozen=True, kw_only=True):
    """A pending run was refused, and would be again. Others are passed over."""

    schedule_id: ScheduleId
    run: int
    error: str


# --- the machine


class Schedules:
    """One for all schedules of a broker. To Tick it replies with the runs that are intended, in order."""

    name = "schedules"

    def __init__(self, place: Place = lambda *_: 0) -> None:
        self._place = place
        self._decisions: dict[type, Callable[[Any, int], Decision]] = {
            CreateSchedule: self._decide_create,
            ChangeSchedule: self._decide_change,
            RemoveSchedule: self._decide_remove,
            TopicGone: self._decide_topic_gone,
            SetBack: self._decide_set_back,
            Tick: self._decide_tick,
            FinishRun: self._decide_finish,
            FailRun: self._decide_fail,
        }
        self._changes: dict[type, Callable[[Any], None]] = {
            Scheduled: self._apply_scheduled,
            ScheduleChanged: self._apply_changed,
            ScheduleRemoved: lambda event: self._drop(event.schedule_id),
            TopicEnded: self._apply_topic_ended,
            RunIntended: self._apply_intended,
            RunsMissed: self._apply_missed,
            RunDone: self._apply_done,
            RunFailed: self._apply_failed,
            ScheduleRestored: self._apply_restored,
        }
        self.reset()

    def reset(self) -> None:
        self.by_id: dict[ScheduleId, Schedule] = {}
        self.message_bytes = 0
        """Of all schedules together."""
        self.pending_count = 0
        self._pending: dict[ScheduleId, dict[int, PendingRun]] = {}
        """By schedule and number, both in the order in which they were intended; without schedules that have none."""
        self._deadlines: Deadlines[ScheduleId] = Deadlines()
        """The next run of each schedule that is not paused and has no pending runs."""
        self._overdue: dict[ScheduleId, None] = {}
        """Those whose deadline has passed and whose turn has not come yet."""

    # --- looking

    def schedule(self, schedule_id: ScheduleId) -> Schedule:
        schedule = self.by_id.get(schedule_id)
        if schedule is None:
            raise UnknownSchedule(f"there is no schedule {schedule_id[:80]!r}; it was removed, or its topic deleted")
        return schedule

    @property
    def pending_runs(self) -> list[PendingRun]:
        """Intended, and neither done nor failed. Those of one schedule are in order."""
        return [run for runs in self._pending.values() for run in runs.values()]

    def pending_of(self, schedule_id: ScheduleId) -> list[PendingRun]:
        """The same for one schedule; none if it is not there."""
        return list(self._pending.get(schedule_id, {}).values())

    @property
    def topic_ids(self) -> set[TopicId]:
        """Topics that have schedules. After a start, those that are gone want a `TopicGone`."""
        return {schedule.topic_id for schedule in self.by_id.values()}

    def is_ahead(self, now: int) -> bool:
        """Whether an idle schedule has decided about times later than `now`."""
        return any(schedule.after_ms > now for schedule in self.by_id.values() if self._is_idle(schedule))

    def _is_idle(self, schedule: Schedule) -> bool:
        return schedule.schedule_id not in self._pending

    def next_deadline(self) -> int | None:
        """When `Tick` has something to do, at the earliest."""
        overdue = next((self.by_id[schedule_id].next_run_ms for schedule_id in self._overdue), None)
        return min((when for when in (overdue, self._deadlines.earliest) if when is not None), default=None)

    # --- the shape of a machine

    def decide(self, command: Any, now: int) -> Decision:
        return self._decisions[type(command)](command, now)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
        except msgspec.DecodeError as error:
            raise DamagedData(
                f"offset {offset} of the jobs log is not understood ({error}); start the version that wrote it"
            ) from error
        self._changes[type(event)](event)

    def snapshot(self) -> Iterable[bytes]:
        for schedule in self.by_id.values():
            yield records.encode(schedule.restorable())
        for run in self.pending_runs:
            same = run.message == self.by_id[run.schedule_id].message
            yield records.encode(
                RunIntended(
                    schedule_id=run.schedule_id,
                    run=run.run,
                    due_ms=run.due_ms,
                    partition=run.partition,
                    message=AS_SCHEDULED if same else run.message,
                )
            )

    # --- decisions about schedules

    def _decide_create(self, command: CreateSchedule, now: int) -> Decision:
        if command.schedule_id in self.by_id:
            raise Conflict(f"the schedule id {command.schedule_id[:80]!r} is taken; try again")
        if len(self.by_id) >= limits.MAX_SCHEDULES:
            raise Conflict(f"there are {limits.MAX_SCHEDULES} schedules, which is the most; remove one first")
        timetable = _plan(command, None, now)
        if timetable is None:
            raise InvalidRequest("a schedule needs cron, like '30 3 * * MON-FRI', or every, like '15m'")
        created = Scheduled(
            schedule_id=command.schedule_id,
            topic=command.topic,
            topic_id=command.topic_id,
            message=self._pack(command.message, replacing=0),
            timetable=timetable,
            missed=command.missed,
            paused=command.paused,
            created_ms=now,
        )
        return _decided(_create(created), created)

    def _decide_change(self, command: ChangeSchedule, now: int) -> Decision:
        old = self.schedule(command.schedule_id)
        timetable = _plan(command, old.timetable, now) or old.timetable
        paused = old.paused if command.paused is None else command.paused
        message = old.message
        if command.message is not None:
            message = self._pack(command.message, replacing=_size(message))
        begins_anew = timetable != old.timetable or (old.paused and not paused)
        changed = old.become(
            message=message,
            timetable=timetable,
            missed=command.missed or old.missed,
            paused=paused,
            after_ms=max(old.after_ms, now) if begins_anew else old.after_ms,
        )
        if changed == old:
            return Decision((), old)
        return _decided(
            changed,
            ScheduleChanged(
                schedule_id=changed.schedule_id,
                timetable=changed.timetable,
                missed=changed.missed,
                paused=changed.paused,
                after_ms=changed.after_ms,
                message=AS_SCHEDULED if message == old.message else message,
            ),
        )

    def _pack(self, message: dict[str, Any] | msgspec.Struct, *, replacing: int) -> msgspec.Raw:
        """A message as bytes, in place of one of that size."""
        packed = msgspec.json.encode(message)
        if len(packed) > limits.MAX_SCHEDULED_MESSAGE_BYTES:
            raise TooLarge(
                f"the message of a schedule has at most {limits.MAX_SCHEDULED_MESSAGE_BYTES} bytes as JSON, not "
                f"{len(packed)}; keep what is large elsewhere and name it in the message"
            )
        if self.message_bytes + len(packed) - replacing > limits.MAX_SCHEDULED_BYTES:
            raise Conflict(
                f"the messages of all schedules together have at most {limits.MAX_SCHEDULED_BYTES} bytes; remove a "
                "schedule, or make its message smaller"
            )
        return msgspec.Raw(packed)

    def _decide_remove(self, command: RemoveSchedule, now: int) -> Decision:
        schedule = self.schedule(command.schedule_id)
        return _decided(schedule, ScheduleRemoved(schedule_id=schedule.schedule_id))

    def _decide_topic_gone(self, command: TopicGone, now: int) -> Decision:
        concerned = self._of_topic(command.topic_id)
        return _decided(concerned, TopicEnded(topic_id=command.topic_id)) if concerned else Decision((), concerned)

    def _of_topic(self, topic_id: TopicId) -> list[Schedule]:
        return [schedule for schedule in self.by_id.values() if schedule.topic_id == topic_id]

    def _decide_set_back(self, command: SetBack, now: int) -> Decision:
        ahead = (each for each in self.by_id.values() if each.after_ms > now and self._is_idle(each))
        events = []
        for schedule in islice(ahead, _TICK_RUNS):
            timetable = schedule.timetable
            if isinstance(timetable, Every) and timetable.anchor_ms > now:
                timetable = Every(timetable.interval_ms, now)
            events.append(
                ScheduleChanged(
                    schedule_id=schedule.schedule_id,
                    timetable=timetable,
                    missed=schedule.missed,
                    paused=schedule.paused,
                    after_ms=now,
                    message=AS_SCHEDULED,
                )
            )
        return _decided(len(events), *events)

    # --- decisions about runs

    def _decide_tick(self, command: Tick, now: int) -> Decision:
        self._overdue.update(dict.fromkeys(self._deadlines.due(now)))
        events: list[Event] = []
        runs: list[PendingRun] = []
        room = limits.MAX_PENDING_RUNS - self.pending_count
        for schedule_id in list(islice(self._overdue, _TICK_RUNS)):
            if len(events) >= _TICK_RUNS:
                break
            del self._overdue[schedule_id]
            schedule = self.by_id[schedule_id]
            if schedule.next_run_ms is not None and schedule.next_run_ms > now:  # the clock was set back
                self._arm(schedule)
                continue
            self._deadlines.arm(schedule_id, now + _RETRY_MS)  # in case it is not written down
            if len(runs) < room:
                decided = self._decide_runs(schedule, now, min(limits.RUNS_AT_ONCE, room - len(runs)))
                events += decided
                runs += [_pend(schedule, event) for event in decided if isinstance(event, RunIntended)]
        return _decided(runs, *events)

    def _decide_runs(self, schedule: Schedule, now: int, most: int) -> list[Event]:
        """What becomes of the runs that are due. Those beyond `most` stay due."""
        due, name = find_due(schedule, now), schedule.schedule_id
        events: list[Event] = []
        if due.left_out:
            events.append(RunsMissed(schedule_id=name, count=due.left_out, until_ms=due.left_out_until_ms))
        for number, due_ms in enumerate(due.wanted[:most], schedule.intended):
            partition = self._place(schedule, number)
            events.append(RunIntended(schedule_id=name, run=number, due_ms=due_ms, partition=partition))
        return events

    def _decide_finish(self, command: FinishRun, now: int) -> Decision:
        if not self._is_pending(command.schedule_id, command.run):
            return Decision((), None)
        return _decided(None, RunDone(**msgspec.structs.asdict(command)))

    def _decide_fail(self, command: FailRun, now: int) -> Decision:
        if not self._is_pending(command.schedule_id, command.run):
            return Decision((), None)
        error = command.error[: limits.MAX_JOB_ERROR]
        return _decided(None, RunFailed(schedule_id=command.schedule_id, run=command.run, error=error))

    def _is_pending(self, schedule_id: ScheduleId, run: int) -> bool:
        return run in self._pending.get(schedule_id, ())

    # --- changes to schedules

    def _apply_scheduled(self, event: Scheduled) -> None:
        self._keep(_create(event))

    def _apply_restored(self, event: ScheduleRestored) -> None:
        self._keep(Schedule(**msgspec.structs.asdict(event)).become())

    def _apply_changed(self, event: ScheduleChanged) -> None:
        changes = msgspec.structs.asdict(event)
        if event.message == AS_SCHEDULED:
            del changes["message"]
        self._keep(self.by_id[event.schedule_id].become(**changes))

    def _apply_topic_ended(self, event: TopicEnded) -> None:
        for schedule in self._of_topic(event.topic_id):
            self._drop(schedule.schedule_id)

    def _keep(self, schedule: Schedule) -> None:
        """In place of what it was."""
        old = self.by_id.get(schedule.schedule_id)
        self.message_bytes += _size(schedule.message) - (0 if old is None else _size(old.message))
        self.by_id[schedule.schedule_id] = schedule
        self._arm(schedule)

    def _drop(self, schedule_id: ScheduleId) -> None:
        self.message_bytes -= _size(self.by_id.pop(schedule_id).message)
        self.pending_count -= len(self._pending.pop(schedule_id, ()))
        self._disarm(schedule_id)

    def _disarm(self, schedule_id: ScheduleId) -> None:
        self._deadlines.disarm(schedule_id)
        self._overdue.pop(schedule_id, None)

    def _arm(self, schedule: Schedule) -> None:
        self._disarm(schedule.schedule_id)
        if schedule.next_run_ms is not None and schedule.schedule_id not in self._pending:
            self._deadlines.arm(schedule.schedule_id, schedule.next_run_ms)

    # --- changes to runs

    def _apply_intended(self, event: RunIntended) -> None:
        schedule = self.by_id[event.schedule_id]
        self._pending.setdefault(event.schedule_id, {})[event.run] = _pend(schedule, event)
        self.pending_count += 1
        self._keep(
            schedule.become(
                after_ms=max(schedule.after_ms, event.due_ms),
                last_due_ms=max(schedule.last_due_ms or 0, event.due_ms),
                intended=max(schedule.intended, event.run + 1),  # in a snapshot it is counted already
            )
        )

    def _apply_missed(self, event: RunsMissed) -> None:
        schedule = self.by_id[event.schedule_id]
        self._keep(schedule.become(after_ms=event.until_ms, missed_runs=schedule.missed_runs + event.count))

    def _apply_done(self, event: RunDone) -> None:
        schedule, run = self._settle(event)
        last = schedule.last_run
        if last is None or last.run < run.run:
            last = LastRun(run=run.run, due_ms=run.due_ms, partition=event.partition, offset=event.offset)
        self._keep(msgspec.structs.replace(schedule, runs=schedule.runs + 1, last_run=last))

    def _apply_failed(self, event: RunFailed) -> None:
        schedule, _ = self._settle(event)
        self._keep(msgspec.structs.replace(schedule, failures=schedule.failures + 1, last_error=event.error))

    def _settle(self, event: RunDone | RunFailed) -> tuple[Schedule, PendingRun]:
        """The run is pending no longer."""
        runs = self._pending[event.schedule_id]
        run = runs.pop(event.run)
        if not runs:
            del self._pending[event.schedule_id]
        self.pending_count -= 1
        return self.by_id[event.schedule_id], run


def _plan(command: CreateSchedule | ChangeSchedule, old: Cron | Every | None, now: int) -> Cron | Every | None:
    """The timetable that a command asks for, if it does."""
    expression, zone = command.cron, command.time_zone
    plan: Cron | Every
    if command.every_ms is not None:
        if expression is not None or zone is not None:
            raise InvalidRequest("a schedule has cron, perhaps with time_zone, or it has every; leave one of them out")
        if isinstance(old, Every) and old.interval_ms == command.every_ms:
            return old
        plan = Every(command.every_ms, now)
    elif expression is None and zone is None:
        return None
    else:
        if isinstance(old, Cron):
            expression = old.expression if expression is None else expression
            zone = old.zone if zone is None else zone
        if expression is None:
            raise InvalidRequest("time_zone goes with cron, and there is none; leave it out, or say cron as well")
        plan = Cron(expression) if zone is None else Cron(expression, zone)
    plan.check()
    if plan.next_after(now) is None:
        raise InvalidRequest(f"no day ever matches cron {expression!r}; choose another day of the month, or month")
    return plan


def _create(event: Scheduled) -> Schedule:
    return Schedule(**msgspec.structs.asdict(event), after_ms=event.created_ms).become()


def _pend(schedule: Schedule, event: RunIntended) -> PendingRun:
    return PendingRun(
        schedule_id=schedule.schedule_id,
        run=event.run,
        due_ms=event.due_ms,
        topic=schedule.topic,
        topic_id=schedule.topic_id,
        partition=event.partition,
        message=schedule.message if event.message == AS_SCHEDULED else event.message,
    )


def _size(message: msgspec.Raw) -> int:
    return len(memoryview(message))


def _decided(reply: Any, *events: Event) -> Decision:
    return Decision([records.encode(event) for event in events], reply)
