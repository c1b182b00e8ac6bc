"""Errors at the door: a status code, the same words as over HTTP, and details that programs can read.

The details are those of google.rpc, in the trailing metadata where every client library looks for them: an ErrorInfo
whose reason is the error's code, and a RetryInfo if trying again may help.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import msgspec
from google.protobuf.duration_pb2 import Duration

from goqueue.api.errors import RETRY_AFTER_S, statuses_of
from goqueue.api.grpc.caller import Caller
from goqueue.api.grpc.translating import pb
from goqueue.model import limits
from goqueue.model.errors import GoQueueError

DOMAIN: Final = "goqueue"
DETAILS_KEY: Final = "grpc-status-details-bin"

_BUG: Final = "this is a bug in GoQueue; see its log"

_status: Final[Any] = import_module("google.rpc.status_pb2")
_details_of: Final[Any] = import_module("google.rpc.error_details_pb2")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
"""What answers a call."""


def code_of(error: GoQueueError) -> grpc.StatusCode:
    return grpc.StatusCode[statuses_of(error).grpc]


async def refuse(caller: Caller, error: GoQueueError) -> NoReturn:
    """End the call with it, behind a reply that is not read yet. Raises what grpc expects to see."""
    code, text = code_of(error), _shortened(str(error))
    status = _status.Status(code=code.value[0], message=text)
    status.details.add().Pack(
        _details_of.ErrorInfo(
            reason=error.code, domain=DOMAIN, metadata={**_details(error), "retriable": str(error.retriable).lower()}
        )
    )
    if error.retriable:
        status.details.add().Pack(_details_of.RetryInfo(retry_delay=Duration(seconds=_retry_after_s(error))))
    trailing = ((DETAILS_KEY, status.SerializeToString()),)
    await caller.abort(code, text, trailing)


async def refuse_bug(caller: Caller) -> NoReturn:
    """Something nobody thought of: whoever asked is told so."""
    await refuse(caller, GoQueueError(_BUG))


def refusal(error: GoQueueError, *, index: int | None = None) -> Any:
    """The same inside a stream that goes on."""
    details = dict(_details(error))
    at = error.index
    if index is not None:
        at, details["index"] = index, str(index)
    found = pb.Refusal(code=error.code, error=_shortened(str(error)), retriable=error.retriable, details=details)
    if at is not None:
        found.index = at
    return found


def _details(error: GoQueueError) -> Mapping[str, str]:
    """As text: what is no text is JSON."""
    return {
        name: _shortened(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in error.details.items()
    }


def _retry_after_s(error: GoQueueError) -> int:
    return RETRY_AFTER_S.get(statuses_of(error).http, 1)


def _shortened(text: str) -> str:
    """Not longer than it may be, and nothing that is no text."""
    data = text[: limits.GRPC_ERROR_BYTES].encode("utf-8", "backslashreplace")
    return data[: limits.GRPC_ERROR_BYTES].decode(errors="ignore")
