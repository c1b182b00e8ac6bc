"""A service over a broker, and operations called by name as every door calls them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from goqueue.api.operations import BY_NAME
from goqueue.api.service import Service
from goqueue.io.disk import Disk
from goqueue.telemetry.meters import RequestMeterSet
from tests.unit.broker.brokers import Clock, opened

CLIENT_DEFAULTS: dict[str, dict[str, Any]] = {
    "producer": {"linger_ms": 0},
    "consumer": {"max_poll_records": 500, "session_timeout_ms": 30_000},
}


class Served:
    """`clock` is the broker's."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self.service = service
        self.broker = service.broker
        self.clock = clock

    async def call(self, operation: str, **fields: Any) -> Any:
        """Its reply, as it arrives on the other side of a door."""
        return msgspec.json.decode(msgspec.json.encode(await BY_NAME[operation].call(self.service, fields)))


@asynccontextmanager
async def served(path: Path, *, disk: Disk | None = None, **more: Any) -> AsyncIterator[Served]:
    """`more` is what a broker is told, or `monotonic`, its other clock."""
    clock = Clock()
    async with opened(path, disk=disk, clock=clock, **more) as broker:
        meters = RequestMeterSet(doors=("test",), operations=())
        yield Served(Service(broker, requests=meters, client_defaults=CLIENT_DEFAULTS), clock)
