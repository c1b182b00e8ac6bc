"""Messages of a reply as a person reads them: a line each, or a template of the reader's own."""

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.cells import set_cell_size

from goqueue.cli.output import COLUMN_GAP, Screen, printable, show_bytes, width_of
from goqueue.cli.remote.showing import ABSENT, LANE_STYLES, headers, text
from goqueue.model.errors import InvalidRequest
from goqueue.model.times import parse_time, show_clock, show_day

Message = dict[str, Any]
_MOST_LETTERS: Final = 1000
_WIDEST: Final = {"key": 24, "headers": 28}
_STYLES: Final = {"time": "cyan", "due": "magenta"}
_RIGHT: Final = ("part", "offset", "try")


def content(message: Message, part: str | None) -> bytes | None:
    """The bytes of its key or value."""
    if part is None:
        return None
    return b64decode(part) if message.get("encoding") == "base64" else part.encode("utf-8", "surrogateescape")


def _shown(data: bytes | None) -> str:
    return text(None if data is None else show_bytes(data, _MOST_LETTERS))


class MessageTable:
    """A line a message, a page at a time; columns only grow, and the header stands above the first page.

    With handles, those of each message stand below it, whole: they are there to be copied.
    """

    def __init__(self, screen: Screen, *, with_partition: bool, with_handles: bool = False) -> None:
        self._screen = screen
        self._with_partition = with_partition
        self._with_handles = with_handles
        self._widths: dict[str, int] = {}
        self._day = ""

    def page(self, messages: Sequence[Message]) -> str:
        rows = [self._row(message) for message in messages]
        columns = [name for name in rows[0] if name in self._widths or any(row[name] for row in rows)]
        new = [name for name in columns if name not in self._widths]
        for name in columns:
            widest = max(width_of(row[name]) for row in rows)
            width = max(self._widths.get(name, len(name)), min(widest, _WIDEST.get(name, widest)))
            self._widths[name] = width
        lines = []
        for message, row in zip(messages, rows, strict=True):
            day = show_day(parse_time(message["timestamp"]))
            if day != self._day:
                self._day = day
                lines.append(self._screen.line((f"{day} UTC", "dim")))
                new = new or columns
            if new:
                header = "".join(self._pad(name, name) for name in columns)
                lines.append(self._screen.line((header.rstrip(), "bold")))
                new = []
            lines.append(self._line(row, columns))
            if self._with_handles:
                lines.append(self._screen.line("  ", (printable(message["receipt_handle"]), "dim")))
        return "".join(lines)

    def _row(self, message: Message) -> dict[str, str]:
        return {
            "part": str(message["partition"]) if self._with_partition else "",
            "offset": str(message["offset"]),
            "time": show_clock(parse_time(message["timestamp"])),
            "lane": message["priority"],
            "try": str(message["delivery_count"]) if "delivery_count" in message else "",
            "due": message.get("deliver_at", ""),
            "key": _shown(content(message, message["key"])),
            "headers": headers(message),
            "value": _shown(content(message, message["value"])),
        }

    def _line(self, row: dict[str, str], columns: list[str]) -> str:
        room = self._screen.width - sum(self._widths[name] + len(COLUMN_GAP) for name in columns[:-1])
        cells = []
        for name in columns:
            text = row[name]
            most = max(room, 10) if name == "value" else self._widths[name]
            if width_of(text) > most:
                kept = text[: most - 1] if text.isascii() else set_cell_size(text, most - 1)
                text = kept.rstrip() + self._screen.sign("…")
            padded = text if name == "value" else self._pad(name, text)
            cells.append(self._screen.paint(padded, _style(name, row[name])))
        return "".join(cells).rstrip() + "\n"

    def _pad(self, name: str, text: str) -> str:
        space = " " * (self._widths[name] - width_of(text))
        return f"{space}{text}{COLUMN_GAP}" if name in _RIGHT else f"{text}{space}{COLUMN_GAP}"


def _style(column: str, text: str) -> str:
    if column == "lane":
        return LANE_STYLES.get(text, "")
    if column in ("key", "value"):
        return "dim" if text in (ABSENT, '""') else ""
    return _STYLES.get(column, "")


# --- templates

_FIELDS: Final[dict[str, Callable[[Message], bytes]]] = {
    "t": lambda message: str(message.get("topic", "")).encode(),
    "p": lambda message: str(message["partition"]).encode(),
    "o": lambda message: str(message["offset"]).encode(),
    "k": lambda message: content(message, message["key"]) or b"",
    "v": lambda message: content(message, message["value"]) or b"",
    "h": lambda message: headers(message).encode("utf-8", "surrogateescape"),
    "T": lambda message: str(message["timestamp"]).encode(),
    "l": lambda message: str(message["priority"]).encode(),
    "d": lambda message: str(message.get("delivery_count", "")).encode(),
    "r": lambda message: str(message.get("receipt_handle", "")).encode(),
    "i": lambda message: str(message["message_id"]).encode(),
    "%": lambda _: b"%",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\"}
_PART: Final = re.compile(r"%(.?)|\\(.)", re.DOTALL)


def unescaped(text: str) -> bytes:
    """Text as it was typed, with \\n, \\t, \\0 and \\\\ for what they stand for."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text).encode("utf-8", "surrogateescape")


class Template:
    """`%k %v\\n` and the like. What comes out are the message's bytes, a newline behind them unless one is there."""

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | Callable[[Message], bytes]] = []
        at = 0
        for found in _PART.finditer(text):
            self._parts.append(text[at : found.start()].encode("utf-8", "surrogateescape"))
            at = found.end()
            if found[2] is not None:
                self._parts.append(unescaped(found[0]))
            elif found[1] in _FIELDS:
                self._parts.append(_FIELDS[found[1]])
            else:
                known = " ".join(f"%{letter}" for letter in _FIELDS)
                raise InvalidRequest(f"--format: there is no {found[0]}; there are {known}")
        self._parts.append(text[at:].encode("utf-8", "surrogateescape"))
        if not text.endswith(("\\n", "\\0", "\n")):
            self._parts.append(b"\n")

    def fill(self, message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in self._parts)
