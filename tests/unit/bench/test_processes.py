"""Children of a bench: they end with it, and say why when they end before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import Child, Failed, cpu_seconds, resident_mib, scratch


def child(tmp_path: Path, code: str) -> Child:
    return Child(["-c", code], name="child", log=str(tmp_path / "child.log"))


def test_a_child_is_told_and_heard_line_by_line(tmp_path: Path) -> None:
    with child(tmp_path, "for line in open(0): print(line.strip()[::-1]); print('more', flush=True)") as found:
        found.tell(b"abc")
        assert [found.hear(30), found.hear(30)] == [b"cba", b"more"]


def test_a_child_that_ends_early_is_quoted(tmp_path: Path) -> None:
    why = r"child ended(?s:.)*there is no disk"
    with child(tmp_path, "import sys; sys.exit('there is no disk')") as found, pytest.raises(Failed, match=why):
        found.hear(30)


def test_a_child_that_says_nothing_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with child(tmp_path, "input()") as found, pytest.raises(Failed, match="said nothing for 0 s"):
        found.hear(0)


def test_nothing_of_a_child_is_left(tmp_path: Path) -> None:
    with child(tmp_path, "print(flush=True); input()") as found:
        found.hear(30)
        pid = found.pid
    assert not os.path.exists(f"/proc/{pid}")


def test_what_a_process_uses_is_seen() -> None:
    before = cpu_seconds(os.getpid())
    assert sum(range(200_000)) > 0
    assert cpu_seconds(os.getpid()) > before
    assert resident_mib() > 1


def test_a_scratch_directory_is_gone_afterwards_whatever_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOQUEUE_BENCH_DIR", str(tmp_path))
    with scratch() as directory:
        Path(directory, "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_bench_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOQUEUE_BENCH_DIR", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    orphan = tmp_path / f"goqueue-bench-{ended.pid}-x"
    somebody_elses = tmp_path / "goqueue-bench-of-mine"
    orphan.mkdir()
    somebody_elses.mkdir()
    with scratch():
        assert not orphan.exists()
    assert list(tmp_path.iterdir()) == [somebody_elses]
