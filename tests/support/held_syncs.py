"""Syncs that wait until a test lets them go."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.faulty_disk import FaultyDisk
from tests.support.patience import PATIENCE_S


class HeldSyncs:
    """Syncs of segments below a directory wait until they are released; others pass."""

    def __init__(self, disk: FaultyDisk, directory: str) -> None:
        self._directory = directory
        self._begun = threading.Event()
        self._released = threading.Event()
        disk.before = self._before

    def _before(self, operation: str, path: str) -> None:
        if operation == "sync" and self._directory in path and path.endswith(".log"):
            self._begun.set()
            self._released.wait(PATIENCE_S)

    async def reached(self) -> None:
        """Return when a sync has begun, and is held."""
        assert await asyncio.to_thread(self._begun.wait, PATIENCE_S)

    def release(self) -> None:
        self._released.set()


@contextmanager
def syncs_held(disk: FaultyDisk, directory: str) -> Iterator[HeldSyncs]:
    """Released at the end in any case, so that nobody waits for ever."""
    held = HeldSyncs(disk, directory)
    try:
        yield held
    finally:
        held.release()
