"""What all connections do alike: replies that leave the buffer or do not, slow clients, waits that end with the client.

The transport is a list of numbers here; `test_parking` has real ones.
"""

import asyncio
from time import perf_counter
from typing import Any, cast

import pytest

from goqueue.api.listening import ClientConnection, Listener, Undo
from goqueue.broker.admission import Admission
from goqueue.model import limits
from tests.support.loop import run, turns


class FakeSocket:
    def setsockopt(self, *option: int) -> None:
        pass


class FakeTransport(asyncio.Transport):
    """Keeps every byte until `take`. Like real ones it knows nothing of its buffer once the connection is lost."""

    def __init__(self) -> None:
        super().__init__({"socket": FakeSocket()})
        self.buffered = 0
        self.written = 0
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0 if self.closed else self.buffered

    def write(self, data: Any) -> None:
        self.buffered += len(data)
        self.written += len(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def take(self, count: int) -> None:
        self.buffered -= count


class AConnection(ClientConnection):
    def __init__(self) -> None:
        super().__init__(Listener("test", {}, cast(Any, None)))
        self.room = Admission(100)
        self.undone: list[str] = []
        self.transport = FakeTransport()
        self.connection_made(self.transport)

    def reserve(self, size: int) -> None:
        self._hold(self.room.take_anyway(size))

    def send(self, name: str, size: int = 10) -> None:
        self._write(b"x" * size, undo=self.undo(name))

    def undo(self, name: str) -> Undo:
        return lambda: self.undone.append(name)

    @property
    def busy(self) -> bool:
        return False

    def drain(self) -> None:
        pass

    def hang_up(self) -> None:
        pass

    def sweep(self, now: float) -> None:
        self._stuck_s(now)


LOST = ConnectionResetError()


def scenario(work: Any) -> None:
    async def inside() -> None:
        await work(AConnection())

    run(inside())


# --- replies


def test_a_reply_that_is_still_in_the_buffer_when_the_connection_is_lost_is_taken_back() -> None:
    async def go(connection: AConnection) -> None:
        connection.send("a")
        connection.transport.take(9)
        connection.connection_lost(LOST)
        assert connection.undone == ["a"]
        connection.connection_lost(LOST)
        assert connection.undone == ["a"]

    scenario(go)


def test_a_reply_that_leaves_at_once_is_not_remembered() -> None:
    async def go(connection: AConnection) -> None:
        connection.transport.take(10)  # as if it took it while it is written
        connection.send("a")
        assert connection._unsure == []
        connection.connection_lost(LOST)
        assert connection.undone == []

    scenario(go)


@pytest.mark.parametrize("look", ["eof", "sweep", "resume", "abort", "another reply"])
def test_whoever_looks_in_time_sees_what_was_written(look: str) -> None:
    async def go(connection: AConnection) -> None:
        for name in "abc":
            connection.send(name)
        connection.transport.take(25)
        if look == "eof":
            connection.eof_received()
        elif look == "sweep":
            connection.sweep(perf_counter())
        elif look == "resume":
            connection.resume_writing()
        elif look == "abort":
            connection._abort()
        else:
            connection.send("d")
        connection.connection_lost(LOST)
        assert connection.undone == (["c", "d"] if look == "another reply" else ["c"])

    scenario(go)


def test_what_nobody_saw_leave_counts_as_not_written() -> None:
    async def go(connection: AConnection) -> None:
        connection.send("a")
        connection.transport.take(10)
        connection.connection_lost(LOST)
        assert connection.undone == ["a"]

    scenario(go)


def test_bytes_of_others_in_between_do_not_confuse() -> None:
    async def go(connection: AConnection) -> None:
        connection._write(b"y" * 1000)
        connection.send("a")
        connection._write(b"y" * 500, b"y" * 500)
        connection.send("b")
        connection.transport.take(1010)
        connection.sweep(perf_counter())
        assert [end for end, _ in connection._unsure] == [2020]
        connection.transport.take(1009)
        connection.sweep(perf_counter())
        connection.connection_lost(LOST)
        assert connection.undone == ["b"]

    scenario(go)


def test_a_client_that_is_always_behind_but_gets_on_costs_no_memory() -> None:
    async def go(connection: AConnection) -> None:
        connection.send("first")
        for number in range(1000):
            connection.send(str(number))
            connection.transport.take(10)
        assert len(connection._unsure) <= 2
        assert connection.undone == []

    scenario(go)


def test_closing_writes_everything_first() -> None:
    async def go(connection: AConnection) -> None:
        connection.send("a")
        connection.closing = True
        connection.transport.close()
        connection.connection_lost(None)
        assert connection.undone == []

    scenario(go)


def test_what_is_half_written_when_the_process_ends_is_taken_back_once() -> None:
    async def go() -> None:
        connection = AConnection()
        connection.send("whole")
        connection.transport.take(10)
        connection.send("half")
        connection.transport.take(5)
        connection.give_up()
        assert connection.undone == ["half"]
        connection.transport.close()
        connection.connection_lost(None)
        assert connection.undone == ["half"]

    run(go())


def test_closing_that_fails_does_not() -> None:
    async def go(connection: AConnection) -> None:
        connection.send("a")
        connection.closing = True
        connection.transport.close()
        connection.connection_lost(LOST)
        assert connection.undone == ["a"]

    scenario(go)


def test_whoever_is_cut_off_gets_nothing_more() -> None:
    async def go(connection: AConnection) -> None:
        connection.send("a")
        connection._abort()
        connection.connection_lost(None)
        assert connection.undone == ["a"]

    scenario(go)


@pytest.mark.parametrize("how", ["closing", "transport", "lost"])
def test_a_reply_that_comes_too_late_is_taken_back_at_once(how: str) -> None:
    async def go(connection: AConnection) -> None:
        if how == "closing":
            connection.closing = True
        elif how == "transport":  # it knows before we are told
            connection.transport.close()
        else:
            connection.transport.close()
            connection.connection_lost(LOST)
        connection.send("a")
        assert connection.undone == ["a"]
        assert connection.transport.written == 0
        connection.connection_lost(LOST)
        assert connection.undone == ["a"]

    scenario(go)


def test_a_size_that_is_told_while_closing_is_not_believed() -> None:
    async def go(connection: AConnection) -> None:
        connection.send("a")
        connection.transport.abort()
        assert connection.transport.get_write_buffer_size() == 0
        connection.sweep(perf_counter())
        connection.connection_lost(LOST)
        assert connection.undone == ["a"]

    scenario(go)


def test_one_that_cannot_be_taken_back_does_not_keep_the_others() -> None:
    async def go(connection: AConnection) -> None:
        def fail() -> None:
            raise RuntimeError("this one is broken")

        connection._write(b"x", undo=fail)
        connection.send("a")
        connection.connection_lost(LOST)
        connection._write(b"x", undo=fail)
        assert connection.undone == ["a"]

    scenario(go)


# --- slow clients


def test_room_for_a_reply_is_given_back_when_the_client_has_taken_it() -> None:
    async def go(connection: AConnection) -> None:
        connection.reserve(5)
        assert connection.room.held == 0
        connection.pause_writing()
        connection.reserve(7)
        assert connection.room.held == 7
        connection.resume_writing()
        assert connection.room.held == 0
        connection.pause_writing()
        connection.reserve(9)
        assert connection.room.held == 9
        connection.connection_lost(LOST)
        assert connection.room.held == 0
        connection.reserve(2)  # finished after its client had left
        assert connection.room.held == 0

    scenario(go)


def test_who_takes_anything_at_all_is_not_stuck() -> None:
    async def go(connection: AConnection) -> None:
        assert connection._stuck_s(perf_counter() + 1000) == 0
        connection._write(b"x" * 100)
        connection.pause_writing()
        late = connection._paused_at + limits.REPLY_TIMEOUT_S
        assert connection._stuck_s(late) == pytest.approx(limits.REPLY_TIMEOUT_S)
        connection.transport.take(1)
        assert connection._stuck_s(late) == 0
        assert connection._stuck_s(late + 5) == 5
        connection.resume_writing()
        assert connection._stuck_s(late + 10) == 0

    scenario(go)


# --- waiting


def test_a_wait_that_loses_its_cancellation_ends_nevertheless() -> None:
    """In the moment in which it is over anyway, a wait may swallow that it was cancelled."""

    async def go(connection: AConnection) -> None:
        async def stubborn() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

        after: list[str] = []

        async def work() -> None:
            await connection.park(stubborn())
            after.append("went on")

        task = asyncio.ensure_future(work())
        await turns()
        connection.transport.close()
        connection.connection_lost(None)
        await turns()
        assert task.cancelled()
        assert after == []
        assert connection._parked == set()

    scenario(go)


def test_who_has_left_is_waited_for_no_longer_than_a_moment() -> None:
    async def go(connection: AConnection) -> None:
        connection.eof_received()
        await connection.park(turns(0))  # it does not wait at all
        with pytest.raises(asyncio.CancelledError):
            await connection.park(asyncio.Event().wait())
        await turns()

    scenario(go)


def test_nothing_behind_a_wait_is_cancelled() -> None:
    async def go(connection: AConnection) -> None:
        gate = asyncio.Event()

        async def work() -> str:
            await connection.park(turns(1))
            await gate.wait()
            return "done"

        task = asyncio.ensure_future(work())
        await turns()
        connection.transport.close()
        connection.connection_lost(LOST)
        gate.set()
        assert await task == "done"

    scenario(go)
