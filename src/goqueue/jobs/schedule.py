"""One schedule: what is published when, how far it has come, and how it went.

It is a value: a change makes another one. `next_run_ms` is worked out from the rest whenever one is made, so it is
never written down, and follows the zone database of the day.
"""

from typing import Any

import msgspec

from goqueue.jobs.records import LastRun, ScheduleId, ScheduleRestored
from goqueue.jobs.timetable import Cron, Every
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Of the runs that were intended, `runs` were published and `failures` were not; the others are pending."""

    schedule_id: ScheduleId
    topic: str
    topic_id: TopicId
    message: msgspec.Raw
    """A JSON object."""
    timetable: Cron | Every
    missed: Missed
    paused: bool
    created_ms: int
    after_ms: int
    """All runs up to this time are decided. It goes back only where the clock was set back (`SetBack`)."""
    last_due_ms: int | None = None
    """When the last run was due. That one is not decided again, whatever the clock does."""
    intended: int = 0
    """How many runs there were: the number of the next one."""
    runs: int = 0
    missed_runs: int = 0
    """Runs that were left out."""
    failures: int = 0
    last_error: str | None = None
    last_run: LastRun | None = None
    next_run_ms: int | None = None
    """None while it is paused, and if it never runs again."""

    def become(self, **changes: Any) -> "Schedule":
        """As it is after these changes."""
        changed = msgspec.structs.replace(self, **changes)
        return msgspec.structs.replace(changed, next_run_ms=changed._find_next())

    def _find_next(self) -> int | None:
        if self.paused:
            return None
        try:
            following = self.timetable.next_after(self.after_ms)
            if following is not None and following == self.last_due_ms:
                following = self.timetable.next_after(following)
            return following
        except InvalidRequest:  # written where its time zone was known: here it waits for another one
            return None

    def restorable(self) -> ScheduleRestored:
        return ScheduleRestored(**{name: getattr(self, name) for name in ScheduleRestored.__struct_fields__})


class PendingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is to be published, once: schedule and number tell whether it was before."""

    schedule_id: ScheduleId
    run: int
    due_ms: int
    topic: str
    topic_id: TopicId
    partition: int
    message: msgspec.Raw
    """As it was when the run was intended: it must be the same when it is tried again."""


class Due(msgspec.Struct, frozen=True):
    """What is to be decided about the runs of a schedule up to now."""

    left_out: int
    left_out_until_ms: int
    """When the last of those left out was due; means nothing if there are none."""
    wanted: list[int]
    """When those were due that are to be published, oldest first."""


def find_due(schedule: Schedule, now: int) -> Due:
    """A run was missed if the next one is due as well, or if it is later than the grace time."""
    first, timetable = schedule.next_run_ms, schedule.timetable
    if first is None or first > now:
        return Due(0, 0, [])
    second = timetable.next_after(first)
    if second is None or second > now:  # nearly always
        total, newest = 1, [first]
    else:
        total = timetable.count(schedule.after_ms, now)
        most = limits.MAX_RUNS_MADE_UP if schedule.missed is Missed.ALL else 1
        newest = timetable.newest(schedule.after_ms, now, most + 2)
        last = schedule.last_due_ms
        if last is not None and schedule.after_ms < last <= now:  # the clock was set back, and has passed it again
            total -= timetable.count(last - 1, last)  # none where its runs come at other times by now
            newest = [due for due in newest if due != last]
    match schedule.missed:
        case Missed.SKIP:
            wanted = newest[-1:] if now - newest[-1] <= limits.RUN_GRACE_MS else []
        case Missed.ONCE:
            wanted = newest[-1:]
        case Missed.ALL:
            wanted = newest[-limits.MAX_RUNS_MADE_UP :]
    left_out = total - len(wanted)
    return Due(left_out, newest[-len(wanted) - 1] if left_out else 0, wanted)
