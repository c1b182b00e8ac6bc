"""The health service every gRPC client knows: serving while the broker is ready, not from the moment it stops.

It asks the broker each time, so there is nothing to keep up to date. Watches end when the door is drained.
"""

import asyncio
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

import grpc

from goqueue.api.grpc.failures import Context, Handler
from goqueue.broker.broker import Broker

_pb: Final[Any] = import_module("grpc_health.v1.health_pb2")
_Reply: Final = _pb.HealthCheckResponse

NAME: Final[str] = _pb.DESCRIPTOR.services_by_name["Health"].full_name
_ALL: Final = ""
"""The server as a whole."""


class Health:
    """Of the server and its services."""

    def __init__(self, broker: Broker, services: Iterable[str], drained: asyncio.Event) -> None:
        self._broker = broker
        self._known = frozenset((_ALL, NAME, *services))
        self._drained = drained

    def handlers(self) -> dict[str, Handler]:
        forms = {"request_deserializer": _pb.HealthCheckRequest.FromString, "response_serializer": _serialise}
        return {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, **forms),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, **forms),
        }

    async def _check(self, request: Any, context: Context) -> Any:
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return self._now()

    async def _watch(self, request: Any, context: Context) -> None:
        if request.service not in self._known:
            await context.write(_Reply(status=_Reply.SERVICE_UNKNOWN))
        else:
            await context.write(self._now())
        await self._drained.wait()
        if request.service in self._known:
            await context.write(self._now())

    def _now(self) -> Any:
        ready = self._broker.failure is None and not self._broker.draining
        return _Reply(status=_Reply.SERVING if ready else _Reply.NOT_SERVING)


def _serialise(reply: Any) -> bytes:
    found: bytes = reply.SerializeToString()
    return found
