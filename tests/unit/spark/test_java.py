"""Which Java is taken."""

import shutil
import subprocess
from pathlib import Path

import pytest

from goqueue.model.errors import Unavailable
from goqueue.spark import java


def fake(folder: Path, version: str) -> Path:
    """A Java that says only which it is."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(java, "find_spec", lambda _: None)


def test_that_of_java_home_is_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named, on_path = fake(tmp_path / "named", "21.0.1"), fake(tmp_path / "path", "17.0.9")
    monkeypatch.setattr(shutil, "which", lambda _: str(on_path / "bin" / "java"))
    assert java.find_java() == java.Java(str(on_path), 17)
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find_java() == java.Java(str(named), 21)


def test_one_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "1.8.0_392")))
    with pytest.raises(Unavailable, match=r"old has Java 8\); install one"):
        java.find_java()
    newer = fake(tmp_path / "new", "17")
    monkeypatch.setattr(shutil, "which", lambda _: str(newer / "bin" / "java"))
    assert java.find_java().home == str(newer)


def test_without_any_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"none here; install one, .* pip install 'goqueue\[spark\]'"):
        java.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="no bin/java that answers"):
        java.find_java()


def test_the_one_the_extra_brings_is_the_last_and_has_a_shim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    found = java._brought(tmp_path / "cache")
    assert found is not None
    assert found.version >= java.OLDEST
    shim = Path(found.home) / "bin" / "java"
    text = shim.read_text()
    assert java._brought(tmp_path / "cache") == found
    assert shim.read_text() == text
    assert java._version(Path(found.home)) == found.version


def test_the_shim_leaves_one_flag_out(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text('#!/bin/sh\nfor each do echo "$each"; done\n')
    program.chmod(0o755)
    shim = tmp_path / "shim"
    shim.write_text(java._SHIM.format(java=program))
    shim.chmod(0o755)
    said = subprocess.run(
        [shim, "-a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=other"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["-a b", "", "--add-modules=other"]
