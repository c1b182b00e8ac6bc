"""The cleaner takes nothing that is not decided about; compaction takes a message only for a newer one that counts."""

from collections.abc import Iterable

from sim.checkers import require
from sim.checkers.sighted import Sighted

RULE = "cleaned"


def check(before: Sighted, gone: Iterable[int], now: Sighted, *, compacts: bool) -> None:
    """`gone` are offsets that a pass took."""
    hidden, uncommitted = now.hidden, now.uncommitted
    newest: dict[bytes | None, int] = {}
    for offset, record in now.records.items():
        if offset not in hidden and offset not in uncommitted:
            newest[record.key] = max(offset, newest.get(record.key, -1))
    for offset in gone:
        undecided = offset in before.uncommitted
        require(not undecided, RULE, f"offset {offset} of {now.part} was cleaned away, and is not decided about")
        if compacts and offset not in before.hidden:
            key = before.records[offset].key
            newer = key is not None and newest.get(key, -1) > offset
            require(newer, RULE, f"offset {offset} of {now.part} was the newest of {key!r} that counts")
