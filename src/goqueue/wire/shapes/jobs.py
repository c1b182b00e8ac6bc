"""Schedules, dead letters and redriving them."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from goqueue.model import limits
from goqueue.model.jobs import Missed, RedriveState
from goqueue.wire.shapes.fields import (
    Duration,
    Incomplete,
    Offset,
    PartitionNumber,
    PriorityName,
    Reply,
    Request,
    Time,
    TopicName,
)
from goqueue.wire.shapes.groups import PartitionKey

JOB_PATTERN = r"^[0-9a-f]{16}$"
_PLACE_PATTERN = r"^\d{1,15}-[0-9a-f]{16}$"

# --- schedules


class ScheduleMessage(Request, frozen=True, kw_only=True):
    """What each run publishes. Text, or base64 if `encoding` says so."""

    value: str | None = None
    """Left out, or null, for a tombstone only."""
    tombstone: bool = False
    key: str | None = None
    partition: PartitionNumber | None = None
    """Without one it goes by its key, or to each partition in turn."""
    priority: Literal["critical", "high", "normal", "low", "background", 0, 1, 2, 3, 4] = "normal"
    headers: dict[str, str] | list[tuple[str, str]] | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"
    ttl: Duration | None = None


CronExpression = Annotated[
    str,
    Meta(
        max_length=limits.MAX_CRON_EXPRESSION,
        description="Minute, hour, day of the month, month, day of the week; or @hourly, @daily, ...",
        examples=["30 3 * * MON-FRI"],
    ),
]
ZoneName = Annotated[str, Meta(max_length=limits.MAX_TIME_ZONE, examples=["Europe/Berlin"])]


class CreateSchedule(Request, frozen=True, kw_only=True):
    """With `cron`, in UTC unless it has a `time_zone`, or with `every`."""

    topic: TopicName
    message: ScheduleMessage
    cron: CronExpression | UnsetType = UNSET
    time_zone: ZoneName | UnsetType = UNSET
    every: Duration | UnsetType = UNSET
    missed: Missed = Missed.SKIP
    """What becomes of runs that were missed: none, the last one, or all of them are made up for."""
    paused: bool = False


class ChangeSchedule(Request, frozen=True, kw_only=True):
    """What is left out stays as it is."""

    message: ScheduleMessage | UnsetType = UNSET
    cron: CronExpression | UnsetType = UNSET
    time_zone: ZoneName | UnsetType = UNSET
    every: Duration | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    paused: bool | UnsetType = UNSET


class ListSchedules(Request, frozen=True, kw_only=True):
    topic: str | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.MAX_LISTED_SCHEDULES)] = 100
    next: Annotated[str, Meta(pattern=_PLACE_PATTERN, examples=["1767225600000-00c0ffee00c0ffee"])] | UnsetType = UNSET
    """As the page before answered it."""


class ShownMessage(Reply, frozen=True, kw_only=True, omit_defaults=True):
    value: str | None
    key: str | None
    headers: dict[str, str] | list[tuple[str, str]]
    priority: PriorityName
    partition: int | UnsetType = UNSET
    ttl: str | UnsetType = UNSET
    encoding: Literal["base64"] | UnsetType = UNSET


class ShownRun(Reply, frozen=True, kw_only=True):
    due: str
    partition: int
    offset: int
    message_id: str


class ShownSchedule(Reply, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    topic: str
    message: ShownMessage
    cron: str | UnsetType = UNSET
    time_zone: str | UnsetType = UNSET
    every: str | UnsetType = UNSET
    missed: Missed
    paused: bool
    created: str
    next_run: str | None
    """null while it is paused."""
    last_run: ShownRun | None
    runs: int
    missed_runs: int
    failures: int
    last_error: str | None


class ScheduleList(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """In the order in which they were created, those of the same millisecond by id."""

    schedules: list[ShownSchedule]
    next: str | UnsetType = UNSET
    """Where to go on; left out if there are no more."""


class ScheduleDeleted(Reply, frozen=True, kw_only=True):
    deleted: bool
    id: str


# --- dead letters


class LetterFilter(Request, frozen=True, kw_only=True):
    """All that it says must hold. Times are those of death, the later one not included."""

    reason: Literal["rejected", "nacked", "lapsed", "expired"] | UnsetType = UNSET
    group: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    from_time: Time | Annotated[int, Meta(ge=0, le=limits.LAST_TIME_MS)] | UnsetType = UNSET
    to_time: Time | Annotated[int, Meta(ge=0, le=limits.LAST_TIME_MS)] | UnsetType = UNSET
    header: dict[str, str] | UnsetType = UNSET
    offsets: dict[PartitionKey, list[Offset]] | UnsetType = UNSET
    """By partition of the dead-letter topic."""
    deleted: bool = False
    """Letters of deleted topics that had the name before, instead of those of the topic that has it now."""


FilterText = Annotated[str, Meta(description="A LetterFilter, as JSON", examples=['{"reason": "rejected"}'])]


class ListDeadLetters(Request, frozen=True, kw_only=True):
    filter: FilterText | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=limits.MAX_READ_MESSAGES)] = 100
    next: Annotated[str, Meta(pattern=r"^\d{1,4}-\d{1,19}$", examples=["0-41"])] | UnsetType = UNSET
    """As the page before answered it."""


class LetterOrigin(Reply, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    message_id: str
    topic_id: str
    """Of a topic that was deleted it is another one than that of the topic with this name now."""


class DeadLetter(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """`topic` is where it came from; partition, offset and message id are those in the dead-letter topic."""

    topic: str
    partition: int
    offset: int
    message_id: str
    origin: LetterOrigin
    group: str
    reason: str
    detail: str
    deliveries: int
    published_at: str
    died_at: str
    key: str | None
    value: str | None
    headers: dict[str, str] | list[tuple[str, str]]
    priority: PriorityName
    event_time: str | UnsetType = UNSET
    encoding: Literal["base64"] | UnsetType = UNSET


class DeadLetterList(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """By partition and offset, without those that were redriven."""

    messages: list[DeadLetter]
    next: str | UnsetType = UNSET
    """Where to go on; left out if there are no more."""
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions of the dead-letter topic that are damaged; left out if none was met."""


# --- redrives


class StartRedrive(Request, frozen=True, kw_only=True):
    filter: LetterFilter | UnsetType = UNSET
    rate: Annotated[float, Meta(gt=0, le=limits.MAX_REDRIVE_RATE)] | None = None
    """Messages per second, at most."""
    dry_run: bool = False
    target: TopicName | None = None
    """A topic; where they came from if left out. Letters of a deleted topic need one."""


class RedriveStarted(Reply, frozen=True, kw_only=True, omit_defaults=True):
    id: str | None
    """null when nothing was started: it was a dry run, or nothing matched."""
    matched: int
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions of the dead-letter topic that are damaged: letters there may match, and stay."""


class ShownFilter(Reply, frozen=True, kw_only=True, omit_defaults=True):
    reason: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    from_time: str | UnsetType = UNSET
    to_time: str | UnsetType = UNSET
    header: dict[str, str] | UnsetType = UNSET
    offsets: dict[str, list[int]] | UnsetType = UNSET
    deleted: bool | UnsetType = UNSET


class ShownRedrive(Reply, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    topic: str
    target: str
    filter: ShownFilter
    rate: float | None
    state: RedriveState
    matched: int
    redriven: int
    skipped: int
    """Those that matched and were not published: gone since, or too large for the target."""
    started: str
    finished: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    incomplete: list[Incomplete] | UnsetType = UNSET
    """Partitions of the dead-letter topic that were damaged when it began: letters there may match, and stay."""
