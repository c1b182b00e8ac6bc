"""Making machines again from what a log says: the same at a restart, and for who reads a log without opening it.

A record of the log belongs to the machine its key names. A snapshot is a row of records between two control records:
when its end is met, everything before it is forgotten. One that did not come to its end never was.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from goqueue.machine.shape import Machine
from goqueue.model.errors import DamagedData
from goqueue.model.record import Record

SNAPSHOT_BEGINS: Final = b"snapshot-begins"
SNAPSHOT_ENDS: Final = b"snapshot-ends"
SNAPSHOT_DROPPED: Final = b"snapshot-dropped"


class Replay:
    """Fed with all records of the log in `directory`, in their order."""

    def __init__(self, directory: str, machines: Mapping[str, Machine], start: int) -> None:
        self._directory = directory
        self._machines = machines
        self._start = start
        self._pending: list[Record] | None = None
        """Of a snapshot that has not ended."""
        self.snapshots: list[int] = []
        """Where the complete snapshots begin, oldest first."""
        self.since = start
        """Records below this are in a snapshot."""
        self.snapshot_records = 0
        """How many the last one has."""

    def feed(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.control and record.key == SNAPSHOT_BEGINS:
                self._pending = [record]
            elif record.control and record.key == SNAPSHOT_ENDS and self._pending is not None:
                self._restore(self._pending, record.offset + 1)
                self._pending = None
            elif record.control and record.key == SNAPSHOT_DROPPED:
                self._pending = None
            elif self._pending is not None:
                self._pending.append(record)
            else:
                self._apply(record)

    def finish(self) -> int | None:
        """Where a snapshot begins that has no end, if there is one. DamagedData when the beginning is not known."""
        if not self.snapshots and self._start > 0:
            raise DamagedData(f"{self._directory} has no complete snapshot; restore it from a copy")
        return None if self._pending is None else self._pending[0].offset

    def _restore(self, snapshot: list[Record], end: int) -> None:
        for machine in self._machines.values():
            machine.reset()
        for record in snapshot[1:]:
            self._apply(record)
        self.snapshots.append(snapshot[0].offset)
        self.since, self.snapshot_records = end, end - snapshot[0].offset

    def _apply(self, record: Record) -> None:
        machine = self._machines.get((record.key or b"").decode())
        if machine is None or record.value is None:
            raise DamagedData(
                f"{self._directory}: offset {record.offset} belongs to {record.key!r}, which this GoQueue does not "
                "know; start the version that wrote it"
            )
        machine.apply(record.value, record.offset)
