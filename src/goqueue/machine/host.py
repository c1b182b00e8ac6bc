"""Runs machines over one log: decide, append, apply, and the same apply at restart.

What the records of the log mean is said in `machine.replay`. A snapshot is written in as many blocks as it needs. One
that could not be finished is dropped by a control record before anything else. Once one is durable, everything before
the snapshot before it goes: two are kept.

The host starts no thread and knows no clock. What it returns may be told to others only when the log is as safe as
was promised up to `position`: that holds for refusals and for looks at the state as well.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from goqueue import codec
from goqueue.machine.replay import SNAPSHOT_BEGINS, SNAPSHOT_DROPPED, SNAPSHOT_ENDS, Replay
from goqueue.machine.shape import Machine
from goqueue.model import limits
from goqueue.model.errors import DamagedData, GoQueueError, Quarantined
from goqueue.model.record import Record
from goqueue.storage.log import Appended, Log
from goqueue.storage.reading import Chunk

_BLOCK_BYTES: Final = 4 * limits.MIB
"""What is gathered of a snapshot before it is appended, unless one record is larger."""


class Outcome(NamedTuple):
    """`reply` or `refusal`; true for others once the log is safe up to `position`."""

    reply: Any
    refusal: GoQueueError | None
    position: int


class Host:
    """One thread at a time submits."""

    def __init__(self, log: Log, machines: Iterable[Machine]) -> None:
        self.log = log
        self._machines = {machine.name: machine for machine in machines}
        self._keys = {name: name.encode() for name in self._machines}
        self._snapshots: list[int] = []
        """Where the complete snapshots begin, oldest first."""
        self._since = log.start_offset
        """Records below this are in a snapshot."""
        self._snapshot_records = 0
        """How many the last one has: a large state is written down again only after as many changes."""
        self._unfinished = False
        """The log ends in the middle of a snapshot."""
        self._replay()

    def submit(self, machine: Machine, command: Any, now: int, *, written_at: int | None = None) -> Outcome:
        """Decide, append, apply. DiskFull and StorageFailed are raised; nothing changed then.

        `written_at` is the append time where the machine's `now` is not the wall clock's.
        """
        try:
            decision = machine.decide(command, now)
        except GoQueueError as refusal:
            return Outcome(None, refusal, self.log.end_offset)
        if decision.records:
            key = self._keys[machine.name]
            block = codec.encode([Record(key=key, value=record) for record in decision.records])
            appended = self._append(block, now if written_at is None else written_at)
            for ordinal, record in enumerate(decision.records):
                machine.apply(record, appended.first_offset + ordinal)
        return Outcome(decision.reply, None, self.log.end_offset)

    def _append(self, block: bytearray, now: int) -> Appended:
        if self._unfinished:
            self.log.append(codec.encode([Record(key=SNAPSHOT_DROPPED, control=True)]), now=now)
            self._unfinished = False
        return self.log.append(block, now=now)

    # --- snapshots

    @property
    def wants_snapshot(self) -> bool:
        return self.log.end_offset - self._since >= max(limits.RECORDS_PER_SNAPSHOT, self._snapshot_records)

    def snapshot(self, now: int) -> int:
        """Append one. When the log is durable up to the offset returned, `forget` may be called."""
        self.log.roll()
        begins = self._append(codec.encode([Record(key=SNAPSHOT_BEGINS, control=True)]), now).first_offset
        self._unfinished = True
        block = bytearray()
        for machine in self._machines.values():
            key = self._keys[machine.name]
            for record in machine.snapshot():
                if len(block) + len(record) > _BLOCK_BYTES and block:
                    self.log.append(block, now=now)
                    block = bytearray()
                block += codec.encode([Record(key=key, value=record)])
        block += codec.encode([Record(key=SNAPSHOT_ENDS, control=True)])
        end = self.log.append(block, now=now).next_offset
        self._unfinished = False
        self._snapshots.append(begins)
        self._since, self._snapshot_records = end, end - begins
        self.log.hasten()
        return end

    def forget(self) -> None:
        """Drop what lies before the last snapshot but one. Both must be durable."""
        if len(self._snapshots) >= 2:
            self.log.truncate_prefix(self._snapshots[-2])
            del self._snapshots[:-2]

    # --- restart

    def _replay(self) -> None:
        """Everything in the log, through `apply`."""
        log = self.log
        replay = Replay(log.directory, self._machines, log.start_offset)
        offset = log.start_offset
        while offset < log.end_offset:
            chunk = self._read(offset)
            replay.feed(codec.decode(chunk.data, verified=True))
            offset = chunk.next_offset
        unfinished = replay.finish()
        if unfinished is not None:  # a power cut took its end: what is appended next must not seem to be part of it
            log.truncate(unfinished)
        self._snapshots = replay.snapshots
        self._since, self._snapshot_records = replay.since, replay.snapshot_records

    def _read(self, offset: int) -> Chunk:
        try:
            return self.log.read(offset, max_bytes=limits.SCAN_CHUNK_BYTES)
        except Quarantined as damage:
            raise DamagedData(
                f"{self.log.directory} is damaged, and nothing can be decided without what it says ({damage.reason}, "
                f"offsets {damage.first} to {damage.next_offset - 1}); put a good copy of that directory in place"
            ) from damage
