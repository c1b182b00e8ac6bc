"""`goqueue log` and the logs that a broker keeps for itself: all commands that look see them, none changes them."""

import pytest

from tests.unit.cli.typing_at import SMALL, Person, flip_bit, valued

PARTITION = "orders/00000000000000aa/0"
SIDECAR = f"{PARTITION}/sidecar"


@pytest.fixture
def logs(person: Person) -> Person:
    """A partition, its sidecar, and another partition."""
    person.write(PARTITION, (1000, valued("a", "b")))
    person.write(SIDECAR, *((1000, valued("x" * 50)) for _ in range(300)), settings=SMALL)
    person.write("orders/00000000000000aa/1", (1000, valued("c")))
    return person


def test_a_sidecar_is_listed_after_its_partition(logs: Person) -> None:
    assert logs.log("list").stdout.split() == [PARTITION, SIDECAR, "orders/00000000000000aa/1"]


def test_a_sidecar_and_its_partition_are_read_apart(logs: Person) -> None:
    assert logs.values(PARTITION) == ["a", "b"]
    assert logs.values(SIDECAR) == ["x" * 50] * 300


def test_statistics_have_a_line_for_each(logs: Person) -> None:
    result = logs.log("stats")
    assert result.exit_code == 0
    assert SIDECAR in result.stdout
    assert logs.log("stats", SIDECAR).exit_code == 0


def test_damage_in_a_sidecar_is_found_without_naming_it(logs: Person) -> None:
    assert logs.log("verify").exit_code == 0
    flip_bit(logs.segments(SIDECAR)[0], 1000)
    result = logs.log("verify")
    assert result.exit_code == 1
    assert f"log {SIDECAR}" in result.stdout
    assert logs.log("verify", PARTITION).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["clean", SIDECAR, "--retention", "1s", "--roll"],
        ["clean", SIDECAR, "--compact", "--roll"],
        ["append", SIDECAR, "--value", "x"],
        ["append", "orders/00000000000000aa/1/sidecar", "--value", "x"],
    ],
)
def test_a_sidecar_is_not_changed(logs: Person, words: list[str]) -> None:
    before = {path: path.read_bytes() for path in sorted(logs.data_dir.rglob("*")) if path.is_file()}
    result = logs.log(*words)
    assert result.exit_code == 2
    assert f"{words[1]!r} is a log that a broker keeps for itself" in result.stderr
    assert {path: path.read_bytes() for path in sorted(logs.data_dir.rglob("*")) if path.is_file()} == before


def test_cleaning_a_partition_leaves_its_sidecar_alone(logs: Person) -> None:
    assert logs.log("clean", PARTITION, "--retention", "1s", "--roll").exit_code == 0
    assert logs.values(PARTITION) == []
    assert len(logs.values(SIDECAR)) == 300


def test_a_log_may_still_be_called_sidecar_where_it_is_beside_nothing(person: Person) -> None:
    assert person.log("append", "sidecar", "--value", "x").exit_code == 0
    assert person.values("sidecar") == ["x"]


@pytest.mark.parametrize("words", [["append", "@metadata", "--value", "x"], ["clean", "@metadata", "--compact"]])
def test_the_metadata_is_not_changed_either(logs: Person, words: list[str]) -> None:
    result = logs.log(*words)
    assert result.exit_code == 2
    assert "'@metadata' is a log that a broker keeps for itself" in result.stderr
