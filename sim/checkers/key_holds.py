"""In `key` mode nothing of a key is delivered past a message that is not decided about, or that somebody has."""

from collections.abc import Iterable, Set

from sim.checkers import require
from sim.checkers.sighted import Sighted

RULE = "key holds"


def _is_delayed(seen: Sighted, offset: int) -> bool:
    """Then it comes in when it is due."""
    extension = seen.records[offset].extension
    return extension is not None and extension.deliver_at is not None


def check(seen: Sighted, taken: Set[int], leased: Iterable[int]) -> None:
    """`taken` are offsets that were leased or pledged, before these were leased."""
    held = {offset for offset in (seen.uncommitted | taken) & seen.records.keys() if not _is_delayed(seen, offset)}
    for offset in leased:
        key = seen.records[offset].key
        before = sorted(other for other in held if key and other < offset and seen.records[other].key == key)
        require(not before, RULE, f"offset {offset} of {seen.part} is delivered, and {before} of its key are held")
