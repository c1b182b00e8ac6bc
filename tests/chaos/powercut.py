"""Power cuts: a real process writes to a real ext4 whose device forgets everything that was not flushed.

    python -m tests.chaos.powercut --cycles 500 [--seed N] [--first N] [--broken files|directories]

The file system lives in an image behind a loop device. In the middle of writing it is shut down without its journal
being flushed (EXT4_IOC_SHUTDOWN), the writer is killed, the file system is unmounted and mounted again, as after a
cut, and a new process opens the logs. What was acknowledged must be there; see `ledger`. A cycle counts only if the
cut provably struck: acknowledged writes were flowing and the file system refuses to write afterwards.

To show that the rig would notice, it then runs builds that pretend to sync files, and directories, and demands that
they lose something. Needs root, loop devices and mkfs.ext4; without them it says so and ends with 0. Mounts are made
in a private mount namespace: they are gone when the process is, however it ends.
"""

import argparse
import atexit
import ctypes
import errno
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from goqueue.model.limits import KIB, MIB
from goqueue.model.settings import Fsync, LogSettings
from tests.chaos.ledger import Ledger, Lost, Violation
from tests.chaos.spawn import Ended, Hung, Spawner
from tests.chaos.writer import STORAGE_FAILED, Job, LogSpec, now_ms
from tests.support.faulty_disk import Lie
from tests.support.records import Shape

CYCLES_PER_DIRECTORY = 20
BROKEN_CYCLES = 40
IMAGE_BYTES = 256 * MIB
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
_WITHOUT_LOG_FLUSH = 2
_CLONE_NEWNS = 0x20000

LOGS = [
    LogSpec(
        name="every",
        shape=Shape(0),
        settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=8 * KIB),
        epochs_one_in=25,
    ),
    LogSpec(
        name="retained",
        shape=Shape(1, delayed_one_in=40, max_delay_ms=300),
        settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=4 * KIB, retention_bytes=24 * KIB),
    ),
    LogSpec(
        name="interval/0",
        shape=Shape(2, keys=20, max_value_bytes=200),
        settings=LogSettings(fsync=Fsync.INTERVAL, fsync_interval_ms=10, segment_bytes=4 * KIB, compact=True),
        epochs_one_in=40,
        pause_ms=1,
    ),
    LogSpec(
        name="same-size",
        shape=Shape(3, max_value_bytes=20, same_size=True),
        settings=LogSettings(fsync=Fsync.INTERVAL, fsync_interval_ms=30),
        max_block=1,
        pause_ms=3,
    ),
]
EPOCHS_ONLY = [
    LogSpec(
        name="epochs",
        shape=Shape(0),
        settings=LogSettings(fsync=Fsync.EVERY),
        epochs_one_in=1,
        pause_ms=20,
    ),
]
"""Renames that nothing flushes later: where a directory sync left out shows on ext4."""


class CannotRun(Exception):
    """This machine does not allow it; says why."""


def demand_a_machine_for_it() -> None:
    if os.geteuid() != 0:
        raise CannotRun("cutting the power needs root")
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            raise CannotRun(f"there is no {tool} here (Debian: apt-get install e2fsprogs mount)")
    if not os.path.exists("/dev/loop-control"):
        raise CannotRun("there are no loop devices here")


class Volume:
    """An ext4 in an image, mounted where nobody else sees it. A context manager."""

    def __init__(self) -> None:
        demand_a_machine_for_it()
        self._base = Path(tempfile.mkdtemp(prefix="goqueue-powercut-"))
        atexit.register(self.close)
        self.path = self._base / "volume"
        self._image = self._base / "image"
        self._mounted = False
        try:
            _use_private_mounts()
            self.path.mkdir()
            with self._image.open("wb") as image:
                image.truncate(IMAGE_BYTES)
            _command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", "-J", "size=8", str(self._image))
            self.mount()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
            raise CannotRun(f"no ext4 on a loop device here: {error} {detail}") from error

    def mount(self) -> None:
        _command("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.path))
        self._mounted = True

    def unmount(self) -> None:
        """Patient: a killed process may need a moment to let go."""
        for attempt in range(100):
            try:
                _command("umount", str(self.path))
                break
            except subprocess.CalledProcessError:
                if attempt == 99:
                    raise
                time.sleep(0.02)
        self._mounted = False

    def cut(self) -> bool:
        """Stop it where it is: nothing reaches the device from here on. True when it provably did."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("=I", _WITHOUT_LOG_FLUSH))
        finally:
            os.close(fd)
        try:
            os.close(os.open(self.path / "probe", os.O_WRONLY | os.O_CREAT))
        except OSError as error:
            return error.errno == errno.EIO
        return False

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._mounted:
            self.unmount()
        shutil.rmtree(self._base, ignore_errors=True)

    def __enter__(self) -> "Volume":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def _use_private_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    _command("mount", "--make-rprivate", "/")


class Run:
    """Cycles from one seed on one volume, with an honest disk or a lying one."""

    def __init__(self, seed: int, volume: Volume, spawner: Spawner, logs: list[LogSpec], lies: Lie = Lie.NONE) -> None:
        self.seed = seed
        self._volume = volume
        self._spawner = spawner
        self._logs = logs
        self._lies = lies
        self.acknowledged = 0
        self.cuts = 0
        self.cycles = 0

    def directory(self, number: int, cycles: int) -> None:
        """Some cycles in a data directory of their own, then an orderly stop and a last check."""
        data_dir = str(self._volume.path / f"data-{self._lies.value}-{number}")
        ledger = Ledger(self._logs)
        life = struck = 0
        try:
            while struck < cycles:
                life += 1
                struck += self._cycle(ledger, data_dir, number, life)
                if life > 3 * cycles + 10:
                    raise Violation(f"only {struck} of {life} cuts struck")
            self._check(ledger, data_dir, number, life + 1)
        except (Violation, Hung) as error:
            if not self._lies:
                kept = tempfile.mkdtemp(prefix="goqueue-powercut-kept-")
                shutil.copytree(data_dir, kept, dirs_exist_ok=True)
                error.add_note(f"The data directory is kept: {kept}")
            raise
        shutil.rmtree(data_dir)
        self.acknowledged += ledger.acknowledged
        self.cuts += ledger.cuts
        self.cycles += struck

    def _cycle(self, ledger: Ledger, data_dir: str, number: int, life: int) -> bool:
        """Whether the cut struck while acknowledged writes were flowing."""
        rng = random.Random(f"{self.seed}/{number}/{life}")
        after_s = 2 ** rng.uniform(-9, -4)
        in_opening = life > 1 and rng.random() < 0.1
        starts = "O" if in_opening else rng.choice(("A", "A", "C"))
        cut = False
        before = ledger.acknowledged
        started = False

        def decide(kind: str, words: list[str]) -> float | None:
            nonlocal started
            ledger.hear(life, kind, words, now_ms())
            if started or kind != starts:
                return None
            started = True
            return after_s / 16 if in_opening else after_s

        def cut_the_power() -> None:
            nonlocal cut
            cut = self._volume.cut()

        job = self._job(data_dir, number, life)
        try:
            ended = self._spawner.run(job, decide, cut_the_power)
        finally:
            self._volume.unmount()
            self._volume.mount()
        if not cut or (ended.signal != signal.SIGKILL and ended.code != STORAGE_FAILED):
            raise Violation(f"the writer ended by itself: {ended}")
        return in_opening or ledger.acknowledged > before

    def _check(self, ledger: Ledger, data_dir: str, number: int, life: int) -> None:
        def decide(kind: str, words: list[str]) -> None:
            ledger.hear(life, kind, words, now_ms())

        checks = ledger.checks
        ended = self._spawner.run(self._job(data_dir, number, life, write=False), decide)
        if ended != Ended(None, 0) or ledger.checks != checks + 1:
            raise Violation(f"an orderly check ended with {ended}")

    def _job(self, data_dir: str, number: int, life: int, *, write: bool = True) -> Job:
        return Job(
            data_dir=data_dir,
            seed=f"{self.seed}/{number}",
            life=life,
            logs=self._logs,
            write=write,
            lies=self._lies.value,
        )


def run_honest(cycles: int, seed: int, volume: Volume, spawner: Spawner, *, first: int = 0) -> Run:
    """So many cuts under the real thing; Violation or Hung when something is wrong."""
    began = time.monotonic()
    done = Run(seed, volume, spawner, LOGS)
    number = first
    while done.cycles < cycles:
        try:
            done.directory(number, min(cycles - done.cycles, CYCLES_PER_DIRECTORY))
        except (Violation, Hung) as error:
            error.add_note(
                f"To run it again: python -m tests.chaos.powercut --seed {seed} --first {number} "
                f"--cycles {CYCLES_PER_DIRECTORY}"
            )
            raise
        number += 1
        seconds = time.monotonic() - began
        print(
            f"{done.cycles}/{cycles} cuts, {done.acknowledged} records acknowledged, all there; "
            f"{done.cuts} torn ends cut; {seconds:.0f} s, {done.cycles / seconds:.1f} a second",
            flush=True,
        )
    return done


def run_broken(lies: Lie, seed: int, volume: Volume, spawner: Spawner) -> bool:
    """Cuts under a build that only pretends to sync; whether the loss was noticed."""
    logs = EPOCHS_ONLY if lies is Lie.DIRECTORIES else LOGS
    build = f"a build that only pretends to sync {str(lies.name).lower()}"
    try:
        Run(seed, volume, spawner, logs, lies).directory(0, BROKEN_CYCLES)
    except Lost as error:
        print(f"ok: {build} was caught, as it must be ({error})", flush=True)
        return True
    except Violation as error:
        print(f"failed: {build} broke otherwise: {error}", file=sys.stderr)
        return False
    print(f"failed: {BROKEN_CYCLES} cuts under {build}, and nothing was noticed", file=sys.stderr)
    print(f"To run it again: python -m tests.chaos.powercut --seed {seed} --broken {str(lies.name).lower()}")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first directory: skips those before it")
    parser.add_argument("--broken", choices=["files", "directories"], help="only this broken build")
    parser.add_argument("--must-run", action="store_true", help="end with 1, not 0, where it cannot run")
    arguments = parser.parse_args()
    if arguments.cycles < 1 and arguments.broken is None:
        print(f"nothing was done: --cycles is {arguments.cycles}")
        return 0
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        volume = Volume()
    except CannotRun as reason:
        print(f"skipped: {reason}", flush=True)
        return int(arguments.must_run)
    print(f"seed {seed}", flush=True)
    with volume, Spawner() as spawner:
        if arguments.broken is None:
            run_honest(arguments.cycles, seed, volume, spawner, first=arguments.first)
        builds = [Lie[arguments.broken.upper()]] if arguments.broken else [Lie.FILES, Lie.DIRECTORIES]
        caught = [run_broken(lies, seed, volume, spawner) for lies in builds]
    if all(caught):
        cuts = f"{arguments.cycles} power cuts, nothing acknowledged was lost; " if arguments.broken is None else ""
        print(f"ok: {cuts}{len(caught)} of {len(caught)} broken builds were found out", flush=True)
    return int(not all(caught))


if __name__ == "__main__":
    sys.exit(main())
