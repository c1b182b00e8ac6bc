"""Figures, their targets, and how they are shown: a table for people, JSON for comparing."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured number. `target` is a lower bound, or an upper one when `at_most`; None is for information.

    A value of None was not measured, and the note says why: such a target is neither met nor missed.
    """

    name: str
    value: float | None
    unit: str
    target: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None or self.value is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


class Run(NamedTuple):
    """How to measure: `say` is told what is being done, for whoever waits."""

    short: bool
    say: Callable[[str], None]


Part = Callable[[Run], Iterable[Figure]]
"""Measures something."""


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit.endswith("/s") and value >= 10_000:
        return f"{value:,.0f} {unit}"
    return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _round(target: float) -> str:
    return f"{target:,.0f}" if target >= 1000 else f"{target:,.3g}"


def show(console: Console, title: str, figures: list[Figure]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("what", "today", "target", "", "how"):
        table.add_column(column, justify="right" if column in ("today", "target") else "left")
    for figure in figures:
        bound = "<=" if figure.at_most else ">="
        target = "" if figure.target is None else f"{bound} {_round(figure.target)} {figure.unit}"
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[figure.met]
        table.add_row(figure.name, amount(figure.value, figure.unit), target, verdict, figure.note)
    console.print(table)


def save(command: str, figures: dict[str, list[Figure]], *, load: float) -> Path:
    """`load` is the load average the run began with: what others did meanwhile."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(load, 2),
    }
    body = {
        "command": command,
        "machine": machine,
        "figures": {room: [asdict(figure) for figure in found] for room, found in figures.items()},
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path
