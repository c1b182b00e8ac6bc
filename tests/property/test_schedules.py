"""Schedules: timetables against a library and against visiting every run; the machine against a naive model.

The model visits every minute, or every interval, and knows nothing of deadlines, records or restarts. Kills and power
cuts may come at any time. What counts is what was published: each run once, with one due time, in order, never early.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cronsim import CronSim, CronSimError
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from goqueue.jobs import records, schedules
from goqueue.jobs.records import ScheduleChanged, ScheduleId
from goqueue.jobs.schedule import Due, PendingRun, Schedule, find_due
from goqueue.jobs.schedules import (
    ChangeSchedule,
    CreateSchedule,
    FailRun,
    FinishRun,
    RemoveSchedule,
    Schedules,
    SetBack,
    TopicGone,
)
from goqueue.jobs.timetable import Cron, Every
from goqueue.machine.shape import Decision, Tick
from goqueue.model import limits
from goqueue.model.errors import UnknownSchedule
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NOW = int(datetime(2026, 5, 4, 12, 0, tzinfo=UTC).timestamp() * 1000)

# --- timetables


def terms(low: int, high: int) -> st.SearchStrategy[str]:
    """A field of an expression."""
    value = st.integers(low, high)
    step = st.integers(1, high - low)
    bounds = st.tuples(value, value).map(sorted)
    one = st.one_of(
        value.map(str),
        bounds.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        st.tuples(bounds, step)
        .filter(lambda each: each[0][0] < each[0][1])
        .map(lambda each: f"{each[0][0]}-{each[0][1]}/{each[1]}"),
    )
    return st.one_of(
        st.just("*"), step.map(lambda each: f"*/{each}"), st.lists(one, min_size=1, max_size=3).map(",".join)
    )


expressions = st.tuples(
    terms(0, 59), terms(0, 23), terms(1, 31), st.just("*") | terms(1, 12), st.just("*") | terms(0, 6)
).map(" ".join)
# Where the clocks change in the middle of the night. At midnight, and by half an hour, the library goes astray.
usual_zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Sydney", "Asia/Kolkata"])
zones = usual_zones | st.sampled_from(["Australia/Lord_Howe", "America/Nuuk", "Asia/Beirut", "America/Havana"])
near_a_change = st.sampled_from(["2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"])
times = st.integers(NOW - 400 * DAY, NOW + 400 * DAY) | st.tuples(near_a_change, st.integers(-2 * DAY, 2 * DAY)).map(
    lambda pair: int(datetime.fromisoformat(pair[0]).replace(tzinfo=UTC).timestamp() * 1000) + pair[1]
)


@settings(max_examples=300, deadline=None)
@given(expression=expressions, zone=usual_zones, after=times)
def test_cron_runs_when_a_library_says(expression: str, zone: str, after: int) -> None:
    cron, place = Cron(expression, zone), ZoneInfo(zone)
    try:
        oracle = CronSim(expression, datetime.fromtimestamp(after // 1000, place))
    except CronSimError:
        assert cron.next_after(after) is None, "it refuses at once what never comes"
        return
    for _ in range(30):
        expected = next((due for due in map(_unix_ms, oracle) if due > after), None)
        assert cron.next_after(after) == expected
        if expected is None:
            break
        after = expected


def _unix_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


@settings(max_examples=200, deadline=None)
@given(expression=expressions, zone=zones, after=times, span=st.integers(0, 5 * DAY), limit=st.integers(1, 50))
def test_runs_are_counted_as_if_visited(expression: str, zone: str, after: int, span: int, limit: int) -> None:
    cron, until = Cron(expression, zone), after + span
    visited: list[int] = []
    due = cron.next_after(after)
    while due is not None and due <= until and len(visited) < 500:
        assert due > (visited[-1] if visited else after)
        visited.append(due)
        due = cron.next_after(due)
    if len(visited) == 500:
        until = visited[-1]
    assert cron.count(after, until) == len(visited)
    assert cron.newest(after, until, limit) == visited[-limit:]


@settings(max_examples=200, deadline=None)
@given(expression=expressions, zone=zones, after=times)
def test_a_run_is_at_a_time_that_matches_or_right_after_a_gap(expression: str, zone: str, after: int) -> None:
    cron, place = Cron(expression, zone), ZoneInfo(zone)
    due = cron.next_after(after)
    assume(due is not None)
    assert due is not None
    wall = datetime.fromtimestamp(due // 1000, place).replace(tzinfo=None)
    before = datetime.fromtimestamp(due // 1000 - 60, place).replace(tzinfo=None)
    matches = Cron(expression).next_after(_unix_ms(wall.replace(tzinfo=UTC)) - 1) == _unix_ms(wall.replace(tzinfo=UTC))
    after_a_gap = (wall - before).total_seconds() > 60
    assert matches or after_a_gap


# --- the machine

CRONS: dict[str, Callable[[int], bool]] = {
    "* * * * *": lambda at: at % MINUTE == 0,
    "*/20 * * * *": lambda at: at % (20 * MINUTE) == 0,
    "0 */6 * * *": lambda at: at % (6 * HOUR) == 0,
    "30 3 * * *": lambda at: at % DAY == 3 * HOUR + 30 * MINUTE,
}
plans = st.sampled_from([*CRONS]) | st.sampled_from([SECOND, 7 * SECOND, 10 * MINUTE, 5 * HOUR])
policies = st.sampled_from(Missed)
waits = st.sampled_from([1, 500, SECOND, 30 * SECOND, MINUTE, MINUTE + 1, 10 * MINUTE, HOUR, 7 * HOUR, DAY])
MADE_UP, AT_ONCE = 50, 20
"""Smaller than the real limits, so that they are reached."""


class Model:
    """What a schedule must do, by looking at every due time since it last did something."""

    def __init__(self, plan: str | int, now: int, missed: Missed, topic_id: int, *, paused: bool) -> None:
        self.plan, self.anchor, self.after = plan, now, now
        self.missed, self.topic_id, self.paused = missed, topic_id, paused
        self.intended = self.left_out = self.done = self.failed = 0
        self.last: int | None = None
        """When its last run was due."""

    def due(self, until: int) -> list[int]:
        if self.paused:
            return []
        if isinstance(self.plan, str):
            minutes = range(self.after - self.after % MINUTE + MINUTE, until + 1, MINUTE)
            return [at for at in minutes if CRONS[self.plan](at) and at != self.last]
        every = range(self.anchor + self.plan, until + 1, self.plan)
        return [at for at in every if at > self.after and at != self.last]

    def set_back(self, now: int) -> None:
        """It goes on by the clock."""
        self.after = now
        if not isinstance(self.plan, str):
            self.anchor = min(self.anchor, now)

    def tick(self, now: int) -> list[tuple[int, int]]:
        due = self.due(now)
        if not due:
            return []
        wanted = due[-MADE_UP:] if self.missed is Missed.ALL else due[-1:]
        if self.missed is Missed.SKIP and now - due[-1] > MINUTE:
            wanted = []
        runs = wanted[:AT_ONCE]
        numbered = list(enumerate(runs, self.intended))
        self.left_out += len(due) - len(wanted)
        self.intended += len(runs)
        self.after = runs[-1] if runs else due[-1]
        if runs:
            self.last = max(self.last or 0, runs[-1])
        return numbered

    def change(self, now: int, *, plan: str | int | None, missed: Missed | None, paused: bool | None) -> None:
        if plan is not None and plan != self.plan:
            self.plan, self.anchor, self.after = plan, now, max(self.after, now)
        if self.paused and paused is False:
            self.after = max(self.after, now)
        self.missed = self.missed if missed is None else missed
        self.paused = self.paused if paused is None else paused

    @classmethod
    def of(cls, schedule: Schedule) -> "Model":
        """After a power cut: where the log says it is."""
        timetable = schedule.timetable
        plan = timetable.expression if isinstance(timetable, Cron) else timetable.interval_ms
        model = cls(plan, schedule.created_ms, schedule.missed, schedule.topic_id, paused=schedule.paused)
        model.after = schedule.after_ms
        model.anchor = timetable.anchor_ms if isinstance(timetable, Every) else 0
        model.intended, model.left_out = schedule.intended, schedule.missed_runs
        model.done, model.failed = schedule.runs, schedule.failures
        model.last = schedule.last_due_ms
        return model

    def check(self, schedule: Schedule) -> None:
        assert (schedule.missed, schedule.paused) == (self.missed, self.paused)
        assert schedule.missed_runs == self.left_out, "what is left out is counted"
        assert (schedule.intended, schedule.runs, schedule.failures) == (self.intended, self.done, self.failed)
        assert schedule.after_ms == self.after, "what was decided stays decided"


def state_of(machine: Schedules) -> tuple[object, ...]:
    return list(machine.by_id.items()), machine.pending_runs, machine.pending_count, machine.message_bytes


class SchedulesMachine(RuleBasedStateMachine):
    """`log` is what was written, of which the first `durable` records survive a power cut. `published` survives all."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.machine = Schedules()
        self.models: dict[ScheduleId, Model] = {}
        self.log: list[bytes] = []
        self.history = [state_of(self.machine)]
        """By how many records were applied."""
        self.durable = 0
        self.created = 0
        self.published: dict[ScheduleId, dict[int, PendingRun]] = {}
        self.begun_again: dict[ScheduleId, int] = {}
        """The number of each schedule's first run since the clock was set back."""

    def submit(self, command: Any) -> Any:
        decision = self.machine.decide(command, self.now)
        assert state_of(self.machine) == self.history[-1], "deciding changes nothing"
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(record)
            self.history.append(state_of(self.machine))
        return decision.reply

    @property
    def busy(self) -> set[ScheduleId]:
        return {run.schedule_id for run in self.machine.pending_runs}

    def some(self, place: int) -> ScheduleId | None:
        names = list(self.models)
        return names[place % len(names)] if names else None

    # --- what users do

    @precondition(lambda self: len(self.models) < 4)
    @rule(plan=plans, missed=policies, topic_id=st.integers(1, 2), paused=st.sampled_from([False, False, True]))
    def create(self, plan: str | int, missed: Missed, topic_id: int, *, paused: bool) -> None:
        self.created += 1
        name = ScheduleId(f"s{self.created}")
        when: dict[str, Any] = {"cron": plan} if isinstance(plan, str) else {"every_ms": plan}
        reply = self.submit(
            CreateSchedule(
                schedule_id=name,
                topic="orders",
                topic_id=TopicId(topic_id),
                message={"n": self.created},
                missed=missed,
                paused=paused,
                **when,
            )
        )
        assert reply == self.machine.by_id[name]
        self.models[name] = Model(plan, self.now, missed, topic_id, paused=paused)
        self.sync()

    @initialize(plan=plans, missed=policies)
    def begin(self, plan: str | int, missed: Missed) -> None:
        self.create(plan, missed, 1, paused=False)

    @rule(
        place=st.integers(0, 3),
        plan=st.none() | plans,
        missed=st.none() | policies,
        paused=st.none() | st.booleans(),
        message=st.none() | st.integers(0, 3),
    )
    def change(
        self, place: int, plan: str | int | None, missed: Missed | None, paused: bool | None, message: int | None
    ) -> None:
        name = self.some(place)
        when: dict[str, Any] = {"cron": plan} if isinstance(plan, str) else {"every_ms": plan}
        command = ChangeSchedule(
            schedule_id=name or ScheduleId("nobody"),
            missed=missed,
            paused=paused,
            message=None if message is None else {"changed": message},
            **when,
        )
        if name is None:
            with pytest.raises(UnknownSchedule):
                self.submit(command)
            return
        assert self.submit(command) == self.machine.by_id[name]
        self.models[name].change(self.now, plan=plan, missed=missed, paused=paused)

    @precondition(lambda self: len(self.models) > 2)
    @rule(place=st.integers(0, 3))
    def remove(self, place: int) -> None:
        name = self.some(place)
        if name is not None:
            assert self.submit(RemoveSchedule(name)).schedule_id == name
            del self.models[name]

    @precondition(lambda self: len(self.models) > 2)
    @rule(topic_id=st.integers(1, 3))
    def delete_topic(self, topic_id: int) -> None:
        gone = {schedule.schedule_id for schedule in self.submit(TopicGone(TopicId(topic_id)))}
        assert gone == {name for name, model in self.models.items() if model.topic_id == topic_id}
        for name in gone:
            del self.models[name]

    # --- time

    @rule(ms=waits)
    def wait(self, ms: int) -> None:
        self.now += ms
        self.tick()

    @rule()
    def wait_for_the_deadline(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < self.now + 2 * DAY:
            self.now = max(deadline, self.now)
            self.tick()

    @rule(ms=waits)
    def step_back(self, ms: int) -> None:
        self.now -= ms

    @rule()
    def follow_the_clock(self) -> None:
        ahead = [name for name in self.models.keys() - self.busy if self.models[name].after > self.now]
        assert self.machine.is_ahead(self.now) == bool(ahead)
        assert self.submit(SetBack()) == len(ahead)
        for name in ahead:
            self.models[name].set_back(self.now)
            self.begun_again[name] = self.models[name].intended

    @rule()
    def tick(self) -> None:
        idle = self.models.keys() - self.busy
        found: dict[ScheduleId, list[tuple[int, int]]] = {}
        for run in self.submit(Tick()):
            assert run.due_ms <= self.now, "never early"
            found.setdefault(run.schedule_id, []).append((run.run, run.due_ms))
        expected = {name: self.models[name].tick(self.now) for name in idle}
        assert found == {name: runs for name, runs in expected.items() if runs}, "as the model says"
        deadline = self.machine.next_deadline()
        assert deadline is None or deadline > self.now, "another tick would find nothing to do"

    @rule()
    def fill_the_disk(self) -> None:
        """What is decided is not written. It is decided again soon."""
        before = state_of(self.machine)
        self.machine.decide(Tick(), self.now)
        assert state_of(self.machine) == before
        self.now += SECOND
        self.tick()

    # --- publishing

    @rule(place=st.integers(0, 3), count=st.integers(1, 2 * AT_ONCE), finished=st.booleans(), durable=st.booleans())
    def publish(self, place: int, count: int, finished: bool, durable: bool) -> None:
        """Pending runs of a schedule, in order. The broker may die before it has written down that they are done."""
        if not self.busy:
            self.wait_for_the_deadline()
        self.sync()
        busy = sorted(self.busy)
        if not busy:
            return
        name = busy[place % len(busy)]
        for run in [run for run in self.machine.pending_runs if run.schedule_id == name][:count]:
            known = self.published.setdefault(name, {})
            if run.run in known:
                assert known[run.run] == run, "what is tried again is the same"
            else:
                assert all(number < run.run for number in known), "in order"
                since = self.begun_again.get(name, 0)
                assert all(before.due_ms < run.due_ms for number, before in known.items() if number >= since), (
                    "no due time twice, unless the clock was set back"
                )
                before = known.get(run.run - 1)
                assert before is None or before.due_ms != run.due_ms, "and never that of the last run"
                known[run.run] = run
            if finished:
                self.submit(FinishRun(schedule_id=name, run=run.run, partition=0, offset=run.run))
                self.models[name].done += 1
                last = self.machine.by_id[name].last_run
                assert last is not None
                assert (last.run, last.due_ms) == (run.run, run.due_ms)
        if durable:
            self.sync()

    @rule(place=st.integers(0, 3))
    def refuse(self, place: int) -> None:
        """The next run of a schedule, unless it was published before: then it would have been recognised."""
        busy = sorted(self.busy)
        if busy:
            name = busy[place % len(busy)]
            run = next(run for run in self.machine.pending_runs if run.schedule_id == name)
            if run.run not in self.published.get(name, {}):
                self.submit(FailRun(schedule_id=name, run=run.run, error="refused"))
                self.models[name].failed += 1

    # --- other lives

    @rule()
    def sync(self) -> None:
        self.durable = len(self.log)

    @rule(shortened=st.booleans())
    def kill(self, shortened: bool) -> None:
        """All that was written is there; perhaps as a snapshot."""
        self.begin_life(list(self.machine.snapshot()) if shortened else self.log)
        self.tick()

    @rule(kept=st.floats(0, 1))
    def cut_the_power(self, kept: float) -> None:
        """Of what is not durable a part is there, also of what was decided at once."""
        end = self.durable + round(kept * (len(self.log) - self.durable))
        del self.log[end:], self.history[end + 1 :]
        self.begin_life(self.log)
        self.models = {name: Model.of(schedule) for name, schedule in self.machine.by_id.items()}

    def begin_life(self, kept: list[bytes]) -> None:
        self.machine = Schedules()
        for offset, record in enumerate(kept):
            self.machine.apply(record, offset)
        assert state_of(self.machine) == self.history[-1], "a start finds what was there"

    # --- what holds at any time

    @invariant()
    def as_the_model_says(self) -> None:
        assert list(self.machine.by_id) == list(self.models)
        for name, model in self.models.items():
            model.check(self.machine.by_id[name])

    @invariant()
    def numbers_have_no_gap(self) -> None:
        pending: dict[ScheduleId, list[PendingRun]] = {}
        for run in self.machine.pending_runs:
            pending.setdefault(run.schedule_id, []).append(run)
        for name, schedule in self.machine.by_id.items():
            runs = pending.get(name, [])
            assert schedule.intended == schedule.runs + schedule.failures + len(runs), "none is forgotten"
            assert [run.run for run in runs] == list(range(schedule.intended - len(runs), schedule.intended))
            assert [run.due_ms for run in runs] == sorted({run.due_ms for run in runs})

    @invariant()
    def the_deadline_is_the_next_run_of_those_that_wait(self) -> None:
        idle = self.models.keys() - self.busy
        expected = [self.machine.by_id[name].next_run_ms for name in idle]
        assert self.machine.next_deadline() == min((due for due in expected if due is not None), default=None)


def run_histories(monkeypatch: pytest.MonkeyPatch, examples: int, *, planted: bool = False) -> None:
    monkeypatch.setattr(limits, "MAX_RUNS_MADE_UP", MADE_UP)
    monkeypatch.setattr(limits, "RUNS_AT_ONCE", AT_ONCE)
    run_state_machine_as_test(
        SchedulesMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate] if planted else list(Phase),
            derandomize=planted,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_whatever_happens_every_run_is_published_once_in_order_and_never_early(monkeypatch: pytest.MonkeyPatch) -> None:
    run_histories(monkeypatch, 300)


# --- planted bugs


def early(schedule: Schedule, now: int) -> Due:
    """Looks into the future."""
    return find_due(schedule, now + HOUR)


def uncounted(schedule: Schedule, now: int) -> Due:
    """Leaves out and says nothing."""
    return Due(0, 0, find_due(schedule, now).wanted)


def unordered(schedule: Schedule, now: int) -> Due:
    """The newest first."""
    due = find_due(schedule, now)
    return Due(due.left_out, due.left_out_until_ms, due.wanted[::-1])


class Forgetful(Schedules):
    """Hands out a run and does not know of it afterwards."""

    def _apply_intended(self, event: Any) -> None:
        super()._apply_intended(event)
        if event.run == 3:
            self.pending_count -= len(self._pending.pop(event.schedule_id))


class Rewinding(Schedules):
    """Goes by the clock, also when it was set back."""

    def _decide_change(self, command: ChangeSchedule, now: int) -> Decision:
        found, changed = super()._decide_change(command, now)
        if not found or changed.after_ms <= now:
            return Decision(found, changed)
        event = records.decode(found[0])
        assert isinstance(event, ScheduleChanged)
        earlier = msgspec.structs.replace(event, after_ms=now)
        return Decision([records.encode(earlier)], changed.become(after_ms=now))


class Retelling(Schedules):
    """Publishes what the schedule says now, not what it said when the run was intended."""

    @property
    def pending_runs(self) -> list[PendingRun]:
        runs = super().pending_runs
        return [msgspec.structs.replace(run, message=self.by_id[run.schedule_id].message) for run in runs]


@pytest.mark.parametrize(
    ("room", "name", "planted", "noticed"),
    [
        (vars(schedules), "find_due", early, "never early"),
        (vars(schedules), "find_due", uncounted, "what is left out is counted"),
        (vars(schedules), "find_due", unordered, "as the model says"),
        (globals(), "Schedules", Forgetful, "none is forgotten"),
        (globals(), "Schedules", Rewinding, "what was decided stays decided"),
        (globals(), "Schedules", Retelling, "what is tried again is the same"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_planted_bug_is_noticed(
    monkeypatch: pytest.MonkeyPatch, room: dict[str, Any], name: str, planted: Any, noticed: str
) -> None:
    monkeypatch.setitem(room, name, planted)
    with pytest.raises(AssertionError, match=noticed):
        run_histories(monkeypatch, 1000, planted=True)
