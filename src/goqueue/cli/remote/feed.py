"""Input that blocks, read by a thread of its own while the loop works: lines of standard input or of a file.

The thread is never waited for: who types nothing more does not keep a command from ending. At most a few batches are
read ahead.
"""

import asyncio
import io
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, TypeVar

from goqueue.cli.log.lines import Source
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

T = TypeVar("T")
_READ_AHEAD: Final = 4
STANDARD_INPUT: Final = "-"
"""In place of a file's name."""


class _Descriptor:
    """A file by its number: no buffer whose lock a thread could hold when the process ends."""

    def __init__(self, number: int) -> None:
        self._number = number

    def read1(self, size: int, /) -> bytes:
        return os.read(self._number, size)


class FileSource:
    """A file, open until its end was read."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115

    def read1(self, size: int, /) -> bytes:
        data = self._file.read(size)
        if not data:
            self._file.close()
        return data or b""


def standard_input() -> Source:
    if sys.stdin is None:
        raise InvalidRequest("there is no standard input to read messages from; name them, or give --file")
    buffer: Any = sys.stdin.buffer
    try:
        return _Descriptor(buffer.fileno())
    except (OSError, io.UnsupportedOperation):
        source: Source = buffer
        return source


def read_whole(path: str) -> bytes:
    if path == STANDARD_INPUT:
        source = standard_input()
        return b"".join(iter(lambda: source.read1(limits.MIB), b""))
    with open(path, "rb") as file:
        return file.read()


def size_of(path: str | None) -> int | None:
    """How many bytes there are to read, if that is known: of a file, also of one that is standard input."""
    try:
        found = os.stat(0 if path in (None, STANDARD_INPUT) else path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


async def fed(items: Iterable[T]) -> AsyncIterator[T]:
    """The same items; what raises there raises here."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[T | None, Exception | None]] = asyncio.Queue()
    room = threading.Semaphore(_READ_AHEAD)
    stopped = threading.Event()

    def hand_over(item: T | None, error: Exception | None) -> bool:
        """Whether somebody still wants more."""
        room.acquire()
        if stopped.is_set():
            return False
        try:
            loop.call_soon_threadsafe(queue.put_nowait, (item, error))
        except RuntimeError:  # the loop has ended
            return False
        return True

    def read() -> None:
        try:
            for item in items:
                if not hand_over(item, None):
                    return
        except Exception as error:
            hand_over(None, error)
            return
        hand_over(None, None)

    threading.Thread(target=read, name="input", daemon=True).start()
    try:
        while True:
            item, error = await queue.get()
            room.release()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stopped.set()
        room.release()
