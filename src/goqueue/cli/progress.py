"""A progress bar on stderr, for work that turns out to be long and somebody who is looking."""

import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from goqueue.cli.output import show_size

_PATIENCE_S: Final = 0.5
"""Work shorter than this shows no bar."""


class _Speed(ProgressColumn):
    """Bytes a second, in the units of everything else here."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{show_size(int(speed))}/s", style="progress.data.speed")


class Meter:
    """Tell it how many bytes were done; `total` None when nobody knows how many there are."""

    def __init__(self, label: str, total: int | None) -> None:
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
            console = Console(stderr=True, markup=False, emoji=False, highlight=False)
            self._progress = Progress(*columns, _Speed(), TimeRemainingColumn(), console=console, transient=True)
            self._task = self._progress.add_task(label, total=total)
        self._begun = time.monotonic()
        self._showing = False

    def advance(self, size: int) -> None:
        if self._progress is None:
            return
        self._progress.advance(self._task, size)
        if not self._showing and time.monotonic() - self._begun > _PATIENCE_S:
            self._progress.start()
            self._showing = True

    def __enter__(self) -> "Meter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None and self._showing:
            self._progress.stop()
