"""The bytes that the jobs log has of schedules."""

import msgspec
import pytest

from goqueue.jobs import records
from goqueue.jobs.records import (
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
from goqueue.jobs.timetable import Cron, Every
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId

SCHEDULE = ScheduleId("5f0c")
ID = TopicId(0xFEDCBA9876543210)
MESSAGE = msgspec.Raw(b'{"key":"a","value":{"n":1.50}}')

# What is in a log one day must be readable for good: a line may be added here, never changed.
GOLDEN: dict[bytes, Event] = {
    b'{"type":"scheduled","schedule_id":"5f0c","topic":"orders","topic_id":18364758544493064720,'
    b'"message":{"key":"a","value":{"n":1.50}},'
    b'"timetable":{"type":"cron","expression":"30 3 * * MON-FRI","zone":"Europe/Berlin"},'
    b'"missed":"skip","paused":false,"created_ms":1700000000000}': Scheduled(
        schedule_id=SCHEDULE,
        topic="orders",
        topic_id=ID,
        message=MESSAGE,
        timetable=Cron("30 3 * * MON-FRI", "Europe/Berlin"),
        missed=Missed.SKIP,
        paused=False,
        created_ms=1_700_000_000_000,
    ),
    b'{"type":"scheduled","schedule_id":"5f0c","topic":"orders","topic_id":18364758544493064720,'
    b'"message":{"key":"a","value":{"n":1.50}},'
    b'"timetable":{"type":"every","interval_ms":60000,"anchor_ms":1700000000000},'
    b'"missed":"once","paused":true,"created_ms":1700000000000}': Scheduled(
        schedule_id=SCHEDULE,
        topic="orders",
        topic_id=ID,
        message=MESSAGE,
        timetable=Every(60_000, 1_700_000_000_000),
        missed=Missed.ONCE,
        paused=True,
        created_ms=1_700_000_000_000,
    ),
    b'{"type":"schedule_changed","schedule_id":"5f0c","timetable":{"type":"cron","expression":"@daily","zone":"UTC"},'
    b'"missed":"all","paused":true,"after_ms":1700000300000}': ScheduleChanged(
        schedule_id=SCHEDULE, timetable=Cron("@daily"), missed=Missed.ALL, paused=True, after_ms=1_700_000_300_000
    ),
    b'{"type":"schedule_changed","schedule_id":"5f0c",'
    b'"timetable":{"type":"every","interval_ms":1000,"anchor_ms":1700000400000},'
    b'"missed":"all","paused":false,"after_ms":1700000400000,'
    b'"message":{"key":"a","value":{"n":1.50}}}': ScheduleChanged(
        schedule_id=SCHEDULE,
        timetable=Every(1000, 1_700_000_400_000),
        missed=Missed.ALL,
        paused=False,
        after_ms=1_700_000_400_000,
        message=MESSAGE,
    ),
    b'{"type":"schedule_removed","schedule_id":"5f0c"}': ScheduleRemoved(schedule_id=SCHEDULE),
    b'{"type":"topic_ended","topic_id":18364758544493064720}': TopicEnded(topic_id=ID),
    b'{"type":"runs_missed","schedule_id":"5f0c","count":4000,"until_ms":1700000360000}': RunsMissed(
        schedule_id=SCHEDULE, count=4000, until_ms=1_700_000_360_000
    ),
    b'{"type":"run_intended","schedule_id":"5f0c","run":0,"due_ms":1700000060000,"partition":2}': RunIntended(
        schedule_id=SCHEDULE, run=0, due_ms=1_700_000_060_000, partition=2
    ),
    b'{"type":"run_intended","schedule_id":"5f0c","run":1,"due_ms":1700000120000,"partition":0,'
    b'"message":{"key":"a","value":{"n":1.50}}}': RunIntended(
        schedule_id=SCHEDULE, run=1, due_ms=1_700_000_120_000, partition=0, message=MESSAGE
    ),
    b'{"type":"run_done","schedule_id":"5f0c","run":0,"partition":2,"offset":41}': RunDone(
        schedule_id=SCHEDULE, run=0, partition=2, offset=41
    ),
    b'{"type":"run_failed","schedule_id":"5f0c","run":1,"error":"the message is too large"}': RunFailed(
        schedule_id=SCHEDULE, run=1, error="the message is too large"
    ),
    b'{"type":"schedule_restored","schedule_id":"5f0c","topic":"orders","topic_id":18364758544493064720,'
    b'"message":{"key":"a","value":{"n":1.50}},"timetable":{"type":"cron","expression":"@daily","zone":"UTC"},'
    b'"missed":"skip","paused":false,"created_ms":1700000000000,"after_ms":1700000360000,"intended":2,"runs":1,'
    b'"missed_runs":4000,"failures":1,"last_error":"the message is too large",'
    b'"last_run":{"run":0,"due_ms":1700000060000,"partition":2,"offset":41}}': ScheduleRestored(
        schedule_id=SCHEDULE,
        topic="orders",
        topic_id=ID,
        message=MESSAGE,
        timetable=Cron("@daily"),
        missed=Missed.SKIP,
        paused=False,
        created_ms=1_700_000_000_000,
        after_ms=1_700_000_360_000,
        intended=2,
        runs=1,
        missed_runs=4000,
        failures=1,
        last_error="the message is too large",
        last_run=LastRun(run=0, due_ms=1_700_000_060_000, partition=2, offset=41),
    ),
    b'{"type":"schedule_restored","schedule_id":"5f0c","topic":"orders","topic_id":18364758544493064720,'
    b'"message":{"key":"a","value":{"n":1.50}},"timetable":{"type":"cron","expression":"@daily","zone":"UTC"},'
    b'"missed":"skip","paused":true,"created_ms":1700000000000,"after_ms":1700000000000,"intended":0,"runs":0,'
    b'"missed_runs":0,"failures":0,"last_error":null,"last_run":null}': ScheduleRestored(
        schedule_id=SCHEDULE,
        topic="orders",
        topic_id=ID,
        message=MESSAGE,
        timetable=Cron("@daily"),
        missed=Missed.SKIP,
        paused=True,
        created_ms=1_700_000_000_000,
        after_ms=1_700_000_000_000,
        intended=0,
        runs=0,
        missed_runs=0,
        failures=0,
        last_error=None,
        last_run=None,
    ),
}


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=lambda part: type(part).__name__)
def test_the_bytes_are_the_golden_ones(encoded: bytes, event: Event) -> None:
    assert records.encode(event) == encoded
    assert records.decode(encoded) == event


def test_every_kind_of_record_has_golden_bytes() -> None:
    assert {type(event) for event in GOLDEN.values()} == set(Event.__args__)


def test_a_message_is_kept_to_the_byte() -> None:
    odd = b'{ "value" : 12345678901234567890123456789, "b":1e400 , "a":"\\u00e4"}'
    found = records.decode(
        b'{"type":"run_intended","schedule_id":"5f0c","run":1,"due_ms":1700000120000,"partition":0,"message":'
        + odd
        + b"}"
    )
    assert isinstance(found, RunIntended)
    assert bytes(found.message) == odd
    assert odd in records.encode(found)


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert records.decode(b'{"type":"topic_ended","topic_id":7,"reason":"idle"}') == TopicEnded(topic_id=TopicId(7))
    changed = records.decode(
        b'{"type":"schedule_changed","schedule_id":"5f0c","timetable":{"type":"cron","expression":"@daily","jitter":1},'
        b'"missed":"all","paused":true,"after_ms":5}'
    )
    assert changed == ScheduleChanged(
        schedule_id=SCHEDULE, timetable=Cron("@daily"), missed=Missed.ALL, paused=True, after_ms=5
    )


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"schedule_renamed","schedule_id":"5f0c"}',
        b'{"type":"schedule_removed"}',
        b'{"schedule_id":"5f0c"}',
        b'{"type":"schedule_changed","schedule_id":"5f0c","timetable":{"type":"cron","expression":"@daily"},'
        b'"missed":"sometimes","paused":true,"after_ms":5}',
        b'{"type":"schedule_changed","schedule_id":"5f0c","timetable":{"type":"moon"},'
        b'"missed":"all","paused":true,"after_ms":5}',
    ],
)
def test_what_is_no_record_is_refused(strange: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(strange)
