"""One table: every error there is has an HTTP status."""

import pytest

from goqueue.api.errors import INTERNAL, RETRY_AFTER_S, STATUS, status_of
from goqueue.api.operations import OPERATIONS
from goqueue.model import errors
from goqueue.model.errors import (
    GoQueueError,
    InvalidRecord,
    MethodNotAllowed,
    NotBuilt,
    NotOwner,
    OffsetOutOfRange,
    OutOfSequence,
    Quarantined,
    Unavailable,
)

CLASSES = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, GoQueueError)]
_WITH_FIELDS: dict[type[GoQueueError], GoQueueError] = {
    InvalidRecord: InvalidRecord("x", index=0, position=0),
    MethodNotAllowed: MethodNotAllowed("x", allowed="GET"),
    NotBuilt: NotBuilt("delay"),
    NotOwner: NotOwner("x", refused=["orders-0"]),
    OffsetOutOfRange: OffsetOutOfRange(1, start=0, end=0),
    OutOfSequence: OutOfSequence("x", expected=0),
    Quarantined: Quarantined(0, 1, where="x", reason="x"),
}


def made(kind: type[GoQueueError]) -> GoQueueError:
    return _WITH_FIELDS[kind] if kind in _WITH_FIELDS else kind("x")


# As programs see them over HTTP: a line may be added, never changed.
STATUSES = {
    "GoQueueError": 500,
    "InvalidRequest": 400,
    "InvalidRecord": 400,
    "InvalidSetting": 400,
    "MethodNotAllowed": 405,
    "NotBuilt": 400,
    "OffsetOutOfRange": 400,
    "ProtocolError": 400,
    "StaleEpoch": 400,
    "TooLarge": 413,
    "UnknownTransferCoding": 501,
    "Forbidden": 403,
    "NotFound": 404,
    "UnknownDelay": 404,
    "UnknownGroup": 404,
    "UnknownMember": 404,
    "UnknownOperation": 404,
    "UnknownPartition": 404,
    "UnknownProducer": 404,
    "UnknownReader": 404,
    "UnknownRedrive": 404,
    "UnknownSchedule": 404,
    "UnknownTopic": 404,
    "UnknownTransaction": 404,
    "Conflict": 409,
    "AlreadyDelivered": 409,
    "GroupActive": 409,
    "MemberFenced": 409,
    "NotOwner": 409,
    "OutOfSequence": 409,
    "ProducerFenced": 409,
    "StaleHandle": 409,
    "StaleToken": 409,
    "TopicExists": 409,
    "TransactionAborted": 409,
    "Unavailable": 503,
    "BufferFull": 429,
    "Busy": 429,
    "DiskFull": 503,
    "DirectoryLocked": 503,
    "Draining": 503,
    "LogClosed": 503,
    "RequestTimeout": 408,
    "DamagedData": 503,
    "Quarantined": 409,
    "DamagedState": 503,
    "StorageFailed": 503,
}


def test_every_error_has_its_status() -> None:
    assert {kind.__name__: status_of(made(kind)) for kind in CLASSES} == STATUSES


def test_only_the_root_is_a_bug_of_ours() -> None:
    assert [kind for kind in CLASSES if status_of(made(kind)) == INTERNAL] == [GoQueueError]


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, Unavailable)])
def test_what_may_be_tried_again_says_when_or_was_too_slow(kind: type[GoQueueError]) -> None:
    assert status_of(made(kind)) in {*RETRY_AFTER_S, 408}


def test_an_operation_names_only_statuses_that_errors_have() -> None:
    for operation in OPERATIONS:
        assert set(operation.refusals) <= set(STATUS.values()), operation.name
