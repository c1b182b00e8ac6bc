"""`goqueue log` as a process among others: pipes, locks, signals, a writer beside a reader."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GOQUEUE = [sys.executable, "-c", "from goqueue.cli.main import main; main()", "log"]


def run(data_dir: Path, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [*GOQUEUE, *words, "--data-dir", str(data_dir)]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def heed_signals() -> None:
    """A suite that runs in the background ignores Ctrl-C, and what it starts would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def writer(data_dir: Path, *options: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A `log append` that has appended one line and waits for the next."""
    command = [*GOQUEUE, "append", "orders", "--data-dir", str(data_dir), *options]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_signals
    )
    assert process.stdin is not None
    try:
        process.stdin.write(b"first\n")
        process.stdin.flush()
        while not values(data_dir):
            assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def values(data_dir: Path) -> list[str]:
    lines = run(data_dir, "cat", "orders", "-o", "json").stdout.splitlines()
    return [json.loads(line)["value"] for line in lines]


def test_bytes_of_any_kind_make_the_round_trip(tmp_path: Path) -> None:
    done = run(tmp_path, "append", "orders", stdin=b"plain\n\xff\xfe\n\xe2\x82\xac\n")
    assert done.stdout == b"orders: 3 records at offsets 0 to 2, durable\n"
    found = [json.loads(line) for line in run(tmp_path, "cat", "orders", "-o", "json").stdout.splitlines()]
    assert [(one["value"], one.get("encoding")) for one in found] == [("plain", None), ("//4=", "base64"), ("€", None)]


def test_arguments_that_are_no_text_keep_their_bytes(tmp_path: Path) -> None:
    command = [*(os.fsencode(word) for word in GOQUEUE), b"append", b"orders", b"--value", b"\xff", b"--data-dir"]
    subprocess.run([*command, os.fsencode(tmp_path)], check=True, capture_output=True, timeout=60)
    (found,) = run(tmp_path, "cat", "orders", "-o", "json").stdout.splitlines()
    assert json.loads(found)["value"] == "/w=="


def test_a_second_writer_is_turned_away_and_a_reader_is_not(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        refused = run(tmp_path, "append", "orders", "--value", "x")
        assert refused.returncode == 1
        assert f"is in use by process {process.pid}; stop that process".encode() in refused.stderr
        assert values(tmp_path) == ["first"]
        assert run(tmp_path, "verify").returncode == 0
        out, _ = process.communicate(b"second\n", timeout=60)
    assert out == b"orders: 2 records at offsets 0 to 1, durable\n"
    assert values(tmp_path) == ["first", "second"]


@pytest.mark.parametrize("fsync", ["every", "none"])
def test_an_interrupted_writer_keeps_and_acknowledges_what_it_wrote(tmp_path: Path, fsync: str) -> None:
    with writer(tmp_path, "--fsync", fsync) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    assert out == b"orders: 1 record at offset 0, durable\n"


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(tmp_path: Path) -> None:
    run(tmp_path, "append", "orders", stdin=b"x\n" * 50_000)
    command = [*GOQUEUE, "cat", "orders", "-o", "json", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_nothing_but_text_goes_into_a_pipe(tmp_path: Path) -> None:
    done = run(tmp_path, "demo")
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""


def test_a_command_without_standard_input_says_so(tmp_path: Path) -> None:
    words = " ".join(f"'{word}'" for word in [*GOQUEUE, "append", "orders", "--data-dir", str(tmp_path)])
    done = subprocess.run(["sh", "-c", f"{words} <&-"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"no standard input" in done.stderr
