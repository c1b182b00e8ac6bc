"""One schedule as a value, and which of its runs are due."""

import msgspec
import pytest

from goqueue.jobs.records import ScheduleId, ScheduleRestored
from goqueue.jobs.schedule import Due, Schedule, find_due
from goqueue.jobs.timetable import Cron, Every
from goqueue.model import limits
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId

HOUR = 3_600_000


def schedule(missed: Missed, *, paused: bool = False) -> Schedule:
    """It runs at 1, 2, 3 hours and so on."""
    return Schedule(
        schedule_id=ScheduleId("a"),
        topic="orders",
        topic_id=TopicId(1),
        message=msgspec.Raw(b"{}"),
        timetable=Every(HOUR, 0),
        missed=missed,
        paused=paused,
        created_ms=0,
        after_ms=0,
    ).become()


@pytest.mark.parametrize("missed", Missed)
def test_nothing_is_due_before_the_next_run_or_in_a_pause(missed: Missed) -> None:
    assert find_due(schedule(missed), HOUR - 1) == Due(0, 0, [])
    assert find_due(schedule(missed, paused=True), 5 * HOUR) == Due(0, 0, [])


@pytest.mark.parametrize("missed", Missed)
def test_a_run_on_time_is_wanted_whatever_becomes_of_missed_ones(missed: Missed) -> None:
    assert find_due(schedule(missed), HOUR) == Due(0, 0, [HOUR])
    assert find_due(schedule(missed), HOUR + limits.RUN_GRACE_MS) == Due(0, 0, [HOUR])


@pytest.mark.parametrize(
    ("missed", "on_time", "late"),
    [
        (Missed.SKIP, Due(2, 2 * HOUR, [3 * HOUR]), Due(3, 3 * HOUR, [])),
        (Missed.ONCE, Due(2, 2 * HOUR, [3 * HOUR]), Due(2, 2 * HOUR, [3 * HOUR])),
        (Missed.ALL, Due(0, 0, [HOUR, 2 * HOUR, 3 * HOUR]), Due(0, 0, [HOUR, 2 * HOUR, 3 * HOUR])),
    ],
)
def test_of_several_that_are_due_all_but_the_newest_were_missed(missed: Missed, on_time: Due, late: Due) -> None:
    assert find_due(schedule(missed), 3 * HOUR + limits.RUN_GRACE_MS) == on_time
    assert find_due(schedule(missed), 3 * HOUR + limits.RUN_GRACE_MS + 1) == late


def test_all_is_not_more_than_a_thousand() -> None:
    found = find_due(schedule(Missed.ALL), 1000 * HOUR)
    assert (found.left_out, len(found.wanted)) == (0, 1000)
    found = find_due(schedule(Missed.ALL), 1001 * HOUR)
    assert (found.left_out, found.left_out_until_ms) == (1, HOUR)
    assert (found.wanted[0], found.wanted[-1], len(found.wanted)) == (2 * HOUR, 1001 * HOUR, 1000)


def test_what_comes_next_follows_every_change() -> None:
    found = schedule(Missed.SKIP)
    assert found.next_run_ms == HOUR
    assert found.become(after_ms=HOUR).next_run_ms == 2 * HOUR
    assert found.become(paused=True).next_run_ms is None
    assert found.become(timetable=Cron("30 0 * * *")).next_run_ms == HOUR // 2
    assert found.next_run_ms == HOUR, "it is a value"


def test_all_but_the_next_run_is_kept_in_a_snapshot() -> None:
    kept = set(ScheduleRestored.__struct_fields__)
    assert set(Schedule.__struct_fields__) - kept == {"next_run_ms"}
    found = schedule(Missed.ONCE).become(runs=3, intended=5, last_error="no")
    assert Schedule(**msgspec.structs.asdict(found.restorable())).become() == found


@pytest.mark.parametrize(("anchor", "left_out"), [(0, 2), (HOUR // 2, 3)], ids=["as it was", "at other times by now"])
def test_a_last_run_that_comes_again_is_not_counted_as_left_out_and_nothing_else_is_forgotten(
    anchor: int, left_out: int
) -> None:
    """The clock was set back to 0 after the run of 2 hours, and passes it again."""
    known = msgspec.structs.replace(schedule(Missed.SKIP), timetable=Every(HOUR, anchor), last_due_ms=2 * HOUR).become()
    assert find_due(known, 3 * HOUR + anchor + limits.RUN_GRACE_MS + 1).left_out == left_out
