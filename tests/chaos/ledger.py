"""What the parent knows of the logs, and what it therefore demands of them after a crash.

Promised records must be there, once, at their offsets, with their content. Records in doubt (announced, not
promised) may be there: in the order they were written, without gaps, and from then on for good. Nothing else
may be there. A record may be missing only if the cleaner was entitled to remove it.
"""

from collections import deque

import msgspec

from goqueue.model.record import Record
from tests.chaos.writer import Contents, LogSpec
from tests.support.records import Identity, make


class Violation(Exception):
    """A log broke a promise."""


class Lost(Violation):
    """Something promised is gone."""


class Phantom(Violation):
    """Something is there that nobody wrote, or not there, or not like that."""


class LogLedger:
    """One log."""

    def __init__(self, spec: LogSpec) -> None:
        self.spec = spec
        self._identities: list[Identity] = []
        """By offset: what was promised or found once."""
        self._timestamps: list[int] = []
        self._records: list[Record] = []
        self._doubtful: list[tuple[Identity, ...]] = []
        self._promised = 0
        self._start = 0
        self._epoch = 0
        self._epoch_in_doubt = 0
        self.history: deque[str] = deque(maxlen=8)
        """What was found and known at the last checks, for whoever has to find out what went wrong."""

    # --- what the writer says

    def intend(self, life: int, block: int, count: int) -> None:
        self._doubtful.append(tuple(Identity(life, block, number) for number in range(count)))

    def promise(self, life: int, block: int, first: int, next_offset: int, timestamp: int) -> None:
        if not self._doubtful or self._doubtful[0][0] != Identity(life, block, 0):
            raise Violation(f"{self.spec.name}: block {block} is acknowledged out of order")
        identities = self._doubtful.pop(0)
        if first != len(self._identities) or next_offset != first + len(identities):
            raise Violation(
                f"{self.spec.name}: block {block} of {len(identities)} records was put at {first} to {next_offset}, "
                f"expected at {len(self._identities)}"
            )
        self._add(identities, [timestamp] * len(identities))
        self._promised = len(self._identities)

    def intend_epoch(self, epoch: int) -> None:
        self._epoch_in_doubt = epoch

    def promise_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def _add(self, identities: tuple[Identity, ...], timestamps: list[int]) -> None:
        self._identities.extend(identities)
        self._timestamps.extend(timestamps)
        self._records.extend(make(self.spec.shape, identity) for identity in identities)

    # --- what must be there

    def check(self, found: Contents, cleaned_until: int) -> None:
        """Compare with what was found; `cleaned_until` is the latest time a cleaner can have run at."""
        name = self.spec.name
        doubts = [f"{block[0].life}/{block[0].block}x{len(block)}" for block in self._doubtful]
        self.history.append(
            f"{name}: found {found.start} to {found.end} in {found.size} bytes, last {found.records[-2:]}, "
            f"known up to {len(self._identities)}, in doubt {doubts}, recovery {found.recovery}"
        )
        if found.end < len(self._identities) or found.damaged:
            raise Lost(
                f"{name}: it ends at {found.end}, damaged are {found.damaged}; promised up to {self._promised}, "
                f"known up to {len(self._identities)}; recovery said {found.recovery}"
            )
        doubtful = [identity for block in self._doubtful for identity in block]
        kept = found.end - len(self._identities)
        if kept > len(doubtful):
            raise Phantom(f"{name}: it ends at {found.end}, at most {len(doubtful)} records were in doubt")
        there = {offset: (Identity(life, block, at), time) for offset, life, block, at, time in found.records}
        if len(there) != len(found.records):
            raise Phantom(f"{name}: an offset is there twice")
        known = range(len(self._identities), found.end)
        self._add(tuple(doubtful[:kept]), [there[offset][1] if offset in there else 0 for offset in known])
        self._doubtful.clear()
        newest: dict[bytes, int] = {}
        for offset, record in enumerate(self._records):
            if record.key is not None:
                newest[record.key] = offset
        for offset, identity in enumerate(self._identities):
            if offset not in there:
                self._check_may_be_gone(offset, newest, cleaned_until, found)
            elif there[offset] != (identity, self._timestamps[offset]):
                raise Phantom(f"{name}: offset {offset} holds {there[offset]}, not {identity}")
        self._check_start(found)
        self._check_epochs(found)

    def _check_may_be_gone(self, offset: int, newest: dict[bytes, int], cleaned_until: int, found: Contents) -> None:
        name, settings, record = self.spec.name, self.spec.settings, self._records[offset]
        if record.extension is not None and record.extension.deliver_at is not None:
            due = self._timestamps[offset] - record.extension.deliver_at
            if due > cleaned_until:
                raise Lost(f"{name}: offset {offset}, due only at {due}, is gone at {cleaned_until}")
        if settings.retention_bytes is not None:
            return
        superseded = record.key is not None and newest[record.key] > offset
        if not (settings.compact and superseded):
            raise Lost(f"{name}: offset {offset} ({self._identities[offset]}) is gone; recovery: {found.recovery}")

    def _check_start(self, found: Contents) -> None:
        retention = self.spec.settings.retention_bytes
        may_move = retention is not None or self.spec.settings.compact
        if found.start < self._start or found.start > found.end or (found.start and not may_move):
            raise Lost(f"{self.spec.name}: it starts at {found.start}, before at {self._start}")
        slack = 2 * self.spec.settings.segment_bytes
        if found.start and retention is not None and found.size + slack < retention:
            raise Lost(f"{self.spec.name}: {found.size} bytes are left of {retention} to be retained")
        self._start = found.start

    def _check_epochs(self, found: Contents) -> None:
        latest = found.epochs[-1][0] if found.epochs else 0
        if latest < self._epoch:
            raise Lost(f"{self.spec.name}: leader epoch {self._epoch} was begun, the newest is {latest}")
        if latest > max(self._epoch, self._epoch_in_doubt):
            raise Phantom(f"{self.spec.name}: leader epoch {latest} was never begun")
        if any(start > found.end for _, start in found.epochs):
            raise Phantom(f"{self.spec.name}: it ends at {found.end}, its leader epochs are {found.epochs}")
        self._epoch = self._epoch_in_doubt = latest

    @property
    def promised(self) -> int:
        return self._promised


class Ledger:
    """All logs of one data directory."""

    def __init__(self, specs: list[LogSpec]) -> None:
        self.logs = {spec.name: LogLedger(spec) for spec in specs}
        self.acknowledged = 0
        self.checks = 0
        self.cuts = 0
        """Recoveries that had to cut something."""

    def hear(self, life: int, kind: str, words: list[str], now: int) -> None:
        """A line from a writer; `now` is the time in milliseconds."""
        match kind, words:
            case "I", [name, block, count]:
                self.logs[name].intend(life, int(block), int(count))
            case "A", [name, block, first, next_offset, timestamp]:
                self.logs[name].promise(life, int(block), int(first), int(next_offset), int(timestamp))
                self.acknowledged += int(next_offset) - int(first)
            case "e", [name, epoch]:
                self.logs[name].intend_epoch(int(epoch))
            case "E", [name, epoch]:
                self.logs[name].promise_epoch(int(epoch))
            case "C", [*words, "."]:
                self._check(msgspec.json.decode(" ".join(words), type=dict[str, Contents]), now)
            case "D", _:
                raise Lost(" ".join(words))
            case "F", _:
                raise Violation(f"the writer says: {' '.join(words)}".replace("\\n", "\n"))
            case _:
                pass

    def _check(self, found: dict[str, Contents], now: int) -> None:
        for name, contents in found.items():
            try:
                self.logs[name].check(contents, now)
            except Violation as error:
                for line in self.logs[name].history:
                    error.add_note(line)
                raise
            self.cuts += any(line.startswith("cut ") for line in contents.recovery)
        self.checks += 1
