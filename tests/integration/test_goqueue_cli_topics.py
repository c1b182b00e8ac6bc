"""`goqueue-cli topic` against a broker: what it prints, what it refuses, what it suggests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.remote.terminal import Terminal, live_terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with live_terminal(tmp_path_factory.mktemp("topics")) as found:
        yield found


def test_a_topic_is_created_listed_described_and_deleted(terminal: Terminal) -> None:
    assert terminal.good("topic", "create", "life", "-p", "2") == "created life with 2 partitions\n"
    assert "life" in terminal.good("topic", "list").splitlines()
    page = terminal.good("topic", "describe", "life")
    assert page.startswith("topic     life\nid        ")
    assert "partition  earliest  next  offsets\n        0         0     0        0\n" in page
    assert "retention_hours      7d\n" in page
    assert "backoff              1s, times 2, at most 1m\n" in page
    assert terminal.good("topic", "delete", "life", "--yes") == "deleted life\n"
    assert "life" not in terminal.good("topic", "list").splitlines()


def test_replies_in_json_are_those_of_the_api(terminal: Terminal) -> None:
    made = terminal.object("topic", "create", "shapes")
    assert made.keys() == {"name", "partitions", "created", "topic_id"}
    found = terminal.object("topic", "describe", "shapes")
    assert found["partition_offsets"] == {str(number): {"earliest": 0, "latest": 0, "stable": 0} for number in range(3)}
    assert "shapes" in terminal.object("topic", "list")["topics"]
    assert terminal.object("topic", "offsets", "shapes") == {"offsets": {"0": 0, "1": 0, "2": 0}}
    assert terminal.object("topic", "delete", "shapes", "-y") == {"deleted": True, "name": "shapes"}


def test_yaml_says_the_same_as_json(terminal: Terminal) -> None:
    terminal.good("topic", "create", "yaml")
    as_yaml = yaml.safe_load(terminal.good("topic", "describe", "yaml", "-o", "yaml"))
    assert as_yaml == terminal.object("topic", "describe", "yaml")


def test_settings_are_given_when_it_is_created_and_changed_later(terminal: Terminal) -> None:
    terminal.good(
        "topic", "create", "settings", "--retention", "36h", "--retention-bytes", "1000000", "--max-retries", "5",
        "--backoff-base", "2s", "--backoff-factor", "3", "--backoff-max", "1h", "--no-dlq", "--message-ttl", "1d",
        "--on-expiry", "dlq", "--lane-weights", "5,4,3,2,1", "--lane-policy", "strict", "--fsync", "every",
        "--cleanup-policy", "both", "--visibility-timeout", "90s", "--max-message-bytes", "5000",
        "--segment-bytes", "1000000",
    )  # fmt: skip
    config = terminal.object("topic", "describe", "settings")["config"]
    assert config | {"replication_factor": 1, "min_insync_replicas": 1} == {
        "retention_hours": 36.0,
        "retention_bytes": 1_000_000,
        "cleanup_policy": "both",
        "segment_bytes": 1_000_000,
        "fsync": "every",
        "max_message_bytes": 5000,
        "visibility_timeout": "1m30s",
        "max_retries": 5,
        "backoff": {"base": "2s", "factor": 3.0, "max": "1h"},
        "dlq_enabled": False,
        "message_ttl": "1d",
        "on_expiry": "dlq",
        "lane_weights": [5, 4, 3, 2, 1],
        "lane_policy": "strict",
        "replication_factor": 1,
        "min_insync_replicas": 1,
    }
    page = terminal.good("topic", "alter", "settings", "--message-ttl", "none", "--retention", "none", "--dlq")
    assert "message_ttl          none\n" in page
    assert "retention_hours      no limit\n" in page
    changed = terminal.object("topic", "alter", "settings", "--retention-bytes", "none")["config"]
    assert changed["retention_bytes"] is None
    assert changed["backoff"] == config["backoff"]
    assert "say what to change" in terminal.bad("topic", "alter", "settings", code=2)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--partitions", "0"), "--partitions is 0; it must be from 1 to 1000"),
        (("--max-retries", "-1"), "--max-retries is -1; it must be from 0 to 1000"),
        (("--retention", "3x"), "--retention: '3x' is no duration"),
        (("--retention-bytes", "much"), "--retention-bytes is 'much'; it must be a whole number of bytes, or none"),
        (("--lane-weights", "1,2"), "--lane-weights is '1,2'; write five whole numbers"),
        (("--lane-weights", "0,0,0,0,0"), "--lane-weights is '0,0,0,0,0'; write five whole numbers from 1 to 1000"),
        (("--fsync", "often"), "--fsync is 'often'; it must be one of"),
        (("--partitions", "nan"), "--partitions is 'nan'; it must be a whole number; see"),
        (("-p", "1.5"), "--partitions is '1.5'; it must be a whole number; see"),
        (("--backoff-factor", "x"), "--backoff-factor is 'x'; it must be a number; see"),
        (("--backoff-base", "x"), "--backoff-base: 'x' is no duration"),
        (("--backoff-max", "8d"), "--backoff-max is 8d; it must be from 0s to 7d"),
        (("--visibility-timeout", "0"), "--visibility-timeout is 0; it must be from 1ms to 12h"),
        (("--message-ttl", "0"), "--message-ttl is 0; it must be from 1ms to 36500d"),
        (("--segment-bytes", "5"), "--segment-bytes is 5, which is less than 4096"),
        (("-o", "xml"), "--output is 'xml'; it must be one of 'table', 'json', 'yaml'; see"),
    ],
)
def test_a_refused_setting_is_named_as_it_was_typed(terminal: Terminal, words: tuple[str, ...], line: str) -> None:
    assert terminal.bad("topic", "create", "refused", *words, code=2).startswith(line)
    assert "refused" not in terminal.good("topic", "list").splitlines()


def test_a_refused_argument_is_named_as_the_help_does(terminal: Terminal) -> None:
    assert terminal.bad("topic", "create", "a b", code=2).startswith(
        "TOPIC is 'a b', which is not written as it may be"
    )
    terminal.good("topic", "create", "named", "--if-missing")
    words = ("topic", "add-partitions", "named")
    assert terminal.bad(*words, "0", code=2) == "COUNT is 0, which is less than 1; it is a whole number from 1 to 1000"
    assert terminal.bad(*words, "x", code=2).startswith("COUNT is 'x'; it must be a whole number; see")
    assert terminal.bad("completion", "csh", code=2).startswith(
        "SHELL is 'csh'; it must be one of 'bash', 'zsh', 'fish'"
    )


def test_a_topic_that_is_there_is_a_conflict_unless_that_is_fine(terminal: Terminal) -> None:
    terminal.good("topic", "create", "twice")
    assert "there is a topic 'twice' already" in terminal.bad("topic", "create", "twice")
    assert terminal.good("topic", "create", "twice", "--if-missing") == "twice is there already\n"
    assert terminal.type("topic", "create", "twice", "--if-missing", "-p", "3").stderr == ""
    other = terminal.type("topic", "create", "twice", "--if-missing", "-p", "7")
    assert (other.exit_code, other.stdout) == (0, "twice is there already\n")
    assert other.stderr == "note: it has 3 partitions, not 7; topic add-partitions gives it more\n"
    fewer = terminal.type("topic", "create", "twice", "--if-missing", "-p", "2")
    assert fewer.stderr == "note: it has 3 partitions, not 2\n"


def test_an_unknown_topic_is_guessed(terminal: Terminal) -> None:
    terminal.good("topic", "create", "invoices", "--if-missing")
    assert terminal.bad("topic", "describe", "invoics") == "there is no topic 'invoics'; did you mean invoices?"
    assert terminal.bad("topic", "describe", "INVOICES") == "there is no topic 'INVOICES'; did you mean invoices?"
    assert "; there are: " in terminal.bad("topic", "describe", "xyz")


def test_the_first_topic_is_suggested_to_be_created(tmp_path: Path) -> None:
    with live_terminal(tmp_path) as empty:
        assert empty.type("topic", "list").stderr == "note: there are no topics yet\n"
        line = empty.bad("topic", "describe", "orders")
        assert line == "there is no topic 'orders'; there are none yet: goqueue-cli topic create orders"
        hinted = empty.type("topic", "list", GOQUEUE_CLI_HINTS="1").stderr
        assert hinted.endswith("next: goqueue-cli topic create orders\n")


def test_deleting_wants_to_be_sure(terminal: Terminal) -> None:
    terminal.good("topic", "create", "dear", "--if-missing")
    assert "say --yes" in terminal.bad("topic", "delete", "dear", code=2)
    assert "dear" in terminal.good("topic", "list").splitlines()


def test_partitions_are_added_and_offsets_found(terminal: Terminal) -> None:
    terminal.good("topic", "create", "grows", "-p", "1")
    terminal.good("produce", "grows", "a", "b", "c")
    assert terminal.good("topic", "add-partitions", "grows", "2") == "grows has 2 partitions now, 1 before\n"
    assert terminal.rows("topic", "offsets", "grows") == [["partition", "next"], ["0", "3"], ["1", "0"]]
    assert terminal.rows("topic", "offsets", "grows", "--time", "-1h")[1:] == [["0", "0"], ["1", "0"]]
    assert "--time: 'then' is no time" in terminal.bad("topic", "offsets", "grows", "--time", "then", code=2)
    details = terminal.rows("topic", "list", "--details")
    assert details[0] == ["topic", "partitions", "messages", "size"]
    assert ["grows", "2", "3"] in [row[:3] for row in details]
