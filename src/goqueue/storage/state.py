"""A log's hard state: the small file that says what the log is, besides its records.

It holds where the log starts, its leader epochs, and the list of sealed segments with the range of offsets
each answers for. An offset missing inside a sealed segment's range is therefore never a riddle: either the
segment is marked cleaned, or the bytes are damaged. Replaced atomically; a bad checksum refuses the log.

To change the format: add the field here, raise `VERSION`, read the old version too, add golden bytes.
"""

import struct
from enum import IntFlag
from typing import Final

import msgspec

from goqueue.io.disk import Disk
from goqueue.io.small_file import read_file, replace_file
from goqueue.model.errors import DamagedState
from goqueue.storage import envelope

FILE_NAME: Final = "log.state"
VERSION: Final = 1
NOT_TRUNCATING: Final = -1

HEAD: Final = struct.Struct(">HqqqqqII")
"""version, start offset, tail base, next seal, truncate to, last timestamp, count of epochs, of sealed segments."""
EPOCH: Final = struct.Struct(">qq")
SEALED: Final = struct.Struct(">qqqqqqqB")


class Trait(IntFlag):
    """What has been done to a sealed segment."""

    CLEANED = 1
    """Records were removed: gaps in its offsets are intended."""
    COMPACTED = 2
    """Compaction has seen it: its keys are the newest up to its end."""


class SealedSegment(msgspec.Struct, frozen=True):
    """A segment that will not grow: fsynced, answering for offsets `base` up to `end`."""

    base: int
    end: int
    size: int
    count: int
    first_timestamp: int
    last_timestamp: int
    seal: int
    traits: int = 0


class LeaderEpoch(msgspec.Struct, frozen=True):
    """From `start_offset` on, records were appended under leader epoch `epoch`."""

    epoch: int
    start_offset: int


class LogState(msgspec.Struct, frozen=True):
    start_offset: int = 0
    tail_base: int = 0
    """Base of the first segment that is not sealed."""
    next_seal: int = 1
    truncate_to: int = NOT_TRUNCATING
    """A truncation that must be finished at opening, or NOT_TRUNCATING."""
    last_timestamp: int = 0
    epochs: tuple[LeaderEpoch, ...] = ()
    sealed: tuple[SealedSegment, ...] = ()


def to_bytes(state: LogState) -> bytes:
    parts = [
        HEAD.pack(
            VERSION,
            state.start_offset,
            state.tail_base,
            state.next_seal,
            state.truncate_to,
            state.last_timestamp,
            len(state.epochs),
            len(state.sealed),
        )
    ]
    parts += [EPOCH.pack(entry.epoch, entry.start_offset) for entry in state.epochs]
    parts += [SEALED.pack(*msgspec.structs.astuple(segment)) for segment in state.sealed]
    return envelope.wrap(envelope.Kind.STATE, b"".join(parts))


def from_bytes(data: bytes) -> LogState:
    """ValueError when these are not the bytes of a state this version can read."""
    payload = envelope.unwrap(envelope.Kind.STATE, data)
    if payload is None:
        raise ValueError("its checksum does not match")
    version, start, tail, seal, truncate_to, timestamp, epochs, sealed = HEAD.unpack_from(payload)
    if version != VERSION:
        raise ValueError(f"its version is {version}, this GoQueue reads {VERSION}")
    middle = HEAD.size + epochs * EPOCH.size
    if len(payload) != middle + sealed * SEALED.size:
        raise ValueError("its lists do not add up")
    return LogState(
        start,
        tail,
        seal,
        truncate_to,
        timestamp,
        tuple(LeaderEpoch(*entry) for entry in EPOCH.iter_unpack(payload[HEAD.size : middle])),
        tuple(SealedSegment(*entry) for entry in SEALED.iter_unpack(payload[middle:])),
    )


def load(disk: Disk, directory: str) -> LogState | None:
    """None for a log that does not exist yet."""
    path = f"{directory}/{FILE_NAME}"
    data = read_file(disk, path)
    if data is None:
        if any(name.endswith(".log") for name in disk.list(directory)):
            raise DamagedState(
                f"{path} is missing although there are segments; put a good copy of it back, from a backup"
            )
        return None
    try:
        return from_bytes(data)
    except ValueError as error:
        raise DamagedState(f"{path} is damaged ({error}); put a good copy of it back, from a backup") from error


def save(disk: Disk, directory: str, state: LogState) -> None:
    replace_file(disk, f"{directory}/{FILE_NAME}", to_bytes(state))
