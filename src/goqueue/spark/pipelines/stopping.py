"""Ctrl-C, SIGTERM and SIGHUP while Spark is at work: the first one asks for the end, a second one forces it.

A handler must not talk to Spark: the thread it interrupts may be in the middle of doing so. It tells another thread.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """A context manager. In a thread that is not the main one nothing is caught."""

    def __init__(self, stop: Callable[[], object] = lambda: None) -> None:
        self.number: int | None = None
        """Which signal it was."""
        self._event = threading.Event()
        self._stop = stop
        self._before: dict[int, Any] = {}

    @property
    def is_asked(self) -> bool:
        return self._event.is_set()

    def instead(self, stop: Callable[[], object]) -> None:
        """Do this when the end is asked for; at once, if it was."""
        self._stop = stop
        if self.is_asked:
            stop()

    def wait(self, seconds: float) -> bool:
        """For so long, or until the end is asked for."""
        return self._event.wait(seconds)

    def ask(self, number: int) -> None:
        self.number = number
        self._event.set()
        threading.Thread(target=self._call, daemon=True).start()

    def _call(self) -> None:
        self._stop()

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
            self._before = {number: signal.getsignal(number) for number in heard}
            self.listen()
        return self

    def listen(self) -> None:
        """Again, after somebody else has: Spark does, when a session is made."""
        for number in self._before:
            signal.signal(number, self._catch)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:  # asked twice: the way out is stuck
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.ask(number)
