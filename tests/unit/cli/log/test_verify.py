"""`goqueue log verify`: what it finds, what it says about it, and its exit code."""

import msgspec
import pytest

from tests.unit.cli.typing_at import SMALL, Person, flip_bit, valued


def test_a_whole_log_is_said_to_be_whole(person: Person) -> None:
    person.write("a", (1000, valued("x")))
    person.write("b/0", (1000, valued("y")))
    result = person.log("verify")
    assert result.exit_code == 0
    assert result.stdout == "✓ no damage found: 70 bytes in 2 segments of 2 logs\n"


@pytest.mark.parametrize("position", [0, 5, 20, 34])
def test_a_flipped_bit_is_found_and_named(person: Person, position: int) -> None:
    person.write("orders", (1000, valued("a", "b", "c")))
    flip_bit(person.segments("orders")[0], 35 + position)
    result = person.log("verify", "orders")
    assert result.exit_code == 1
    words = result.stdout.splitlines()[2].split()
    assert words[:4] == ["damage", "00000000000000000000.log", "35", "1"]
    assert "→ damage: all other records stay readable" in result.stdout
    assert "✗ damage found in 1 place" in result.stdout


def test_findings_as_json_say_where_and_what_to_do(person: Person) -> None:
    person.write("orders", (1000, valued("a", "b", "c")))
    flip_bit(person.segments("orders")[0], 100)
    result = person.log("verify", "-o", "json")
    found = msgspec.json.decode(result.stdout)
    assert result.exit_code == 1
    assert found["damaged"] is True
    (finding,) = found["findings"]
    assert (finding["log"], finding["severity"], finding["position"]) == ("orders", "damage", 70)
    assert (finding["first_offset"], finding["next_offset"]) == (2, 3)
    assert "good copy" in finding["advice"]


def test_a_lost_view_is_shown_but_no_failure(person: Person) -> None:
    person.write("n", *((1000, valued(str(number))) for number in range(300)), settings=SMALL)
    next((person.data_dir / "logs" / "n").glob("*.view")).unlink()
    flip_bit(next((person.data_dir / "logs" / "n").glob("*.timeindex")), 50)
    result = person.log("verify")
    assert result.exit_code == 0
    assert "the view is missing" in result.stdout
    assert "the time index is damaged" in result.stdout
    assert "rebuilt from the records when it is next needed" in result.stdout
    assert "no damage found" in result.stdout


def test_a_torn_end_is_shown_but_no_failure(person: Person) -> None:
    person.write("n", (1000, valued("a")))
    with person.segments("n")[0].open("ab") as file:
        file.write(b"GQ\x01 not whole")
    result = person.log("verify")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[2].split()[:4] == ["tear", "00000000000000000000.log", "35", "1"]


def test_a_damaged_state_file_is_damage_and_does_not_hide_other_logs(person: Person) -> None:
    person.write("a", (1000, valued("x")))
    person.write("b", (1000, valued("y")))
    flip_bit(person.data_dir / "logs" / "a" / "log.state", 20)
    result = person.log("verify")
    assert result.exit_code == 1
    assert "nothing of this log can be read without this file" in result.stdout
    overview = person.log("stats")
    assert overview.exit_code == 1
    assert overview.stdout.splitlines()[1].startswith("b ")
    cat = person.log("cat", "a")
    assert (cat.exit_code, cat.stdout) == (1, "")
    assert "log.state is damaged" in cat.stderr


def test_only_the_logs_named_are_verified(person: Person) -> None:
    person.write("a", (1000, valued("x")))
    person.write("b", (1000, valued("y")))
    flip_bit(person.segments("a")[0], 34)
    assert person.log("verify", "b").exit_code == 0
    assert person.log("verify", "b", "a").exit_code == 1


def test_a_log_that_cannot_be_read_does_not_hide_the_others(person: Person) -> None:
    for name in ("a", "b", "c", "d"):
        person.write(name, (1000, valued("x")))
    logs = person.data_dir / "logs"
    (logs / "a" / "log.state").unlink()
    (logs / "a" / "log.state").mkdir()
    (logs / "b").rename(logs / "elsewhere")
    (logs / "b").symlink_to("b")
    flip_bit(person.segments("c")[0], 34)
    result = person.log("verify", "-o", "json")
    assert result.exit_code == 1
    found = msgspec.json.decode(result.stdout)
    assert found["unreadable"] is True
    assert [(one["log"], one["severity"], one["file"]) for one in found["findings"]] == [
        ("a", "unreadable", f"{logs}/a/log.state"),
        ("b", "unreadable", f"{logs}/b"),
        ("c", "damage", str(person.segments("c")[0])),
    ]
    overview = person.log("stats")
    assert overview.exit_code == 1
    assert [line.split()[0] for line in overview.stdout.splitlines()] == ["log", "c", "d", "elsewhere", "goqueue"]
    assert f"error: b: {logs}/b: Too many levels of symbolic links" in overview.stderr


def test_what_cannot_be_read_is_not_called_whole(person: Person) -> None:
    person.write("a", (1000, valued("x")))
    person.segments("a")[0].unlink()
    (person.data_dir / "logs" / "a" / f"{0:020d}.log").mkdir()
    result = person.log("verify")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("✗ not everything could be read, no damage found in the rest")


def test_what_a_failed_creation_left_is_a_note(person: Person) -> None:
    person.write("a", (1000, valued("x")))
    (person.data_dir / "logs" / "b").mkdir()
    (person.data_dir / "logs" / "b" / "log.state.tmp").touch()
    result = person.log("verify")
    assert result.exit_code == 0
    assert "left by a creation that failed" in result.stdout
    assert person.log("stats").exit_code == 0


def test_a_tear_is_not_said_to_be_harmless_when_the_mark_is_lost(person: Person) -> None:
    person.write("n", (1000, valued("a")))
    with person.segments("n")[0].open("ab") as file:
        file.write(b"GQ\x01 not whole")
    assert "it never was durable" in person.log("verify").stdout
    (person.data_dir / "logs" / "n" / "synced").unlink()
    assert "it may never have been durable" in person.log("verify").stdout


def test_a_narrow_terminal_gets_a_list_of_findings(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    person.write("n", (1000, valued("a", "b")))
    flip_bit(person.segments("n")[0], 10)
    lines = person.log("verify").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["found", "file", "byte", "offsets", "what"]
