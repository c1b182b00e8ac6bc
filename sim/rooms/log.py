"""A log on a disk that forgets: a few lives of one simulated process, with everything that can happen to it.

In each life tasks take turns: one writes, one syncs, one reads, one keeps house. While a sync waits for the
disk the writer and the reader may go on, as they do in their own threads; while a cleaner writes its copy, the
log may also be truncated at either end. A life ends with a clean stop, a
kill or a power cut, between two operations or inside any call to the disk; before the next one bits may rot
below the synced mark. At each opening, and now and then while it lives, the log is read through and every
checker compares it with the history.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec

from goqueue import codec
from goqueue.model import limits
from goqueue.model.errors import DiskFull, Quarantined, StaleEpoch, StorageFailed
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.cache import DerivedCache
from goqueue.storage.cleaner import clean
from goqueue.storage.delays import DelayViews
from goqueue.storage.files import OpenFiles
from goqueue.storage.lanes import LaneViews
from goqueue.storage.log import Log
from goqueue.storage.synced import SyncedMark
from sim.checkers import (
    agreement,
    contiguous,
    durable,
    faithful,
    forward,
    recovery,
    refusal,
    require,
    timestamps,
    verified,
)
from sim.checkers.observed import Observed, observe, split
from sim.clock import SimClock
from sim.disk import CRASH_KINDS, Crashed, CrashKind, SimDisk
from sim.rooms.cleaning import Cleaning
from sim.rooms.history import Entry, History
from sim.rooms.records import some_records
from sim.rooms.rot import rot
from sim.scheduler import Scheduler, Task
from sim.trace import Trace

DIRECTORY: Final = "/data/logs/orders/0"
COMPANIONS: Final = (".index", ".timeindex", ".view")
UNSEALED_BEFORE_WRITER_WAITS: Final = limits.MAX_UNSEALED_SEGMENTS - 1


def run(rng: Random, trace: Trace) -> None:
    """One seed."""
    LogRoom(rng, trace).run()


class _Stopped(Exception):
    """The process stops by itself: it was told to, or its log said that the disk has failed."""

    def __init__(self, kind: CrashKind) -> None:
        super().__init__(kind)
        self.kind = kind


class LogRoom:
    def __init__(self, rng: Random, trace: Trace) -> None:
        self.rng = rng
        self.trace = trace
        self.clock = SimClock()
        self.disk = SimDisk(Random(rng.getrandbits(64)), trace=trace)
        self.history = History()
        self.settings = self._settings()
        self.scheduler = Scheduler(self.clock, rng, trace)
        self.log: Log | None = None
        self.background = False
        self.nested = False
        self.waiting = 0
        """Appends whose producers have no answer yet."""
        self.epoch = 0

    def _settings(self) -> LogSettings:
        rng = self.rng
        return LogSettings(
            segment_bytes=4096,
            segment_age_ms=rng.choice((300, 3000, 10**9)),
            index_interval_bytes=rng.choice((64, 256, 256, 1024)),
            fsync=rng.choice(tuple(Fsync)),
            retention_ms=rng.choice((None, None, 400, 2000)),
            retention_bytes=rng.choice((None, None, 2000, 12000)),
            compact=rng.random() < 0.4,
            tombstone_retention_ms=rng.choice((0, 500, 10**9)),
        )

    # Lives

    def run(self) -> None:
        for _ in range(self.rng.randint(2, 4)):
            self._survive(self._live)
        self._forget_companions()

    def _survive(self, part: Callable[[], None]) -> None:
        """Run a part of a life; when the process dies, open the log again until that succeeds."""
        try:
            part()
            return
        except Crashed:
            self._crash(self.rng.choice(CRASH_KINDS))
        except _Stopped as stopped:
            self._crash(stopped.kind)
        self._survive(self._open)

    def _live(self) -> None:
        rng, disk = self.rng, self.disk
        if self.log is None:
            self._open()
        plan = rng.random()
        if plan < 0.5:
            disk.crash_at(rng.randint(1, 60))
        elif plan < 0.56:
            disk.fail_sync_at(rng.randint(1, 6))
        disk.short_writes = rng.choice((0.0, 0.0, 0.2))
        disk.between = self._others_go_on
        for name, task in (
            ("write", self._write(rng.randint(4, 14))),
            ("sync", self._sync(rng.randint(2, 6))),
            ("read", self._read(rng.randint(2, 5))),
            ("keep", self._keep(rng.randint(2, 6))),
        ):
            self.scheduler.spawn(name, task)
        try:
            self.scheduler.run()
            self._stop()
        except StorageFailed:
            self._check_failed()
            raise _Stopped("power") from None

    def _stop(self) -> None:
        """The end of a life that no planned crash ended."""
        self.disk.crash_at(None)
        self.disk.capacity = None
        ending = self.rng.choice(("close", "kill", "power"))
        self.trace.event("end", ending)
        if ending == "close":
            self._the_log().close()
            self.history.synced(self.history.end)
            raise _Stopped(self.rng.choice(CRASH_KINDS))
        raise _Stopped("kill" if ending == "kill" else "power")

    def _crash(self, kind: CrashKind) -> None:
        self.trace.event("crash", kind)
        self.scheduler.stop()
        self.log = None
        self.background = self.nested = False
        self.waiting = 0
        self.disk.between = None
        self.disk.capacity = None
        self.disk.crash(self.rng, kind)
        self.history.crashed(kind)

    def _check_failed(self) -> None:
        """A log whose fsync failed takes nothing more and acknowledges nothing more."""
        log = self._the_log()
        require(log.durable.failure is not None, "failure", "an fsync failed and `durable` did not")
        try:
            log.append(codec.encode([Record(value=b"late")]), now=self.clock.now)
        except StorageFailed:
            return
        require(False, "failure", "an append was taken after an fsync had failed")

    # Opening and looking

    def _open(self, *, faults: bool = True) -> None:
        rng, disk = self.rng, self.disk
        if faults and rng.random() < 0.3:
            self._rot()
        disk.short_writes = rng.choice((0.0, 0.0, 0.2))
        tail = recovery.before(disk, DIRECTORY)
        if SyncedMark(disk, DIRECTORY).load() is None:
            self.history.mark_lost()
        plan = rng.random() if faults else 1.0
        if plan < 0.35:
            disk.crash_at(rng.randint(1, 12))
        elif plan < 0.38:
            disk.fail_sync_at(rng.randint(1, 4))
        if rng.random() < 0.2:
            interval = rng.choice((64, 256, 1024))
            self.settings = msgspec.structs.replace(self.settings, index_interval_bytes=interval)
        self.trace.event("open")
        try:
            log = Log.open(
                DIRECTORY,
                disk=disk,
                files=OpenFiles(disk, limit=rng.choice((1, 2, 100))),
                cache=DerivedCache(limit=rng.choice((1, 1 << 20, 1 << 20))),
                settings=self.settings,
                views=(LaneViews(), DelayViews()),
                on_dirty=self._on_dirty,
            )
        except (OSError, StorageFailed) as error:
            self.trace.event("cannot open", str(error))
            raise _Stopped("power") from None
        disk.crash_at(None)
        disk.fail_sync_at(None)
        self.log = log
        self.trace.event("opened", log.start_offset, log.end_offset, *log.recovery.lines())
        observed = self._look()
        if tail is not None:
            recovery.check(tail, log, observed, disk)

    def _the_log(self) -> Log:
        assert self.log is not None
        return self.log

    def _on_dirty(self, log: Log, urgent: bool) -> None:
        self.trace.event("dirty", urgent)

    def _look(self) -> Observed:
        log, history = self._the_log(), self.history
        observed = observe(log, max_bytes=self.rng.choice((300, 5000, 1 << 20)))
        durable.check(history, observed)
        faithful.check(history, observed)
        forward.check(history, observed)
        timestamps.check(observed)
        cleaning = Cleaning(history, self.settings)
        contiguous.check(history, observed, cleaning)
        agreement.check(log, observed, self.rng)
        history.settle(
            start=observed.start,
            end=observed.end,
            durable=observed.durable,
            epochs=observed.epochs,
            present={seen.offset for seen in observed.read},
            quarantined={offset for first, after in observed.quarantined for offset in range(first, after)},
        )
        self.trace.event("looked", observed.start, observed.end, observed.durable, len(observed.read))
        return observed

    def _forget_companions(self) -> None:
        """Indexes and views are never the truth: without them the log reads the same."""
        before = observe(self._the_log())
        self._the_log().close()
        verified.check(self.history, before, self.disk, DIRECTORY)
        for name in self.disk.list(DIRECTORY):
            if name.endswith(COMPANIONS):
                self.disk.unlink(f"{DIRECTORY}/{name}")
        self.history.synced(self.history.end)
        self.trace.event("companions gone")
        self.log = None
        self._open(faults=False)
        agreement.check_same(before, observe(self._the_log()))

    def _rot(self) -> None:
        """Damage a record below the synced mark; from now on it must be reported, and nothing else lost."""
        if self.history.truncating is not None:
            return
        offset = rot(self.disk, DIRECTORY, self.rng)
        if offset is not None:
            self.history.damaged.add(offset)
            self.trace.event("rot", offset)

    # Tasks

    def _write(self, count: int) -> Task:
        for _ in range(count):
            self._append()
            yield self.rng.choice((0, 0, 1, 20, 200))

    def _sync(self, count: int) -> Task:
        for _ in range(count):
            yield self.rng.choice((0, 1, 30, 100))
            self._sync_once()

    def _read(self, count: int) -> Task:
        for _ in range(count):
            yield self.rng.choice((0, 5, 80))
            if self.rng.random() < 0.4:
                self._look()
            else:
                self._read_once()

    def _keep(self, count: int) -> Task:
        chores = (
            self._truncate,
            self._truncate_prefix,
            self._begin_epoch,
            self._clean,
            self._clean,
            self._roll,
            self._tick,
            self._fill_disk,
            self._set_clock,
            self._reopen,
        )
        for _ in range(count):
            yield self.rng.choice((0, 10, 150, 700))
            self.rng.choice(chores)()

    def _others_go_on(self, kind: str) -> None:
        """Syncing and cleaning have their own thread: while it is inside a call to the disk, others may go on.

        Not when they would have to wait for it, as a writer does with many unsealed segments, a reader of a
        segment that is being exchanged, and a truncation of any sync or exchange.
        """
        if not self.background or self.nested:
            return
        log = self._the_log()
        exchanging = log._maintenance._is_owned()  # type: ignore[attr-defined]
        if self.rng.random() > (0.25 if exchanging else 0.5):
            return
        segments = log.segments
        self.nested = True
        try:
            chance = self.rng.random()
            if chance < 0.4 and not exchanging:
                self._look()  # what is cleaned away by now was so for reasons that a truncation may take back
                self.rng.choice((self._truncate, self._truncate, self._truncate_prefix))()
            elif chance < 0.7:
                if sum(1 for segment in segments if not segment.seal) < UNSEALED_BEFORE_WRITER_WAITS:
                    self._append()
            elif not any(segment.retired for segment in segments):
                self._read_once()
        finally:
            self.nested = False

    # Operations

    def _append(self) -> None:
        log, history = self._the_log(), self.history
        block = codec.encode(some_records(self.rng))
        earlier = refusal.before(log)
        now = self.clock.now
        try:
            appended = log.append(block, now=now)
        except DiskFull:
            self.trace.event("refused", len(block))
            refusal.check(log, self.disk, earlier)
            return
        except Crashed:
            history.appending = self._stamped(block)
            raise
        entries = self._stamped(block)
        self.trace.event("append", appended.first_offset, len(entries), len(block))
        require(
            (appended.first_offset, appended.next_offset) == (history.end, history.end + len(entries)),
            "faithful",
            f"an append at {history.end} was put at {appended.first_offset} to {appended.next_offset}",
        )
        history.append(entries)
        log.durable.when(appended.next_offset, partial(self._answer, appended.next_offset))
        self.waiting += 1

    def _answer(self, offset: int, error: Exception | None) -> None:
        """What a producer waits for: from here on its records must survive a power cut."""
        self.waiting -= 1
        if error is None:
            self.history.synced(offset)

    def _stamped(self, block: bytearray) -> list[Entry]:
        """The entries of a block that the log has stamped; none if it had not come to that."""
        records = codec.decode(bytes(block))
        if records[0].timestamp == 0:
            return []
        return [
            Entry(
                seen.offset,
                seen.timestamp,
                seen.raw,
                record.key,
                record.value is None,
                record.extension.deliver_at if record.extension is not None else None,
            )
            for seen, record in zip(split(bytes(block)), records, strict=True)
        ]

    def _sync_once(self) -> None:
        log = self._the_log()
        self.background = True
        try:
            log.sync()
        finally:
            self.background = False
        self.history.synced(log.durable.value)
        self.trace.event("synced", log.durable.value)
        if log.durable.value == log.end_offset:
            require(not self.waiting, "durable", f"all is durable and {self.waiting} producers still wait")

    def _read_once(self) -> None:
        log, history, rng = self._the_log(), self.history, self.rng
        offset = rng.randint(log.start_offset, log.end_offset)
        try:
            chunk = log.read(offset, max_bytes=rng.choice((1, 500, 5000)), max_count=rng.randint(1, 20))
        except Quarantined as damage:
            hit = any(history.may_be_damaged(one) for one in range(damage.first, damage.next_offset))
            require(hit, "contiguous", f"{damage}, but nothing was damaged there")
            return
        for seen in split(chunk.data):
            entry = history.candidate(seen.offset)
            require(entry is not None and entry.raw == seen.raw, "faithful", f"offset {seen.offset} is read wrongly")
        log.offset_at(self.clock.now - rng.randrange(2000))

    def _truncate(self) -> None:
        log, history = self._the_log(), self.history
        offset = self.rng.randint(max(log.start_offset, log.end_offset - 40), log.end_offset)
        self.trace.event("truncate?", offset)
        history.truncating = offset if offset < history.end else None
        try:
            log.truncate(offset)
        except DiskFull:
            self.trace.event("refused truncate")
            self._look()
            return
        history.truncated(offset)
        self.trace.event("truncated", offset)

    def _truncate_prefix(self) -> None:
        log, history = self._the_log(), self.history
        offset = self.rng.randint(log.start_offset, log.end_offset)
        self.trace.event("prefix?", offset)
        history.truncating_prefix = offset
        try:
            log.truncate_prefix(offset)
        except DiskFull:
            self.trace.event("refused prefix")
        self._look()

    def _begin_epoch(self) -> None:
        log, history = self._the_log(), self.history
        self.epoch += self.rng.randint(1, 3)
        self.trace.event("epoch?", self.epoch, log.end_offset)
        history.beginning_epoch = (self.epoch, log.end_offset)
        try:
            log.begin_epoch(self.epoch)
        except DiskFull:
            history.beginning_epoch = None
            self._look()
            return
        history.begun(self.epoch, log.end_offset)
        try:
            log.begin_epoch(self.epoch)
        except StaleEpoch:
            return
        require(False, "forward", f"leader epoch {self.epoch} was begun twice")

    def _clean(self) -> None:
        log = self._the_log()
        self.history.cleanings.append(self.clock.now)
        self.trace.event("clean?", self.clock.now)
        self.background = True
        try:
            report = clean(log, self.clock.now)
        except DiskFull:
            self.trace.event("refused clean")
        else:
            self.trace.event("cleaned", report.removed_segments, report.rewritten_segments, report.removed_records)
        finally:
            self.background = False
        self._look()

    def _roll(self) -> None:
        try:
            self._the_log().roll()
        except DiskFull:
            self.trace.event("refused roll")

    def _tick(self) -> None:
        try:
            self._the_log().tick(self.clock.now)
        except DiskFull:
            self.trace.event("refused tick")

    def _fill_disk(self) -> None:
        if self.disk.capacity is None:
            self.disk.capacity = self.disk.used + self.rng.randrange(6000)
            self.trace.event("capacity", self.disk.capacity)
        else:
            self.disk.capacity = None
            self.trace.event("space")

    def _set_clock(self) -> None:
        self.clock.step(self.rng.randint(-3000, 1000))
        self.trace.event("clock", self.clock.now)

    def _reopen(self) -> None:
        """A clean stop and start in the same life."""
        log = self._the_log()
        self.disk.capacity = None
        log.close()
        self.history.synced(self.history.end)
        self.log = None
        self._open()
