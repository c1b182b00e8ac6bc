"""Syncs that complete one by one, when a test says so, and what a broker did while they had not.

It stands at the disk's port and knows no more than paths: which log a file belongs to, what was written and not synced
since, and what of this was so at each step that was taken meanwhile. Nothing here knows what the files mean.
"""

import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.faulty_disk import FaultyDisk, Lie
from tests.support.patience import PATIENCE_S

_ID = re.compile(r"/[0-9a-f]{16}(?=/)")
_DID: Final = {"write": "", "unlink": "-", "make_directory": "+"}
"""How a step is called: as the log that was written, or one that was removed or made."""


class Step(NamedTuple):
    """Something that was done, and the logs that were not durable then."""

    what: str
    dirty: frozenset[str]
    begun: frozenset[str]
    """Those of them of which nothing was durable yet."""


class WatchedDisk(FaultyDisk):
    """A real directory, whose syncs only happen here."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.lies = Lie.FILES | Lie.DIRECTORIES
        self.before = self._before
        self._root = str(directory)
        self._changed = threading.Condition()
        self._written: dict[str, int] = {}
        """How often a log was written, since it was first watched."""
        self._durable: dict[str, int] = {}
        self._held: tuple[str, ...] = ()
        self._asked: dict[str, int] = {}
        """Syncs that have begun and are held."""
        self._let_go: dict[str, int] = {}
        self.steps: list[Step] = []

    # --- what the test does

    def watch(self) -> None:
        """From now on. What was written before counts as durable."""
        with self._changed:
            self._written.clear()
            self._durable.clear()
            self.steps.clear()

    def hold(self, names: Iterable[str]) -> None:
        """Syncs that make something of them durable complete one by one. The first of those that wait goes first."""
        with self._changed:
            self._held = tuple(names)

    def let_one_go(self) -> bool:
        """Whether there was one."""
        with self._changed:
            name = next((name for name in self._held if self._asked.get(name, 0) > self._let_go.get(name, 0)), None)
            if name is not None:
                self._let_go[name] = self._let_go.get(name, 0) + 1
                self._changed.notify_all()
            return name is not None

    def let_all_go(self) -> None:
        self.hold(())
        with self._changed:
            self._changed.notify_all()

    def say(self, what: str) -> None:
        """A step that no disk sees."""
        with self._changed:
            self._step(what)

    @property
    def dirty(self) -> frozenset[str]:
        with self._changed:
            return self._dirty()

    # --- what the broker does

    def _dirty(self) -> frozenset[str]:
        return frozenset(name for name, count in self._written.items() if count > self._durable.get(name, 0))

    def _step(self, what: str) -> None:
        dirty = self._dirty()
        self.steps.append(Step(what, dirty, dirty - self._durable.keys()))

    def _before(self, operation: str, path: str) -> None:
        name = self._log_of(operation, path)
        if name is None:
            return
        with self._changed:
            if operation == "sync":
                self._sync(name)
            elif operation in _DID:
                self._step(_DID[operation] + name)
                if operation == "write":
                    self._written[name] = self._written.get(name, 0) + 1

    def _sync(self, name: str) -> None:
        covers = self._written.get(name, 0)
        if name in self._held and covers > self._durable.get(name, 0):
            ticket = self._asked[name] = self._asked.get(name, 0) + 1
            self._changed.wait_for(lambda: name not in self._held or self._let_go.get(name, 0) >= ticket, PATIENCE_S)
        self._durable[name] = max(self._durable.get(name, 0), covers)

    def _log_of(self, operation: str, path: str) -> str | None:
        """The log whose records a file has; of a directory the log it is made for."""
        area, _, rest = _ID.sub("", path.removeprefix(f"{self._root}/")).partition("/")
        if area not in ("logs", "meta") or not rest:
            return None
        if operation == "make_directory":
            return rest
        name, _, file = rest.rpartition("/")
        return name if file.endswith(".log") else None
