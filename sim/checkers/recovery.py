"""The recovery report tells the truth: the log ends where the valid bytes do, and what was cut is all there.

What is right is worked out here from the bytes the crash left, independently of the recovery code.
"""

from typing import NamedTuple

from goqueue import codec
from goqueue.codec.layout import MAGIC
from goqueue.storage import state as hard_state
from goqueue.storage.log import Log
from goqueue.storage.state import NOT_TRUNCATING
from goqueue.storage.synced import Synced, SyncedMark
from sim.checkers import require
from sim.checkers.observed import Observed
from sim.disk import SimDisk

RULE = "recovery"


class Tail(NamedTuple):
    """What a crash left of the segments that were not sealed."""

    base: int
    synced: Synced
    contents: dict[int, bytes]


def before(disk: SimDisk, directory: str) -> Tail | None:
    """The tail as it is now; None when a truncation or the very beginning is unfinished and will change it."""
    if not disk.exists(f"{directory}/{hard_state.FILE_NAME}"):
        return None
    state = hard_state.load(disk, directory)
    synced = SyncedMark(disk, directory).load()
    if state is None or synced is None or state.truncate_to != NOT_TRUNCATING:
        return None
    contents = {
        int(name[:20]): disk.content(f"{directory}/{name}") for name in disk.list(directory) if name.endswith(".log")
    }
    return Tail(state.tail_base, synced, {base: contents[base] for base in sorted(contents) if base >= state.tail_base})


def check(tail: Tail, log: Log, observed: Observed, disk: SimDisk) -> None:
    end, parts = _valid_end(tail)
    left_over = b"".join(parts)
    require(observed.end == end, RULE, f"the log ends at {observed.end}; the bytes the crash left are valid to {end}")
    cut = log.recovery.cut
    if cut is None:
        require(not left_over, RULE, f"{len(left_over)} bytes were cut from offset {end} on and not reported")
        return
    require(cut.first_offset == end, RULE, f"the report says {cut.first_offset} was cut, it was {end}")
    require(cut.size == len(left_over), RULE, f"the report says {cut.size} bytes were cut, it were {len(left_over)}")
    require(all(map(disk.exists, cut.saved_as)), RULE, f"of {cut.saved_as} not all were written")
    saved = b"".join(disk.content(path) for path in cut.saved_as)
    require(saved == left_over, RULE, f"{cut.saved_as} hold other bytes than were cut")
    sure, whole = map(sum, zip(*(_whole_records(part, end) for part in parts), strict=True))
    require(
        sure <= cut.valid_records <= whole,
        RULE,
        f"the report counts {cut.valid_records} whole records, there are {whole}, {sure} of them beyond doubt",
    )


def _valid_end(tail: Tail) -> tuple[int, list[bytes]]:
    """The offset where the log must end (below the mark everything counts as valid), and all bytes after it by file."""
    bases = sorted(tail.contents)
    end = max(tail.synced.offset, tail.base)
    for number, base in enumerate(bases):
        data = tail.contents[base]
        later = [tail.contents[other] for other in bases[number + 1 :]]
        if base < tail.synced.base:
            continue
        position = tail.synced.position if base == tail.synced.base else 0
        if base > end or (base != end and not position and base != tail.synced.base):
            return end, [data, *later]
        offsets, valid = _valid_prefix(data[position:], end)
        end += offsets
        following = bases[number + 1] if number + 1 < len(bases) else None
        if position + valid < len(data) or (following is not None and following != end):
            return end, [data[position + valid :], *later]
    return end, []


def _valid_prefix(data: bytes, first: int) -> tuple[int, int]:
    """How many records follow each other from `first` on, and in how many bytes."""
    scan = codec.scan(data)
    for ordinal, offset in enumerate(scan.offsets):
        if offset != first + ordinal:
            return ordinal, scan.positions[ordinal]
    return len(scan), scan.end


def _whole_records(data: bytes, first: int) -> tuple[int, int]:
    """Records with a right checksum, at any position, in increasing order of offset: those in company, and all.

    A record that stands alone between torn bytes may be part of a torn message's value.
    """
    sure = count = run = position = 0
    expected = first
    view = memoryview(data)
    while 0 <= position < len(data):
        scan = codec.scan(view[position:])
        if len(scan) and scan.offsets[0] >= expected:
            expected = scan.offsets[0] + 1
            count += 1
            run += 1
            sure += 2 if run == 2 else 1 if run > 2 else 0
            position += scan.positions[1] if len(scan) > 1 else scan.end
        else:
            run = 0
            position = data.find(MAGIC, position + 1)
    return sure, count
