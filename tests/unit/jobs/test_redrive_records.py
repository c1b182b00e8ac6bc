"""The bytes that the jobs log has of redrives."""

import msgspec
import pytest

from goqueue.jobs import redrive_records as records
from goqueue.jobs.letters import LetterFilter
from goqueue.jobs.redrive import Batch, Plan, Redrive, RedriveId
from goqueue.jobs.redrive_records import BatchIntended, Event, RedriveEnded, RedriveRestored, RedriveStarted
from goqueue.model.jobs import RedriveState
from goqueue.model.names import TopicId

REDRIVE = RedriveId("00d1")
PLAN = Plan(
    redrive_id=REDRIVE,
    topic="orders",
    dlq_id=TopicId(7),
    target="orders",
    target_id=TopicId(0xFEDCBA9876543210),
    target_partitions=3,
    ends={0: 41, 2: 7},
    matched=5,
    started_ms=1_700_000_000_000,
)
FILTERED = msgspec.structs.replace(
    PLAN,
    filter=LetterFilter(
        reason="rejected",
        group="billing",
        key="a",
        from_ms=1_700_000_000_000,
        to_ms=1_700_000_060_000,
        headers={"tenant": "x"},
        offsets={0: (3, 9)},
    ),
    rate=2.5,
)

INCOMPLETE = msgspec.structs.replace(PLAN, incomplete={0: "offset 5 is damaged"})

# What is in a log one day must be readable for good: a line may be added here, never changed.
GOLDEN: dict[bytes, Event] = {
    b'{"type":"redrive_started","plan":{"redrive_id":"00d1","topic":"orders","dlq_id":7,"target":"orders",'
    b'"target_id":18364758544493064720,"target_partitions":3,"ends":{"0":41,"2":7},"matched":5,'
    b'"started_ms":1700000000000}}': RedriveStarted(plan=PLAN),
    b'{"type":"redrive_started","plan":{"redrive_id":"00d1","topic":"orders","dlq_id":7,"target":"orders",'
    b'"target_id":18364758544493064720,"target_partitions":3,"ends":{"0":41,"2":7},"matched":5,'
    b'"started_ms":1700000000000,"filter":{"reason":"rejected","group":"billing","key":"a","from_ms":1700000000000,'
    b'"to_ms":1700000060000,"headers":{"tenant":"x"},"offsets":{"0":[3,9]}},"rate":2.5}}': RedriveStarted(
        plan=FILTERED
    ),
    b'{"type":"batch_intended","redrive_id":"00d1","batch":{"partition":0,"letters":[[3,0],[9,2]]},'
    b'"next_offset":10}': BatchIntended(redrive_id=REDRIVE, batch=Batch(0, ((3, 0), (9, 2))), next_offset=10),
    b'{"type":"batch_intended","redrive_id":"00d1","batch":{"partition":2,"letters":[[6,2]]},"next_offset":7,'
    b'"skipped":1}': BatchIntended(redrive_id=REDRIVE, batch=Batch(2, ((6, 2),)), next_offset=7, skipped=1),
    b'{"type":"redrive_ended","redrive_id":"00d1","state":"done","finished_ms":1700000300000,"redriven":1,'
    b'"skipped":1}': RedriveEnded(
        redrive_id=REDRIVE, state=RedriveState.DONE, finished_ms=1_700_000_300_000, redriven=1, skipped=1
    ),
    b'{"type":"redrive_ended","redrive_id":"00d1","state":"failed","finished_ms":1700000300000,'
    b'"error":"the topic orders was deleted"}': RedriveEnded(
        redrive_id=REDRIVE,
        state=RedriveState.FAILED,
        finished_ms=1_700_000_300_000,
        error="the topic orders was deleted",
    ),
    b'{"type":"redrive_restored","redrive":{"plan":{"redrive_id":"00d1","topic":"orders","dlq_id":7,"target":"orders",'
    b'"target_id":18364758544493064720,"target_partitions":3,"ends":{"0":41,"2":7},"matched":5,'
    b'"started_ms":1700000000000},"partition":2,"offset":7,"batch":{"partition":2,"letters":[[6,2]]},'
    b'"sequences":{"0":1,"2":1},"redriven":2,"skipped":1}}': RedriveRestored(
        redrive=Redrive(
            plan=PLAN,
            partition=2,
            offset=7,
            batch=Batch(2, ((6, 2),)),
            sequences={0: 1, 2: 1},
            redriven=2,
            skipped=1,
        )
    ),
    b'{"type":"redrive_restored","redrive":{"plan":{"redrive_id":"00d1","topic":"orders","dlq_id":7,"target":"orders",'
    b'"target_id":18364758544493064720,"target_partitions":3,"ends":{"0":41,"2":7},"matched":5,'
    b'"started_ms":1700000000000},"state":"cancelled","finished_ms":1700000300000}}': RedriveRestored(
        redrive=Redrive(plan=PLAN, state=RedriveState.CANCELLED, finished_ms=1_700_000_300_000)
    ),
    b'{"type":"redrive_started","plan":{"redrive_id":"00d1","topic":"orders","dlq_id":7,"target":"orders",'
    b'"target_id":18364758544493064720,"target_partitions":3,"ends":{"0":41,"2":7},"matched":5,'
    b'"started_ms":1700000000000,"incomplete":{"0":"offset 5 is damaged"}}}': RedriveStarted(plan=INCOMPLETE),
}


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=lambda part: type(part).__name__)
def test_the_bytes_are_the_golden_ones(encoded: bytes, event: Event) -> None:
    assert records.encode(event) == encoded
    assert records.decode(encoded) == event


def test_every_kind_of_record_has_golden_bytes() -> None:
    assert {type(event) for event in GOLDEN.values()} == set(Event.__args__)


def test_fields_of_a_later_version_are_passed_over() -> None:
    found = records.decode(
        b'{"type":"batch_intended","redrive_id":"00d1","batch":{"partition":0,"letters":[[3,0]],"size":9},'
        b'"next_offset":10,"hurry":true}'
    )
    assert found == BatchIntended(redrive_id=REDRIVE, batch=Batch(0, ((3, 0),)), next_offset=10)


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"[]",
        b'{"type":"redrive_renamed","redrive_id":"00d1"}',
        b'{"type":"redrive_ended","redrive_id":"00d1","finished_ms":5}',
        b'{"type":"redrive_ended","redrive_id":"00d1","finished_ms":5,"state":"asleep"}',
        b'{"type":"batch_intended","redrive_id":"00d1","batch":{"partition":0,"letters":[[3]]},"next_offset":10}',
    ],
)
def test_what_is_no_record_is_refused(strange: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(strange)
