"""One table: which error has which status over HTTP and gRPC. Everything else about an error is in `model.errors`."""

from typing import Final, NamedTuple

from goqueue.model.errors import (
    Busy,
    Conflict,
    DamagedData,
    Forbidden,
    GoQueueError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OffsetOutOfRange,
    Quarantined,
    RequestTimeout,
    StorageFailed,
    TooLarge,
    TopicExists,
    Unavailable,
    UnknownOperation,
    UnknownTransferCoding,
)


class Statuses(NamedTuple):
    http: int
    grpc: str
    """The name of the code."""


INTERNAL: Final = 500
_BUG: Final = Statuses(INTERNAL, "INTERNAL")

TABLE: Final[dict[type[GoQueueError], Statuses]] = {
    InvalidRequest: Statuses(400, "INVALID_ARGUMENT"),
    MethodNotAllowed: Statuses(405, "UNIMPLEMENTED"),
    OffsetOutOfRange: Statuses(400, "OUT_OF_RANGE"),
    Forbidden: Statuses(403, "PERMISSION_DENIED"),
    NotFound: Statuses(404, "NOT_FOUND"),
    UnknownOperation: Statuses(404, "UNIMPLEMENTED"),
    RequestTimeout: Statuses(408, "DEADLINE_EXCEEDED"),
    Conflict: Statuses(409, "FAILED_PRECONDITION"),
    TopicExists: Statuses(409, "ALREADY_EXISTS"),
    Quarantined: Statuses(409, "DATA_LOSS"),
    TooLarge: Statuses(413, "INVALID_ARGUMENT"),
    UnknownTransferCoding: Statuses(501, "UNIMPLEMENTED"),
    Busy: Statuses(429, "RESOURCE_EXHAUSTED"),
    Unavailable: Statuses(503, "UNAVAILABLE"),
    DamagedData: Statuses(503, "DATA_LOSS"),
    StorageFailed: Statuses(503, "UNAVAILABLE"),
}
"""An error that is not here has the statuses of what it is a kind of."""
STATUS: Final = {kind: statuses.http for kind, statuses in TABLE.items()}
RETRY_AFTER_S: Final = {429: 1, 503: 1}


def statuses_of(error: GoQueueError) -> Statuses:
    return next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _BUG)


def status_of(error: GoQueueError) -> int:
    """Over HTTP."""
    return statuses_of(error).http
