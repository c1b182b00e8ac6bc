"""`goqueue log clean`: one pass, and its report."""

import pytest

from goqueue.model.record import Record
from tests.unit.cli.typing_at import SMALL, Person, flip_bit, valued


def test_compaction_keeps_the_newest_of_each_key(person: Person) -> None:
    records = [(1000 + number, [Record(key=b"%d" % (number % 3), value=b"%d" % number)]) for number in range(300)]
    person.write("n", *records, settings=SMALL)
    result = person.log("clean", "n", "--compact", "--roll")
    assert result.exit_code == 0
    assert result.stdout.startswith("n: removed 297 records")
    assert person.values("n") == ["297", "298", "299"]
    assert person.log("verify").exit_code == 0


def test_retention_removes_what_is_old(person: Person) -> None:
    person.write("n", *((1000, valued("x" * 50)) for _ in range(300)), settings=SMALL)
    result = person.log("clean", "n", "--retention", "7d")
    assert result.exit_code == 0
    left = [found["offset"] for found in person.objects("n")]
    assert 0 < len(left) < 300
    assert left[-1] == 299


def test_retention_by_bytes_removes_the_oldest(person: Person) -> None:
    person.write("n", *((1000, valued("x" * 50)) for _ in range(300)), settings=SMALL)
    person.log("clean", "n", "--retention-bytes", "9000")
    assert sum(path.stat().st_size for path in person.segments("n")) <= 9000 + 4096


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--retention", "36500d"], "the last record of the oldest is of 1970-01-01T00:00:01.000Z: not old enough"),
        (["--retention-bytes", "1000000"], "at least 976.6 KiB stay"),
        (["--compact"], "no sealed segment holds a record that a newer one"),
    ],
)
def test_a_pass_that_removes_nothing_says_why(person: Person, options: list[str], why: str) -> None:
    person.write("n", *((1000, valued("x" * 50)) for _ in range(300)), settings=SMALL)
    result = person.log("clean", "n", *options)
    assert result.exit_code == 0
    assert why in result.stderr


def test_a_log_without_sealed_segments_is_left_alone_and_told_why(person: Person) -> None:
    person.write("n", (1000, valued("x")))
    result = person.log("clean", "n", "--retention", "1s")
    assert result.exit_code == 0
    assert "removed 0 records" in result.stdout
    assert "--roll" in result.stderr


@pytest.mark.parametrize("options", [[], ["--roll"], ["--retention", "old"], ["--retention-bytes", "-1"]])
def test_what_to_clean_must_be_said(person: Person, options: list[str]) -> None:
    person.write("n", (1000, valued("x")))
    assert person.log("clean", "n", *options).exit_code == 2


def test_a_damaged_segment_is_left_as_it_is_and_named(person: Person) -> None:
    records = [(1000, [Record(key=b"k", value=b"x" * 50)]) for _ in range(300)]
    person.write("n", *records, settings=SMALL)
    first = person.segments("n")[0]
    flip_bit(first, 1000)
    before = first.read_bytes()
    result = person.log("clean", "n", "--compact")
    assert result.exit_code == 1
    assert f"{first.name} is damaged and was left as it is" in result.stderr
    assert first.read_bytes() == before
