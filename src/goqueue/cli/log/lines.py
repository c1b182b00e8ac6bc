"""Standard input as messages: a line is a value, lines that arrive together make a block.

Memory is bounded by one read, one block and one line. Nothing waits for more input than has arrived, so a
line typed or piped slowly is appended when it comes.
"""

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from goqueue import codec
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Record

READ_BYTES: Final = limits.MIB


class Source(Protocol):
    def read1(self, size: int, /) -> bytes:
        """What is there, waiting only when nothing is; empty at the end."""


class Block(msgspec.Struct, frozen=True):
    """Encoded records, and how many bytes of input they took."""

    data: bytearray
    input_bytes: int


def arrived_lines(source: Source, max_line_bytes: int) -> Iterator[list[bytes]]:
    """The lines that each read completes, without their newlines; the last one may lack its own."""
    parts: list[bytes] = []
    waiting = number = 0
    while data := source.read1(READ_BYTES):
        first, *rest = data.split(b"\n")
        parts.append(first)
        waiting += len(first)
        lines = []
        if rest:
            lines = [b"".join(parts), *rest[:-1]]
            parts, waiting = [rest[-1]], len(rest[-1])
        for line in lines:
            number += 1
            _check(line_bytes=len(line), number=number, max_line_bytes=max_line_bytes)
        _check(line_bytes=waiting, number=number + 1, max_line_bytes=max_line_bytes)
        if lines:
            yield lines
    if waiting:
        yield [b"".join(parts)]


def _check(*, line_bytes: int, number: int, max_line_bytes: int) -> None:
    if line_bytes > max_line_bytes:
        raise InvalidRequest(f"line {number} is longer than the {max_line_bytes} bytes a value may have here; split it")


def blocks(source: Source, message: Record, block_bytes: int) -> Iterator[Block]:
    """Blocks of about `block_bytes` at most, each record like `message` with a line as its value."""
    overhead = len(codec.encode([msgspec.structs.replace(message, value=b"")]))
    for lines in arrived_lines(source, limits.MAX_RECORD_BYTES - overhead):
        values: list[bytes] = []
        size = 0
        for line in lines:
            if values and size + len(line) + overhead > block_bytes:
                yield _block(message, values)
                values, size = [], 0
            values.append(line)
            size += len(line) + overhead
        yield _block(message, values)


def _block(message: Record, values: list[bytes]) -> Block:
    data = codec.encode([msgspec.structs.replace(message, value=value) for value in values])
    return Block(data, sum(map(len, values)) + len(values))
