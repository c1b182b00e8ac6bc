"""The log against the bare system calls it is made of, in the same run, and its latencies and memory."""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.blocks import BLOCK_BYTES, VALUE_BYTES, block, blocks, records
from bench.processes import resident_mib, scratch
from bench.report import Figure, Part, Run
from bench.timing import median, quantile, seconds
from goqueue import codec
from goqueue.io.waiting import reached
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage import synced
from goqueue.storage.log import Log
from goqueue.storage.store import Store

MIB = 1024 * 1024
_ALL_AT_ONCE = 1024 * 1024


@contextmanager
def _store() -> Iterator[Store]:
    with scratch() as directory, Store(directory) as store:
        yield store


# --- appending


def append(run: Run) -> Iterator[Figure]:
    """Append with indexes and views on, against stamping and writing alone; the two take turns."""
    rounds, megabytes = (5, 128) if run.short else (9, 512)
    data, count = blocks(16)
    number = megabytes * MIB // BLOCK_BYTES
    pairs = []
    for _ in range(rounds):
        with _store() as store:
            bare = seconds(lambda: _stamp_and_write(store.data_dir + "/bare", data, number))
            os.unlink(store.data_dir + "/bare")
            os.sync()
            log = store.open_log("bench", LogSettings(fsync=Fsync.NONE))
            pairs.append((bare, seconds(lambda: _append(log, data, number))))  # noqa: B023
        os.sync()
    ratio = median([bare / full for bare, full in pairs])
    rate = number * count / median([full for _, full in pairs])
    how = f"median of {rounds} pairs of {megabytes} MiB, fsync none"
    yield Figure("append, share of stamp + bare write", ratio, "x", 0.7, note=how)
    yield Figure("append, 1 KB in 256 KB blocks", rate, "msg/s", note=how)


def _append(log: Log, data: list[bytearray], number: int) -> None:
    for at in range(number):
        log.append(data[at % len(data)], now=1)


def _stamp_and_write(path: str, data: list[bytearray], number: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    offset = 0
    for at in range(number):
        taken = data[at % len(data)]
        offset += len(codec.stamp(taken, offset=offset, timestamp=1))
        os.write(fd, taken)
    os.close(fd)


# --- reading


def read(run: Run) -> Iterator[Figure]:
    rounds, megabytes = (3, 128) if run.short else (5, 512)
    data, count = blocks(16)
    number = megabytes * MIB // BLOCK_BYTES
    with _store() as store:
        log = store.open_log("bench", LogSettings(fsync=Fsync.NONE))
        _append(log, data, number)
        log.sync()
        total = number * count
        decoded = min(seconds(lambda: _read_decoded(log)) for _ in range(rounds))
        raw = min(seconds(lambda: _read_raw(log)) for _ in range(rounds))
        how = f"{megabytes} MiB warm, 1 MiB a read, best of {rounds}"
        yield Figure("sequential read, decoded", total / decoded, "msg/s", 1_500_000, note=how)
        yield Figure("sequential read, raw and checked", total / raw, "msg/s", note=how)


def _read_decoded(log: Log) -> None:
    offset = 0
    while offset < log.end_offset:
        offset = log.records(offset, max_bytes=_ALL_AT_ONCE)[-1].offset + 1


def _read_raw(log: Log) -> None:
    offset = 0
    while offset < log.end_offset:
        offset = log.read(offset, max_bytes=_ALL_AT_ONCE).next_offset


def look_up(run: Run) -> Iterator[Figure]:
    """One record at a random offset, over many segments, page cache warm."""
    gibibytes, times = (0.25, 5_000) if run.short else (2, 50_000)
    data, _ = blocks(16)
    number = int(gibibytes * 1024 * MIB) // BLOCK_BYTES
    chance = random.Random(1)
    with _store() as store:
        log = store.open_log("bench", LogSettings(fsync=Fsync.NONE))
        for at in range(number):
            log.append(data[at % len(data)], now=at)
        log.sync()
        by_offset, by_time = [], []
        for _ in range(times):
            offset = chance.randrange(log.end_offset)
            by_offset.append(seconds(lambda: log.records(offset, max_bytes=1, max_count=1)))  # noqa: B023
            moment = chance.randrange(number)
            by_time.append(seconds(lambda: log.offset_at(moment)))  # noqa: B023
    for name, taken in (("offset", sorted(by_offset)), ("time", sorted(by_time))):
        how = f"{times:,} look-ups over {gibibytes} GiB, warm"
        yield Figure(f"look-up by {name} p50", quantile(taken, 0.5) * 1000, "ms", note=how)
        yield Figure(f"look-up by {name} p99", quantile(taken, 0.99) * 1000, "ms", 1, at_most=True, note=how)


# --- group commit


def group_commit(run: Run) -> Iterator[Figure]:
    """Writers that each wait for their record to be durable before the next, fsync `every`."""
    duration = 1.0 if run.short else 4.0
    for writers in (1, 8, 64):
        with _store() as store:
            log = store.open_log("bench", LogSettings(fsync=Fsync.EVERY))
            taken, elapsed = asyncio.run(_commit(log, writers, duration))
        taken.sort()
        how = f"one 1 KB record at a time each, {elapsed:.0f} s"
        yield Figure(f"group commit, {writers} writers", len(taken) / elapsed, "msg/s", note=how)
        yield Figure(f"group commit, {writers} writers, p50", quantile(taken, 0.5) * 1000, "ms", note=how)
        yield Figure(f"group commit, {writers} writers, p99", quantile(taken, 0.99) * 1000, "ms", note=how)


async def _commit(log: Log, writers: int, duration: float) -> tuple[list[float], float]:
    taken: list[float] = []
    begin = time.perf_counter()

    async def write() -> None:
        payload = codec.encode(records(1))
        while (sent := time.perf_counter()) - begin < duration:
            end = log.append(payload, now=1).next_offset
            await reached(log.durable, end)
            taken.append(time.perf_counter() - sent)

    await asyncio.gather(*(write() for _ in range(writers)))
    return taken, time.perf_counter() - begin


# --- size


def opening(run: Run) -> Iterator[Figure]:
    """Opening a large log costs its tail, not the whole."""
    total = 1_000_000 if run.short else 10_000_000
    data, _ = block(value_bytes=100)
    with scratch() as directory:
        with Store(directory) as store:
            log = store.open_log("bench", LogSettings(fsync=Fsync.NONE))
            while log.end_offset < total:
                log.append(data, now=1)
        usual, segments = _open_once(directory)
        os.unlink(f"{directory}/logs/bench/{synced.FILE_NAME}")
        unmarked, _ = _open_once(directory)
    how = f"{total:,} records of 100 B, {segments} segments, warm"
    yield Figure("open", usual * 1000, "ms", note=f"{how}; the tail is scanned")
    yield Figure("open without a synced mark", unmarked * 1000, "ms", note=f"{how}; the tail is scanned twice")


def _open_once(directory: str) -> tuple[float, int]:
    """How long opening took, and how many segments there are."""
    with Store(directory) as store:
        taken = seconds(lambda: store.open_log("bench"))
        return taken, len(store.open_log("bench").segments)


def memory(run: Run) -> Iterator[Figure]:
    """Resident memory while a log grows and is read back: flat."""
    gibibytes = 1 if run.short else 10
    data, _ = blocks(16)
    per_step = 256 * MIB // BLOCK_BYTES
    with _store() as store:
        log = store.open_log("bench", LogSettings())
        resident = []
        for _ in range(gibibytes * 4):
            _append(log, data, per_step)
            offset = max(log.end_offset - per_step * 200, 0)
            while offset < log.end_offset:
                offset = log.read(offset, max_bytes=_ALL_AT_ONCE).next_offset
            resident.append(resident_mib())
    begin, end = resident[1], resident[-1]
    how = f"{gibibytes} GiB of {VALUE_BYTES} B records appended and read; RSS from {begin:.0f} to {end:.0f} MiB"
    yield Figure("memory growth while the log grows", end - begin, "MiB", 64, at_most=True, note=how)


PARTS: Final[dict[str, Part]] = {
    "append": append,
    "read": read,
    "look-up": look_up,
    "group-commit": group_commit,
    "opening": opening,
    "memory": memory,
}
