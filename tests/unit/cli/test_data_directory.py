"""Looking at a data directory without being able to change it."""

from pathlib import Path

import pytest

from goqueue.cli.data_directory import DISK


def test_the_disk_of_commands_that_only_look_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"as it was")
    for change in (
        lambda: DISK.open(str(tmp_path / "new"), create=True),
        lambda: DISK.make_directory(str(tmp_path / "new")),
        lambda: DISK.rename(str(file), str(tmp_path / "new")),
        lambda: DISK.unlink(str(file)),
        lambda: DISK.open(str(file)).write(0, b"x"),
    ):
        with pytest.raises(OSError):
            change()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"as it was"
