"""A broker and its doors, put together from a configuration; `run` is the whole life of the process.

Order matters: the broker recovers before a door opens, `endpoints.json` says so last; on the way out doors refuse
first, what waits is woken, what is under way ends, and the logs are flushed when nobody writes any more.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvloop

from goqueue import __version__, codec
from goqueue.api.http.access import Access, own_names
from goqueue.api.http.connection import HttpConnection
from goqueue.api.http.door import HttpDoor
from goqueue.api.listening import Listener
from goqueue.api.operations import BY_NAME, OPERATIONS
from goqueue.api.service import Readings, Service
from goqueue.api.wire.connection import WireConnection, wire_meters
from goqueue.broker.broker import Broker, BrokerSettings
from goqueue.config.addresses import Address
from goqueue.config.settings import Settings
from goqueue.io.disk import Disk, LocalDisk
from goqueue.io.small_file import replace_file
from goqueue.model import limits
from goqueue.model.errors import StorageFailed, Unavailable
from goqueue.model.settings import LogSettings
from goqueue.model.topic import TopicSettings
from goqueue.server.memory import keep_freed_memory
from goqueue.telemetry import logs
from goqueue.telemetry.exposition import Exposition
from goqueue.telemetry.meters import RequestMeterSet
from goqueue.wire.codes import CODES

if TYPE_CHECKING:
    from goqueue.api.grpc.door import GrpcDoor

log = logs.get("server")

ENDPOINTS_FILE: Final = "endpoints.json"
_METRICS_OPERATIONS: Final = tuple(BY_NAME[name] for name in ("health", "live", "version"))
"""What the metrics port answers beside /metrics."""


class Server:
    """Make one with `Server.start`."""

    def __init__(self, settings: Settings, broker: Broker) -> None:
        self._settings = settings
        self.broker = broker
        self.service = Service(
            broker,
            requests=RequestMeterSet(doors=("http", "grpc", "wire", "metrics"), operations=(*CODES, "other")),
            client_defaults={
                "producer": msgspec.to_builtins(settings.producer),
                "consumer": msgspec.to_builtins(settings.consumer),
            },
        )
        self._doors: list[Listener] = []
        self._grpc: GrpcDoor | None = None

    @classmethod
    async def start(cls, settings: Settings, *, disk: Disk | None = None) -> "Server":
        """A server whose doors are open."""
        broker = await Broker.open(
            broker_settings(settings), disk=disk, on_locked=lambda: _forget_endpoints(settings.data_dir)
        )
        server = cls(settings, broker)
        try:
            await server._open_doors()
            broker.store.shrinking(server._write_endpoints)  # a few bytes: also a full disk can be read
        except BaseException:
            await server.stop()
            raise
        return server

    @property
    def data_dir(self) -> str:
        return self._settings.data_dir

    @property
    def endpoints(self) -> dict[str, str]:
        return self.service.endpoints

    async def _open_doors(self) -> None:
        exposition = Exposition(
            Readings(self.service),
            topics=self.broker.meters,
            requests=self.service.requests,
            version=__version__,
            codec="compiled" if codec.COMPILED else "python",
        )
        service, listeners = self.service, self._settings.listeners
        http = HttpDoor("http", service, exposition, OPERATIONS, self._access(listeners.http))
        metrics = HttpDoor("metrics", service, exposition, _METRICS_OPERATIONS, self._access(listeners.metrics))
        meters = wire_meters(service)
        doors: tuple[tuple[str, Address | None, Callable[[Listener], asyncio.BaseProtocol]], ...] = (
            ("http", listeners.http, lambda listener: HttpConnection(http, listener)),
            ("wire", listeners.wire, lambda listener: WireConnection(service, meters, listener)),
            ("metrics", listeners.metrics, lambda listener: HttpConnection(metrics, listener)),
        )
        for name, address, connect in doors:
            if address is not None:
                door = Listener(name, service.connections, connect)
                await self._open_door(name, door, address)
                self._doors.append(door)
        if listeners.grpc is not None:
            from goqueue.api.grpc.door import GrpcDoor  # takes memory and time to load: only where it is wanted

            self._grpc = GrpcDoor(service)
            await self._open_door("grpc", self._grpc, listeners.grpc)

    def _access(self, bound: Address | None) -> Access:
        own = () if bound is None else own_names(bound.host, is_local=bound.is_local, machine=socket.gethostname())
        allowed = self._settings.http
        return Access(own=own, hosts=allowed.allowed_hosts, origins=allowed.allowed_origins)

    async def _open_door(self, name: str, door: "Listener | GrpcDoor", address: Address) -> None:
        try:
            self.endpoints[name] = await door.open(address.host, address.port)
        except OSError as error:
            reason = error.strerror or error
            raise Unavailable(
                f"the {name} door cannot listen at {address}: {reason}; choose another address with --{name}"
            ) from error

    def _write_endpoints(self) -> None:
        replace_file(LocalDisk(), f"{self.data_dir}/{ENDPOINTS_FILE}", msgspec.json.encode(self.endpoints))

    async def stop(self) -> None:
        """Refuse new work, wake who waits, finish what is under way, flush."""
        _forget_endpoints(self._settings.data_dir)
        self.broker.drain()
        doors: list[Listener | GrpcDoor] = [*self._doors, *([] if self._grpc is None else [self._grpc])]
        for door in doors:
            door.drain()
        await asyncio.gather(*(door.close(limits.DRAIN_GRACE_S) for door in doors))
        await self.broker.close()


def broker_settings(settings: Settings) -> BrokerSettings:
    topic = settings.topic
    return BrokerSettings(
        data_dir=settings.data_dir,
        node_id=settings.node_id,
        logs=LogSettings(index_interval_bytes=topic.index_interval_bytes, fsync_interval_ms=topic.fsync_interval_ms),
        topic=TopicSettings(
            retention_hours=topic.retention_hours,
            retention_bytes=topic.retention_bytes,
            segment_bytes=topic.segment_bytes,
            fsync=topic.fsync,
            visibility_ms=topic.visibility_ms,
            max_retries=topic.max_retries,
            dlq_enabled=topic.dlq_enabled,
        ),
        partitions=topic.partitions,
    )


def run(settings: Settings, announce: Callable[[Server], None]) -> StorageFailed | None:
    """Serve until a signal, or until the disk fails: then that failure is returned."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its lines are in another form than ours, and say nothing new
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, announce))


async def _serve(settings: Settings, announce: Callable[[Server], None]) -> StorageFailed | None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _ask_to_stop, asked, number)
    server = await Server.start(settings)
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look at it again
    log.info("doors open", **server.endpoints)
    announce(server)
    waits: list[asyncio.Task[Any]] = [loop.create_task(asked.wait()), loop.create_task(server.broker.failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if server.broker.failure is not None:
        log.error("the disk failed; stopping", reason=str(server.broker.failure))
    else:
        log.info("stopping")
    await server.stop()
    log.info("stopped")
    return server.broker.failure


def _ask_to_stop(asked: asyncio.Event, number: int) -> None:
    """The second time the way out is stuck: leave at once. What was answered is on disk as it was promised."""
    if asked.is_set():
        os._exit(128 + number)
    asked.set()


def _forget_endpoints(data_dir: str) -> None:
    try:
        os.unlink(f"{data_dir}/{ENDPOINTS_FILE}")
    except FileNotFoundError:
        pass
