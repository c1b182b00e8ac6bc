"""Taking single records out of a block by their offsets, in plain Python: part of the reference.

The bytes were verified before: everything about a record is looked at again but its checksum. The walk ends where
nothing more is asked for, and what lies behind that is not looked at. This module knows a time only as a number.
"""

from array import array
from itertools import pairwise

from goqueue.codec.inspection import Block, Broken, Parts, examine, key_hash, read_field, view_of
from goqueue.codec.layout import (
    BLOCK_NOT_ASCENDING,
    NOT_ASCENDING,
    NOT_INT64,
    REASONS,
    Field,
    Flag,
    Picked,
)
from goqueue.model.errors import InvalidRecord


def pick(block: Block, offsets: "array[int] | memoryview", *, max_bytes: int, now: int = 0, ttl_ms: int = -1) -> Picked:
    """The records at `offsets`, up to `max_bytes` of them; raises `InvalidRecord` at the first problem on the way.

    One record is picked even if it is larger than `max_bytes`. Control records are not picked, nor records that
    have expired at `now`: those with an EXPIRES_AT above 0 and not after it, and of those without one, if `ttl_ms`
    is not negative, those that have been due for that long. With a `now` of 0 nothing has expired. `next_offset` is
    that of the first record there was no room for; else, if all offsets were decided, the one after the last of
    them; else the one after the block's last record. In an empty block it is the first offset, or 0 without any.
    """
    view = view_of(block)
    wanted = _wanted(offsets)
    picked: list[Parts] = []
    expired, missing, controls = array("q"), array("q"), array("q")
    size = position = index = decided = 0
    next_offset = wanted[0] if wanted else 0
    while decided < len(wanted) and position < len(view):
        try:
            parts = examine(view, position, verify=False)
        except Broken as broken:
            raise InvalidRecord(REASONS[broken.problem], index=index, position=position) from None
        if index and parts.offset < next_offset:
            raise ValueError(BLOCK_NOT_ASCENDING)
        while decided < len(wanted) and wanted[decided] < parts.offset:
            missing.append(wanted[decided])
            decided += 1
        if decided < len(wanted) and wanted[decided] == parts.offset:
            if parts.flags & Flag.CONTROL:
                controls.append(parts.offset)
            elif now > 0 and _has_expired(view, parts, now, ttl_ms):
                expired.append(parts.offset)
            else:
                if picked and size + parts.end - parts.start > max_bytes:
                    next_offset = parts.offset
                    break
                picked.append(parts)
                size += parts.end - parts.start
            decided += 1
        next_offset = parts.offset + 1
        position = parts.end
        index += 1
    if wanted and decided == len(wanted):
        next_offset = wanted[-1] + 1
    return Picked(
        _data(view, picked),
        array("q", (parts.offset for parts in picked)),
        array("I", (key_hash(view, parts) for parts in picked)),
        array("B", (parts.flags for parts in picked)),
        array("B", (parts.priority for parts in picked)),
        expired,
        missing,
        controls,
        next_offset,
    )


def _wanted(offsets: "array[int] | memoryview") -> memoryview:
    wanted = memoryview(offsets)
    if not wanted.c_contiguous:
        raise BufferError("the offsets to pick must be contiguous")
    if wanted.ndim != 1 or wanted.itemsize != 8 or wanted.format not in ("q", "l"):
        raise ValueError(NOT_INT64)
    if any(later <= earlier for earlier, later in pairwise(wanted)):
        raise ValueError(NOT_ASCENDING)
    return wanted


def _has_expired(block: memoryview, parts: Parts, now: int, ttl_ms: int) -> bool:
    expires_at = read_field(block, parts, Field.EXPIRES_AT)
    if expires_at is not None:
        return 0 < expires_at <= now
    if ttl_ms < 0:
        return False
    deliver_at = read_field(block, parts, Field.DELIVER_AT)
    due = parts.timestamp if deliver_at is None else max(parts.timestamp, deliver_at)
    return due + ttl_ms <= now


def _data(block: memoryview, picked: list[Parts]) -> memoryview:
    """Copied only where records between the picked ones are left out."""
    if picked and all(later.start == earlier.end for earlier, later in pairwise(picked)):
        return block[picked[0].start : picked[-1].end]
    return memoryview(b"".join(block[parts.start : parts.end] for parts in picked))
