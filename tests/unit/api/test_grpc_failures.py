"""Errors over gRPC: every one has a code, and details where client libraries look for them."""

import asyncio
from base64 import b64encode
from importlib import import_module
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from goqueue.api.errors import STATUS, TABLE, statuses_of
from goqueue.api.grpc.caller import Caller
from goqueue.api.grpc.failures import DETAILS_KEY, code_of, refusal, refuse
from goqueue.broker.admission import Admission
from goqueue.model.errors import Busy, GoQueueError, NotOwner, OutOfSequence, Quarantined, TopicExists, Unavailable
from tests.unit.api.test_errors import CLASSES, made

_status: Any = import_module("google.rpc.status_pb2")
_details: Any = import_module("google.rpc.error_details_pb2")

# As programs see them: a line may be added, never changed. What is not here has the code of what it is a kind of.
CODES = {
    "GoQueueError": "INTERNAL",
    "InvalidRequest": "INVALID_ARGUMENT",
    "MethodNotAllowed": "UNIMPLEMENTED",
    "OffsetOutOfRange": "OUT_OF_RANGE",
    "TooLarge": "INVALID_ARGUMENT",
    "UnknownTransferCoding": "UNIMPLEMENTED",
    "Forbidden": "PERMISSION_DENIED",
    "NotFound": "NOT_FOUND",
    "UnknownOperation": "UNIMPLEMENTED",
    "UnknownTopic": "NOT_FOUND",
    "Conflict": "FAILED_PRECONDITION",
    "StaleHandle": "FAILED_PRECONDITION",
    "TopicExists": "ALREADY_EXISTS",
    "Unavailable": "UNAVAILABLE",
    "Busy": "RESOURCE_EXHAUSTED",
    "Draining": "UNAVAILABLE",
    "RequestTimeout": "DEADLINE_EXCEEDED",
    "DamagedData": "DATA_LOSS",
    "Quarantined": "DATA_LOSS",
    "StorageFailed": "UNAVAILABLE",
}


class Aborted(Exception):
    pass


class Context:
    """Remembers how a call ended."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        self.code, self.details, self.trailing = code, details, dict(trailing)
        raise Aborted


def ended(error: GoQueueError) -> tuple[Context, Any, list[Any]]:
    """The call, its status in the trailing metadata, and the details in that."""
    context = Context()
    with pytest.raises(Aborted):
        asyncio.run(refuse(Caller(context, Admission(0)), error))  # type: ignore[arg-type]
    status = _status.Status.FromString(context.trailing[DETAILS_KEY])
    found = []
    for detail in status.details:
        kind = getattr(_details, detail.TypeName().rpartition(".")[2])
        found.append(kind.FromString(detail.value))
    return context, status, found


def test_errors_have_their_codes() -> None:
    found = {kind.__name__: code_of(made(kind)).name for kind in CLASSES}
    assert {name: found[name] for name in CODES} == CODES


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_code_of_grpc(kind: type[GoQueueError]) -> None:
    assert (code_of(made(kind)) is grpc.StatusCode.INTERNAL) == (kind is GoQueueError)


def test_the_table_answers_for_http_and_grpc_alike() -> None:
    assert {kind: statuses.http for kind, statuses in TABLE.items()} == STATUS
    assert statuses_of(TopicExists("x")) == (409, "ALREADY_EXISTS")


def test_an_error_says_what_it_is_to_a_person_and_to_a_program() -> None:
    context, status, (info,) = ended(OutOfSequence("send 7 next", expected=7))
    assert (context.code, context.details) == (grpc.StatusCode.FAILED_PRECONDITION, "send 7 next")
    assert (status.code, status.message) == (9, "send 7 next")
    assert (info.reason, info.domain) == ("out_of_sequence", "goqueue")
    assert dict(info.metadata) == {"expected": "7", "retriable": "false"}


@pytest.mark.parametrize("error", [Busy("x"), Unavailable("x")])
def test_what_may_be_tried_again_says_when(error: GoQueueError) -> None:
    _, _, (info, retry) = ended(error)
    assert info.metadata["retriable"] == "true"
    assert retry.retry_delay.seconds >= 1


@pytest.mark.parametrize("letter", ["x", "é", "𝄞", "\ud800"])
def test_an_error_always_fits_into_the_metadata(letter: str) -> None:
    context, _, _ = ended(NotOwner(letter * 100_000, refused=["é" * 1000 for _ in range(100)]))
    data: bytes = context.trailing[DETAILS_KEY]
    assert len(b64encode(data)) + len(quote(context.details)) < 8 * 1024 - 512  # and the rest of the metadata


def test_a_refusal_inside_a_stream_says_the_same() -> None:
    found = refusal(Quarantined(3, 5, where="x", reason="y"), index=2)
    assert (found.code, found.retriable, found.index) == ("quarantined", False, 2)
    assert found.details["next_offset"] == "5"
    assert not refusal(Busy("x")).HasField("index")
