"""A request as it arrived, an answer as it goes out."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from goqueue.api.errors import INTERNAL, RETRY_AFTER_S, status_of
from goqueue.api.http.parsing import Head
from goqueue.broker.admission import NOTHING, Ticket
from goqueue.model.errors import GoQueueError, MethodNotAllowed
from goqueue.wire.failures import pack_error

JSON: Final = b"application/json"
NO_HEAD: Final = Head(
    method="", path=b"", query=b"", authority=b"", fields={}, keep_alive=True, length=None, expects=False
)
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {
    int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus if status >= 200
}


class Request:
    """One request, whole. With a `refusal` it is answered by that, and the connection ends."""

    __slots__ = ("body", "head", "refusal", "room")

    def __init__(self) -> None:
        self.head = NO_HEAD
        self.body: bytes | bytearray = b""
        self.refusal: GoQueueError | None = None
        self.room = NOTHING
        """What was taken of the broker's budget for the body, and for what is made of it."""

    def hold(self, room: Ticket) -> None:
        """More room, given back with the rest."""
        self.room = self.room.plus(room)


class Answer:
    """One answer. Its `room` in the budget for replies is given back once the client has taken it."""

    __slots__ = ("body", "extra", "media", "outcome", "room", "status", "undo")

    def __init__(
        self, status: int, body: bytes, *, media: bytes = JSON, outcome: str = "ok", extra: bytes = b""
    ) -> None:
        self.status = status
        self.body = body
        self.media = media
        self.outcome = outcome
        """For the meters: ok, or the code of the error."""
        self.extra = extra
        """Further header lines, each with its end."""
        self.room = NOTHING
        self.undo: Callable[[], None] | None = None
        """Called if it cannot be written."""

    def head(self, *, keep_alive: bool) -> bytes:
        return b"".join(
            (
                _STATUS_LINES[self.status],
                b"content-type: ",
                self.media,
                b"\r\ncontent-length: ",
                str(len(self.body)).encode(),
                b"\r\n",
                self.extra,
                b"\r\n" if keep_alive else b"connection: close\r\n\r\n",
            )
        )


Park = Callable[[Request, Awaitable[Any]], Awaitable[Any]]
"""Waits for something on behalf of a request; cancelled when its client leaves."""


def refused(error: GoQueueError) -> Answer:
    status = status_of(error)
    extra = b""
    if status in RETRY_AFTER_S:
        extra = b"retry-after: %d\r\n" % RETRY_AFTER_S[status]
    elif isinstance(error, MethodNotAllowed):
        extra = b"allow: %s\r\n" % error.allowed.encode()
    return Answer(status, pack_error(error), outcome=error.code, extra=extra)


def broken() -> Answer:
    return Answer(INTERNAL, pack_error(GoQueueError("this is a bug in GoQueue; see its log")), outcome="internal")
