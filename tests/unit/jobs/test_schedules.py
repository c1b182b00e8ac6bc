"""The machine of schedules: what is intended when, what becomes of what was missed, and that nothing runs twice."""

from random import Random
from typing import Any

import pytest

from goqueue.jobs.records import LastRun, ScheduleId
from goqueue.jobs.schedules import (
    ChangeSchedule,
    CreateSchedule,
    FailRun,
    FinishRun,
    RemoveSchedule,
    Schedules,
    TopicGone,
)
from goqueue.jobs.timetable import Cron, Every
from goqueue.machine.host import Host
from goqueue.machine.shape import Tick, Timed
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, InvalidRequest, TooLarge, UnknownSchedule
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from sim.disk import SimDisk
from tests.unit.jobs.script import DAY, HOUR, MESSAGE, MINUTE, NOW, SECOND, Script, content, revived, state

A = ScheduleId("a")


@pytest.fixture
def script() -> Script:
    return Script()


def test_it_has_the_shape_of_a_timed_machine_and_a_name_that_never_changes(script: Script) -> None:
    held: Timed = script.machine
    assert held.name == "schedules", "its records in every log are found by it"


# --- creating


def test_a_new_schedule_knows_everything_about_itself(script: Script) -> None:
    found = script.create(cron="30 3 * * *", time_zone="Europe/Berlin", topic_id=7, missed="once")
    assert (found.schedule_id, found.topic, found.topic_id) == ("a", "orders", 7)
    assert found.timetable == Cron("30 3 * * *", "Europe/Berlin")
    assert (found.missed, found.paused, found.created_ms) == (Missed.ONCE, False, NOW)
    assert (found.runs, found.missed_runs, found.failures, found.last_error, found.last_run) == (0, 0, 0, None, None)
    assert script.next_run() == script.deadline() == 13 * HOUR + 30 * MINUTE
    assert content(found.message) == MESSAGE


def test_its_creation_is_the_anchor_of_every(script: Script) -> None:
    assert script.create(every_ms=90 * SECOND).timetable == Every(90 * SECOND, NOW)
    assert script.next_run() == 90 * SECOND


def test_without_a_zone_cron_is_utc(script: Script) -> None:
    assert script.create(cron="0 13 * * *").timetable == Cron("0 13 * * *", "UTC")
    assert script.next_run() == HOUR


def test_a_schedule_may_begin_paused(script: Script) -> None:
    script.create(every_ms=SECOND, paused=True)
    assert script.next_run() is script.deadline() is None
    assert script.wait(HOUR) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "a schedule needs cron, like '30 3 * * MON-FRI', or every"),
        ({"cron": "@daily", "every_ms": 1000}, "has cron, perhaps with time_zone, or it has every; leave one"),
        ({"time_zone": "UTC", "every_ms": 1000}, "has cron, perhaps with time_zone, or it has every; leave one"),
        ({"time_zone": "UTC"}, "time_zone goes with cron, and there is none"),
        ({"cron": ""}, "cron has 0 fields"),
        ({"cron": "0 25 * * *"}, "cron, hour: '25' is out of range"),
        ({"cron": "@daily", "time_zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"cron": "0 0 31 2 *"}, "no day ever matches cron '0 0 31 2 *'; choose another day of the month, or month"),
        ({"every_ms": 999}, "every is 999 ms; it must be from 1 s to 366 days"),
    ],
)
def test_a_schedule_that_cannot_be_right_is_refused(script: Script, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        script.create(**fields)
    assert said in str(refusal.value)
    assert not script.machine.by_id


def test_an_id_that_is_taken_is_refused(script: Script) -> None:
    script.create(every_ms=SECOND)
    with pytest.raises(Conflict, match="the schedule id 'a' is taken; try again"):
        script.create(every_ms=SECOND)


def test_there_are_only_so_many_schedules(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SCHEDULES", 2)
    script.create("a", every_ms=SECOND)
    script.create("b", every_ms=SECOND)
    with pytest.raises(Conflict, match="there are 2 schedules, which is the most; remove one first"):
        script.create("c", every_ms=SECOND)
    script.run(RemoveSchedule(A))
    script.create("c", every_ms=SECOND)


def test_a_message_that_is_too_large_is_refused(script: Script) -> None:
    room = limits.MAX_SCHEDULED_MESSAGE_BYTES - len(b'{"value":""}')
    script.create("a", every_ms=SECOND, message={"value": "x" * room})
    with pytest.raises(TooLarge, match=f"at most {limits.MAX_SCHEDULED_MESSAGE_BYTES} bytes as JSON, not"):
        script.create("b", every_ms=SECOND, message={"value": "x" * (room + 1)})
    with pytest.raises(TooLarge):
        script.change("a", message={"value": "x" * (room + 1)})


def test_all_messages_together_are_bounded(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SCHEDULED_BYTES", 2 * len(b'{"value":"x"}') + 1)
    script.create("a", every_ms=SECOND, message={"value": "x"})
    script.create("b", every_ms=SECOND, message={"value": "x"})
    with pytest.raises(Conflict, match="the messages of all schedules together"):
        script.create("c", every_ms=SECOND, message={"value": "x"})
    script.change("a", message={"value": "xx"})
    with pytest.raises(Conflict, match="the messages of all schedules together"):
        script.change("b", message={"value": "xx"})
    script.change("a", message={"value": ""})
    script.change("b", message={"value": "xx"})
    script.run(RemoveSchedule(A))
    assert script.machine.message_bytes == len(b'{"value":"xx"}')
    script.create("c", every_ms=SECOND, message={"value": "x"})


# --- running


def test_a_run_is_intended_when_its_time_has_come_and_not_before(script: Script) -> None:
    script.create(every_ms=10 * MINUTE)
    assert script.wait(10 * MINUTE - 1) == []
    assert script.wait(1) == [(0, 10 * MINUTE)]
    assert script.pending() == [(0, 10 * MINUTE)]


def test_a_pending_run_has_all_that_is_needed_to_publish_it(script: Script) -> None:
    script.create(every_ms=MINUTE, topic_id=7)
    script.wait(MINUTE)
    (run,) = script.machine.pending_runs
    assert (run.schedule_id, run.run, run.due_ms) == ("a", 0, NOW + MINUTE)
    assert (run.topic, run.topic_id, content(run.message)) == ("orders", 7, MESSAGE)


def test_a_run_has_one_partition_whatever_becomes_of_the_topic_meanwhile() -> None:
    script = Script()
    partitions = 3
    script.machine = Schedules(lambda schedule, run: run % partitions if schedule.schedule_id == "a" else 7)
    script.create(every_ms=MINUTE, missed="all")
    script.create("b", every_ms=HOUR)
    script.wait(HOUR)
    before = [(run.schedule_id, run.partition) for run in script.machine.pending_runs]
    assert before[:5] == [("a", 0), ("a", 1), ("a", 2), ("a", 0), ("a", 1)]
    assert before[-1] == ("b", 7)
    partitions = 100
    for kept in (script.log, list(script.machine.snapshot())):
        script.restart(kept=kept)
        assert [(run.schedule_id, run.partition) for run in script.machine.pending_runs] == before


def test_runs_follow_each_other_in_order_and_are_counted(script: Script) -> None:
    script.create(every_ms=MINUTE)
    for number in range(3):
        assert script.wait(MINUTE) == [(number, (number + 1) * MINUTE)]
        script.finish(number, partition=2, offset=40 + number)
    found = script.schedule()
    assert (found.runs, found.failures, found.missed_runs) == (3, 0, 0)
    assert found.last_run == LastRun(run=2, due_ms=NOW + 3 * MINUTE, partition=2, offset=42)
    assert script.next_run() == script.deadline() == 4 * MINUTE


def test_a_second_tick_finds_nothing_more(script: Script) -> None:
    script.create(every_ms=MINUTE)
    script.wait(MINUTE)
    assert script.tick() == []
    script.publish()
    assert script.tick() == []


def test_schedules_are_decided_in_the_order_of_their_times(script: Script) -> None:
    script.create("late", every_ms=50 * SECOND)
    script.create("early", every_ms=40 * SECOND)
    script.now += 55 * SECOND
    assert [run.schedule_id for run in script.run(Tick())] == ["early", "late"]
    assert [run.schedule_id for run in script.machine.pending_runs] == ["early", "late"]


def test_nothing_more_is_intended_while_a_run_is_pending(script: Script) -> None:
    script.create(every_ms=MINUTE, missed="all")
    script.wait(MINUTE)
    assert script.deadline() is None, "nothing to do until it is done"
    assert script.wait(3 * MINUTE) == []
    script.finish(0)
    assert script.deadline() == 2 * MINUTE
    assert script.tick() == [(1, 2 * MINUTE), (2, 3 * MINUTE), (3, 4 * MINUTE)]
    script.finish(1)
    assert script.wait(MINUTE) == []
    script.fail(2)
    script.finish(3)
    assert script.tick() == [(4, 5 * MINUTE)]


def test_a_failed_run_is_counted_and_not_tried_again(script: Script) -> None:
    script.create(every_ms=MINUTE)
    script.wait(MINUTE)
    script.fail(0, "the topic is gone" + "!" * 1000)
    assert script.pending() == []
    found = script.schedule()
    assert (found.runs, found.failures, found.last_run) == (0, 1, None)
    assert found.last_error is not None
    assert found.last_error.startswith("the topic is gone!")
    assert len(found.last_error) == limits.MAX_JOB_ERROR
    assert script.wait(MINUTE) == [(1, 2 * MINUTE)], "its number is not used again"
    script.finish(1)
    assert script.schedule().last_error == found.last_error


def test_of_runs_done_out_of_order_the_newest_is_the_last(script: Script) -> None:
    script.create(every_ms=MINUTE, missed="all")
    script.wait(3 * MINUTE)
    script.finish(2, offset=9)
    script.finish(0, offset=11)
    last = script.schedule().last_run
    assert last is not None
    assert (last.run, last.offset) == (2, 9)
    assert script.pending() == [(1, 2 * MINUTE)]


@pytest.mark.parametrize(
    "command",
    [
        FinishRun(schedule_id=A, run=0, partition=0, offset=0),
        FinishRun(schedule_id=A, run=2, partition=0, offset=0),
        FinishRun(schedule_id=ScheduleId("nobody"), run=1, partition=0, offset=0),
        FailRun(schedule_id=A, run=0, error="late"),
        FailRun(schedule_id=ScheduleId("nobody"), run=1, error="late"),
    ],
)
def test_what_is_said_of_runs_that_are_not_pending_is_passed_over(script: Script, command: Any) -> None:
    script.create(every_ms=MINUTE)
    script.wait(MINUTE)
    script.publish()
    script.wait(MINUTE)
    assert script.would_write(command) == []


# --- missed runs


@pytest.mark.parametrize("missed", Missed)
def test_a_run_within_the_grace_time_is_not_missed(script: Script, missed: str) -> None:
    script.create(cron="0 13 * * *", missed=missed)
    assert script.wait(HOUR + limits.RUN_GRACE_MS) == [(0, HOUR)]
    assert script.schedule().missed_runs == 0


@pytest.mark.parametrize(
    ("missed", "runs", "left_out"), [("skip", [], 1), ("once", [(0, HOUR)], 0), ("all", [(0, HOUR)], 0)]
)
def test_a_run_later_than_that_is_missed(
    script: Script, missed: str, runs: list[tuple[int, int]], left_out: int
) -> None:
    script.create(cron="0 13 * * *", missed=missed)
    assert script.wait(HOUR + limits.RUN_GRACE_MS + 1) == runs
    script.publish()
    assert script.schedule().missed_runs == left_out
    assert script.next_run() == script.deadline() == HOUR + DAY


@pytest.mark.parametrize(
    ("missed", "runs", "left_out"),
    [
        ("skip", [(0, 3 * HOUR)], 2),
        ("once", [(0, 3 * HOUR)], 2),
        ("all", [(0, HOUR), (1, 2 * HOUR), (2, 3 * HOUR)], 0),
    ],
)
def test_a_run_is_missed_when_the_next_one_is_due_as_well(
    script: Script, missed: str, runs: list[tuple[int, int]], left_out: int
) -> None:
    script.create(every_ms=HOUR, missed=missed)
    script.restart(away_ms=3 * HOUR)
    assert script.tick() == runs
    assert script.schedule().missed_runs == left_out
    script.publish()
    assert script.next_run() == 4 * HOUR


def test_after_a_long_downtime_skip_waits_for_the_next_run(script: Script) -> None:
    script.create(cron="*/10 * * * *", missed="skip")
    script.restart(away_ms=400 * DAY + 5 * MINUTE)
    assert script.tick() == []
    assert script.schedule().missed_runs == 400 * 144
    assert script.next_run() == script.deadline() == 400 * DAY + 10 * MINUTE
    assert script.wait(5 * MINUTE) == [(0, 400 * DAY + 10 * MINUTE)]


def test_after_a_long_downtime_once_makes_up_for_the_last_run(script: Script) -> None:
    script.create(cron="*/10 * * * *", missed="once")
    script.restart(away_ms=400 * DAY + 5 * MINUTE)
    assert script.tick() == [(0, 400 * DAY)]
    assert script.schedule().missed_runs == 400 * 144 - 1
    script.publish()
    assert script.next_run() == 400 * DAY + 10 * MINUTE


@pytest.mark.parametrize("timetable", [{"cron": "*/10 * * * *"}, {"every_ms": 10 * MINUTE}])
def test_after_a_long_downtime_all_makes_up_for_the_newest_thousand(script: Script, timetable: dict[str, Any]) -> None:
    script.create(missed="all", **timetable)
    script.restart(away_ms=400 * DAY + 5 * MINUTE)
    made_up: list[tuple[int, int]] = []
    while script.tick():
        assert len(script.pending()) <= limits.RUNS_AT_ONCE
        made_up += script.publish()
        script.now += SECOND
    assert [number for number, _ in made_up] == list(range(limits.MAX_RUNS_MADE_UP))
    assert [due for _, due in made_up] == [400 * DAY - 10 * MINUTE * ago for ago in reversed(range(1000))]
    assert script.schedule().missed_runs == 400 * 144 - 1000
    assert script.next_run() == 400 * DAY + 10 * MINUTE


def test_what_is_left_out_is_counted_up(script: Script) -> None:
    script.create(every_ms=HOUR, missed="once")
    for _ in range(3):
        script.wait(5 * HOUR)
        script.publish()
    assert (script.schedule().missed_runs, script.schedule().runs) == (12, 3)


# --- pausing


def test_a_pause_is_not_a_miss(script: Script) -> None:
    script.create(every_ms=HOUR, missed="all")
    script.now += 30 * MINUTE
    assert script.change(paused=True).next_run_ms is None
    assert script.deadline() is None
    assert script.wait(5 * HOUR) == []
    assert script.change(paused=False).missed_runs == 0
    assert script.next_run() == script.deadline() == 6 * HOUR, "the first after now"
    assert script.tick() == []
    assert script.wait(30 * MINUTE) == [(0, 6 * HOUR)]
    assert script.schedule().missed_runs == 0


def test_a_pause_outlives_a_restart(script: Script) -> None:
    script.create(every_ms=HOUR, missed="all")
    script.change(paused=True)
    script.restart(away_ms=5 * HOUR)
    assert (script.deadline(), script.tick()) == (None, [])
    script.change(paused=False)
    assert script.next_run() == 6 * HOUR


def test_runs_that_are_pending_when_a_pause_begins_are_still_done(script: Script) -> None:
    script.create(every_ms=HOUR)
    script.wait(HOUR)
    script.change(paused=True)
    assert script.publish() == [(0, HOUR)]
    assert script.schedule().runs == 1
    assert script.deadline() is None


# --- changing


def test_nothing_is_written_when_nothing_changes(script: Script) -> None:
    script.create(every_ms=HOUR)
    script.create("b", cron="@daily", time_zone="Europe/Berlin")
    script.now += 10 * MINUTE
    assert script.would_write(ChangeSchedule(schedule_id=A, every_ms=HOUR, message=MESSAGE, paused=False)) == []
    same = ChangeSchedule(schedule_id=ScheduleId("b"), cron="@daily", time_zone="Europe/Berlin", missed=Missed.SKIP)
    assert script.would_write(same) == []


def test_another_message_does_not_touch_the_timetable(script: Script) -> None:
    script.create(every_ms=HOUR)
    script.now += 10 * MINUTE
    found = script.change(message={"value": 2})
    assert content(found.message) == {"value": 2}
    assert found.timetable == Every(HOUR, NOW)
    assert script.next_run() == HOUR
    script.wait(50 * MINUTE)
    assert [content(run.message) for run in script.machine.pending_runs] == [{"value": 2}]


def test_another_message_does_not_drop_a_run_that_is_overdue(script: Script) -> None:
    script.create(every_ms=HOUR)
    script.now += HOUR + SECOND
    script.change(message={"value": 2}, missed=Missed.ALL)
    assert script.tick() == [(0, HOUR)]


def test_pending_runs_keep_the_message_with_which_they_were_intended(script: Script) -> None:
    script.create(every_ms=MINUTE)
    script.wait(MINUTE)
    script.change(message={"value": 2})
    assert [content(run.message) for run in script.machine.pending_runs] == [MESSAGE]
    script.restart(kept=list(script.machine.snapshot()))
    assert [content(run.message) for run in script.machine.pending_runs] == [MESSAGE]
    script.publish()
    script.wait(MINUTE)
    assert [content(run.message) for run in script.machine.pending_runs] == [{"value": 2}]


def test_another_interval_counts_from_the_change(script: Script) -> None:
    script.create(every_ms=HOUR)
    script.now += 10 * MINUTE
    assert script.change(every_ms=20 * MINUTE).timetable == Every(20 * MINUTE, NOW + 10 * MINUTE)
    assert script.next_run() == script.deadline() == 30 * MINUTE


def test_a_later_time_takes_the_place_of_an_earlier_one(script: Script) -> None:
    script.create(cron="0 13 * * *")
    script.change(cron="0 15 * * *")
    assert script.deadline() == 3 * HOUR
    assert script.wait(HOUR) == []


def test_cron_and_its_zone_are_changed_one_by_one(script: Script) -> None:
    script.create(cron="0 15 * * *", time_zone="Europe/Berlin")
    assert script.next_run() == HOUR
    assert script.change(cron="0 16 * * *").timetable == Cron("0 16 * * *", "Europe/Berlin")
    assert script.change(time_zone="UTC").timetable == Cron("0 16 * * *", "UTC")
    assert script.next_run() == 4 * HOUR


def test_cron_takes_the_place_of_every_and_the_other_way_round(script: Script) -> None:
    script.create(every_ms=HOUR)
    assert script.change(cron="@daily").timetable == Cron("@daily")
    assert script.change(every_ms=HOUR).timetable == Every(HOUR, NOW)
    with pytest.raises(InvalidRequest, match="time_zone goes with cron"):
        script.change(time_zone="Europe/Berlin")
    with pytest.raises(InvalidRequest, match="leave one of them out"):
        script.change(cron="@daily", every_ms=HOUR)


def test_a_new_timetable_begins_after_now_and_misses_nothing(script: Script) -> None:
    script.create(every_ms=HOUR, missed="all")
    script.now += 5 * HOUR + 10 * MINUTE
    assert script.change(cron="*/30 * * * *").missed_runs == 0
    assert script.next_run() == 5 * HOUR + 30 * MINUTE


def test_a_change_for_the_worse_is_refused_and_changes_nothing(script: Script) -> None:
    before = script.create(every_ms=HOUR)
    for wrong in ({"cron": "0 0 30 2 *"}, {"cron": "x"}, {"every_ms": 1}, {"cron": "@daily", "time_zone": "x"}):
        with pytest.raises(InvalidRequest):
            script.change(**wrong)
    assert script.schedule() == before


def test_a_change_while_runs_are_pending_waits_for_them(script: Script) -> None:
    script.create(every_ms=HOUR)
    script.wait(HOUR)
    script.change(every_ms=MINUTE)
    assert script.deadline() is None
    script.finish(0)
    assert script.deadline() == HOUR + MINUTE
    assert script.wait(MINUTE) == [(1, HOUR + MINUTE)]


def test_a_schedule_that_is_not_there_is_refused_by_name(script: Script) -> None:
    for command in (ChangeSchedule(schedule_id=A), RemoveSchedule(A)):
        with pytest.raises(UnknownSchedule, match="there is no schedule 'a'"):
            script.run(command)


# --- removing


def test_a_removed_schedule_is_gone_with_its_pending_runs(script: Script) -> None:
    script.create("a", every_ms=MINUTE)
    other = script.create("b", every_ms=HOUR)
    script.wait(MINUTE)
    assert script.run(RemoveSchedule(A)).schedule_id == A
    assert script.pending() == []
    assert script.machine.pending_count == 0
    assert list(script.machine.by_id.values()) == [other]
    assert script.would_write(FinishRun(schedule_id=A, run=0, partition=0, offset=0)) == []
    assert script.wait(5 * MINUTE) == []
    assert script.deadline() == HOUR


def test_the_schedules_of_a_deleted_topic_never_touch_a_new_one_of_its_name(script: Script) -> None:
    script.create("a", every_ms=MINUTE, topic_id=1)
    script.create("b", every_ms=MINUTE, topic_id=1)
    script.create("c", every_ms=MINUTE, topic_id=2)
    script.wait(MINUTE)
    assert script.machine.topic_ids == {1, 2}
    assert [gone.schedule_id for gone in script.run(TopicGone(TopicId(1)))] == ["a", "b"]
    assert script.machine.topic_ids == {2}
    assert [run.schedule_id for run in script.machine.pending_runs] == ["c"]
    assert script.would_write(TopicGone(TopicId(1))) == []
    assert script.run(TopicGone(TopicId(1))) == []


# --- clocks


def test_a_clock_that_steps_back_makes_no_run_twice(script: Script) -> None:
    script.create(every_ms=HOUR, missed="all")
    script.wait(HOUR)
    script.publish()
    script.now = NOW + 10 * MINUTE
    assert script.tick() == []
    assert script.next_run() == script.deadline() == 2 * HOUR
    script.restart()
    for _ in range(9):
        assert script.wait(10 * MINUTE) == []
    assert script.wait(20 * MINUTE) == [(1, 2 * HOUR)]


@pytest.mark.parametrize("change", [{"cron": "*/10 * * * *"}, {"every_ms": 10 * MINUTE}, {"paused": False}])
def test_not_even_if_it_is_changed_meanwhile(script: Script, change: dict[str, Any]) -> None:
    script.create(every_ms=30 * MINUTE, missed="all")
    script.wait(HOUR)
    script.publish()
    script.change(paused=True)
    script.now = NOW + 10 * MINUTE
    script.change(**{"paused": False} | change)
    assert script.schedule().after_ms == NOW + HOUR
    script.now = NOW + HOUR
    assert script.tick() == []
    due = script.wait(30 * MINUTE)
    assert due
    assert all(at > HOUR for _, at in due)


def test_what_was_left_out_stays_left_out_when_the_clock_steps_back(script: Script) -> None:
    script.create(every_ms=HOUR, missed="skip")
    script.wait(5 * HOUR + 30 * MINUTE)
    script.now = NOW + HOUR
    assert script.wait(HOUR) == []
    assert script.next_run() == 6 * HOUR
    assert script.schedule().missed_runs == 5


# --- bounds


def test_a_tick_does_a_part_and_others_get_a_turn(script: Script) -> None:
    for number in range(600):
        script.create(f"s{number}", every_ms=MINUTE)
    first = script.wait(MINUTE)
    assert len(first) == 250
    assert script.deadline() == MINUTE, "another one is due at once"
    assert [len(script.tick()), len(script.tick())] == [250, 100]
    assert script.deadline() is None
    assert len({run.schedule_id for run in script.machine.pending_runs}) == 600


def test_those_whose_turn_has_not_come_may_be_changed_and_removed_and_the_clock_set_back(script: Script) -> None:
    for number in range(300):
        script.create(f"s{number}", every_ms=MINUTE)
    assert len(script.wait(MINUTE)) == 250
    script.run(RemoveSchedule(ScheduleId("s299")))
    script.change("s298", paused=True)
    script.change("s297", every_ms=HOUR)
    script.now = NOW + 30 * SECOND
    script.create("new", every_ms=SECOND)
    assert script.deadline() == 31 * SECOND
    assert script.tick() == []
    assert script.deadline() == 31 * SECOND
    script.now = NOW + MINUTE
    assert sorted(run.schedule_id for run in script.run(Tick())) == sorted(
        ["new", *(f"s{number}" for number in range(250, 297))]
    )
    assert script.deadline() == MINUTE + HOUR


def test_only_so_many_runs_are_pending(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_RUNS", 3)
    script.create("a", every_ms=MINUTE, missed="all")
    script.create("b", every_ms=MINUTE, missed="once")
    assert script.wait(5 * MINUTE) == [(0, MINUTE), (1, 2 * MINUTE), (2, 3 * MINUTE)]
    assert script.deadline() == 5 * MINUTE + SECOND, "the other one is looked at again later, not all the time"
    assert script.tick() == []
    assert script.wait(SECOND) == []
    script.finish(0)
    assert script.wait(SECOND) == [(0, 5 * MINUTE)]
    assert script.schedule("b").missed_runs == 4


def test_what_could_not_be_written_down_is_decided_again(script: Script) -> None:
    script.create(every_ms=HOUR)
    script.now += HOUR
    before = state(script.machine)[:-1]
    for _ in range(3):
        assert script.machine.decide(Tick(), script.now).records, "and then the disk is full"
        assert state(script.machine)[:-1] == before
        deadline = script.machine.next_deadline()
        assert deadline == script.now + SECOND
        script.now = deadline
    assert script.tick() == [(0, HOUR)]


# --- other lives


def lived() -> Script:
    """A machine with something of everything."""
    script = Script()
    script.create("a", every_ms=MINUTE, missed="all")
    script.create("b", cron="*/5 * * * *", time_zone="Europe/Berlin", missed="once")
    script.create("c", cron="0 3 * * MON", paused=True)
    script.create("d", every_ms=HOUR, topic_id=2)
    script.create("e", every_ms=HOUR)
    script.wait(5 * MINUTE)
    script.finish(0, "a", partition=1, offset=8)
    script.fail(1, "too large", "a")
    script.publish()
    script.wait(7 * MINUTE)
    script.finish(5, "a")
    script.change("a", message={"value": 3})
    script.change("b", cron="*/7 * * * *")
    script.run(TopicGone(TopicId(2)))
    script.run(RemoveSchedule(ScheduleId("e")))
    return script


def test_a_restart_finds_what_was_there() -> None:
    script = lived()
    assert len(script.pending()) > 5
    assert state(revived(script.log)) == state(script.machine)


def test_a_snapshot_makes_the_same_state_again() -> None:
    script = lived()
    snapshot = list(script.machine.snapshot())
    again = revived(snapshot)
    assert state(again) == state(script.machine)
    assert list(again.snapshot()) == snapshot
    assert list(revived(script.log).snapshot()) == snapshot


def test_both_go_on_in_the_same_way() -> None:
    script = lived()
    others = [revived(script.log), revived(script.machine.snapshot())]
    for _ in range(20):
        script.publish()
        script.wait(3 * MINUTE)
    for other in others:
        twin = lived()
        twin.machine = other
        for _ in range(20):
            twin.publish()
            twin.wait(3 * MINUTE)
        assert state(twin.machine) == state(script.machine)
        assert twin.log == script.log


def test_runs_that_are_pending_are_handed_out_again_after_a_restart(script: Script) -> None:
    script.create(every_ms=MINUTE, missed="all")
    script.wait(3 * MINUTE)
    script.finish(1)
    script.restart(away_ms=5 * HOUR)
    assert script.pending() == [(0, MINUTE), (2, 3 * MINUTE)]
    assert script.machine.pending_of(A) == script.machine.pending_runs
    assert script.machine.pending_of(ScheduleId("nobody")) == []
    assert script.tick() == [], "they come first"
    script.publish()
    assert script.tick()[0] == (3, 4 * MINUTE)


def test_every_end_of_the_log_is_a_whole_state() -> None:
    """A power cut may leave any beginning of it; what it took is decided again."""
    script = lived()
    for end in range(len(script.log) + 1):
        machine = revived(script.log[:end])
        assert state(revived(machine.snapshot())) == state(machine)
        found = Script()
        found.machine, found.now = machine, script.now
        published: set[tuple[str, int]] = set()
        while found.tick() or machine.pending_runs:
            for run in machine.pending_runs:
                assert (run.schedule_id, run.run) not in published
                published.add((run.schedule_id, run.run))
            found.publish()
        for schedule in machine.by_id.values():
            assert schedule.next_run_ms is None or schedule.next_run_ms > found.now
            assert schedule.intended == schedule.runs + schedule.failures


def test_reset_forgets_everything() -> None:
    script = lived()
    script.machine.reset()
    assert state(script.machine) == state(Schedules())


def test_a_record_that_is_not_understood_is_refused(script: Script) -> None:
    with pytest.raises(DamagedData, match="offset 7 of the jobs log is not understood"):
        script.machine.apply(b'{"type":"schedule_renamed"}', 7)


def test_a_schedule_whose_zone_is_not_known_here_stays_and_waits_for_another(script: Script) -> None:
    script.create(cron="0 13 * * *", time_zone="Europe/Berlin")
    script.create("b", every_ms=MINUTE)
    strange = [record.replace(b"Europe/Berlin", b"Europe/Utopia") for record in script.log]
    script.restart(kept=strange)
    assert script.next_run() is None
    assert script.wait(MINUTE) == [(0, MINUTE)], "others run"
    script.change(time_zone="UTC")
    assert script.next_run() == HOUR


def test_the_message_is_a_copy(script: Script) -> None:
    message = {"value": [1]}
    found = script.create(every_ms=MINUTE, message=message)
    message["value"].append(2)
    assert content(found.message) == {"value": [1]}


# --- over a host


def test_a_killed_broker_hands_out_the_same_runs_again() -> None:
    disk = SimDisk(Random(1))
    disk.make_directory("/meta")

    def start() -> tuple[Host, Schedules]:
        machine = Schedules()
        log = Log.open("/meta/jobs", disk=disk, settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=4096))
        return Host(log, [machine]), machine

    host, machine = start()
    create = CreateSchedule(schedule_id=A, topic="orders", topic_id=TopicId(1), message=MESSAGE, every_ms=MINUTE)
    host.submit(machine, create, NOW)
    intended = host.submit(machine, Tick(), NOW + MINUTE).reply
    host.snapshot(NOW + MINUTE)
    disk.crash(Random(2), "kill")
    host, machine = start()
    assert machine.pending_runs == intended
    assert [run.run for run in intended] == [0]
    host.submit(machine, FinishRun(schedule_id=A, run=0, partition=0, offset=0), NOW + MINUTE)
    disk.crash(Random(3), "kill")
    host, machine = start()
    assert machine.pending_runs == []
    assert [run.run for run in host.submit(machine, Tick(), NOW + 2 * MINUTE).reply] == [1]
