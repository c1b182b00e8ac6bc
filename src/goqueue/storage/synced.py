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
from goqueue.io.small_file import write_all

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
    """The mark's file, opened for each use: logs are many, open files are bounded."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._sequence = 0

    def load(self) -> Synced | None:
        """The newest valid slot; None when there is none to trust."""
        if not self._disk.exists(self._path):
            return None
        file = self._disk.open(self._path)
        try:
            slots = [slot for slot in (_read_slot(file, number) for number in (0, 1)) if slot is not None]
        finally:
            file.close()
        if not slots:
            return None
        self._sequence, newest = max(slots)
        return newest

    def store(self, synced: Synced, *, durably: bool) -> None:
        file = self._disk.open(self._path, create=True)
        try:
            self._write(file, synced)
            if durably:
                file.sync()
        finally:
            file.close()

    def reset(self, synced: Synced) -> None:
        """Durably replace both slots: the mark moves back, and no older slot may speak for it."""
        file = self._disk.open(self._path, create=True)
        try:
            self._write(file, synced)
            self._write(file, synced)
            file.sync()
        finally:
            file.close()

    def _write(self, file: File, synced: Synced) -> None:
        self._sequence += 1
        slot = _pack(self._sequence, synced)
        write_all(file, (self._sequence % 2) * SLOT_STRIDE, slot)


def _pack(sequence: int, synced: Synced) -> bytes:
    slot = bytearray(SLOT.pack(MAGIC, VERSION, 0, 0, 0, sequence, *synced))
    struct.pack_into(">I", slot, _CRC_AT, _checksum(slot))
    return bytes(slot)


def _read_slot(file: File, number: int) -> tuple[int, Synced] | None:
    data = file.read(number * SLOT_STRIDE, SLOT.size)
    if len(data) < SLOT.size:
        return None
    magic, version, _, _, crc, sequence, base, position, offset = SLOT.unpack(data)
    if magic != MAGIC or version != VERSION or crc != _checksum(data):
        return None
    return sequence, Synced(base, position, offset)


def _checksum(slot: bytes | bytearray) -> int:
    view = memoryview(slot)
    return codec.crc32c(view[_CRC_AT + 4 :], codec.crc32c(view[:_CRC_AT]))
