"""Figures, their targets, and how they are shown: a table for people, JSON for comparing."""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured number. `target` is a lower bound, or an upper one when `at_most`; None is for information."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


def _amount(value: float, unit: str) -> str:
    if unit.endswith("/s") and value >= 10_000:
        return f"{value:,.0f} {unit}"
    return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def show(console: Console, title: str, figures: list[Figure]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("what", "today", "target", "", "how"):
        table.add_column(column, justify="right" if column in ("today", "target") else "left")
    for figure in figures:
        target = "" if figure.target is None else f"{'<=' if figure.at_most else '>='} {figure.target:,g} {figure.unit}"
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[figure.met]
        table.add_row(figure.name, _amount(figure.value, figure.unit), target, verdict, figure.note)
    console.print(table)


def save(command: str, figures: dict[str, list[Figure]]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    body = {
        "command": command,
        "machine": machine,
        "figures": {room: [asdict(figure) for figure in found] for room, found in figures.items()},
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path
