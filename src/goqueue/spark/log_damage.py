"""What exactly is wrong where a log is damaged: a closer look at the bytes than readers take.

A reader skips a damaged range as a whole, and so does the broker. Here the range is gone through record by record, so
that it can be said which offsets have no record any more, which have one in the wrong place, and which have two.
Nothing here knows Spark.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from goqueue import codec
from goqueue.codec.layout import MAGIC, VERSION
from goqueue.io.disk import Disk
from goqueue.model import limits
from goqueue.spark.log_reading import LogPart, Loss, PartReader
from goqueue.storage.walk import Damage, read_around

DAMAGED: Final = "damaged"
"""Bytes are not what was written."""
MISSING: Final = "missing"
"""No bytes are left of these offsets."""
DUPLICATED: Final = "duplicated"
"""A record is there again."""
DISPLACED: Final = "displaced"
"""Good records, in a place where nobody looks for them: readers skip them."""
TORN: Final = "torn"
"""An end that was never synced; the next start of the broker cuts it off."""

_BEGINNING: Final = MAGIC + bytes([VERSION])
_MOST_BYTES: Final = 64 * limits.MIB
"""What is looked at of one range; of more only the beginning."""


class Finding(NamedTuple):
    """Offsets `first` up to `end`: what is wrong, and where in which file."""

    kind: str
    first: int
    end: int
    path: str
    position: int
    reason: str


class _Found(NamedTuple):
    """A whole record of the range."""

    offset: int
    position: int
    end: int


def examine(part: LogPart, disk: Disk) -> Iterator[Finding]:
    """What is wrong with the offsets of a part, which has whole segments."""
    first, end = part.stretch.start, part.stretch.end
    for loss in PartReader(part, disk).read():
        if not isinstance(loss, Loss):
            continue
        for each in diagnose(loss, disk):
            if each.kind == DUPLICATED:  # it lies there in place of the first that is lost
                if first <= loss.damage.first < end:
                    yield each
            elif each.first < end and each.end > first:
                yield each._replace(first=max(each.first, first), end=min(each.end, end))
    if part.torn is not None:
        yield from diagnose(part.torn, disk, torn=True)


def diagnose(loss: Loss, disk: Disk, *, torn: bool = False) -> list[Finding]:
    damage = loss.damage
    try:
        file = disk.open(loss.path)
    except (FileNotFoundError, IsADirectoryError):
        return [Finding(MISSING, damage.first, damage.next_offset, loss.path, damage.position, damage.reason)]
    try:
        if torn:
            damage = damage._replace(end=file.size(), next_offset=limits.MAX_OFFSET)
        # A record that was moved may reach behind the range.
        size = min(file.size(), damage.end + limits.MIB, damage.position + _MOST_BYTES)
        data = memoryview(read_around(file, damage.position, max(size - damage.position, 0)))
    finally:
        file.close()
    return list(_diagnose(loss.path, damage, data, torn))


def _diagnose(path: str, damage: Damage, data: memoryview, torn: bool) -> Iterator[Finding]:
    within = damage.end - damage.position
    found = [
        each
        for each in _records(data)
        if each.position < within or each.offset < damage.next_offset  # behind it the log goes on as it should
    ]
    if torn and not found:
        yield Finding(TORN, damage.first, damage.first + 1, path, damage.position, damage.reason)
        return
    end = max(each.offset for each in found) + 1 if torn else damage.next_offset
    there: list[_Found] = []
    for each in found:
        if each.offset < damage.first or any(each.offset == other.offset for other in there[-1:]):
            reason = "the same record is there before"
            yield Finding(DUPLICATED, each.offset, each.offset + 1, path, damage.position + each.position, reason)
        elif each.offset < end:
            there.append(each)
    bad = _first_gap(found, min(within, len(data)))
    for first, following in _complement(sorted(each.offset for each in there), damage.first, end):
        if bad is not None:
            yield Finding(DAMAGED, first, following, path, damage.position + bad, damage.reason)
        else:
            yield Finding(MISSING, first, following, path, damage.position, "there is no record of them")
    for front, last in _rows(there):
        reason = "they do not follow the record before them, so readers skip them"
        yield Finding(DISPLACED, front.offset, last.offset + 1, path, damage.position + front.position, reason)


def _records(data: memoryview) -> Iterator[_Found]:
    """Every whole record, wherever it lies, but for those inside of others."""
    raw = bytes(data)
    position = 0
    while position < len(data):
        scan = codec.scan(data[position:])
        bounds = [*scan.positions, scan.end]
        for ordinal, offset in enumerate(scan.offsets):
            yield _Found(offset, position + bounds[ordinal], position + bounds[ordinal + 1])
        position += scan.end
        following = raw.find(_BEGINNING, position + 1)
        if following < 0:
            return
        position = following


def _first_gap(found: list[_Found], size: int) -> int | None:
    """The first byte that belongs to no record."""
    position = 0
    for each in found:
        if each.position > position:
            break
        position = each.end
    return position if position < size else None


def _complement(offsets: list[int], first: int, end: int) -> Iterator[tuple[int, int]]:
    for offset in [*offsets, end]:
        if offset > first:
            yield first, offset
        first = max(first, offset + 1)


def _rows(found: list[_Found]) -> Iterator[tuple[_Found, _Found]]:
    first: _Found | None = None
    last: _Found | None = None
    for each in found:
        if first is not None and last is not None and each.offset != last.offset + 1:
            yield first, last
            first = None
        first, last = first or each, each
    if first is not None and last is not None:
        yield first, last
