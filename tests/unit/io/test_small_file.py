"""Small files: the old content or the new, and writes that arrive in pieces."""

from pathlib import Path

import pytest

from goqueue.io.disk import Buffer, File
from goqueue.io.small_file import read_file, replace_file, write_all, write_file
from goqueue.model.errors import DiskFull
from tests.unit.storage.disks import Stopped, WatchedDisk, stop_at


class Sipping:
    """A file that takes a few bytes at a time, and at some point none."""

    def __init__(self, sip: int, room: int = 10**6) -> None:
        self.taken = bytearray()
        self._sip = sip
        self._room = room

    def write(self, position: int, data: Buffer) -> int:
        assert position == len(self.taken)
        part = bytes(data)[: min(self._sip, self._room - len(self.taken))]
        self.taken += part
        return len(part)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self.taken[position : position + size])

    def is_cached(self, position: int) -> bool:
        return True

    def size(self) -> int:
        return len(self.taken)

    def truncate(self, size: int) -> None:
        del self.taken[size:]

    def begin_sync(self, position: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("sip", [1, 3, 7, 100])
def test_everything_is_written_however_short_the_single_writes(sip: int) -> None:
    file = Sipping(sip)
    port: File = file
    write_all(port, 0, b"0123456789abcdef")
    assert file.taken == b"0123456789abcdef"


def test_a_file_that_takes_nothing_more_is_a_full_disk() -> None:
    file = Sipping(4, room=6)
    with pytest.raises(DiskFull):
        write_all(file, 0, b"0123456789")
    assert file.taken == b"012345"


def test_nothing_to_write_is_no_error() -> None:
    file = Sipping(4, room=0)
    write_all(file, 0, b"")
    assert file.taken == b""


def test_a_missing_file_reads_as_none_and_an_empty_one_as_empty(tmp_path: Path) -> None:
    disk = WatchedDisk()
    assert read_file(disk, f"{tmp_path}/none") is None
    (tmp_path / "empty").touch()
    assert read_file(disk, f"{tmp_path}/empty") == b""
    assert disk.open_count == 0


def test_a_written_file_holds_the_new_content_only(tmp_path: Path) -> None:
    disk = WatchedDisk()
    write_file(disk, f"{tmp_path}/it", b"a long content")
    write_file(disk, f"{tmp_path}/it", b"short")
    assert read_file(disk, f"{tmp_path}/it") == b"short"
    assert disk.open_count == 0


def test_a_replaced_file_is_synced_before_it_is_renamed_and_the_directory_after(tmp_path: Path) -> None:
    disk = WatchedDisk()
    replace_file(disk, f"{tmp_path}/it", b"content")
    kinds = [operation.kind for operation in disk.operations]
    assert kinds == ["create", "truncate", "write", "sync", "rename", "sync_directory"]
    assert disk.operations[-1].path == str(tmp_path)
    assert disk.open_count == 0


def test_a_replacement_stopped_anywhere_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = f"{tmp_path}/it"
    outcomes = []
    for change in range(7):
        replace_file(WatchedDisk(), path, b"old content")
        (tmp_path / "it.tmp").write_bytes(b"left over from an earlier life, and longer")
        try:
            replace_file(WatchedDisk(stop_at(change)), path, b"new")
        except Stopped:
            pass
        outcomes.append(read_file(WatchedDisk(), path))
    assert outcomes == [b"old content"] * 4 + [b"new"] * 3
