"""An event loop in a thread of its own, for clients that have none.

Crossing over costs tens of microseconds: whoever does it does it per batch.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from goqueue.model.errors import Unavailable

T = TypeVar("T")

_CLOSED: Final = "this client is closed; make another one"
_CALLBACK: Final = "a callback of this client cannot wait for the client; hand the work to another thread"


class LoopThread:
    """Runs from when it is made until it is closed. Does not keep the process alive."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._gate = threading.RLock()
        """Held by who gives the loop work, and by who closes it: it does what it has taken, or says that it did not."""
        self.closed = False
        self.ends: dict[object, Callable[[], Coroutine[Any, Any, object]]] = {}
        """What is to be done at the end, by what it is for: things that nobody has closed."""
        self._thread = threading.Thread(target=self._live, name="goqueue-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this in the loop and wait for it. A Ctrl-C meanwhile cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise Unavailable(_CALLBACK)
        try:
            with self._gate:
                self.check_open()
                future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except Unavailable:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            if not self.closed:
                raise
            raise Unavailable("this client was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def wake(self, callback: Callable[[], object]) -> None:
        """Call this in the loop, soon; from any thread."""
        with self._gate:
            if threading.current_thread() is not self._thread:  # what it does at the end may need it
                self.check_open()
            self._loop.call_soon_threadsafe(callback)

    def check_open(self) -> None:
        if self.closed or not self._thread.is_alive():  # a process that was forked off has no such thread
            raise Unavailable(_CLOSED)

    def close(self) -> None:
        """Close what nobody has closed, and raise what went wrong with the first of it.

        Whoever waits for something of it hears that it is closed.
        """
        if threading.current_thread() is self._thread:
            raise Unavailable(_CALLBACK)
        with self._gate:
            is_first = not self.closed and self._thread.is_alive()
            self.closed = True
        try:
            if is_first:
                asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        finally:
            if is_first:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _finish(self) -> None:
        """All of it, whatever becomes of one; the first error is raised then."""
        outcomes = await asyncio.gather(*[end() for end in self.ends.values()], return_exceptions=True)
        self.ends.clear()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            while left := asyncio.all_tasks(self._loop):
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(left))
            self._loop.run_until_complete(asyncio.sleep(0))  # who waits for what was done a moment ago hears of it
            self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
