"""`goqueue log demo`: the first thing a newcomer sees."""

from pathlib import Path

from tests.unit.cli.typing_at import Person


def test_the_demo_writes_reads_measures_and_verifies(person: Person) -> None:
    result = person.log("demo")
    assert result.exit_code == 0
    assert result.stderr == ""
    for expected in ("6 records at offsets 0 to 5, durable", "insulin", "critical 1, high 1", "✓ no damage found"):
        assert expected in result.stdout
    assert f"goqueue log cat orders --data-dir {person.data_dir}" in result.stdout


def test_a_second_demo_goes_on_where_the_first_ended(person: Person) -> None:
    person.log("demo")
    result = person.log("demo")
    assert result.exit_code == 0
    assert "2 records at offsets 6 to 7, durable" in result.stdout
    assert len(person.values("demo")) == 8


def test_after_many_demos_only_the_last_messages_are_shown(person: Person) -> None:
    for _ in range(5):
        result = person.log("demo")
    assert "Read the last 10" in result.stdout
    assert len(person.values("demo")) == 14


def test_what_the_demo_says_to_try_works(person: Person) -> None:
    lines = person.log("demo").stdout.splitlines()
    suggested = [line.split(" log ")[1].split(" --data-dir")[0] for line in lines if line.startswith("  goqueue log ")]
    assert len(suggested) == 5
    for words in suggested:
        if words != "--help":
            assert person.log(*words.replace('"', "").split(maxsplit=5)).exit_code == 0, words


def test_a_directory_with_a_space_is_quoted(person: Person, tmp_path: Path) -> None:
    shown = person.log("demo", "--data-dir", str(tmp_path / "my data")).stdout
    assert f"log verify --data-dir '{tmp_path}/my data'" in shown
