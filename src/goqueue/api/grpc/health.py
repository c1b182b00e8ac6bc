"""The health service every gRPC client knows: serving while the broker is ready, not from the moment it stops.

It asks the broker each time, so there is nothing to keep up to date. Watches end when the door is drained.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

import grpc

from goqueue.api.grpc.caller import Context
from goqueue.api.grpc.failures import Handler
from goqueue.api.grpc.held import Held
from goqueue.broker.broker import Broker

_pb: Final[Any] = import_module("grpc_health.v1.health_pb2")
_Reply: Final = _pb.HealthCheckResponse

NAME: Final[str] = _pb.DESCRIPTOR.services_by_name["Health"].full_name
_ALL: Final = ""
"""The server as a whole."""


class Health:
    """Of the server and its services."""

    def __init__(self, broker: Broker, services: Iterable[str], held: Held) -> None:
        self._broker = broker
        self._known = frozenset((_ALL, NAME, *services))
        self._held = held

    def handlers(self) -> dict[str, Handler]:
        read = _pb.HealthCheckRequest.FromString
        return {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, request_deserializer=read),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, request_deserializer=read),
        }

    async def _check(self, request: Any, context: Context) -> Any:
        async with self._held.caller(context) as caller:
            if request.service not in self._known:
                await caller.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here", ())
            return self._now()

    async def _watch(self, request: Any, context: Context) -> None:
        async with self._held.caller(context) as caller:
            if request.service not in self._known:
                await caller.write(_Reply(status=_Reply.SERVICE_UNKNOWN).SerializeToString())
            else:
                await caller.write(self._now())
            await self._held.drained.wait()
            if request.service in self._known:
                await caller.write(self._now())

    def _now(self) -> bytes:
        ready = self._broker.failure is None and not self._broker.draining
        found: bytes = _Reply(status=_Reply.SERVING if ready else _Reply.NOT_SERVING).SerializeToString()
        return found
