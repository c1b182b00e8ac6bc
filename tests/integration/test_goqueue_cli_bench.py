"""`goqueue-cli bench` against a broker: small runs, what they print, and that nothing of them stays."""

from collections.abc import Iterator

import pytest

from tests.unit.cli.remote.terminal import Terminal, live_terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with live_terminal(tmp_path_factory.mktemp("bench")) as found:
        yield found


@pytest.mark.parametrize("name", ["produce", "consume", "latency", "end-to-end"])
def test_it_measures_and_leaves_nothing_behind(terminal: Terminal, name: str) -> None:
    fast = ("--rate", "0") if name == "end-to-end" else ()
    words = ("bench", name, "-n", "2000", "-s", "20", "-p", "2", "--keys", "5", "--batch", "100", "--in-flight", "50")
    found = terminal.object(*words, *fast)
    assert found["benchmark"] == name
    assert (found["done"], found["messages"], found["bytes"], found["keys"]) == (2000, 2000, 40_000, 5)
    assert found["messages_per_second"] > 0
    latency = found["latency_ms"]
    assert latency["samples"] > 0
    assert latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    assert terminal.object("topic", "list") == {"topics": []}
    assert terminal.object("group", "list") == {"groups": []}


def test_a_person_gets_a_table_and_a_histogram(terminal: Terminal) -> None:
    rows = terminal.rows("bench", "latency", "-n", "200")
    assert rows[0] == ["benchmark", "latency"]
    assert rows[1][1].startswith("200 of 100 bytes in ")
    assert [row[0] for row in rows[4:9]] == [f"latency {part}" for part in ("p50", "p90", "p99", "p99.9", "max")]
    assert any("█" in cell for row in rows[9:] for cell in row)


def test_a_topic_that_was_named_stays(terminal: Terminal) -> None:
    terminal.good("topic", "create", "mine", "-p", "1")
    assert terminal.object("bench", "produce", "-n", "100", "--topic", "mine")["topic"] == "mine"
    assert terminal.object("topic", "describe", "mine")["total_messages"] == 100
    assert "there is no topic 'none'" in terminal.bad("bench", "produce", "--topic", "none")
    terminal.good("topic", "delete", "mine", "-y")


@pytest.mark.parametrize("words", [("-n", "0"), ("-s", "7"), ("--batch", "0"), ("--keys", "-1"), ("-p", "0")])
def test_a_load_that_cannot_be_is_refused(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert "it must be at least" in terminal.bad("bench", "produce", *words, code=2) or words[0] == "-p"
