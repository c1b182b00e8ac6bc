"""Open files: bounded, never closed under a user, closed when forgotten."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from goqueue.io.disk import LocalDisk
from goqueue.storage.files import FileKey, OpenFiles
from tests.unit.storage.disks import WatchedDisk


@pytest.fixture
def keys(tmp_path: Path) -> list[FileKey]:
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    return [FileKey(f"{tmp_path}/{number}", 1) for number in range(10)]


def use(files: OpenFiles, key: FileKey) -> bytes:
    with files.use(key) as file:
        return file.read(0, 10)


def test_a_file_is_opened_once_and_kept(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk)
    assert [use(files, keys[3]) for _ in range(5)] == [b"3"] * 5
    assert (len(disk.of_kind("open")), disk.open_count, len(files)) == (1, 1, 1)


def test_no_more_files_than_the_limit_stay_open_and_the_oldest_goes_first(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk, limit=3)
    for key in keys[:3]:
        use(files, key)
    use(files, keys[0])
    use(files, keys[3])
    assert disk.open_count == 3
    opened = len(disk.of_kind("open"))
    for key in (keys[0], keys[2], keys[3]):
        use(files, key)
    assert len(disk.of_kind("open")) == opened
    use(files, keys[1])
    assert (len(disk.of_kind("open")), disk.open_count) == (opened + 1, 3)


def test_files_in_use_are_never_closed_and_the_limit_holds_again_afterwards(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk, limit=2)
    with ExitStack() as stack:
        held = [stack.enter_context(files.use(key)) for key in keys[:6]]
        assert disk.open_count == 6
        assert [file.read(0, 10) for file in held] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert disk.open_count == len(files) == 2


def test_a_missing_file_is_no_entry(tmp_path: Path) -> None:
    files = OpenFiles(WatchedDisk(), limit=2)
    with pytest.raises(FileNotFoundError), files.use(FileKey(f"{tmp_path}/none", 1)):
        pass
    assert len(files) == 0


def test_a_forgotten_file_is_closed_at_once(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk)
    use(files, keys[0])
    files.forget(keys[0])
    files.forget(keys[1])
    assert (disk.open_count, len(files)) == (0, 0)


def test_a_file_forgotten_in_use_is_closed_when_its_last_user_is_done(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk)
    with files.use(keys[0]) as first:
        with files.use(keys[0]) as second:
            files.forget(keys[0])
            assert second.read(0, 10) == b"0"
        assert disk.open_count == 1
        assert first.read(0, 10) == b"0"
    assert disk.open_count == 0


def test_a_forgotten_file_used_again_is_opened_anew(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk)
    with files.use(keys[0]):
        files.forget(keys[0])
        assert use(files, keys[0]) == b"0"
        assert disk.open_count == 2
    assert disk.open_count == 1


def test_two_lives_of_one_path_are_two_files(keys: list[FileKey]) -> None:
    files = OpenFiles(LocalDisk())
    old, new = keys[0], keys[0]._replace(life=2)
    assert use(files, old) == b"0"
    Path(keys[1].path).replace(keys[0].path)
    assert (use(files, old), use(files, new)) == (b"0", b"1")
    files.close()


def test_closing_closes_all(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk)
    for key in keys:
        use(files, key)
    files.close()
    assert (disk.open_count, len(files)) == (0, 0)


def test_threads_share_few_files_and_always_read_their_own(keys: list[FileKey]) -> None:
    disk = WatchedDisk()
    files = OpenFiles(disk, limit=3)
    wrong: list[tuple[int, bytes]] = []
    most: list[int] = []

    def work(seed: int) -> None:
        for step in range(500):
            number = (seed * 7 + step * 3) % len(keys)
            found = use(files, keys[number])
            if found != b"%d" % number:
                wrong.append((number, found))
            if step % 50 == 0:
                files.forget(keys[number])
            most.append(len(files))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert max(most) <= 3 + len(threads)
    assert len(files) <= 3
    files.close()
    assert disk.open_count == 0
