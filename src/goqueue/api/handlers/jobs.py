"""What the broker does by itself: schedules, and redriving dead letters."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from goqueue.api.handlers.publishing import to_record
from goqueue.api.handlers.showing import fit_page, show_content, show_incomplete
from goqueue.api.refusals import refuse
from goqueue.api.service import Service
from goqueue.broker.letters import Letter, Place
from goqueue.broker.schedules import ScheduledMessage, read_message
from goqueue.broker.topic import OpenTopic
from goqueue.jobs.letters import LetterFilter
from goqueue.jobs.records import ScheduleId
from goqueue.jobs.redrive import Redrive, RedriveId
from goqueue.jobs.schedule import Schedule
from goqueue.jobs.schedules import ChangeSchedule
from goqueue.jobs.timetable import Cron
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import TopicId, dlq_name, format_topic_id, message_id
from goqueue.model.times import parse_span, parse_time, show_duration, show_time
from goqueue.wire import shapes

_NO_PRODUCER: Final = None
_ALL: Final = LetterFilter()


# --- schedules


async def create_schedule(service: Service, request: shapes.CreateSchedule) -> shapes.ShownSchedule:
    topic = service.broker.topics.named(request.topic)
    schedule = await service.broker.schedules.create(
        topic,
        _keep(topic, request.message),
        cron=_given(request.cron),
        time_zone=_given(request.time_zone),
        every_ms=_every(request.every),
        missed=request.missed,
        paused=request.paused,
    )
    return _show_schedule(schedule)


async def list_schedules(service: Service, request: shapes.ListSchedules) -> shapes.ScheduleList:
    """A page is cut where it would be too large. `next` is a place in the order, so it outlives what was there."""
    begin = (0, "") if request.next is UNSET else _read_place(request.next)
    schedules = [
        each
        for each in await service.broker.schedules.list()
        if request.topic in (None, each.topic) and _place_of(each) >= begin
    ]
    schedules.sort(key=_place_of)
    page = await fit_page(service.turns, map(_show_schedule, schedules[: request.limit]), _headers_of_schedule)
    end = len(page)
    return shapes.ScheduleList(
        schedules=page,
        next="{}-{}".format(*_place_of(schedules[end])) if end < len(schedules) else UNSET,
    )


def _headers_of_schedule(shown: shapes.ShownSchedule) -> int:
    return len(shown.message.headers)


def _place_of(schedule: Schedule) -> tuple[int, str]:
    """Where it is in a list: by its creation, those of one millisecond by their ids."""
    return schedule.created_ms, schedule.schedule_id


def _read_place(text: str) -> tuple[int, str]:
    created_ms, _, schedule_id = text.partition("-")
    return int(created_ms), schedule_id


async def describe_schedule(service: Service, request: shapes.Nothing, schedule: str) -> shapes.ShownSchedule:
    return _show_schedule(await service.broker.schedules.get(ScheduleId(schedule)))


async def change_schedule(service: Service, request: shapes.ChangeSchedule, schedule: str) -> shapes.ShownSchedule:
    runner = service.broker.schedules
    message = None
    if request.message is not UNSET:
        topic_id = runner.machine.schedule(ScheduleId(schedule)).topic_id
        message = _keep(service.broker.topics.identified(topic_id), request.message)
    command = ChangeSchedule(
        schedule_id=ScheduleId(schedule),
        message=message,
        cron=_given(request.cron),
        time_zone=_given(request.time_zone),
        every_ms=_every(request.every),
        missed=_given(request.missed),
        paused=_given(request.paused),
    )
    return _show_schedule(await runner.change(command))


async def delete_schedule(service: Service, request: shapes.Nothing, schedule: str) -> shapes.ScheduleDeleted:
    await service.broker.schedules.remove(ScheduleId(schedule))
    return shapes.ScheduleDeleted(deleted=True, id=schedule)


def _keep(topic: OpenTopic, message: shapes.ScheduleMessage) -> ScheduledMessage:
    """Refused like a message that is published."""
    if message.partition is not None:
        topic.partition(message.partition)
    fields: dict[str, Any] = msgspec.structs.asdict(message)
    record = to_record(shapes.Message(**fields), topic.meta.settings.max_message_bytes, _NO_PRODUCER)
    return ScheduledMessage.keep(record, message.partition)


def _every(span: str | float | UnsetType) -> int | None:
    return None if span is UNSET else parse_span(span)


def _given(value: Any) -> Any:
    return None if value is UNSET else value


def _show_schedule(schedule: Schedule) -> shapes.ShownSchedule:
    timetable, last = schedule.timetable, schedule.last_run
    return shapes.ShownSchedule(
        id=schedule.schedule_id,
        topic=schedule.topic,
        message=_show_message(read_message(schedule.message)),
        cron=timetable.expression if isinstance(timetable, Cron) else UNSET,
        time_zone=timetable.zone if isinstance(timetable, Cron) else UNSET,
        every=UNSET if isinstance(timetable, Cron) else show_duration(timetable.interval_ms),
        missed=schedule.missed,
        paused=schedule.paused,
        created=show_time(schedule.created_ms),
        next_run=None if schedule.next_run_ms is None else show_time(schedule.next_run_ms),
        last_run=None
        if last is None
        else shapes.ShownRun(
            due=show_time(last.due_ms),
            partition=last.partition,
            offset=last.offset,
            message_id=message_id(schedule.topic, last.partition, last.offset),
        ),
        runs=schedule.runs,
        missed_runs=schedule.missed_runs,
        failures=schedule.failures,
        last_error=schedule.last_error,
    )


def _show_message(message: ScheduledMessage) -> shapes.ShownMessage:
    return shapes.ShownMessage(
        **show_content(message.to_record()),
        partition=UNSET if message.partition is None else message.partition,
        ttl=UNSET if message.ttl_ms is None else show_duration(message.ttl_ms),
    )


# --- dead letters


async def list_dead_letters(service: Service, request: shapes.ListDeadLetters, topic: str) -> shapes.DeadLetterList:
    letters = service.broker.letters
    wanted = _ALL if request.filter is UNSET else _read_filter(_decode_filter(request.filter))
    origin, dlq = await letters.topic_of(topic)
    if dlq is None:
        return shapes.DeadLetterList(messages=[])
    wanted = letters.meant(origin, wanted, deleted=wanted.deleted)
    begin = Place(0, 0)
    if request.next is not UNSET:
        number, _, offset = request.next.partition("-")
        begin = Place(int(number), int(offset))
    found, following, incomplete = await letters.page(dlq, wanted, begin, request.limit)
    page = await fit_page(service.turns, map(_show_letter, found), _headers_of_letter)
    if len(page) < len(found):
        letter = found[len(page)]
        following = Place(letter.partition, letter.record.offset)
    return shapes.DeadLetterList(
        messages=page,
        next=UNSET if following is None else f"{following.partition}-{following.offset}",
        incomplete=show_incomplete(incomplete),
    )


def _headers_of_letter(shown: shapes.DeadLetter) -> int:
    return len(shown.headers)


def _decode_filter(text: str) -> shapes.LetterFilter:
    try:
        return msgspec.json.decode(text, type=shapes.LetterFilter)
    except msgspec.ValidationError as error:
        raise refuse(error, shapes.LetterFilter) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"the filter is not valid JSON: {error}") from None


def _read_filter(request: shapes.LetterFilter | UnsetType) -> LetterFilter:
    if request is UNSET:
        return _ALL
    offsets = None if request.offsets is UNSET else {int(key): found for key, found in request.offsets.items()}
    if offsets is not None and sum(map(len, offsets.values())) > limits.MAX_FILTER_OFFSETS:
        raise InvalidRequest(f"the filter names more than {limits.MAX_FILTER_OFFSETS} offsets; ask for fewer at a time")
    if request.header is not UNSET and len(request.header) > limits.MAX_FILTER_HEADERS:
        raise InvalidRequest(f"the filter names more than {limits.MAX_FILTER_HEADERS} headers; name fewer")
    wanted = LetterFilter(
        reason=_given(request.reason),
        group=_given(request.group),
        key=_given(request.key),
        from_ms=_time(request.from_time),
        to_ms=_time(request.to_time),
        headers=_given(request.header) or {},
        offsets=None if offsets is None else {number: tuple(sorted(set(found))) for number, found in offsets.items()},
        deleted=request.deleted,
    )
    try:
        msgspec.json.encode(wanted)
    except UnicodeEncodeError:
        raise InvalidRequest("the filter has half of a surrogate pair, which no text has") from None
    return wanted


def _time(time: str | int | UnsetType) -> int | None:
    if time is UNSET:
        return None
    return time if isinstance(time, int) else parse_time(time.replace(" ", "+"))


def _show_letter(letter: Letter) -> shapes.DeadLetter:
    story, record = letter.story, letter.record
    event_time = None if record.extension is None else record.extension.event_time
    return shapes.DeadLetter(
        topic=story.topic,
        partition=letter.partition,
        offset=record.offset,
        message_id=message_id(dlq_name(story.topic), letter.partition, record.offset),
        origin=shapes.LetterOrigin(
            topic=story.topic,
            topic_id=format_topic_id(TopicId(story.topic_id)),
            partition=story.partition,
            offset=story.offset,
            message_id=message_id(story.topic, story.partition, story.offset),
        ),
        group=story.group,
        reason=story.reason,
        detail=story.detail,
        deliveries=story.deliveries,
        published_at=show_time(story.published_at),
        died_at=show_time(story.died_at),
        event_time=UNSET if event_time is None else show_time(event_time),
        **show_content(record),
    )


# --- redrives


async def start_redrive(service: Service, request: shapes.StartRedrive, topic: str) -> shapes.RedriveStarted:
    wanted = _read_filter(request.filter)
    redrive, matched, incomplete = await service.broker.redrives.begin(
        topic,
        wanted,
        target=request.target,
        rate=request.rate,
        dry_run=request.dry_run,
        deleted=wanted.deleted,
    )
    return shapes.RedriveStarted(
        id=None if redrive is None else redrive.redrive_id, matched=matched, incomplete=show_incomplete(incomplete)
    )


async def describe_redrive(service: Service, request: shapes.Nothing, redrive: str) -> shapes.ShownRedrive:
    return _show_redrive(service, await service.broker.redrives.get(RedriveId(redrive)))


async def cancel_redrive(service: Service, request: shapes.Nothing, redrive: str) -> shapes.ShownRedrive:
    return _show_redrive(service, await service.broker.redrives.cancel(RedriveId(redrive)))


def _show_redrive(service: Service, redrive: Redrive) -> shapes.ShownRedrive:
    plan = redrive.plan
    return shapes.ShownRedrive(
        id=redrive.redrive_id,
        topic=plan.topic,
        target=plan.target,
        filter=_show_filter(plan.filter),
        rate=plan.rate,
        state=redrive.state,
        matched=plan.matched,
        redriven=service.broker.redrives.redriven(redrive),
        skipped=redrive.skipped,
        started=show_time(plan.started_ms),
        finished=UNSET if redrive.finished_ms is None else show_time(redrive.finished_ms),
        error=UNSET if redrive.error is None else redrive.error,
        incomplete=show_incomplete(plan.incomplete),
    )


def _show_filter(wanted: LetterFilter) -> shapes.ShownFilter:
    return shapes.ShownFilter(
        reason=UNSET if wanted.reason is None else wanted.reason,
        group=UNSET if wanted.group is None else wanted.group,
        key=UNSET if wanted.key is None else wanted.key,
        from_time=UNSET if wanted.from_ms is None else show_time(wanted.from_ms),
        to_time=UNSET if wanted.to_ms is None else show_time(wanted.to_ms),
        header=wanted.headers or UNSET,
        offsets=UNSET
        if wanted.offsets is None
        else {str(number): list(offsets) for number, offsets in wanted.offsets.items()},
        deleted=wanted.deleted or UNSET,
    )
