"""One segment of a log: a file of records back to back, and what is known about it in memory.

A segment is active (the last one, growing), rolled (full, waiting for its fsync) or sealed (`seal` > 0: it
will not grow). The writer publishes growth by setting `size` and then `end`; readers go by those. A cleaner
never changes a segment: it puts a new one in its place and retires the old.
"""

from itertools import count

from goqueue.storage.derived import Derived
from goqueue.storage.files import FileKey
from goqueue.storage.state import SealedSegment, Trait
from goqueue.storage.walk import Damage, Extent

_lives = count(1)


class Retired(Exception):
    """The file under a segment was exchanged or removed meanwhile: look again."""


def stem(directory: str, base: int) -> str:
    """The path of a segment's files without their endings."""
    return f"{directory}/{base:020d}"


class Segment:
    """Invariant: offsets `base` up to `end` are this segment's to answer for, in `size` bytes of its file."""

    __slots__ = (
        "base",
        "count",
        "damage",
        "derived",
        "end",
        "first_timestamp",
        "key",
        "lane_counts",
        "last_timestamp",
        "retired",
        "seal",
        "size",
        "stem",
        "synced_size",
        "traits",
    )

    def __init__(self, directory: str, base: int, derived: Derived | None = None) -> None:
        self.base = base
        self.end = base
        self.size = 0
        self.count = 0
        self.first_timestamp = 0
        self.last_timestamp = 0
        self.seal = 0
        self.traits = Trait(0)
        self.synced_size = 0
        self.stem = stem(directory, base)
        self.key = FileKey(self.stem + ".log", next(_lives))
        self.derived = derived
        """None until a reader needs it; the store may drop a sealed segment's again."""
        self.lane_counts: tuple[int, ...] | None = None
        """How many records each lane of a sealed segment has, once somebody looked; kept when `derived` is dropped."""
        self.damage: list[Damage] | None = None
        """The damaged ranges, once somebody ran into one; None means nobody has looked."""
        self.retired = False
        """Something else stands at this segment's path, or nothing: look the offset up again."""

    @classmethod
    def sealed(cls, directory: str, entry: SealedSegment) -> "Segment":
        segment = cls(directory, entry.base)
        segment.end = entry.end
        segment.size = segment.synced_size = entry.size
        segment.count = entry.count
        segment.first_timestamp = entry.first_timestamp
        segment.last_timestamp = entry.last_timestamp
        segment.seal = entry.seal
        segment.traits = Trait(entry.traits)
        return segment

    def entry(self, seal: int) -> SealedSegment:
        return SealedSegment(
            self.base,
            self.end,
            self.size,
            self.count,
            self.first_timestamp,
            self.last_timestamp,
            seal,
            int(self.traits),
        )

    def grow(self, size: int, end: int, count: int, timestamps: tuple[int, int]) -> None:
        """Publish records that are in the file and in the indexes. Who sees the times and the count sees the rest."""
        self.size = size
        self.end = end
        if self.count == 0:
            self.first_timestamp = timestamps[0]
        self.last_timestamp = timestamps[1]
        self.count += count

    @property
    def extent(self) -> Extent:
        return Extent(self.base, self.end, self.size, contiguous=not self.traits & Trait.CLEANED)
