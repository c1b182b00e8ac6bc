"""A pace that is kept: something is called on time, and told how far behind it is.

The timers of an event loop count whole milliseconds and come late; the kernel's own do neither. What is late is late:
whoever measures from the moment that was planned sees it, so a client that stalls cannot hide that it did.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

TICK_NS: Final = 1_000_000
_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK: Final = os.O_NONBLOCK
_TFD_TIMER_ABSTIME: Final = 1
_COUNT_BYTES: Final = 8


class _TimerSpec(ctypes.Structure):
    """The first time, and every so often after it."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


async def keep_pace(ticks: int, work: Callable[[int], None]) -> None:
    """Call `work` once for each tick, with the moment it was planned for, in nanoseconds of the monotonic clock.

    Returns after the last; what `work` raises ends it. Ticks that were missed are made up for at once.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    begun = time.monotonic_ns() + TICK_NS
    fd = _timer(begun)
    given = 0

    def on_time() -> None:
        nonlocal given
        due = int.from_bytes(os.read(fd, _COUNT_BYTES), "little")
        try:
            for number in range(given, min(given + due, ticks)):
                work(begun + number * TICK_NS)
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        given += due
        if given >= ticks and not done.done():
            done.set_result(None)

    loop.add_reader(fd, on_time)
    try:
        await done
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _timer(begun_ns: int) -> int:
    """A descriptor that can be read once a tick."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "the kernel gives no timer")
    spec = _TimerSpec(0, TICK_NS, *divmod(begun_ns, 1_000_000_000))
    if libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
        os.close(fd)
        raise OSError(ctypes.get_errno(), "the kernel sets no timer")
    return fd
