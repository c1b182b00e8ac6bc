"""A broker inside a Python process, on a thread of its own.

Where `goqueue serve` would stop the process because the disk failed, an embedded broker closes, and every call raises.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import uvloop

from goqueue.api.operations import BY_NAME
from goqueue.config.loading import load
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, LogClosed, UnknownOperation
from goqueue.server.server import Server

T = TypeVar("T")


class EmbeddedBroker:
    """Use it in `with`. Its doors are on free ports of this machine unless told otherwise.

    gRPC takes memory and time to load: its door is open where it is asked for, like `grpc="127.0.0.1:0"`.
    """

    def __init__(self, path: str, **flags: str) -> None:
        doors = dict.fromkeys(("--http", "--wire"), "127.0.0.1:0") | dict.fromkeys(("--grpc", "--metrics"), "off")
        chosen = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
        self._settings = load(file=None, environ={}, flags={**doors, **chosen, "--data-dir": str(path)}, is_root=False)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._stop: asyncio.Event | None = None
        self._guard = threading.Lock()
        self._refusing = False
        self._calls: set[Future[Any]] = set()
        """Those under way."""
        self._ending: list[BaseException] = []
        """What went wrong when it started, or when it flushed for the last time."""

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(started,), name="goqueue-embedded", daemon=True)
        self._thread.start()
        started.wait()
        if self._server is None:
            self.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse new work, finish what is under way, flush. Closing twice is closing once."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed already, because the disk failed
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()
        self._loop = None
        if self._ending:
            raise self._ending[0]

    @property
    def endpoints(self) -> dict[str, str]:
        """The doors that are open, by name."""
        return dict(self._running().endpoints)

    def call(self, operation: str, **fields: Any) -> Any:
        """Do one operation, by the name and with the fields it has over HTTP; gives its reply as plain Python."""
        found = BY_NAME.get(operation)
        if found is None:
            raise UnknownOperation(f"there is no operation {operation!r}; there are {', '.join(BY_NAME)}")
        server = self._running()
        left = threading.Event()

        async def work() -> Any:
            if not found.while_stopping:
                server.broker.check()
            reply = await found.call(server.service, fields)
            if left.is_set() and found.undo is not None:
                found.undo(server.service, reply)
            return msgspec.to_builtins(reply)

        try:
            return self._run(work())
        except KeyboardInterrupt:  # the call goes on by itself; what it gives out nobody takes
            left.set()
            raise

    def _running(self) -> Server:
        if self._server is None or self._loop is None:
            raise LogClosed("this broker is closed, or was never opened: use it in `with goqueue.embedded(path)`")
        if self._server.broker.failure is not None:
            raise self._server.broker.failure.with_traceback(None)
        return self._server

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._guard:
            if self._refusing or self._loop is None:
                work.close()
                raise self._end()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        try:
            return future.result()
        except CancelledError:
            raise self._end() from None
        finally:
            with self._guard:
                self._calls.discard(future)

    def _end(self) -> GoQueueError:
        """Why nothing can be done any more."""
        failure = None if self._server is None else self._server.broker.failure
        return failure or LogClosed("this broker is closed; open it again")

    # --- its thread

    def _live(self, started: threading.Event) -> None:
        with self._runner:
            try:
                self._runner.run(self._serve(started))
            except BaseException as error:
                self._ending.append(error)
            finally:
                started.set()

    async def _serve(self, started: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._server = await Server.start(self._settings)
        self._loop = asyncio.get_running_loop()
        started.set()
        waits = [self._loop.create_task(event.wait()) for event in (self._stop, self._server.broker.failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await self._finish_calls()
        await self._server.stop()

    async def _finish_calls(self) -> None:
        """No call begins from here on; those under way get the grace that requests at the doors get."""
        with self._guard:
            self._refusing = True
            calls = [asyncio.wrap_future(call) for call in self._calls]
        if self._server is not None:
            self._server.broker.groups.parks.close()  # who waits for messages is answered
        if calls:
            _, late = await asyncio.wait(calls, timeout=limits.DRAIN_GRACE_S)
            for call in late:
                call.cancel()
