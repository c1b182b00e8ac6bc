"""Waiting until a log has come so far. The one place where a log that was closed meanwhile becomes `unavailable`.

A log is closed when its topic is deleted and when the broker stops. To whoever asks for something both are the same,
whatever was asked and whichever log it waits for: look again. So nothing else in this room waits on a mark.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from goqueue.base.mark import Mark
from goqueue.io.waiting import reached
from goqueue.model.errors import LogClosed, Unavailable

GONE: Final = "the topic was deleted, or the broker is stopping; look again"
"""For whoever waited for a log, or reads or writes it, when it was closed."""


@contextmanager
def while_open() -> Iterator[None]:
    """What a closed log refuses in here is unavailable."""
    try:
        yield
    except LogClosed:
        raise Unavailable(GONE) from None


async def until(mark: Mark, threshold: int) -> None:
    """Wait in this task until the mark reaches `threshold`; raises the mark's failure."""
    with while_open():
        await reached(mark, threshold)
