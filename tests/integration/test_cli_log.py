"""`goqueue log` as a process among others: pipes, locks, signals, a writer beside a reader."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

GOQUEUE = [sys.executable, "-c", "from goqueue.cli.main import main; main()", "log"]


def run(data_dir: Path, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [*GOQUEUE, *words, "--data-dir", str(data_dir)]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE_S, check=False)
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
    subprocess.run([*command, os.fsencode(tmp_path)], check=True, capture_output=True, timeout=PATIENCE_S)
    (found,) = run(tmp_path, "cat", "orders", "-o", "json").stdout.splitlines()
    assert json.loads(found)["value"] == "/w=="


def test_a_second_writer_is_turned_away_and_a_reader_is_not(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        refused = run(tmp_path, "append", "orders", "--value", "x")
        assert refused.returncode == 1
        assert f"is in use by process {process.pid}; stop that process".encode() in refused.stderr
        assert values(tmp_path) == ["first"]
        assert run(tmp_path, "verify").returncode == 0
        out, _ = process.communicate(b"second\n", timeout=PATIENCE_S)
    assert out == b"orders: 2 records at offsets 0 to 1, durable\n"
    assert values(tmp_path) == ["first", "second"]


@pytest.mark.parametrize(
    ("number", "fsync"),
    [(signal.SIGINT, "every"), (signal.SIGINT, "none"), (signal.SIGTERM, "every"), (signal.SIGHUP, "none")],
)
def test_a_writer_told_to_stop_keeps_and_acknowledges_what_it_wrote(tmp_path: Path, number: int, fsync: str) -> None:
    with writer(tmp_path, "--fsync", fsync) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (128 + number, b"")
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
    assert process.returncode == 128 + signal.SIGPIPE


def test_nothing_but_text_goes_into_a_pipe(tmp_path: Path) -> None:
    done = run(tmp_path, "demo")
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""


def test_a_command_without_standard_input_says_so(tmp_path: Path) -> None:
    words = " ".join(f"'{word}'" for word in [*GOQUEUE, "append", "orders", "--data-dir", str(tmp_path)])
    done = subprocess.run(["sh", "-c", f"{words} <&-"], capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert b"no standard input" in done.stderr


def in_shell(data_dir: Path, words: str, redirection: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    command = shlex.join([*GOQUEUE, *words.split(), "--data-dir", str(data_dir)])
    done = subprocess.run(
        ["sh", "-c", f"{command} {redirection}"],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **environment},
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_records_whose_answer_could_not_be_printed_are_said_to_be_durable(tmp_path: Path, redirection: str) -> None:
    done = in_shell(tmp_path, "append orders --value x", redirection)
    assert done.returncode == 3
    assert done.stderr.startswith(b"error: the records are durable, only the answer could not be printed")
    assert b"orders: 1 record at offset 0, durable" in done.stderr
    assert values(tmp_path) == ["x"]
    assert run(tmp_path, "verify").returncode == 0


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("command", ["cat orders", "cat orders -o json", "stats", "verify", "list"])
def test_output_that_cannot_be_written_is_one_line_and_no_success(
    tmp_path: Path, command: str, redirection: str
) -> None:
    run(tmp_path, "append", "orders", "--value", "x")
    done = in_shell(tmp_path, command, redirection)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: standard output could not be written: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_command_without_any_stream_does_not_write_into_the_log(tmp_path: Path) -> None:
    in_shell(tmp_path, "append orders --value x", "<&- >&- 2>&-")
    assert values(tmp_path) == ["x"]
    assert run(tmp_path, "verify").returncode == 0


def test_a_terminal_without_our_letters_gets_others(tmp_path: Path) -> None:
    run(tmp_path, "append", "orders", "--value", "3 €")
    shown = in_shell(tmp_path, "cat orders", "", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout.endswith(b"3 \\u20ac\n")
    assert in_shell(tmp_path, "verify", "", PYTHONIOENCODING="latin-1").stdout.startswith(b"ok: no damage found")


def test_a_codec_that_does_not_exist_is_refused_in_a_line(tmp_path: Path) -> None:
    done = in_shell(tmp_path, "list", "", GOQUEUE_CODEC="rust")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: GOQUEUE_CODEC is 'rust'; it must be auto, compiled or python\n"


def test_a_table_of_many_rows_is_printed_whole(tmp_path: Path) -> None:
    run(tmp_path, "append", "orders", stdin=b"some value\n" * 50_000)
    done = run(tmp_path, "cat", "orders", "--limit", "50000")
    assert len(done.stdout.splitlines()) >= 50_002
