"""What the jobs log says of schedules: one struct per thing that can happen, as JSON with a `type`.

To change the format: add optional fields, or a new struct; never change the meaning of one.
`docs/internals/jobs.md` lists them, and golden bytes hold them.
"""

from typing import Final, NewType

import msgspec

from goqueue.jobs.timetable import Cron, Every
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId

ScheduleId = NewType("ScheduleId", str)
"""Given at creation, by chance: never used again, because runs are told apart by it and their number."""

AS_SCHEDULED: Final = msgspec.Raw(b"")
"""No message of its own."""


class LastRun(msgspec.Struct, frozen=True):
    """The last one that was published, and where."""

    run: int
    due_ms: int
    partition: int
    offset: int


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all."""


class Scheduled(_Event, frozen=True, kw_only=True, tag="scheduled"):
    schedule_id: ScheduleId
    topic: str
    topic_id: TopicId
    message: msgspec.Raw
    """A JSON object; what is in it is not this room's business."""
    timetable: Cron | Every
    missed: Missed
    paused: bool
    created_ms: int
    """The first run is after this time."""


class ScheduleChanged(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="schedule_changed"):
    """All as it is from now on, but the message only if it is another. Pending runs keep theirs."""

    schedule_id: ScheduleId
    timetable: Cron | Every
    missed: Missed
    paused: bool
    after_ms: int
    """The next run is the first one after this time."""
    message: msgspec.Raw = AS_SCHEDULED


class ScheduleRemoved(_Event, frozen=True, kw_only=True, tag="schedule_removed"):
    """With its pending runs."""

    schedule_id: ScheduleId


class TopicEnded(_Event, frozen=True, kw_only=True, tag="topic_ended"):
    """The topic was deleted: its schedules are removed."""

    topic_id: TopicId


class RunIntended(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_intended"):
    """It will be published, once, and is pending until it is done or has failed."""

    schedule_id: ScheduleId
    run: int
    """Counted from 0 for each schedule."""
    due_ms: int
    partition: int
    """Where it is published, however often it is tried."""
    message: msgspec.Raw = AS_SCHEDULED
    """In a snapshot: if the schedule has another by now."""


class RunsMissed(_Event, frozen=True, kw_only=True, tag="runs_missed"):
    """They are left out."""

    schedule_id: ScheduleId
    count: int
    until_ms: int
    """The last of them was due then."""


class RunDone(_Event, frozen=True, kw_only=True, tag="run_done"):
    schedule_id: ScheduleId
    run: int
    partition: int
    offset: int


class RunFailed(_Event, frozen=True, kw_only=True, tag="run_failed"):
    """It was refused for good, and is not tried again."""

    schedule_id: ScheduleId
    run: int
    error: str


class ScheduleRestored(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="schedule_restored"):
    """In a snapshot: a schedule with everything but its pending runs."""

    schedule_id: ScheduleId
    topic: str
    topic_id: TopicId
    message: msgspec.Raw
    timetable: Cron | Every
    missed: Missed
    paused: bool
    created_ms: int
    after_ms: int
    intended: int
    runs: int
    missed_runs: int
    failures: int
    last_error: str | None
    last_run: LastRun | None
    last_due_ms: int | None = None


Event = (
    Scheduled
    | ScheduleChanged
    | ScheduleRemoved
    | TopicEnded
    | RunIntended
    | RunsMissed
    | RunDone
    | RunFailed
    | ScheduleRestored
)

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
encode = msgspec.json.Encoder().encode
decode = _decoder.decode
