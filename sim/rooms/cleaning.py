"""What a cleaner may take away, worked out from the history alone.

It may take: a record that is old enough (age runs from the later of append and due time), a prefix of the
log when more bytes are kept than asked for, a record with a newer one of the same key, an old tombstone. It
may never take a record that is still to be delivered, except where the whole log was told to start later.
"""

from goqueue.model.settings import LogSettings
from sim.rooms.history import Entry, History


class Cleaning:
    """The rules under one log's settings, at the latest time its cleaner ran."""

    def __init__(self, history: History, settings: LogSettings) -> None:
        self._settings = settings
        self._history = history
        self._now = max(history.cleanings, default=None)
        self._newest = {
            entry.key: entry.offset
            for _, entry in sorted(history.entries.items())
            if entry.key is not None and (entry.deliver_at or 0) <= (self._now or 0)
        }
        self._kept_after = self._bytes_after(history) if settings.retention_bytes is not None else {}

    def _bytes_after(self, history: History) -> dict[int, int]:
        """For each offset, how many bytes the log holds from the record after it on."""
        after: dict[int, int] = {}
        total = 0
        for offset in sorted(history.entries, reverse=True):
            after[offset] = total
            if offset not in history.cleaned:
                total += len(history.entries[offset].raw)
        return after

    def may_remove(self, offset: int) -> bool:
        entry = self._history.entries.get(offset)
        if entry is None or self._now is None:
            return False
        if offset in self._history.cleaned:
            return True
        pending = entry.deliver_at is not None and entry.deliver_at > self._now
        if pending and offset not in self._history.damaged:  # nobody can know when a damaged one is due
            return False
        return self._expired(entry, self._now) or self._superseded(entry, self._now)

    def _expired(self, entry: Entry, now: int) -> bool:
        settings = self._settings
        if settings.retention_ms is not None:
            due = 0 if entry.offset in self._history.damaged else entry.deliver_at or 0
            if max(entry.timestamp, due) + settings.retention_ms <= now:
                return True
        return settings.retention_bytes is not None and self._kept_after[entry.offset] >= settings.retention_bytes

    def _superseded(self, entry: Entry, now: int) -> bool:
        if not self._settings.compact or entry.key is None:
            return False
        if self._newest.get(entry.key, -1) > entry.offset:
            return True
        return entry.tombstone and entry.timestamp + self._settings.tombstone_retention_ms <= now

    def may_start_at(self, start: int) -> bool:
        """Whether retention explains that the log starts here: everything before may be removed."""
        return all(self.may_remove(offset) for offset in range(self._history.start_limit, start))
