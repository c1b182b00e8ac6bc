"""Records as columns, and columns as records, in plain Python: part of the reference.

Columns are laid out as Arrow's are, so that whoever has Arrow takes them over as they are: numbers in the machine's
order, pieces of bytes one behind the other with int32 bounds, absence as a bit that is not set. This module knows
nothing of Arrow itself.
"""

from array import array
from bisect import bisect_right
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Final

from goqueue.codec.encoding import SHORT, TO_BE_NUMBERED, Refused, encode_one
from goqueue.codec.inspection import Block, Broken, Parts, examine, murmur3, read_field, view_of
from goqueue.codec.layout import (
    BLOCK_NOT_ASCENDING,
    HEADER_COUNT_BYTES,
    HEADER_LENGTH_BYTES,
    NOT_COLUMNS,
    NOT_FIELDS,
    NOT_RANGES,
    REASONS,
    Field,
    Flag,
    HeaderColumns,
    Numbers,
    PartitionBlock,
    Pieces,
    RecordColumns,
    Refusal,
)
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Record

NO_RANGES: Final = array("q")
PACKED_FIELDS: Final = (Field.DELIVER_AT, Field.EXPIRES_AT, Field.EVENT_TIME)
_INTS: Final = "i"
_LONGS: Final = "q"
assert array(_INTS).itemsize == 4


# --- From records


def to_columns(
    block: Block,
    *,
    from_offset: int,
    to_offset: int,
    hidden: "array[int]" = NO_RANGES,
    keys: bool = True,
    values: bool = True,
    headers: bool = True,
    fields: Collection[Field] = (),
) -> RecordColumns:
    """The messages of a block from `from_offset` up to `to_offset` (not included), with the columns that are wanted.

    Control records are left out, and what lies in a range of `hidden`: a first offset and the one after the last, again
    and again. Every record of the block is looked at; raises `InvalidRecord` at the first problem.
    """
    view = view_of(block)
    firsts, ends = _ranges(hidden)
    rows: list[Parts] = []
    position = index = 0
    last = -1
    while position < len(view):
        try:
            parts = examine(view, position)
        except Broken as broken:
            raise InvalidRecord(REASONS[broken.problem], index=index, position=position) from None
        if index and parts.offset <= last:
            raise ValueError(BLOCK_NOT_ASCENDING)
        at = bisect_right(firsts, parts.offset) - 1
        is_hidden = at >= 0 and parts.offset < ends[at]
        if from_offset <= parts.offset < to_offset and not parts.flags & Flag.CONTROL and not is_hidden:
            rows.append(parts)
        last = parts.offset
        position = parts.end
        index += 1
    return RecordColumns(
        len(rows),
        array(_LONGS, (row.offset for row in rows)).tobytes(),
        array(_LONGS, (row.timestamp for row in rows)).tobytes(),
        bytes(row.priority for row in rows),
        _pieces([None if row.flags & Flag.NO_KEY else view[row.key : row.value] for row in rows]) if keys else None,
        _pieces([None if row.flags & Flag.NO_VALUE else view[row.value : row.headers] for row in rows])
        if values
        else None,
        _headers([view[row.headers : row.end] for row in rows]) if headers else None,
        {field: _numbers([read_field(view, row, field) for row in rows]) for field in map(Field, fields)},
    )


def _ranges(hidden: "array[int]") -> tuple[list[int], list[int]]:
    offsets = memoryview(hidden)
    if offsets.ndim != 1 or offsets.itemsize != 8 or offsets.format not in ("q", "l") or len(offsets) % 2:
        raise ValueError(NOT_RANGES)
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        raise ValueError(NOT_RANGES)
    numbers = offsets.tolist()
    return numbers[::2], numbers[1::2]


def _present(rows: list[bool]) -> bytes | None:
    if all(rows):
        return None
    bits = bytearray((len(rows) + 7) // 8)
    for at, is_there in enumerate(rows):
        bits[at // 8] |= is_there << at % 8
    return bytes(bits)


def _bounds(lengths: list[int]) -> bytes:
    bounds = array(_INTS, [0])
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return bounds.tobytes()


def _pieces(rows: list[memoryview | None]) -> Pieces:
    there = [row if row is not None else memoryview(b"") for row in rows]
    return Pieces(_present([row is not None for row in rows]), _bounds([len(row) for row in there]), b"".join(there))


def _numbers(rows: list[int | None]) -> Numbers:
    return Numbers(_present([row is not None for row in rows]), array(_LONGS, (row or 0 for row in rows)).tobytes())


def _headers(sections: list[memoryview]) -> HeaderColumns:
    counts: list[int] = []
    pieces: list[memoryview | None] = []
    for section in sections:
        counts.append(SHORT.unpack_from(section)[0] if section else 0)
        at = HEADER_COUNT_BYTES
        for _ in range(2 * counts[-1]):
            start = at + HEADER_LENGTH_BYTES
            at = start + SHORT.unpack_from(section, at)[0]
            pieces.append(section[start:at])
    return HeaderColumns(_bounds(counts), _pieces(pieces[::2]), _pieces(pieces[1::2]))


# --- To records


def from_columns(
    count: int,
    *,
    keys: Pieces | None,
    values: Pieces | None,
    headers: HeaderColumns | None,
    lanes: Block,
    fields: Mapping[Field, Numbers],
    partitions: Block,
    partition_count: int,
    keyless: int,
    max_bytes: int,
    transaction: int | None = None,
) -> list[PartitionBlock]:
    """So many messages as blocks of their partitions, in their order, with room for their producer's fields.

    `lanes` has a byte for each, `partitions` an int32: below 0 the key decides, and without a key it is `keyless`. A
    block has up to `max_bytes`, and one message at least. Raises `InvalidRecord` for the first that breaks a limit,
    with its row as `index`; ValueError when the columns are none.
    """
    if count < 0 or partition_count < 1 or not 0 <= keyless < partition_count:
        raise ValueError(NOT_COLUMNS)
    if any(field not in PACKED_FIELDS for field in fields):
        raise ValueError(NOT_FIELDS)
    key_rows, value_rows = _rows(keys, count), _rows(values, count)
    header_rows = _header_rows(headers, count)
    times = {field: _times(numbers, count) for field, numbers in fields.items()}
    asked = _load(_INTS, partitions, count)
    if memoryview(lanes).nbytes < count:
        raise ValueError(NOT_COLUMNS)
    blocks: list[PartitionBlock] = []
    open_ones: dict[int, int] = {}
    for row in range(count):
        key = key_rows[row]
        extension = Extension(
            deliver_at=times[Field.DELIVER_AT][row] if Field.DELIVER_AT in times else None,
            expires_at=times[Field.EXPIRES_AT][row] if Field.EXPIRES_AT in times else None,
            event_time=times[Field.EVENT_TIME][row] if Field.EVENT_TIME in times else None,
            producer=TO_BE_NUMBERED,
            transaction=transaction,
        )
        record = Record(
            key=key,
            value=value_rows[row],
            priority=memoryview(lanes)[row],
            headers=header_rows[row],
            extension=extension,
        )
        try:
            encoded = encode_one(record)
            partition = asked[row]
            if partition < 0:
                partition = keyless if key is None else murmur3(key) % partition_count
            if partition >= partition_count:
                raise Refused(Refusal.PARTITION)
        except Refused as refused:
            raise InvalidRecord(str(refused), index=row, position=0) from None
        at = open_ones.get(partition)
        if at is None or len(blocks[at].block) + len(encoded) > max_bytes:
            at = open_ones[partition] = len(blocks)
            blocks.append(PartitionBlock(partition, bytearray(), 0))
        blocks[at].block.extend(encoded)
        blocks[at] = blocks[at]._replace(messages=blocks[at].messages + 1)
    return blocks


def _load(kind: str, data: Block, count: int) -> "array[int]":
    numbers = array(kind)
    view = memoryview(data).cast("B")
    if len(view) < numbers.itemsize * count:
        raise ValueError(NOT_COLUMNS)
    numbers.frombytes(view[: numbers.itemsize * count])
    return numbers


def _are_there(present: Block | None, count: int) -> list[bool]:
    if present is None:
        return [True] * count
    bits = memoryview(present).cast("B")
    if 8 * len(bits) < count:
        raise ValueError(NOT_COLUMNS)
    return [bool(bits[row // 8] >> row % 8 & 1) for row in range(count)]


def _rows(pieces: Pieces | None, count: int) -> list[bytes | None]:
    if pieces is None:
        return [None] * count
    bounds, data = _load(_INTS, pieces.bounds, count + 1), memoryview(pieces.data).cast("B")
    if bounds[0] < 0 or bounds[-1] > len(data) or any(end < start for start, end in pairwise(bounds)):
        raise ValueError(NOT_COLUMNS)
    there = _are_there(pieces.present, count)
    return [bytes(data[bounds[row] : bounds[row + 1]]) if there[row] else None for row in range(count)]


def _times(numbers: Numbers, count: int) -> list[int | None]:
    data, there = _load(_LONGS, numbers.data, count), _are_there(numbers.present, count)
    return [data[row] if there[row] else None for row in range(count)]


def _header_rows(headers: HeaderColumns | None, count: int) -> list[tuple[tuple[str, bytes], ...]]:
    if headers is None:
        return [()] * count
    bounds = _load(_INTS, headers.bounds, count + 1)
    if bounds[0] < 0 or any(end < start for start, end in pairwise(bounds)):
        raise ValueError(NOT_COLUMNS)
    names = [name or b"" for name in _rows(headers.names, bounds[-1])]
    contents = [content or b"" for content in _rows(headers.contents, bounds[-1])]
    pairs = [(name.decode("utf-8", "surrogateescape"), content) for name, content in zip(names, contents, strict=True)]
    return [tuple(pairs[bounds[row] : bounds[row + 1]]) for row in range(count)]
