"""Errors over the wire: the same class, message and details on the other side."""

from typing import Any

import msgspec
import pytest

from goqueue.model import errors
from goqueue.model.errors import (
    GoQueueError,
    InvalidRecord,
    MethodNotAllowed,
    NotBuilt,
    NotOwner,
    OffsetOutOfRange,
    OutOfSequence,
    ProtocolError,
    Quarantined,
    Unavailable,
    UnknownTopic,
)
from goqueue.wire import failures
from goqueue.wire.failures import pack_error, repeat, unpack_error

SPECIAL: dict[type[GoQueueError], GoQueueError] = {
    InvalidRecord: InvalidRecord("its checksum does not match", index=3, position=99),
    MethodNotAllowed: MethodNotAllowed("use another method", allowed="GET"),
    NotBuilt: NotBuilt("a delay"),
    NotOwner: NotOwner("it moved", refused=["orders-0"]),
    OffsetOutOfRange: OffsetOutOfRange(9, start=2, end=7),
    OutOfSequence: OutOfSequence("a message was left out", expected=41),
    Quarantined: Quarantined(3, 5, where="a.log", reason="its checksum does not match"),
}
SAMPLES = [
    SPECIAL[found] if found in SPECIAL else found(f"what is wrong with {found.__name__}")
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, GoQueueError)
]


def body(**changes: Any) -> bytes:
    return msgspec.json.encode({"error": "it is so", "code": "busy", "retriable": True, "details": {}} | changes)


def test_an_error_has_these_bytes() -> None:
    assert pack_error(OutOfSequence("one is missing", expected=7)) == (
        b'{"error":"one is missing","code":"out_of_sequence","retriable":false,"details":{"expected":7}}'
    )


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_comes_back_as_what_it_was(error: GoQueueError) -> None:
    again = unpack_error(memoryview(pack_error(error)))
    assert type(again) is type(error)
    assert (str(again), again.details, again.retriable) == (str(error), error.details, error.retriable)
    assert set(vars(again)) == set(vars(error))


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_can_be_given_to_one_more_waiter(error: GoQueueError) -> None:
    again = repeat(error)
    assert again is not error
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_the_attributes_of_an_error_are_there_again() -> None:
    again = unpack_error(pack_error(SPECIAL[OffsetOutOfRange]))
    assert isinstance(again, OffsetOutOfRange)
    assert (again.offset, again.start, again.end) == (9, 2, 7)


def test_an_unknown_code_keeps_its_message_and_whether_to_retry() -> None:
    later = unpack_error(body(code="brand_new"))
    assert type(later) is Unavailable
    assert str(later) == "it is so (brand_new)"
    never = unpack_error(body(code="brand_new", retriable=False))
    assert type(never) is GoQueueError
    assert not never.retriable


@pytest.mark.parametrize("details", [{}, {"expected": "7"}, {"expected": True}, {"expected": None}])
def test_details_that_do_not_fit_their_code_do_not_hide_the_message(details: dict[str, Any]) -> None:
    error = unpack_error(body(code="out_of_sequence", retriable=False, details=details))
    assert type(error) is GoQueueError
    assert str(error) == "it is so (out_of_sequence)"


def test_fields_of_a_later_broker_are_passed_over() -> None:
    error = unpack_error(body(code="unknown_topic", hint="look again", details={"more": [1]}))
    assert type(error) is UnknownTopic
    assert str(error) == "it is so"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no json",
        b"[]",
        b'{"error":"no code"}',
        b'{"error":1,"code":"busy"}',
        b'{"error":"\xff","code":"busy"}',
        b'{"error":"deep","code":"busy","details":{"a":' + b"[" * 100_000,
    ],
    ids=range(7),
)
def test_an_error_that_cannot_be_read_is_one_of_the_protocol(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        unpack_error(payload)


def test_text_that_is_not_unicode_does_not_stop_an_error() -> None:
    again = unpack_error(pack_error(NotBuilt("header \udcff")))
    assert isinstance(again, NotBuilt)
    assert again.field == "header \\udcff"


def test_every_error_with_details_can_be_rebuilt() -> None:
    with_details = {kind for kind in failures.CLASSES.values() if kind.details is not GoQueueError.details}
    assert with_details == set(failures.ATTRIBUTES)
