"""`goqueue config show`, and the options every configured command has."""

import os
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from goqueue.cli.commands import app
from goqueue.cli.config import configured
from goqueue.cli.failures import PlainGroup
from goqueue.config.keys import BY_FLAG, KEYS
from goqueue.config.settings import Settings
from tests.unit.cli.typing_at import run


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and no setting from the environment that runs the suite."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("GOQUEUE_"):
            monkeypatch.delenv(name)


def shown(*words: str) -> dict[str, dict[str, object]]:
    result = run("config", "show", "-o", "json", *words)
    assert result.exit_code == 0
    found: dict[str, dict[str, object]] = msgspec.json.decode(result.stdout)
    return found


def test_it_shows_every_key_its_value_and_its_source() -> None:
    result = run("config", "show")
    assert result.exit_code == 0
    assert result.stderr == ""
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["key", "value", "source"]
    assert [row.split()[0] for row in rows] == [key.path for key in KEYS]
    assert "storage.segmentSize                  64MiB" in result.stdout


def test_it_says_where_each_value_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("c.yaml").write_text("producer:\n  acks: all\n")
    monkeypatch.setenv("GOQUEUE_LOG_LEVEL", "debug")
    found = shown(
        "--config", "c.yaml", "--http", ":0", "--set", "producer.lingerMs=5", "--set", "producer.batchSize=1MB"
    )
    assert found["broker.nodeId"] == {"value": "node-1", "source": "default"}
    assert found["producer.acks"] == {"value": "all", "source": "c.yaml:2"}
    assert found["logging.level"] == {"value": "debug", "source": "environment GOQUEUE_LOG_LEVEL"}
    assert found["broker.listeners.http"] == {"value": "127.0.0.1:0", "source": "flag --http"}
    assert found["producer.lingerMs"] == {"value": 5, "source": "flag --set producer.lingerMs"}
    assert found["producer.batchSize"] == {"value": 1_000_000, "source": "flag --set producer.batchSize"}
    assert found["metrics.enabled"] == {"value": True, "source": "default"}


def test_as_yaml_it_is_a_file_that_means_the_same() -> None:
    words = ("--data-dir", "a ${b} \"c\" 'd' # é", "--http", "[::1]:0", "--wire", "off", "--set", "producer.acks=all")
    Path("c.yaml").write_text(run("config", "show", "-o", "yaml", *words).stdout, encoding="utf-8")
    first, again = shown(*words), shown("--config", "c.yaml")
    assert {path: one["value"] for path, one in again.items()} == {path: one["value"] for path, one in first.items()}
    assert all(str(one["source"]).startswith("c.yaml:") for one in again.values())
    assert '  nodeId: "node-1"  # default\n' in Path("c.yaml").read_text(encoding="utf-8")


def test_every_flag_of_the_table_is_an_option() -> None:
    page = run("config", "show", "--help").stdout
    for flag in (*BY_FLAG, "--config", "--set", "--output"):
        assert f"{flag} " in page


def test_every_problem_is_a_line_and_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOQUEUE_PEERS_ADDR", ":9300")
    result = run("config", "show", "--config", "none.yaml", "--log-level", "loud", "--set", "x")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: none.yaml: cannot be read: No such file or directory",
        "error: flag --set x: write KEY=VALUE",
        "error: flag --log-level: logging.level is 'loud'; it must be one of debug, info, warn, error",
        "error: environment GOQUEUE_PEERS_ADDR: broker.listeners.internal is ':9300'; several nodes are not built yet, "
        "so it must be off",
    ]


def test_warnings_go_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOQUEUE_HTP_ADDR", ":1")
    result = run("config", "show", "--bind-all")
    assert result.exit_code == 0
    first, second = result.stderr.splitlines()
    assert first.startswith("note: OPEN TO THE NETWORK, WITHOUT AUTHENTICATION: ")
    assert second == "note: the variable GOQUEUE_HTP_ADDR sets nothing; GOQUEUE_HTTP_ADDR would"
    assert "0.0.0.0:8080" in result.stdout


def test_an_empty_address_closes_a_door() -> None:
    assert shown("--http", "")["broker.listeners.http"] == {"value": "off", "source": "flag --http"}


def test_names_no_terminal_should_see_are_spelled_out() -> None:
    Path("a\x1bb.yaml").write_text("logging: {level: debug}")
    assert shown("--config", "a\x1bb.yaml")["logging.level"]["source"] == "a\\x1bb.yaml:1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["show", "-o", "xml"],
            "--output is 'xml'; it must be one of 'table', 'json', 'yaml'; see goqueue config show",
        ),
        (["show", "extra"], "what is extra for? There is one thing too many; see goqueue config show --help"),
        (["show", "--http"], "--http needs a value"),
        (["hide"], "there is no command 'hide'; see goqueue config --help"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], message: str) -> None:
    result = run("config", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_config_alone_lists_its_commands() -> None:
    assert "show" in run("config", "--help").stdout
    assert "config" in CliRunner().invoke(app, ["--help"]).stdout


def test_another_command_gets_the_same_options_and_keeps_its_own() -> None:
    seen: list[tuple[Settings, str, bool]] = []

    def command(settings: Settings, name: str, fast: bool = False) -> None:
        """What it does."""
        seen.append((settings, name, fast))

    other = typer.Typer(cls=PlainGroup, rich_markup_mode=None)
    other.command()(configured(command))
    other.command("second")(configured(command))
    result = CliRunner().invoke(other, ["second", "x", "--fast", "--node-id", "n"])
    assert result.exit_code == 0, result.stderr
    ((settings, name, fast),) = seen
    assert (settings.node_id, name, fast) == ("n", "x", True)
    assert "What it does." in CliRunner().invoke(other, ["command", "--help"]).stdout
