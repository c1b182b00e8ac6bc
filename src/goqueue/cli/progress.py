"""A progress bar on stderr, for work that turns out to be long and somebody who is looking."""

import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from goqueue.cli.output import show_size

_PATIENCE_S: Final = 0.5
"""Work shorter than this shows no bar."""


class _Speed(ProgressColumn):
    """How much a second, in the units of everything else here."""

    def __init__(self, *, of_bytes: bool) -> None:
        super().__init__()
        self._of_bytes = of_bytes

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{show_size(int(speed)) if self._of_bytes else f'{speed:,.0f}'}/s", style="progress.data.speed")


class _Bar:
    """Tell it how much was done; `total` None when nobody knows how much there is."""

    def __init__(self, label: str, total: int | None, *columns: ProgressColumn) -> None:
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            console = Console(stderr=True, markup=False, emoji=False, highlight=False)
            first = (TextColumn("{task.description}", markup=False), BarColumn())
            self._progress = Progress(*first, *columns, TimeRemainingColumn(), console=console, transient=True)
            self._task = self._progress.add_task(label, total=total)
        self._begun = time.monotonic()
        self._showing = False

    def advance(self, amount: int) -> None:
        if self._progress is None:
            return
        self._progress.advance(self._task, amount)
        if not self._showing and time.monotonic() - self._begun > _PATIENCE_S:
            self._progress.start()
            self._showing = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None and self._showing:
            self._progress.stop()


class Meter(_Bar):
    """Of work that is measured in bytes."""

    def __init__(self, label: str, total: int | None) -> None:
        super().__init__(label, total, DownloadColumn(binary_units=True), _Speed(of_bytes=True))


class Counter(_Bar):
    """Of work that is counted."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__(label, total, MofNCompleteColumn(), _Speed(of_bytes=False))
