"""Which dead letters are meant: a filter whose answer is the same whenever it is asked, also in another life.

It looks at a letter and where it lies, and at nothing that changes: whether a letter was redriven before is somebody
else's business. To change the format: add optional fields; `docs/internals/jobs.md` lists them.
"""

from bisect import bisect_left

import msgspec

from goqueue.model.dead_letters import DeadLetter
from goqueue.model.record import Record


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that it says must hold; if it says nothing it means all."""

    reason: str | None = None
    group: str | None = None
    """The name it had when the message died."""
    key: str | None = None
    from_ms: int | None = None
    """Died then or later."""
    to_ms: int | None = None
    """Died before that."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Of headers that have the same name, one must have the value."""
    offsets: dict[int, tuple[int, ...]] | None = None
    """By partition of the dead-letter topic, in order."""
    topic_id: int | None = None
    """Of the topic in which they died. A dead-letter topic may have those of several that had the name."""
    deleted: bool = False
    """Those of all others instead, which were deleted before."""

    def matches(self, letter: DeadLetter, record: Record, partition: int) -> bool:
        """Whether a letter in that partition is meant."""
        if self.topic_id is not None and (letter.topic_id == self.topic_id) is self.deleted:
            return False
        if self.reason not in (None, letter.reason) or self.group not in (None, letter.group):
            return False
        if self.key is not None and record.key != self.key.encode():
            return False
        if self.from_ms is not None and letter.died_at < self.from_ms:
            return False
        if self.to_ms is not None and letter.died_at >= self.to_ms:
            return False
        if any((name, value.encode()) not in record.headers for name, value in self.headers.items()):
            return False
        return self.next_offset(partition, record.offset) == record.offset

    def next_offset(self, partition: int, offset: int) -> int | None:
        """The first one, from there on, that it could mean; None when there is none."""
        if self.offsets is None:
            return offset
        offsets = self.offsets.get(partition, ())
        at = bisect_left(offsets, offset)
        return offsets[at] if at < len(offsets) else None
