"""The door itself: a gRPC server on the broker's loop, with its health and a description of itself.

Opened, drained and closed like the other doors. Health follows the broker: serving while it is ready, and not from the
moment it stops. gRPC's own lines in the log are for whoever runs the process to allow, or not; but those that call it
an error that a client has left are left out.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final

import grpc

from goqueue.api.grpc import health, reflection
from goqueue.api.grpc.calls import Calls
from goqueue.api.grpc.failures import Handler
from goqueue.api.grpc.held import Held
from goqueue.api.grpc.library_log import leave_out_unsent
from goqueue.api.grpc.proto import PACKAGE, SERVICE
from goqueue.api.grpc.publishing import PublishStreams
from goqueue.api.grpc.streams import PUBLISH, SUBSCRIBE
from goqueue.api.grpc.subscribing import SubscribeStreams
from goqueue.api.service import Service
from goqueue.model import limits

NAME: Final = f"{PACKAGE}.{SERVICE}"
"""Of the service, in full."""


class GrpcDoor:
    """Used from one event loop."""

    def __init__(self, service: Service) -> None:
        self._held = Held(service.broker.replies)
        self._calls = Calls(service, self._held)
        self._publishing = PublishStreams(service, self._held)
        self._subscribing = SubscribeStreams(service, self._held)
        self._health = health.Health(service.broker, (NAME,), self._held)
        self._server: grpc.aio.Server | None = None
        self._log_all: Callable[[], None] | None = None
        """Once it is open: lets the library log as it would."""

    async def open(self, host: str, port: int) -> str:
        """Where it listens. OSError when it cannot."""
        server = grpc.aio.server(options=_options(), maximum_concurrent_rpcs=limits.GRPC_CALLS)
        handlers = self._calls.handlers()
        handlers[PUBLISH] = _both_ways(self._publishing.serve)
        handlers[SUBSCRIBE] = _both_ways(self._subscribing.serve)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(NAME, handlers),
                grpc.method_handlers_generic_handler(health.NAME, self._health.handlers()),
                *reflection.handlers((NAME, health.NAME)),
            )
        )
        shown = f"[{host}]" if ":" in host else host
        try:
            bound = server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError:
            raise OSError("it is taken, or not of this machine") from None
        await server.start()
        self._server = server
        self._log_all = leave_out_unsent((NAME, health.NAME, *reflection.NAMES))
        return f"{shown}:{bound}"

    def drain(self) -> None:
        """End the streams; calls are refused by the broker."""
        self._held.drain()

    async def close(self, grace_s: float) -> None:
        """After `drain`: wait for what is under way, then hang up."""
        deadline = perf_counter() + grace_s
        while self._held.busy and perf_counter() < deadline:
            await asyncio.sleep(limits.DRAIN_POLL_S)
        if self._server is not None:
            await self._server.stop(limits.GRPC_LAST_WORDS_S)  # for answers that are on their way
        if self._log_all is not None:
            self._log_all()


def _options() -> tuple[tuple[str, int], ...]:
    """What the library is told. It has a quota for memory too, but none that Python could set."""
    return (
        ("grpc.max_receive_message_length", limits.MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", limits.MAX_CONNECTION_BYTES),
        ("grpc.max_allowed_incoming_connections", limits.GRPC_CONNECTIONS),
        ("grpc.max_concurrent_streams", limits.GRPC_STREAMS_PER_CONNECTION),
        ("grpc.max_metadata_size", limits.MAX_HTTP_HEADER_BYTES),
        ("grpc.keepalive_time_ms", limits.GRPC_KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", limits.GRPC_KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.GRPC_LEAST_PING_MS),
        ("grpc.http2.max_frame_size", limits.GRPC_HTTP2_FRAME_BYTES),
        ("grpc.http2.lookahead_bytes", limits.GRPC_WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),  # which would make the windows larger
        ("grpc.so_reuseport", 0),  # an address that is taken is refused
    )


def _both_ways(serve: Callable[[Any, Any], Awaitable[None]]) -> Handler:
    return grpc.stream_stream_rpc_method_handler(serve)
