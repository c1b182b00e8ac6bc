"""The command itself, and what it says when what was typed cannot be right."""

import pytest

import goqueue
from tests.unit.cli.typing_at import Person, run


def test_it_knows_its_version() -> None:
    assert run("--version").stdout.startswith(f"goqueue {goqueue.__version__} ")


def test_every_command_has_a_help_page() -> None:
    page = run("log", "--help").stdout
    for command in ("append", "cat", "verify", "stats", "list", "clean", "demo"):
        assert command in page
        assert run("log", command, "--help").exit_code == 0


@pytest.mark.parametrize("command", ["append", "cat", "verify", "stats", "clean"])
@pytest.mark.parametrize("name", ["../x", "/etc", "a//b", "", "a b"])
def test_a_name_that_could_lead_elsewhere_is_refused(person: Person, command: str, name: str) -> None:
    person.log("append", "orders", "--value", "x")
    options = {"append": ["--value", "x"], "clean": ["--compact"]}.get(command, [])
    result = person.log(command, name, *options)
    assert result.exit_code == 2
    assert "is no name for a log" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert person.log("list").stdout == "orders\n"


@pytest.mark.parametrize("command", ["cat", "verify", "stats", "clean"])
def test_a_log_that_is_not_there_is_said_to_be_missing_and_not_made(person: Person, command: str) -> None:
    person.log("append", "orders", "--value", "x")
    result = person.log(command, "order", *(["--compact"] if command == "clean" else []))
    assert result.exit_code == 1
    assert result.stderr == f"error: there is no log 'order' in {person.data_dir}: it has orders\n"
    assert person.log("list").stdout == "orders\n"


@pytest.mark.parametrize(
    "command", [["list"], ["verify"], ["stats"], ["cat", "orders"], ["clean", "orders", "--compact"]]
)
def test_a_missing_data_directory_is_named_and_not_made(person: Person, command: list[str]) -> None:
    result = person.log(*command)
    assert result.exit_code == 1
    assert f"there is no data directory {person.data_dir}" in result.stderr
    assert not person.data_dir.exists()


@pytest.mark.parametrize("command", ["list", "verify", "stats"])
def test_an_empty_data_directory_is_fine_and_said_to_be_empty(person: Person, command: str) -> None:
    person.data_dir.mkdir()
    result = person.log(command)
    assert result.exit_code == 0
    assert "has no logs" in result.stderr
    assert not any(person.data_dir.iterdir())


def test_a_directory_on_the_way_to_a_log_is_no_log(person: Person) -> None:
    person.log("append", "orders/0", "--value", "x")
    result = person.log("cat", "orders")
    assert result.exit_code == 1
    assert "only a directory" in result.stderr
    assert person.log("list", "-o", "json").stdout == '["orders/0"]\n'


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["log", "cat"], "NAME is missing; see goqueue log cat --help"),
        (["log", "cat", "a", "b"], "what is b for? There is one thing too many; see goqueue log cat --help"),
        (["log", "cat", "a", "--colour"], "there is no option --colour; see goqueue log cat --help"),
        (["log", "cat", "a", "--limit"], "--limit needs a value"),
        (["log", "append", "a", "--fsync", "x"], "--fsync is 'x'; it must be one of 'none', 'interval', 'every'"),
        (["log", "cat", "a", "--limt"], "there is no option --limt; did you mean --limit? See goqueue log cat --help"),
        (["log", "dog"], "there is no command 'dog'; see goqueue log --help"),
        (["log", "cta"], "there is no command 'cta'; did you mean cat? See goqueue log --help"),
        (["log", "list", "--data-dir", ""], "--data-dir is empty"),
    ],
)
def test_every_error_is_one_line_of_one_style(words: list[str], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_a_help_page_names_what_to_type_without_types() -> None:
    assert run("log", "append", "--help").stdout.startswith("Usage: goqueue log append [OPTIONS] NAME\n")
    assert run("log", "verify", "--help").stdout.startswith("Usage: goqueue log verify [OPTIONS] [NAME]...\n")
    assert "<str>" not in run("log", "append", "--help").stdout


def test_a_name_too_long_for_any_path_is_refused(person: Person) -> None:
    result = person.log("append", "/".join(["n" * 200] * 25), "--value", "x")
    assert result.exit_code == 2
    assert "the name of this log is too long" in result.stderr
