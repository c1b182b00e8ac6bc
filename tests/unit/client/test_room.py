"""Waiting for room: who is woken, and when."""

import asyncio

import pytest

from goqueue.client.accumulator import Buffers
from goqueue.client.room import Room
from goqueue.model.errors import BufferFull
from tests.support.loop import run


def test_who_waits_says_so_and_is_woken_when_enough_came_back() -> None:
    async def go() -> None:
        wanted: list[bool] = []
        buffers = Buffers(100)
        room = Room(buffers, 50, on_wanted=lambda: wanted.append(room.is_wanted))
        small, large = buffers.take(20), buffers.take(60)
        assert not room.is_there
        waits = [asyncio.ensure_future(room.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        assert wanted == [True, True]
        room.on_returned()
        assert room.is_wanted, "nothing came back"
        buffers.give(large, again=True)
        room.on_returned()
        assert not room.is_wanted
        await asyncio.gather(*waits)
        buffers.give(small, again=True)

    run(go())


def test_room_is_for_what_was_refused_however_large() -> None:
    async def go() -> None:
        buffers = Buffers(100)
        room = Room(buffers, 10, on_wanted=lambda: None)
        small, large = buffers.take(30), buffers.take(40)
        with pytest.raises(BufferFull):
            buffers.take(90)
        assert not room.is_there
        waits = asyncio.ensure_future(room.wait())
        await asyncio.sleep(0)
        buffers.give(small, again=True)
        room.on_returned()
        assert room.is_wanted, "90 do not fit yet"
        buffers.give(large, again=True)
        room.on_returned()
        await waits
        buffers.take(40)
        assert room.is_there, "who was refused may not want it any more"

    run(go())


def test_at_the_end_everybody_is_woken_room_or_not() -> None:
    async def go() -> None:
        buffers = Buffers(10)
        buffers.take(10)
        room = Room(buffers, 10, on_wanted=lambda: None)
        stays, goes = (asyncio.ensure_future(room.wait()) for _ in range(2))
        await asyncio.sleep(0)
        goes.cancel()
        await asyncio.sleep(0)
        room.wake()
        await stays
        assert goes.cancelled()
        assert not room.is_wanted

    run(go())
