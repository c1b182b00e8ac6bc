"""The model beside a simulated log: everything that was asked of it, and therefore what it may show.

The model is told before and after each operation. An operation that a crash interrupted is *in doubt*: done
or not done, and the next look at the log settles which. It never reads a disk and knows no file.
"""

from dataclasses import dataclass, field

from sim.disk import CrashKind


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it was appended, stamped."""

    offset: int
    timestamp: int
    raw: bytes
    key: bytes | None = None
    tombstone: bool = False
    deliver_at: int | None = None


@dataclass(slots=True)
class History:
    """Of one log, over all its lives."""

    entries: dict[int, Entry] = field(default_factory=dict)
    """What was appended and neither truncated nor seen to be gone, by offset."""
    start: int = 0
    """The log begins here at least."""
    end: int = 0
    durable: int = 0
    """Below it the log has said: durable."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)
    suspect: set[int] = field(default_factory=set)
    """Cleaned offsets below a truncation that also dropped a damaged record: the log cannot know which one it was."""
    """Offsets whose bytes on the medium were flipped."""
    cleanings: list[int] = field(default_factory=list)
    """The times at which the cleaner ran, or began to."""
    cleaned: set[int] = field(default_factory=set)
    """Offsets seen to be removed: they never come back."""

    # In doubt since the last look
    appending: list[Entry] = field(default_factory=list)
    truncating: int | None = None
    truncating_prefix: int | None = None
    beginning_epoch: tuple[int, int] | None = None
    floor: int = 0
    """At the next look nothing below it may be missing: `end`, or less after a power cut."""

    def append(self, entries: list[Entry]) -> None:
        """An append came back."""
        for entry in entries:
            self.entries[entry.offset] = entry
        self.appending = []
        self.end = self.floor = entries[-1].offset + 1

    def refused(self) -> None:
        """An append was refused: nothing changed."""
        self.appending = []

    def begun(self, epoch: int, start: int) -> None:
        self.beginning_epoch = None
        self.epochs = [entry for entry in self.epochs if entry[1] < start] + [(epoch, start)]

    def synced(self, durable: int) -> None:
        self.durable = max(self.durable, durable)

    def truncated(self, offset: int) -> None:
        """A truncation came back, or was seen to have happened."""
        self.truncating = None
        if offset == self.end:
            return
        self._forget(offset)
        self.epochs = [entry for entry in self.epochs if entry[1] < offset]

    def may_be_damaged(self, offset: int) -> bool:
        return offset in self.damaged or offset in self.suspect

    def _forget(self, end: int) -> None:
        if any(offset >= end for offset in self.damaged):
            below = end - 1
            while below in self.cleaned:
                self.suspect.add(below)
                below -= 1
        for gone in range(end, self.end):
            self.entries.pop(gone, None)
            self.damaged.discard(gone)
            self.cleaned.discard(gone)
        self.end = self.floor = end
        self.durable = min(self.durable, end)

    def crashed(self, kind: CrashKind) -> None:
        self.floor = min(self.floor, self.end if kind == "kill" else self.durable)

    def mark_lost(self) -> None:
        """The synced mark did not survive: what was never durable may be kept as damaged instead of being cut."""
        self.damaged.update(range(self.durable, self.end + len(self.appending)))

    # What the log may show

    def candidate(self, offset: int) -> Entry | None:
        """The only record that may stand at `offset`."""
        found = self.entries.get(offset)
        if found is None and offset >= self.end and offset - self.end < len(self.appending):
            return self.appending[offset - self.end]
        return found

    def ends(self) -> list[tuple[int, int]]:
        """Where the log may end: ranges, both sides included."""
        ranges = [(self.floor, self.end + len(self.appending))]
        if self.truncating is not None:
            ranges.append((min(self.floor, self.truncating), self.truncating))
        return ranges

    @property
    def start_limit(self) -> int:
        """How far prefix truncations may have moved the start."""
        return max(self.start, self.truncating_prefix or 0)

    def allowed_epochs(self, end: int) -> list[list[tuple[int, int]]]:
        """The lists of leader epochs that the log may have. One that began past a lost tail begins at the end."""
        lists = [self.epochs]
        if self.beginning_epoch is not None:
            epoch, start = self.beginning_epoch
            lists.append([entry for entry in self.epochs if entry[1] < start] + [(epoch, start)])
        if self.truncating is not None:
            lists += [[entry for entry in entries if entry[1] < self.truncating] for entries in lists]
        return lists + [[(epoch, min(start, end)) for epoch, start in entries] for entries in lists]

    def settle(
        self,
        *,
        start: int,
        end: int,
        durable: int,
        epochs: list[tuple[int, int]],
        present: set[int],
        quarantined: set[int],
    ) -> None:
        """The log was looked at and every checker agreed: what was in doubt is now known."""
        for entry in self.appending:
            self.entries[entry.offset] = entry
        self.end += len(self.appending)
        self._forget(end)
        self.appending = []
        self.truncating = self.truncating_prefix = self.beginning_epoch = None
        for gone in range(self.start, start):
            self.entries.pop(gone, None)
        self.start = start
        self.durable = durable
        self.epochs = epochs
        self.cleaned |= self.entries.keys() - present - (self.damaged & quarantined)
        self.damaged -= present | self.cleaned
