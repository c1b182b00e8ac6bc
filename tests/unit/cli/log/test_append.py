"""`goqueue log append`: what is acknowledged is there, and nothing else is acknowledged."""

import errno
import os
import time
from pathlib import Path

import pytest

from goqueue.storage.store import Store
from tests.unit.cli.typing_at import Person, flip_bit, valued


@pytest.mark.parametrize("fsync", ["every", "interval", "none"])
def test_what_is_appended_can_be_read_back(person: Person, fsync: str) -> None:
    first = person.log("append", "orders", "--value", "two apples", "--fsync", fsync)
    second = person.log("append", "orders", "--value", "one pear", "--fsync", fsync)
    assert first.stdout == "orders: 1 record at offset 0, durable\n"
    assert second.stdout == "orders: 1 record at offset 1, durable\n"
    assert person.values("orders") == ["two apples", "one pear"]


def test_each_line_of_stdin_is_a_message(person: Person) -> None:
    text = "".join(f"{number}\n" for number in range(5000))
    result = person.log("append", "numbers", "--segment-bytes", "20000", stdin=text)
    assert result.stdout == "numbers: 5,000 records at offsets 0 to 4999, durable\n"
    assert person.values("numbers") == [str(number) for number in range(5000)]
    assert len(person.segments("numbers")) > 5


def test_key_priority_headers_and_delay_are_kept(person: Person) -> None:
    before = time.time_ns() // 1_000_000
    person.log(
        "append", "orders", "--key", "alice", "--value", "x", "--priority", "HIGH",
        "--header", "source=web", "--header", "trace=a=b", "--delay", "1h",
    )  # fmt: skip
    (found,) = person.objects("orders")
    assert found["key"] == "alice"
    assert found["priority"] == "high"
    assert found["headers"] == {"source": "web", "trace": "a=b"}
    assert before + 3_600_000 <= int(str(found["deliver_at"])) <= time.time_ns() // 1_000_000 + 3_600_000


def test_a_header_given_twice_is_kept_twice(person: Person) -> None:
    person.log("append", "orders", "--value", "x", "--header", "a=1", "--header", "a=2")
    assert person.objects("orders")[0]["headers"] == [["a", "1"], ["a", "2"]]


@pytest.mark.parametrize(("priority", "lane"), [("0", "critical"), ("4", "background"), ("Low", "low")])
def test_a_priority_is_a_name_or_a_number(person: Person, priority: str, lane: str) -> None:
    person.log("append", "orders", "--value", "x", "--priority", priority)
    assert person.objects("orders")[0]["priority"] == lane


def test_absent_and_empty_differ(person: Person) -> None:
    person.log("append", "orders", "--value", "")
    person.log("append", "orders", "--tombstone", "--key", "")
    assert [(found["key"], found["value"]) for found in person.objects("orders")] == [(None, ""), ("", None)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--value", "x", "--priority", "urgent"], "'urgent' is no priority: use one of critical (0)"),
        (["--value", "x", "--priority", "5"], "'5' is no priority"),
        (["--value", "x", "--header", "novalue"], "'novalue' is no header: write NAME=VALUE"),
        (["--value", "x", "--delay", "soon"], "'soon' is no duration"),
        (["--value", "x", "--delay", "40000d"], "at most 36500d"),
        (["--value", "x", "--data-dir", ""], "--data-dir is empty"),
        (["--value", "x", "--segment-bytes", "1"], "--segment-bytes is 1; it must be"),
        (["--value", "x", "--key", "k" * 70_000], "its key is longer than 65535 bytes"),
        (["--key", "k" * 70_000], "its key is longer than 65535 bytes"),
        (["--tombstone"], "give --key and no --value"),
        (["--value", "x", "--fsync", "sometimes"], "sometimes"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_made(
    person: Person, options: list[str], message: str
) -> None:
    result = person.log("append", "orders", *options, stdin="line\n")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not person.data_dir.exists()


def test_no_input_appends_nothing(person: Person) -> None:
    result = person.log("append", "orders", stdin="")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing to append" in result.stderr
    assert not person.data_dir.exists()


def test_lines_before_one_that_is_too_long_are_kept_and_acknowledged(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goqueue.model.limits.MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr("goqueue.cli.log.lines.READ_BYTES", 16)
    result = person.log("append", "orders", stdin="a\nb\n" + "x" * 2000 + "\nc\n")
    assert result.exit_code == 1
    assert result.stdout == "orders: 2 records at offsets 0 to 1, durable\n"
    assert "line 3 is longer than" in result.stderr
    assert "what came before is in the log" in result.stderr
    assert person.values("orders") == ["a", "b"]


@pytest.mark.parametrize("fsync", ["every", "interval", "none"])
def test_an_fsync_that_fails_acknowledges_nothing(person: Person, monkeypatch: pytest.MonkeyPatch, fsync: str) -> None:
    person.log("append", "orders", "--value", "durable")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    result = person.log("append", "orders", "--fsync", fsync, stdin="a\nb\n")
    assert result.exit_code == 74
    assert result.stdout == ""
    assert "Input/output error" in result.stderr


def test_a_full_disk_is_said_to_be_full(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    person.log("append", "orders", "--value", "x")
    real = os.pwrite

    def full(fd: int, data: bytes, position: int) -> int:
        if len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    result = person.log("append", "orders", "--value", "y" * 2000)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "no space left on the disk" in result.stderr
    monkeypatch.undo()
    assert person.values("orders") == ["x"]


def test_a_torn_end_is_reported_when_it_is_cut(person: Person) -> None:
    person.log("append", "orders", "--value", "x")
    with person.segments("orders")[-1].open("ab") as file:
        file.write(b"GQ torn")
    result = person.log("append", "orders", "--value", "y")
    assert result.exit_code == 0
    assert "cut 7 bytes from offset 1 on" in result.stderr
    assert person.values("orders") == ["x", "y"]


def test_a_directory_somebody_else_holds_is_refused_by_name(person: Person) -> None:
    with Store(str(person.data_dir)):
        result = person.log("append", "orders", "--value", "x")
    assert result.exit_code == 1
    assert f"is in use by process {os.getpid()}" in result.stderr
    assert not Path(person.data_dir / "logs" / "orders").exists()


def test_what_recovery_met_is_counted_as_people_do(person: Person) -> None:
    person.write("orders", (1000, valued("a", "b", "c")))
    flip_bit(person.segments("orders")[0], 40)
    result = person.log("append", "orders", "--value", "d")
    assert "quarantined offset 1 in " in result.stderr
