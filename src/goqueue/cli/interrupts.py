"""Ctrl-C, SIGTERM and SIGHUP for a command that writes: all three mean "stop where nothing is half done"."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """A context manager. Signals that come outside of `waiting` are remembered until the next one."""

    def __init__(self) -> None:
        self._caught: int | None = None
        self._waiting = False

    def __enter__(self) -> "Interrupts":
        ignored = {number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN}  # nohup
        self._before = {number: signal.signal(number, self._catch) for number in SIGNALS if number not in ignored}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self._caught is not None:  # asked twice: the way out is stuck
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._caught = number
        if self._waiting:
            raise Interrupted(number)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Here a signal is raised as Interrupted: around what may take forever and changes nothing."""
        self._waiting = True
        try:
            if self._caught is not None:
                raise Interrupted(self._caught)
            yield
        finally:
            self._waiting = False
