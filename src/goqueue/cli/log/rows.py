"""Records as a person or a program reads them: rows of a table that fits the terminal, or JSON objects."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from goqueue.cli.output import COLUMN_GAP, new_table, printable, show_bytes
from goqueue.cli.times import show_clock, show_day, show_time
from goqueue.model.record import Extension, Lane, Record

_WIDEST: Final = {"key": 24, "headers": 28}
_LEAST_VALUE_WIDTH: Final = 12
_LEAST_WIDTH: Final = 7
_MOST_LETTERS: Final = 1000
"""More of a value than any terminal shows."""
_LANE_STYLES: Final = {Lane.CRITICAL: "bold red", Lane.HIGH: "yellow", Lane.LOW: "dim", Lane.BACKGROUND: "dim"}


def record_table(records: Sequence[Record], width: int) -> Table:
    """One line a record; the value takes the width that is left. Columns nobody uses are left out.

    Records of one day have the day above the table and only the time of day in it.
    """
    days = {show_day(record.timestamp) for record in records}
    day = days.pop() if len(days) == 1 else None
    rows = [_row(record, day) for record in records]
    columns = ["offset", "time", "lane", "key", "value"]
    columns += [name for name in ("headers", "notes") if any(getattr(row, name) for row in rows)]
    widths = {name: max(len(name), *(cell_len(getattr(row, name).plain) for row in rows)) for name in columns}
    _fit(widths, width)
    table = new_table(*columns, numbers=("offset",))
    if day is not None:
        table.title, table.title_justify, table.title_style = f"{day} UTC", "left", "dim"
    for row in rows:
        table.add_row(*(_shortened(getattr(row, name), widths[name]) for name in columns))
    return table


def _fit(widths: dict[str, int], width: int) -> None:
    """Shorten what can be shortened: the value first, then the columns that explain it."""
    for name, most in _WIDEST.items():
        if name in widths:
            widths[name] = min(widths[name], most)
    others = sum(size + COLUMN_GAP for name, size in widths.items() if name != "value")
    widths["value"] = min(widths["value"], max(width - others, _LEAST_VALUE_WIDTH))
    for name in ("headers", "notes", "key"):
        excess = others + widths["value"] - width
        if name in widths and excess > 0:
            cut = min(excess, max(widths[name] - _LEAST_WIDTH, 0))
            widths[name] -= cut
            others -= cut


class _Row(NamedTuple):
    offset: Text
    time: Text
    lane: Text
    key: Text
    value: Text
    headers: Text
    notes: Text


def _row(record: Record, day: str | None) -> _Row:
    lane = Lane(record.priority)
    headers = (f"{printable(name)}={show_bytes(value, _WIDEST['headers'])}" for name, value in record.headers)
    return _Row(
        Text(str(record.offset)),
        Text(show_time(record.timestamp) if day is None else show_clock(record.timestamp), style="cyan"),
        Text(lane.name.lower(), style=_LANE_STYLES.get(lane, "")),
        _bytes(record.key),
        _bytes(record.value),
        Text(", ".join(headers)),
        Text(", ".join(_notes(record, day)), style="magenta"),
    )


def _bytes(data: bytes | None) -> Text:
    if data is None:
        return Text("none", style="dim italic")
    return Text(show_bytes(data, _MOST_LETTERS)) if data else Text("empty", style="dim italic")


def _notes(record: Record, day: str | None) -> Iterator[str]:
    extension = record.extension or Extension()
    for word, time in (("due", extension.deliver_at), ("expires", extension.expires_at)):
        if time is not None:
            yield f"{word} {show_clock(time) if show_day(time) == day else show_time(time)}"
    if record.control:
        yield "commit" if record.commit else "control"
    elif record.value is None and record.key is not None:
        yield "tombstone"


def _shortened(text: Text, width: int) -> Text:
    if cell_len(text.plain) <= width:
        return text
    return Text(set_cell_size(text.plain, width - 1).rstrip() + "…", style=text.style)


# --- JSON


def record_object(record: Record) -> dict[str, object]:
    """A record as the HTTP API would show it: text, or everything in base64 when a part of it is not text."""
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    try:
        texts = [None if part is None else part.decode() for part in parts]
        encoding = None
    except UnicodeDecodeError:
        texts = [None if part is None else b64encode(part).decode() for part in parts]
        encoding = "base64"
    key, value, *header_values = texts
    headers = list(zip((name for name, _ in record.headers), header_values, strict=True))
    shown: dict[str, object] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "priority": Lane(record.priority).name.lower(),
        "key": key,
        "value": value,
        "headers": dict(headers) if len(dict(headers)) == len(headers) else headers,
    }
    if encoding:
        shown["encoding"] = encoding
    if record.control:
        shown |= {"control": True, "commit": record.commit}
    if record.extension is not None:
        fields = msgspec.to_builtins(record.extension)
        shown |= {name: field for name, field in fields.items() if field is not None}
    return shown
