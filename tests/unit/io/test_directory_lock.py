"""The lock on a data directory: one holder, told by name, gone when its process is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from goqueue.io.directory_lock import DirectoryLock
from goqueue.model.errors import DirectoryLocked
from tests.support.patience import PATIENCE_S

HOLD = """
import sys
from goqueue.io.directory_lock import DirectoryLock
lock = DirectoryLock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import sys
from goqueue.io.directory_lock import DirectoryLock
from goqueue.model.errors import DirectoryLocked
try:
    DirectoryLock(sys.argv[1])
except DirectoryLocked as error:
    print(error)
else:
    print("got it")
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "data" / "meta").mkdir(parents=True)
    return f"{tmp_path}/data/meta/lock"


def try_elsewhere(path: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", TRY, path], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout.strip()


def test_a_second_process_is_refused_and_told_who_holds_the_directory(path: str) -> None:
    lock = DirectoryLock(path)
    refusal = try_elsewhere(path)
    data_dir = os.path.dirname(os.path.dirname(path))
    assert refusal == (
        f"{data_dir} is in use by process {os.getpid()}; stop that process or choose another data directory"
    )
    lock.release()


def test_a_second_lock_in_the_same_process_is_refused(path: str) -> None:
    lock = DirectoryLock(path)
    with pytest.raises(DirectoryLocked, match=f"in use by process {os.getpid()};"):
        DirectoryLock(path)
    lock.release()


def test_a_refusal_leaves_the_holders_name_in_place(path: str) -> None:
    lock = DirectoryLock(path)
    assert [try_elsewhere(path), try_elsewhere(path)] == [try_elsewhere(path)] * 2
    assert Path(path).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_released_lock_can_be_taken_by_another_process(path: str) -> None:
    DirectoryLock(path).release()
    assert try_elsewhere(path) == "got it"


def test_a_killed_holder_leaves_the_lock_free(path: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryLocked, match=f"in use by process {holder.pid};"):
            DirectoryLock(path)
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    lock = DirectoryLock(path)
    assert Path(path).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_shorter_process_number_leaves_nothing_of_a_longer_one(path: str) -> None:
    Path(path).write_text("123456789012\n")
    lock = DirectoryLock(path)
    assert Path(path).read_text() == f"{os.getpid()}\n"
    lock.release()
