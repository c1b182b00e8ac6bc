"""What goes to the terminal or the pipe: consoles, text made safe to show, numbers made easy to read.

Messages are other people's bytes. They are never taken for markup, and no control character of theirs
reaches a terminal. Colours and progress appear only where a person is looking.
"""

import codecs
import os
import sys
from enum import StrEnum
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from goqueue.model import limits

_WIDTH_OF_A_PIPE: Final = 120
"""Columns of a table nobody looks at directly, unless COLUMNS says otherwise."""


COLUMN_GAP: Final = 2
_JSON: Final = msgspec.json.Encoder()


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def console(*, stderr: bool = False) -> Console:
    piped = not (sys.stderr if stderr else sys.stdout).isatty()
    width = _WIDTH_OF_A_PIPE if piped and not os.environ.get("COLUMNS", "").isdigit() else None
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def say(line: str | Text = "", *, style: str = "") -> None:
    """A line on stdout, never wrapped or cut."""
    console().print(line if isinstance(line, Text) else printable(line), style=style, soft_wrap=True)


def note(line: str) -> None:
    """A line on stderr: something the reader should know, nothing failed."""
    console(stderr=True).print(Text.assemble(("note: ", "yellow"), printable(line)), soft_wrap=True)


def complain(line: str) -> None:
    """A line on stderr: something failed."""
    console(stderr=True).print(Text.assemble(("error: ", "bold red"), printable(line)), soft_wrap=True)


def print_json(*values: object) -> None:
    """JSON on stdout, one value a line."""
    sys.stdout.buffer.write(_JSON.encode_lines(values))


def new_table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """Columns two spaces apart (`COLUMN_GAP`), no lines: easy on the eye, easy to cut with tools."""
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def printable(text: str) -> str:
    """The same text with everything a terminal could act on spelled out."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _spell(letter) for letter in text)


def _spell(letter: str) -> str:
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
    return f"{size:,} bytes" if unit == "bytes" else f"{amount:,.1f} {unit}"


def show_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show_offsets(first: int, next_offset: int | None) -> str:
    """A range as people say it, both ends included."""
    if next_offset is None:
        return f"{first} and after"
    return str(first) if next_offset <= first + 1 else f"{first} to {next_offset - 1}"
