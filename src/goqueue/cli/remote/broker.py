"""The broker at the other end. Every command reaches it through here, and nothing else here knows a client.

Errors come out in words for whoever typed the command: how to start a broker, which name was meant, what a field takes.
Ctrl-C, SIGTERM and SIGHUP end what is under way where it can end: what is in `finally` still runs.
A command that is patient, because it follows, waits for a broker that went away; others end with the error.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from goqueue.cli.failures import BY_SIGNAL
from goqueue.cli.interrupts import SIGNALS
from goqueue.cli.output import note
from goqueue.cli.remote.chosen import chosen, find_address
from goqueue.cli.remote.explanations import explain, unreachable
from goqueue.model import limits
from goqueue.model.errors import Busy, DiskFull, GoQueueError, ProtocolError, Unavailable
from goqueue.wire.codes import CODES

if TYPE_CHECKING:
    from goqueue import AsyncClient
    from goqueue.client.connection import Connection
    from goqueue.client.link import Link

T = TypeVar("T")
_CONNECT_S: Final = 5.0
NULL: Final = object()
CLIENT_ID: Final = "goqueue-cli"
_LONGEST_POLL_S: Final = limits.MAX_WAIT_MS / 1000


class Broker:
    """Made by `run`. Replies are what the API answers as JSON.

    While it is `patient` it connects again, and asks again until there is an answer: what is asked may be done twice.
    """

    is_away = False
    lost_answers = 0
    """How often something was asked again that may have been done before."""

    def __init__(self, link: "Link", connection: "Connection", address: str, *, patient: bool) -> None:
        self._link = link
        self._connection = connection
        self._address = address
        self.patient = patient

    async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        try:
            return await self.call_plainly(operation, fields)
        except GoQueueError as error:
            raise await explain(error, fields, self._look_up, operation) from None

    async def call_plainly(self, operation: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The same, with errors that speak of fields."""
        from goqueue.client.link import backoff_s

        failures = 0
        while True:
            sent = False
            connection = self._connection
            try:
                connection = self._connection = await self._link.get()
                if self.patient:
                    self._notice(away=False)
                sent = True
                return await connection.ask(CODES[operation], fields, timeout_s=_patience_s(operation))
            except GoQueueError as error:
                if not self.patient or not _means_away(error):
                    raise
                if sent:  # also of one that is silent nothing is to be expected any more
                    connection.abort("its broker is away")
                    self.lost_answers += 1
                failures += 1
                self._notice(away=True)
            await asyncio.sleep(backoff_s(failures))

    def _notice(self, *, away: bool) -> None:
        """Say it when that is new, however many calls wait."""
        if away is not self.is_away:
            self.is_away = away
            note(f"the broker at {self._address} is {'away; waiting for it to come back' if away else 'back'}")

    def client(self) -> "AsyncClient":
        """For publishing and consuming in bulk; use it in `async with`."""
        from goqueue import AsyncClient

        return AsyncClient(self._address, client_id=CLIENT_ID, request_timeout=chosen().timeout_s)

    async def _look_up(self, operation: str) -> dict[str, Any]:
        return await self._connection.ask(CODES[operation], timeout_s=_CONNECT_S)


def _means_away(error: GoQueueError) -> bool:
    """Whether it passes when the broker is there again. One that is busy, or has a full disk, is there."""
    return error.retriable and not isinstance(error, Busy | DiskFull)


def _patience_s(operation: str) -> float:
    """How long an answer may take: a poll may have been asked to wait, beside that."""
    return chosen().timeout_s + (_LONGEST_POLL_S if operation == "poll" else 0.0)


def ask(operation: str, **fields: Any) -> dict[str, Any]:
    """One call. Fields that are None are left out; NULL is one that is set to nothing."""
    given = {name: None if value is NULL else value for name, value in fields.items() if value is not None}
    return run(lambda broker: broker.call(operation, **given))


def run(work: Callable[[Broker], Awaitable[T]], *, patient: bool = False) -> T:
    """Connect, do it, hang up. There must be a broker at the beginning, also for the patient."""
    return _run_loop(lambda: _connected(work, patient))


async def _connected(work: Callable[[Broker], Awaitable[T]], patient: bool) -> T:
    from goqueue.client.link import Link, parse_endpoint  # a help page can do without it

    address, source = find_address()
    timeout_s = chosen().timeout_s
    endpoint = parse_endpoint(address, connect_timeout_s=min(_CONNECT_S, timeout_s), call_timeout_s=timeout_s)
    link = Link(endpoint)
    try:
        connection = await link.get()
    except (Unavailable, ProtocolError) as error:
        raise unreachable(error, address, source) from None
    client_log, notes = logging.getLogger("goqueue.client"), _Notes(logging.WARNING)
    client_log.addHandler(notes)
    try:
        return await work(Broker(link, connection, address, patient=patient))
    finally:
        await link.close()
        client_log.removeHandler(notes)


class _Notes(logging.Handler):
    """What the client has to say; not again at once, because it has several connections."""

    _last = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line != self._last:
            self._last = line
            note(line)


def _run_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end, or until a signal: then it is cancelled, and the exit code says which.

    It is called inside the loop: a signal may come before there is one, and what was made by then nobody would await.
    """
    caught: list[int] = []

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            if caught:  # asked twice: the way out is stuck
                os._exit(BY_SIGNAL + number)
            caught.append(number)
            task.cancel()

        at_home = threading.current_thread() is threading.main_thread()  # only there signals can be heard
        heard = [number for number in SIGNALS if at_home and signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        for number in heard:
            loop.add_signal_handler(number, stop, number)
        try:
            return await work()
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(guarded())
    except asyncio.CancelledError:
        raise typer.Exit(BY_SIGNAL + (caught[0] if caught else signal.SIGINT)) from None
