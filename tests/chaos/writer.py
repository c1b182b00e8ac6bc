"""What the child process does: open a store, check and report what is in it, then write until it dies.

It runs in a process of its own (see `spawn`) and tells its parent everything over a pipe, one line at a time:
  O                     about to open the store: recovery begins
  R notes               opened; how many lines of recovery reports there were
  C json .              what is in every log (`Contents`), after all read paths were compared
  I log block count     about to append this block: from here on it is in doubt
  A log block first next timestamp      promised: the block is there, at these offsets
  e log epoch / E log epoch             about to begin a leader epoch / begun
  S reason              the storage failed, as it says itself, or the disk is gone; the process ends with 74
  D reason              a log is refused as damaged; the process ends with 70
  F reason              something that must not happen did; the process ends with 70
A line is written with one system call, so a process that dies has written it or not.
"""

import errno
import itertools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from goqueue.io.disk import Disk, LocalDisk
from goqueue.model.errors import DamagedData, LogClosed, StorageFailed
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Appended, Log
from goqueue.storage.store import Store, log_directory
from goqueue.storage.verify import Severity, verify
from tests.support.faulty_disk import FaultyDisk, Lie
from tests.support.reading import check_paths_agree
from tests.support.records import Shape, identify, make_block

STORAGE_FAILED = 74
WRONG = 70


class LogSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One log of the store: how it is kept and what is written to it."""

    name: str
    shape: Shape
    settings: LogSettings
    max_block: int = 24
    promises_durable: bool = True
    """Acknowledge when durable; otherwise when written, which a killed process must not lose either."""
    epochs_one_in: int = 0
    pause_ms: float = 0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one child is to do."""

    data_dir: str
    seed: str
    life: int
    logs: list[LogSpec]
    write: bool = True
    """Otherwise the store is checked, closed, and the process ends with 0."""
    die_at: int = 0
    """Die by SIGKILL at this disk operation, counted from the opening or from the first write on; 0 for never."""
    die_in_opening: bool = False
    tear_bytes: int = 0
    """Before dying, let one write to a segment take only so many bytes."""
    sync_error_at: int = 0
    """The n-th sync after the check fails with EIO; 0 for none."""
    lies: int = 0


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """A log as found: (offset, life, block, number, timestamp) of each record."""

    start: int
    end: int
    size: int
    epochs: list[tuple[int, int]]
    records: list[tuple[int, int, int, int, int]]
    damaged: list[tuple[int, int]]
    recovery: list[str]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Writer:
    """One life."""

    def __init__(self, job: Job, out: int) -> None:
        self._job = job
        self._out = out
        self._faults = FaultyDisk()
        self._faults.lies = Lie(job.lies)
        self._disk: Disk = self._faults if job.die_at or job.sync_error_at or job.lies else LocalDisk()
        self._operations = itertools.count(1)

    def run(self) -> None:
        self._guarded(self._run)

    def _run(self) -> None:
        job = self._job
        if job.die_at and job.die_in_opening:
            self._faults.before = self._die_in_time
        self._say("O")
        store = Store(job.data_dir, disk=self._disk, on_failure=self._storage_failed)
        logs = [store.open_log(spec.name, spec.settings) for spec in job.logs]
        self._say(f"R {sum(len(log.recovery.lines()) for log in logs)}")
        self._say_contents(logs)
        if not job.write:
            store.close()
            for spec in job.logs:
                self._verify(spec)
            return
        if job.die_at:
            self._faults.before = self._die_in_time
        if job.sync_error_at:
            self._faults.sync_error_at = job.sync_error_at
        for spec, log in zip(job.logs, logs, strict=True):
            threading.Thread(target=self._guarded, args=(self._write, spec, log), daemon=True).start()
        cleaned = [log for log in logs if log.settings.compact or log.settings.retention_bytes is not None]
        threading.Thread(target=self._guarded, args=(self._clean, cleaned), daemon=True).start()
        while True:
            signal.pause()

    # --- checking

    def _say_contents(self, logs: list[Log]) -> None:
        found = {spec.name: self._contents(spec, log) for spec, log in zip(self._job.logs, logs, strict=True)}
        line = b"C " + msgspec.json.encode(found) + b" .\n"
        while line:
            line = line[os.write(self._out, line) :]

    def _contents(self, spec: LogSpec, log: Log) -> Contents:
        rng = random.Random(f"{self._job.seed}/{self._job.life}/{spec.name}/check")
        whole = check_paths_agree(log, self._disk, [rng.randrange(1 << 30) for _ in range(40)])
        records = []
        for record in whole.records:
            identity = identify(spec.shape, record)
            assert identity is not None, f"{spec.name}: a record nobody wrote: {record}"
            records.append((record.offset, *identity, record.timestamp))
        return Contents(
            start=log.start_offset,
            end=log.end_offset,
            size=sum(segment.size for segment in log.segments),
            epochs=[(entry.epoch, entry.start_offset) for entry in log.epochs],
            records=records,
            damaged=whole.damaged,
            recovery=log.recovery.lines(),
        )

    def _verify(self, spec: LogSpec) -> None:
        wrong = [
            finding
            for finding in verify(log_directory(self._job.data_dir, spec.name), self._disk)
            if finding.severity is not Severity.NOTE
        ]
        assert not wrong, f"{spec.name}, closed in order: {wrong}"

    # --- writing

    def _write(self, spec: LogSpec, log: Log) -> None:
        rng = random.Random(f"{self._job.seed}/{self._job.life}/{spec.name}/write")
        window = threading.Semaphore(rng.choice((1, 2, 16)))
        epoch = log.epochs[-1].epoch if log.epochs else 0
        for block in itertools.count():
            count = 1 if rng.random() < 0.3 else rng.randint(1, spec.max_block)
            data = make_block(spec.shape, self._job.life, block, count)
            window.acquire()
            self._say(f"I {spec.name} {block} {count}")
            appended = log.append(data, now=now_ms())
            if spec.promises_durable:
                self._acknowledge_when_durable(spec, log, block, appended, window)
            else:
                self._acknowledge(spec, block, appended)
                window.release()
            if rng.random() < 0.02:
                log.roll()
            if spec.epochs_one_in and rng.randrange(spec.epochs_one_in) == 0:
                epoch += 1
                self._say(f"e {spec.name} {epoch}")
                log.begin_epoch(epoch)
                self._say(f"E {spec.name} {epoch}")
            if spec.pause_ms:
                time.sleep(rng.random() * spec.pause_ms / 1000)

    def _acknowledge_when_durable(
        self, spec: LogSpec, log: Log, block: int, appended: Appended, window: threading.Semaphore
    ) -> None:
        def reached(failure: Exception | None) -> None:
            if failure is None:
                self._acknowledge(spec, block, appended)
            window.release()

        log.durable.when(appended.next_offset, reached)

    def _acknowledge(self, spec: LogSpec, block: int, appended: Appended) -> None:
        self._say(f"A {spec.name} {block} {appended.first_offset} {appended.next_offset} {appended.timestamp}")

    def _clean(self, logs: list[Log]) -> None:
        while True:
            for log in logs:
                clean(log, now_ms())
            time.sleep(0.004)

    # --- ends

    def _die_in_time(self, operation: str, path: str) -> None:
        if next(self._operations) < self._job.die_at:
            return
        tears = self._job.tear_bytes and self._faults.write_limit is None
        if tears and operation == "write" and path.endswith(".log"):
            self._faults.write_limit = self._job.tear_bytes
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except (StorageFailed, LogClosed) as failure:
            self._storage_failed(failure)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EROFS):
                self._wrong()
            self._storage_failed(error)
        except DamagedData as error:
            self._say(f"D {error}")
            os._exit(WRONG)
        except BaseException:
            self._wrong()

    def _storage_failed(self, failure: Exception) -> NoReturn:
        self._say("S " + str(failure).replace("\n", " "))
        os._exit(STORAGE_FAILED)

    def _wrong(self) -> NoReturn:
        self._say("F " + repr(traceback.format_exc()[-3000:]))
        os._exit(WRONG)

    def _say(self, line: str) -> None:
        os.write(self._out, line.encode() + b"\n")
