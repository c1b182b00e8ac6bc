"""The synced mark: how far a log is known to be fsynced. It divides damage from tear.

Bytes below the mark were durable once, so if they are wrong now they were damaged and nothing is cut; bytes
above it may never have reached the disk. The mark is written after the fsync it speaks of, so it is never
ahead of the truth; it may lag behind. Two slots in separate sectors, written in turn, so that a torn write
of one leaves the other.
"""

import struct
from typing import Final, NamedTuple

from goqueue import codec
from goqueue.io.disk import Disk, File
from goqueue.io.small_file import read_file, write_all

FILE_NAME: Final = "synced"
MAGIC: Final = b"GQSM"
VERSION: Final = 1
SLOT: Final = struct.Struct(">4sBBHIqqqq")
"""magic, version, two reserved fields, crc32c of the rest, sequence, segment base, position, offset."""
SLOT_STRIDE: Final = 4096
_CRC_AT: Final = 8


class Synced(NamedTuple):
    """Everything before `position` of segment `base`, and all earlier segments, is durable; `offset` comes next."""

    base: int
    position: int
    offset: int


class SyncedMark:
    """The mark's file, opened for each use: logs are many, open files are bounded. One thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._sequence = 0
        self.stored: Synced | None = None
        """What the file says, if that is known."""
        self._durable = False
        """It would still say so after a power cut."""

    def load(self) -> Synced | None:
        """The newest valid slot; None when there is none to trust."""
        data = read_file(self._disk, self._path)
        if data is None:
            return None
        slots = [slot for slot in (_unpack(data, start) for start in (0, SLOT_STRIDE)) if slot is not None]
        if not slots:
            return None
        self._sequence, self.stored = max(slots)
        self._durable = False
        return self.stored

    def store(self, synced: Synced, *, durably: bool) -> None:
        if synced == self.stored and (self._durable or not durably):
            return
        self.stored = None
        file = self._disk.open(self._path, create=True)
        try:
            self._write(file, synced)
            if durably:
                file.sync()
        finally:
            file.close()
        self.stored, self._durable = synced, durably

    def reset(self, synced: Synced) -> None:
        """Durably replace both slots: the mark moves back, and no older slot may speak for it."""
        self.stored = None
        file = self._disk.open(self._path, create=True)
        try:
            self._write(file, synced)
            self._write(file, synced)
            file.sync()
        finally:
            file.close()
        self.stored, self._durable = synced, True

    def _write(self, file: File, synced: Synced) -> None:
        self._sequence += 1
        slot = _pack(self._sequence, synced)
        write_all(file, (self._sequence % 2) * SLOT_STRIDE, slot)


def _pack(sequence: int, synced: Synced) -> bytes:
    slot = bytearray(SLOT.pack(MAGIC, VERSION, 0, 0, 0, sequence, *synced))
    struct.pack_into(">I", slot, _CRC_AT, _checksum(slot))
    return bytes(slot)


def _unpack(data: bytes, start: int) -> tuple[int, Synced] | None:
    slot = data[start : start + SLOT.size]
    if len(slot) < SLOT.size:
        return None
    magic, version, _, _, crc, sequence, base, position, offset = SLOT.unpack(slot)
    if magic != MAGIC or version != VERSION or crc != _checksum(slot):
        return None
    return sequence, Synced(base, position, offset)


def _checksum(slot: bytes | bytearray) -> int:
    view = memoryview(slot)
    return codec.crc32c(view[_CRC_AT + 4 :], codec.crc32c(view[:_CRC_AT]))
