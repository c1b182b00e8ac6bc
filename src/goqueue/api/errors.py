"""One table: which error becomes which HTTP status. Everything else about an error is in `model.errors`."""

from typing import Final

from goqueue.model.errors import (
    Busy,
    Conflict,
    DamagedData,
    GoQueueError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Quarantined,
    RequestTimeout,
    StorageFailed,
    TooLarge,
    Unavailable,
)

STATUS: Final[dict[type[GoQueueError], int]] = {
    InvalidRequest: 400,
    MethodNotAllowed: 405,
    NotFound: 404,
    RequestTimeout: 408,
    Conflict: 409,
    Quarantined: 409,
    TooLarge: 413,
    Busy: 429,
    Unavailable: 503,
    DamagedData: 503,
    StorageFailed: 503,
}
INTERNAL: Final = 500
RETRY_AFTER_S: Final = {429: 1, 503: 1}


def status_of(error: GoQueueError) -> int:
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), INTERNAL)
