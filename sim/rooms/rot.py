"""Bit rot: a flipped bit in a record that was durable, so that recovery must quarantine it and never cut."""

from bisect import bisect_right
from random import Random

from goqueue import codec
from goqueue.storage import state as hard_state
from goqueue.storage.synced import FILE_NAME as SYNCED_FILE
from goqueue.storage.synced import SyncedMark
from sim.disk import SimDisk


def rot(disk: SimDisk, directory: str, rng: Random) -> int | None:
    """Flip a bit below the synced mark of a closed log; the offset it is in, or None when there is no place for it.

    A segment is damaged once at most, so that exactly one record of it is lost.
    """
    if not disk.exists(f"{directory}/{hard_state.FILE_NAME}"):
        return None
    state = hard_state.load(disk, directory)
    synced = SyncedMark(disk, directory).load()
    if state is None or synced is None or state.truncate_to != hard_state.NOT_TRUNCATING:
        return None
    if disk.unsynced(directory) or disk.unsynced(f"{directory}/{SYNCED_FILE}"):
        return None  # a mark that a power cut may still take back does not speak for these bytes
    places = [(entry.base, entry.size) for entry in state.sealed]
    if synced.base >= state.tail_base and synced.position:
        places.append((synced.base, synced.position))
    places = [(base, size) for base, size in places if size and disk.exists(f"{directory}/{base:020d}.log")]
    if not places:
        return None
    base, size = rng.choice(places)
    path = f"{directory}/{base:020d}.log"
    scan = codec.scan(disk.content(path)[:size])
    if scan.end != size:
        return None
    position = rng.randrange(size)
    disk.flip(path, position, 1 << rng.randrange(8))
    return scan.offsets[bisect_right(scan.positions, position) - 1]
