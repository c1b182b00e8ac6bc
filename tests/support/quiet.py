"""Waiting until a broker in this process has done all it can do by itself.

A test that wants an answer *not* to leave has to know when it would have. Every callback of the loop that is ready gets
its turn, and every thread of the broker sleeps and was not woken since it was looked at before. Where the system does
not tell what threads do, they get a moment instead. Timers that are not due yet are not waited for.
"""

import threading
import time
from pathlib import Path
from typing import Final

from tests.support.loop import turns

_TURNS: Final = 50
_MOMENT_S: Final = 0.0005
_THREADS: Final = "goqueue-"
_SLEEPS: Final = "S"
_STATE: Final = Path("/proc/self/task")


async def quiet() -> None:
    before: list[str] | None = None
    while True:
        await turns(_TURNS)
        time.sleep(_MOMENT_S)  # nobody needs the interpreter: who wants it gets it
        now = _states()
        if now == before and all(state.startswith(_SLEEPS) for state in now):
            return
        before = now


def _states() -> list[str]:
    """Of each of the broker's threads: whether it sleeps, and how often it was woken."""
    found = []
    for thread in threading.enumerate():
        if thread.name.startswith(_THREADS) and thread.native_id is not None:
            try:
                text = (_STATE / str(thread.native_id) / "status").read_text(encoding="ascii")
            except OSError:  # it has ended, or there is no such place here
                continue
            lines = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
            found.append(f"{lines['State'][0]} {thread.native_id} {lines['voluntary_ctxt_switches']}")
    return found
