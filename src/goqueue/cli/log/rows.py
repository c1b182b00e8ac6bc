"""Records as a person or a program reads them: rows of a table that fits the terminal, or JSON objects."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from goqueue.cli.output import new_table, printable, show_bytes
from goqueue.cli.times import show_time
from goqueue.model.record import Lane, Record

_KEY_WIDTH: Final = 24
_HEADERS_WIDTH: Final = 28
_LEAST_VALUE_WIDTH: Final = 16
_LANE_STYLES: Final = {Lane.CRITICAL: "bold red", Lane.HIGH: "yellow", Lane.LOW: "dim", Lane.BACKGROUND: "dim"}


def record_table(records: Sequence[Record], width: int) -> Table:
    """One line a record; the value takes the width that is left. Columns nobody uses are left out."""
    rows = [_row(record) for record in records]
    columns = ["offset", "time", "lane", "key", "value"]
    columns += ["headers"] if any(record.headers for record in records) else []
    columns += ["notes"] if any(row.notes for row in rows) else []
    widths = {name: max(len(name), *(cell_len(getattr(row, name).plain) for row in rows)) for name in columns}
    widths["key"] = min(widths["key"], _KEY_WIDTH)
    if "headers" in widths:
        widths["headers"] = min(widths["headers"], _HEADERS_WIDTH)
    others = sum(widths[name] for name in columns if name != "value") + 2 * (len(columns) - 1)
    widths["value"] = min(widths["value"], max(width - others, _LEAST_VALUE_WIDTH))
    table = new_table(*columns, numbers=("offset",))
    for row in rows:
        table.add_row(*(_shortened(getattr(row, name), widths[name]) for name in columns))
    return table


class _Row(NamedTuple):
    offset: Text
    time: Text
    lane: Text
    key: Text
    value: Text
    headers: Text
    notes: Text


def _row(record: Record) -> _Row:
    lane = Lane(record.priority)
    return _Row(
        Text(str(record.offset)),
        Text(show_time(record.timestamp), style="cyan"),
        Text(lane.name.lower(), style=_LANE_STYLES.get(lane, "")),
        _bytes(record.key),
        _bytes(record.value),
        Text(", ".join(f"{printable(name)}={show_bytes(value, _HEADERS_WIDTH)}" for name, value in record.headers)),
        Text(", ".join(_notes(record)), style="magenta"),
    )


def _bytes(data: bytes | None) -> Text:
    if data is None:
        return Text("none", style="dim italic")
    return Text(show_bytes(data, 1000)) if data else Text("empty", style="dim italic")


def _notes(record: Record) -> list[str]:
    notes = []
    extension = record.extension
    if extension is not None and extension.deliver_at is not None:
        notes.append(f"deliver at {show_time(extension.deliver_at)}")
    if extension is not None and extension.expires_at is not None:
        notes.append(f"expires {show_time(extension.expires_at)}")
    if record.control:
        notes.append("commit" if record.commit else "control")
    if record.value is None and record.key is not None and not record.control:
        notes.append("tombstone")
    return notes


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
