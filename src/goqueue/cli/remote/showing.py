"""Replies on the screen: as they came in JSON or YAML, or as a table that is easy to read."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from goqueue.cli.output import COLUMN_GAP, Part, Screen, complain, emit, print_json, printable, screen, width_of
from goqueue.cli.remote.chosen import OutputFormat, output
from goqueue.model.times import parse_time, show_duration

ABSENT: Final = "-"
_FEW_S: Final = 10
_HINTS_VARIABLE: Final = "GOQUEUE_CLI_HINTS"
LANE_STYLES: Final = {"critical": "bold red", "high": "yellow", "low": "dim", "background": "dim"}
STATE_STYLES: Final = {
    "ok": "green", "stable": "green", "done": "green", "pending": "cyan", "running": "cyan", "rebalancing": "yellow",
    "draining": "yellow", "ongoing": "cyan", "committing": "green", "committed": "green", "aborting": "dim",
    "aborted": "dim", "failing": "bold red", "failed": "bold red", "cancelled": "dim", "empty": "dim",
    "stopped": "yellow", "killed": "bold red",
}  # fmt: skip


def show(reply: Mapping[str, Any], table: Callable[[Any], None]) -> None:
    """A reply as it came, or as a table."""
    if output() is OutputFormat.TABLE:
        table(reply)
        for one in reply.get("incomplete", ()):
            where = f"partition {one['partition']}" + (f" of {one['topic']}" if "topic" in one else "")
            complain(f"{where} is left out, or not whole: {one['reason']}")
    else:
        print_data(reply)


def print_data(reply: object) -> None:
    """One object: a line of JSON, or a document of YAML."""
    if output() is OutputFormat.YAML:
        import yaml  # slow to load, and rarely asked for

        emit(yaml.safe_dump(reply, sort_keys=False, allow_unicode=True, explicit_start=True))
    else:
        print_json(reply)


def hint(line: str) -> None:
    """A next step, for somebody who looks at both streams and may be new here."""
    asked = os.environ.get(_HINTS_VARIABLE)
    if asked == "0" or output() is not OutputFormat.TABLE or not (asked or sys.stderr.isatty()):
        return
    try:
        sys.stdout.flush()
        sys.stderr.write(Screen(sys.stderr).line(("next: ", "dim"), (printable(line), "dim")))
        sys.stderr.flush()
    except OSError:
        pass


def print_fields(fields: Sequence[tuple[str, Part]]) -> None:
    """A name and a value a line."""
    target = screen()
    width = max(width_of(name) for name, _ in fields) + len(COLUMN_GAP)
    for name, value in fields:
        emit(target.line((name.ljust(width), "dim"), value))


def text(value: object) -> str:
    """Somebody else's text in a cell: safe, and told apart from nothing."""
    if value is None:
        return ABSENT
    shown = printable(str(value))
    if not shown:
        return '""'
    return f'"{shown}"' if shown == ABSENT or shown[0] in ' "' or shown[-1] == " " else shown


def state(word: object) -> Part:
    return (text(word), STATE_STYLES.get(str(word), ""))


def lane(word: str) -> Part:
    return (word, LANE_STYLES.get(word, ""))


def count(number: float) -> str:
    return f"{number:,}"


def seconds(number: float) -> str:
    """As short as it can be read: 250 ms, 1.2 s, 4m5s, 2d3h."""
    if number < 1:
        return f"{number * 1000:.0f} ms" if number >= 0.01 or number == 0 else f"{number * 1000:.2g} ms"
    if number < _FEW_S:
        return f"{number:.1f} s"
    whole = int(number)
    if whole < 60:
        return f"{whole} s"
    unit = 60_000 if whole >= 86_400 else 1000
    if whole >= 2 * 86_400:
        unit = 3_600_000
    return show_duration(whole * 1000 // unit * unit)


def ago(moment: str | None) -> str:
    """How far a time of a reply is from now."""
    if not moment:
        return ABSENT
    distance = time.time() - parse_time(moment) / 1000
    return f"{seconds(distance)} ago" if distance >= 0 else f"in {seconds(-distance)}"


def when(moment: str | None, absent: str = ABSENT) -> str:
    """A time of a reply, and how far away that is."""
    return f"{moment} ({ago(moment)})" if moment else absent


def headers(of: Mapping[str, Any]) -> str:
    given = of.get("headers") or {}
    pairs = given.items() if isinstance(given, dict) else given
    return ", ".join(f"{printable(name)}={printable(value)}" for name, value in pairs)
