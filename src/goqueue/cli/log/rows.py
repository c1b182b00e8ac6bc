"""Records as a person or a program reads them: rows of a table that fits the terminal, or JSON objects."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from rich.cells import set_cell_size

from goqueue.cli.output import COLUMN_GAP, NARROW, Screen, printable, show_bytes, width_of
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.times import show_clock, show_day, show_time

_WIDEST: Final = {"key": 24, "headers": 28}
_LEAST: Final = {"key": 7, "value": 16, "headers": 12, "notes": 16}
"""Columns that can be shortened, and how far."""
_DROPPED: Final = ("milliseconds", "headers", "notes", "lane", "time", "key")
"""What a narrow terminal does without, in this order."""
_MOST_LETTERS: Final = 1000
"""More of a value than any terminal shows."""
_MILLISECONDS: Final = len(".000Z")
_STYLES: Final = {"time": "cyan", "notes": "magenta"}
_LANE_STYLES: Final = {"critical": "bold red", "high": "yellow", "low": "dim", "background": "dim"}
_LANES: Final = {lane.value: lane.name.lower() for lane in Lane}
ABSENT: Final = "-"
EMPTY: Final = '""'
_NO_EXTENSION: Final = Extension()


class _Row(NamedTuple):
    offset: str
    time: str
    lane: str
    key: str
    value: str
    headers: str
    notes: str


class _Layout(NamedTuple):
    day: str
    """Above the table; empty when its records are of several days."""
    short_times: bool
    widths: dict[str, int]
    """Of the columns shown, in order."""
    wanted: dict[str, int]
    """What the pages so far would have taken."""


class RecordTable:
    """One line a record, given a page at a time.

    The value takes the width that is left; columns nobody uses are left out. Records of one day have the day
    above the table and only the time of day in it. Pages share their widths, and the header appears again
    only when a page needs others, so that any number of records passes through in bounded memory.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._layout: _Layout | None = None
        self._listed_day = ""

    def page(self, records: Sequence[Record]) -> str:
        days = {show_day(record.timestamp) for record in records}
        day = days.pop() if len(days) == 1 else ""
        rows = [_row(record, day) for record in records]
        if self._screen.width < NARROW:
            title = self._screen.line((f"{day} UTC", "dim")) if day and day != self._listed_day else ""
            self._listed_day = day
            return title + "".join(self._list(row) for row in rows)
        lines = []
        layout = self._layout_for(rows, day)
        shown, self._layout = self._layout, layout
        if shown is None or layout[:3] != shown[:3]:
            if day:
                lines.append(self._screen.line((f"{day} UTC", "dim")))
            header = "".join(_pad(name, width, name) for name, width in layout.widths.items())
            lines.append(self._screen.line((header.rstrip(), "bold")))
        columns = [(_Row._fields.index(name), name, width) for name, width in layout.widths.items()]
        last = columns[-1][1]
        cut = self._screen.sign("…")
        coloured = self._screen.coloured
        for row in rows:
            cells = []
            for at, name, width in columns:
                text = row[at]
                if name == "time" and layout.short_times:
                    text = text[:-_MILLISECONDS] + "Z"
                if width_of(text) > width:
                    text = _cut(text, width, cut)
                padded = text if name == last else _pad(text, width, name)
                cells.append(self._screen.paint(padded, _style(name, row[at])) if coloured else padded)
            lines.append("".join(cells).rstrip() + "\n")
        return "".join(lines)

    def _layout_for(self, rows: list[_Row], day: str) -> _Layout:
        """As before if it does, else one in which this page fits too."""
        wanted = {
            name: max(map(width_of, cells)) for name, cells in zip(_Row._fields, zip(*rows, strict=True), strict=True)
        }
        before = self._layout
        if before is not None and before.day == day:
            if all(wanted[name] <= before.wanted[name] for name in _Row._fields):
                return before
            wanted = {name: max(wanted[name], before.wanted[name]) for name in _Row._fields}
            wanted["value"] = max(wanted["value"], self._screen.width)  # not a new header for each longer value
        if not wanted["headers"] and not wanted["notes"]:
            wanted["value"] = max(wanted["value"], self._screen.width)  # nothing follows it
        widths = {name: max(len(name), wanted[name]) for name in _Row._fields if wanted[name]}
        for name, most in _WIDEST.items():
            if name in widths:
                widths[name] = min(widths[name], most)
        short_times = False
        for drop in _DROPPED:
            if _least(widths) <= self._screen.width:
                break
            if drop == "milliseconds":
                short_times = True
                widths["time"] -= _MILLISECONDS - 1
            else:
                widths.pop(drop, None)
        _shorten(widths, self._screen.width)
        return _Layout(day, short_times, widths, wanted)

    def _list(self, row: _Row) -> str:
        lines = [self._screen.line((f"offset {row.offset}", "bold"))]
        room = max(self._screen.width - 11, 1)
        for name, text in zip(_Row._fields[1:], row[1:], strict=True):
            if text:
                shown = text if width_of(text) <= room else _cut(text, room, self._screen.sign("…"))
                lines.append(self._screen.line("  ", (name.ljust(9), "dim"), shown))
        return "".join(lines)


def _least(widths: dict[str, int]) -> int:
    """The columns that the narrowest form of it takes."""
    return _total({name: min(width, _LEAST.get(name, width)) for name, width in widths.items()})


def _shorten(widths: dict[str, int], width: int) -> None:
    """Shorten what can be shortened: the value first, then the columns that explain it."""
    for name in ("value", "headers", "notes", "key"):
        excess = _total(widths) - width
        if name in widths and excess > 0:
            widths[name] -= min(excess, max(widths[name] - _LEAST[name], 0))


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + len(COLUMN_GAP) * (len(widths) - 1)


def _pad(text: str, width: int, name: str) -> str:
    if name == "offset":
        return text.rjust(width) + COLUMN_GAP
    space = width - width_of(text)
    return f"{text}{' ' * space}{COLUMN_GAP}"


def _cut(text: str, width: int, sign: str) -> str:
    kept = text[: width - 1] if text.isascii() else set_cell_size(text, width - 1)
    return kept.rstrip() + sign


def _style(column: str, text: str) -> str:
    if column == "lane":
        return _LANE_STYLES.get(text, "")
    if column in ("key", "value"):
        return "dim" if text in (ABSENT, EMPTY) else ""
    return _STYLES.get(column, "")


def _row(record: Record, day: str) -> _Row:
    timestamp = record.timestamp
    return _Row(
        str(record.offset),
        show_clock(timestamp) if day else show_time(timestamp),
        _LANES[record.priority],
        _shown(record.key),
        _shown(record.value),
        _headers(record) if record.headers else "",
        ", ".join(_notes(record, day)),
    )


def _shown(data: bytes | None) -> str:
    """`-` is absent and `""` is empty; what looks like one of them, or has spaces at an end, stands in quotes."""
    if data is None:
        return ABSENT
    if not data:
        return EMPTY
    text = show_bytes(data, _MOST_LETTERS)
    if text == ABSENT or text[0] in ' "' or text[-1] == " ":
        return '"' + text.replace('"', '\\"') + '"'
    return text


def _headers(record: Record) -> str:
    return ", ".join(f"{printable(name)}={show_bytes(value, _WIDEST['headers'])}" for name, value in record.headers)


def _notes(record: Record, day: str) -> Iterator[str]:
    extension = record.extension or _NO_EXTENSION
    for word, time in (("due", extension.deliver_at), ("expires", extension.expires_at)):
        if time is not None:
            yield f"{word} {show_clock(time) if day and show_day(time) == day else show_time(time)}"
    if record.control:
        yield "commit" if record.commit else "control"
    elif record.value is None and record.key is not None:
        yield "tombstone"


# --- JSON


def record_object(record: Record) -> dict[str, object]:
    """A record as docs/cli.md describes it: text, or base64 where a part of it is not text.

    `encoding` speaks of the key, the value and the header values, `name_encoding` of the header names.
    """
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    try:
        texts = [None if part is None else part.decode() for part in parts]
        encoding = None
    except UnicodeDecodeError:
        texts = [None if part is None else b64encode(part).decode() for part in parts]
        encoding = "base64"
    key, value, *header_values = texts
    names, name_encoding = _names([name for name, _ in record.headers])
    headers = list(zip(names, header_values, strict=True))
    shown: dict[str, object] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "priority": _LANES[record.priority],
        "key": key,
        "value": value,
        "headers": dict(headers) if len(dict(headers)) == len(headers) else headers,
    }
    if encoding:
        shown["encoding"] = encoding
    if name_encoding:
        shown["name_encoding"] = name_encoding
    if record.control:
        shown |= {"control": True, "commit": record.commit}
    if record.extension is not None:
        fields = msgspec.to_builtins(record.extension)
        shown |= {name: field for name, field in fields.items() if field is not None}
    return shown


def _names(names: list[str]) -> tuple[list[str], str | None]:
    """Header names as they are, or all in base64 when one of them is not UTF-8."""
    try:
        for name in names:
            name.encode()
    except UnicodeEncodeError:
        return [b64encode(name.encode("utf-8", "surrogateescape")).decode() for name in names], "base64"
    return names, None
