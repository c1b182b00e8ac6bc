"""The machine's disk behind the port: positions, missing files, and what a full disk is called."""

import errno
import os
import stat
from pathlib import Path

import pytest

from goqueue.io import disk as io_disk
from goqueue.io.disk import Disk, File, LocalDisk
from goqueue.model.errors import DiskFull


@pytest.fixture
def disk() -> Disk:
    return LocalDisk()


@pytest.fixture
def file(disk: Disk, tmp_path: Path) -> File:
    return disk.open(f"{tmp_path}/file", create=True)


def test_what_is_written_at_a_position_is_read_there(file: File) -> None:
    assert file.write(0, b"0123456789") == 10
    assert file.write(3, memoryview(b"xyz")) == 3
    assert file.write(12, bytearray(b"!")) == 1
    assert file.size() == 13
    assert file.read(0, 13) == b"012xyz6789\0\0!"
    file.close()


def test_a_sync_can_be_begun_and_changes_nothing(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[int] = []
    system = io_disk._SYNC_FILE_RANGE
    assert system is not None, "Linux has it"
    monkeypatch.setattr(io_disk, "_SYNC_FILE_RANGE", lambda *arguments: answers.append(system(*arguments)))
    file.write(0, b"0123456789" * 10_000)
    for position in (0, 50_000, 1_000_000):
        file.begin_sync(position)
    assert answers == [0, 0, 0]
    assert file.size() == 100_000
    file.sync()
    file.close()


def test_where_no_sync_can_be_begun_none_is(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_disk, "_SYNC_FILE_RANGE", None)
    file.write(0, b"0123456789")
    file.begin_sync(0)
    file.sync()
    file.close()


def test_a_read_is_short_only_at_the_end_of_the_file(file: File) -> None:
    file.write(0, b"0123456789")
    assert [file.read(8, 5), file.read(10, 5), file.read(99, 5), file.read(4, 0)] == [b"89", b"", b"", b""]
    file.close()


def test_short_reads_of_the_system_are_put_together(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(0, b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 3), position))
    assert file.read(1, 8) == b"12345678"
    assert file.read(5, 99) == b"56789"
    file.close()


def test_truncation_cuts_and_extends(file: File) -> None:
    file.write(0, b"0123456789")
    file.truncate(4)
    assert file.read(0, 99) == b"0123"
    file.truncate(6)
    assert file.read(0, 99) == b"0123\0\0"
    file.sync()
    file.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_a_full_disk(
    disk: Disk, file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(DiskFull):
        file.write(0, b"x")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskFull):
        disk.open(f"{tmp_path}/other", create=True)


def test_any_other_error_stays_what_it_is(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError) as caught:
        file.write(0, b"x")
    assert caught.value.errno == errno.EIO


def test_opening_a_missing_file_needs_leave_to_create_it(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/none")
    assert not disk.exists(f"{tmp_path}/none")
    disk.open(f"{tmp_path}/none", create=True).close()
    assert disk.exists(f"{tmp_path}/none")


def test_opening_for_creation_keeps_what_is_there(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    file = disk.open(f"{tmp_path}/file", create=True)
    assert file.read(0, 99) == b"kept"
    file.close()


def test_a_new_file_is_not_for_others_to_write(disk: Disk, tmp_path: Path) -> None:
    disk.open(f"{tmp_path}/file", create=True).close()
    assert not stat.S_IMODE(os.stat(tmp_path / "file").st_mode) & 0o022


def test_a_directory_lists_its_names_in_order_and_a_missing_one_nothing(disk: Disk, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert disk.list(str(tmp_path)) == ["a", "b", "c"]
    assert disk.list(f"{tmp_path}/none") == []


def test_a_directory_is_made_with_its_parents_each_name_durable(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(LocalDisk, "sync_directory", lambda _, path: synced.append(path))
    disk.make_directory(f"{tmp_path}/a/b/c")
    disk.make_directory(f"{tmp_path}/a/b/c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced == [str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b"]


def test_a_rename_replaces_its_target(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    disk.rename(f"{tmp_path}/new", f"{tmp_path}/old")
    disk.sync_directory(str(tmp_path))
    assert disk.list(str(tmp_path)) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"new"


def test_unlinking_what_is_not_there_is_no_error(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    disk.unlink(f"{tmp_path}/file")
    disk.unlink(f"{tmp_path}/file")
    assert disk.list(str(tmp_path)) == []


def test_only_an_empty_directory_is_removed(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    assert not disk.remove_directory(f"{tmp_path}/full")
    assert disk.remove_directory(f"{tmp_path}/empty")
    assert disk.list(str(tmp_path)) == ["full"]


def test_removing_a_directory_that_is_not_there_is_no_error(disk: Disk, tmp_path: Path) -> None:
    assert disk.remove_directory(f"{tmp_path}/none")
    assert disk.remove_directory(f"{tmp_path}/none/below")


def test_a_file_is_not_removed_as_a_directory(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        disk.remove_directory(f"{tmp_path}/file")
    assert disk.list(str(tmp_path)) == ["file"]
