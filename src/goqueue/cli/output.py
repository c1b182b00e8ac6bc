"""What goes to the terminal or the pipe: text made safe to show, tables that fit, numbers made easy to read.

Messages are other people's bytes. They are never taken for markup, and no control character of theirs
reaches a terminal. Colours and progress appear only where a person is looking. Output that cannot be written
is OutputFailed, so that nobody takes it for a failure of the log.
"""

import codecs
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, NoReturn, TextIO

import msgspec
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from goqueue.model import limits

_WIDTH_OF_A_PIPE: Final = 120
"""Columns of a table nobody looks at directly, unless COLUMNS says otherwise."""
NARROW: Final = 40
"""With fewer columns than this a table becomes a list."""
_LAST_WIDTH: Final = 20
"""The last column of a table is never cut; this much of it should fit."""
COLUMN_GAP: Final = "  "
_SIGNS: Final = {"✓": "ok:", "✗": "!!", "→": "->", "…": "~"}
"""Our own signs, and what stands for them where the encoding has none."""
_ASCII_SIGNS: Final = str.maketrans(_SIGNS)
_JSON: Final = msgspec.json.Encoder()

Part = str | tuple[str, str]
"""A piece of a line, or one with its style."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class OutputFailed(Exception):
    """Standard output takes no more."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.reader_left = isinstance(error, BrokenPipeError)
        """Whoever read it has seen enough: nothing is wrong."""


# --- the two streams


class Screen:
    """Standard output or standard error as it is now: its width, its colours, its letters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        piped = not stream.isatty()
        width = _WIDTH_OF_A_PIPE if piped and not os.environ.get("COLUMNS", "").isdigit() else None
        console = Console(file=stream, width=width)
        self.width = console.width
        self.coloured = console.color_system is not None and not console.no_color
        self.has_signs = _can_encode(stream, "".join(_SIGNS))

    def paint(self, text: str, style: str) -> str:
        if not style or not self.coloured:
            return text
        before, after = _ansi(style)
        return f"{before}{text}{after}"

    def sign(self, sign: str) -> str:
        return sign if self.has_signs else _SIGNS[sign]

    def line(self, *parts: Part) -> str:
        """A line of our own words; what may be somebody else's must be `printable` before."""
        texts = (self.paint(*part) if isinstance(part, tuple) else part for part in parts)
        text = "".join(texts).rstrip()
        return f"{text}\n" if self.has_signs else f"{text.translate(_ASCII_SIGNS)}\n"


def screen() -> Screen:
    return Screen(sys.stdout)


@lru_cache
def _ansi(style: str) -> tuple[str, str]:
    before, _, after = Style.parse(style).render("\0", color_system=ColorSystem.STANDARD).partition("\0")
    return before, after


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def emit(text: str) -> None:
    """Text on stdout as it is. Everything printed goes through here, `emit_bytes` or `print_json`."""
    try:
        sys.stdout.write(text)
        if sys.stdout.isatty():
            sys.stdout.flush()
    except OSError as error:
        _lose_output(error)


def emit_bytes(data: bytes) -> None:
    """Somebody's bytes as they are, for a program: not where a terminal could act on them."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    except OSError as error:
        _lose_output(error)


def print_json(*values: object) -> None:
    """JSON on stdout, one value a line."""
    lines = _JSON.encode_lines(values)
    try:
        sys.stdout.buffer.write(lines)
    except OSError as error:
        _lose_output(error)


def finish_output() -> None:
    """What was printed has left this process, or OutputFailed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _lose_output(error)


def _lose_output(error: OSError) -> NoReturn:
    """Python would try the same bytes once more when it ends, and complain: give it a place that takes them."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
    raise OutputFailed(error) from error


def say(*parts: Part) -> None:
    """A line on stdout, never wrapped or cut."""
    emit(screen().line(*parts))


def note(line: str) -> None:
    """A line on stderr: something the reader should know, nothing failed."""
    _mention(("note: ", "yellow"), line)


def complain(line: str) -> None:
    """A line on stderr: something failed."""
    _mention(("error: ", "bold red"), line)


def _mention(label: Part, line: str) -> None:
    try:
        sys.stdout.flush()  # what came before it should be seen before it
    except OSError:
        pass  # `finish_output` will tell
    try:
        sys.stderr.write(Screen(sys.stderr).line(label, printable(line)))
        sys.stderr.flush()
    except OSError:
        pass


# --- tables


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Part]],
    *,
    numbers: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Columns two spaces apart, no lines: easy on the eye, easy to cut with tools.

    Where it does not fit, the optional columns go first, one by one; then it becomes a list.
    """
    target = screen()
    shown = list(range(len(columns)))
    widths = [max(len(name), *(_width(row[at]) for row in rows)) for at, name in enumerate(columns)]
    leave_out = [columns.index(name) for name in optional]
    while not _fits(shown, widths, target.width) and leave_out:
        shown.remove(leave_out.pop(0))
    if target.width < NARROW or not _fits(shown, widths, target.width):
        for row in rows:
            _print_list(target, columns, row)
        return
    header: list[Part] = [(name, "bold") for name in columns]
    for row in (header, *rows):
        parts: list[Part] = []
        for at in shown:
            space = " " * (widths[at] - _width(row[at]))
            right = columns[at] in numbers
            parts += [space, row[at], COLUMN_GAP] if right else [row[at], space, COLUMN_GAP]
        emit(target.line(*parts))


def _fits(shown: Sequence[int], widths: Sequence[int], width: int) -> bool:
    used = sum(widths[at] + len(COLUMN_GAP) for at in shown[:-1])
    return used + min(widths[shown[-1]], _LAST_WIDTH) <= width


def _print_list(target: Screen, columns: Sequence[str], row: Sequence[Part]) -> None:
    label_width = max(map(len, columns)) + len(COLUMN_GAP)
    for name, cell in zip(columns, row, strict=True):
        if _width(cell):
            emit(target.line((name.ljust(label_width), "dim"), cell))
    emit("\n")


def _width(part: Part) -> int:
    return width_of(part[0] if isinstance(part, tuple) else part)


def width_of(text: str) -> int:
    """How many columns of a terminal it takes."""
    return len(text) if text.isascii() else cell_len(text)


# --- text and numbers


def printable(text: str) -> str:
    """The same text with everything a terminal could act on spelled out, and bytes that are no text as `\\xff`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _spell(letter) for letter in text)


def _spell(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # how Python keeps a byte that is not UTF-8 in a str
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def show_bytes(data: bytes, max_letters: int) -> str:
    """Bytes as one short line of text; what is not UTF-8 appears as `\\xff`."""
    kept = data[: 4 * max_letters + 4]
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return printable(decoder.decode(kept, final=len(kept) == len(data)))[: max_letters + 1]


def show_size(size: int) -> str:
    amount, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if amount < limits.KIB or unit == "TiB":
            break
        amount /= limits.KIB
    return show_count(size, "byte") if unit == "bytes" else f"{amount:,.1f} {unit}"


def show_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show_offsets(first: int, next_offset: int | None) -> str:
    """A range as people say it, both ends included."""
    if next_offset is None:
        return f"{first} and after"
    return str(first) if next_offset <= first + 1 else f"{first} to {next_offset - 1}"


def name_offsets(first: int, next_offset: int | None) -> str:
    """The same with its noun: "offset 5", "offsets 5 to 9"."""
    plural = next_offset is None or next_offset > first + 1
    return f"offset{'s' if plural else ''} {show_offsets(first, next_offset)}"
