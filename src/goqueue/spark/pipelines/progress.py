"""How far a run is, for whoever is looking: a bar on a terminal, else a line now and then; and in `status.json`."""

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

LINE_S: Final = 5.0
SAVE_S: Final = 0.5


class Progress:
    """Rows that are done, of how many. One thing at a time: `begin` it, `advance`, and the next `begin` ends it."""

    def __init__(
        self,
        save: Callable[["Progress"], None],
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.doing = ""
        self.done = 0
        self.total: int | None = None
        self._said = 0
        """How many rows the last line was about."""
        self._save = save
        self._clock = clock
        self._begun = self._told = self._saved = clock()
        self._stream = sys.stderr if stream is None else stream
        self._bar: Bar | None = None
        self._is_watched = self._stream.isatty()

    @property
    def rate(self) -> float:
        """Rows a second since it was begun."""
        return self.done / max(self._clock() - self._begun, 0.001)

    def begin(self, doing: str, total: int | None = None) -> None:
        self.end()
        self.doing, self.done, self.total = doing, 0, total
        self._said = 0
        self._begun = self._told = self._clock()
        if self._is_watched:
            columns = (
                TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}", markup=False), TimeElapsedColumn(),
            )  # fmt: skip
            console = Console(file=self._stream, markup=False, emoji=False, highlight=False)
            self._bar = Bar(*columns, console=console, transient=True)
            self._task = self._bar.add_task(doing, total=total, rate="")
            self._bar.start()
        self._save(self)

    def advance(self, rows: int, *, total: int | None = None) -> None:
        """So many more; how many there are may turn out later."""
        self.done += rows
        self.total = self.total if total is None else total
        now = self._clock()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, total=self.total, rate=f"{self.rate:,.0f}/s")
        elif now - self._told >= LINE_S:
            self._told = now
            self._say()
        if now - self._saved >= SAVE_S:
            self._saved = now
            self._save(self)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self.doing and self.done != self._said:
            self._say()
        if self.doing:
            self._save(self)
        self.doing = ""

    def _say(self) -> None:
        self._said = self.done
        of = "" if self.total is None else f" of {self.total:,}"
        self._stream.write(f"{self.doing}: {self.done:,}{of} rows, {self.rate:,.0f}/s\n")
        self._stream.flush()
