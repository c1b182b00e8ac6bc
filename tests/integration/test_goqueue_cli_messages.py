"""`goqueue-cli produce` and plain `consume` against a broker."""

import base64
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from goqueue import Client
from goqueue.model.times import parse_time, show_time
from tests.unit.cli.remote.terminal import Terminal, live_terminal

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with live_terminal(tmp_path_factory.mktemp("messages")) as found:
        yield found


@pytest.fixture
def topic(terminal: Terminal) -> str:
    """One partition, and a name of its own."""
    name = f"topic-{next(NUMBERS)}"
    terminal.good("topic", "create", name, "-p", "1")
    return name


def values(terminal: Terminal, topic: str, *words: str) -> list[str | None]:
    return [message["value"] for message in terminal.objects("consume", topic, *words)]


# --- produce


def test_a_value_gets_a_receipt(terminal: Terminal, topic: str) -> None:
    rows = terminal.rows("produce", topic, "two apples", "--key", "alice")
    assert rows == [["message", "durability", "due"], [f"{topic}:0:0", "written", "now"]]
    found = terminal.object("produce", topic, "one pear", "--acks", "all")
    assert found["message_id"] == f"{topic}:0:1"
    assert found.keys() == {"partition", "offset", "message_id", "timestamp", "priority", "durability"}
    assert values(terminal, topic) == ["two apples", "one pear"]


def test_lines_of_standard_input_are_messages(terminal: Terminal, topic: str) -> None:
    rows = terminal.rows("produce", topic, stdin="a\nb b\n\nlast without newline")
    assert [row[0] for row in rows[1:]] == [f"{topic}:0:{number}" for number in range(4)]
    assert values(terminal, topic) == ["a", "b b", "", "last without newline"]


def test_many_lines_get_a_summary(terminal: Terminal, topic: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(50_000))
    said = terminal.good("produce", topic, stdin=lines).splitlines()
    assert said[0].startswith(f"{topic}: 50,000 messages (")
    assert said[0].endswith(" a second")
    assert said[1:] == ["  partition 0: 50,000 messages, offsets 0 to 49999"]
    found = terminal.object("produce", topic, stdin=lines)
    assert found["messages"] == 50_000
    assert found["bytes"] == len(lines)
    assert found["partitions"] == {"0": {"messages": 50_000, "first_offset": 50_000, "last_offset": 99_999}}
    assert values(terminal, topic, "--from-offset", "99998") == ["line 49998", "line 49999"]


def test_input_that_is_empty_is_said_to_be(terminal: Terminal, topic: str, tmp_path: Path) -> None:
    said = f"note: there was nothing to read; nothing was published to {topic}\n"
    found = terminal.type("produce", topic, stdin="")
    assert (found.exit_code, found.stdout, found.stderr) == (0, "", said)
    (tmp_path / "empty").touch()
    assert terminal.type("produce", topic, "--file", str(tmp_path / "empty"), "--lines").stderr == said
    counted = terminal.type("produce", topic, "-o", "json", stdin="")
    assert (counted.stdout[:-1].count("\n"), counted.stderr) == (0, "")
    assert '"messages":0' in counted.stdout


def test_lines_may_have_keys(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "--key-separator", ":", stdin="alice:two: apples\nbob:\n")
    terminal.good("produce", topic, "-K", r"\t", stdin="carol\tplum\n")
    found = [(one["key"], one["value"]) for one in terminal.objects("consume", topic)]
    assert found == [("alice", "two: apples"), ("bob", ""), ("carol", "plum")]
    terminal.good("produce", topic, "-K", "→", stdin="dave→fig\n")
    terminal.good("produce", topic, "-K", "\\", stdin="erin\\kiwi\n")
    found = [(one["key"], one["value"]) for one in terminal.objects("consume", topic, "--from-offset", "3")]
    assert found == [("dave", "fig"), ("erin", "kiwi")]


@pytest.mark.parametrize("good", [2, 30])
@pytest.mark.parametrize(
    ("words", "line", "bad", "why"),
    [
        (("--json-lines",), '{"value": "v"}', "bad", "is no message ("),
        (("--json-lines",), '{"value": "v"}', '{"key": "k"}', "is no message (value is missing; "),
        (("-K", ":"), "k:v", "none", "has no ':' between a key and a value"),
    ],
)
def test_what_stands_before_a_bad_line_is_published(
    terminal: Terminal, topic: str, good: int, words: tuple[str, ...], line: str, bad: str, why: str
) -> None:
    complaint = terminal.bad("produce", topic, *words, stdin=f"{line}\n" * good + f"{bad}\n{line}\n")
    assert complaint.startswith(f"line {good + 1} {why}")
    assert complaint.endswith("; neither it nor what follows it is published")
    assert values(terminal, topic) == ["v"] * good


def test_a_lane_that_a_json_line_names_counts_before_the_option(terminal: Terminal, topic: str) -> None:
    lines = '{"value": "a", "priority": "normal"}\n{"value": "b"}\n'
    terminal.good("produce", topic, "--json-lines", "--priority", "high", stdin=lines)
    assert [message["priority"] for message in terminal.objects("consume", topic)] == ["normal", "high"]


def test_everything_a_message_can_have(terminal: Terminal, topic: str) -> None:
    due = show_time(time.time_ns() // 1_000_000 + 3_600_000)
    terminal.good("produce", topic, "x", "-k", "k", "-H", "a=1", "-H", "a=2", "--priority", "0", "--partition", "0",
                  "--deliver-at", due, "--ttl", "1h")  # fmt: skip
    (found,) = terminal.objects("consume", topic, "--delayed")
    assert found["headers"] == [["a", "1"], ["a", "2"]]
    assert (found["key"], found["priority"], found["deliver_at"]) == ("k", "critical", due)
    assert values(terminal, topic) == []
    rows = terminal.rows("produce", topic, "y", "--delay", "90m")
    assert "(in 1h29m" in rows[1][2] or "(in 1h30m" in rows[1][2]


def test_a_file_is_one_message_or_its_lines(terminal: Terminal, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x00\xff\n\n")
    terminal.good("produce", topic, "--file", str(path))
    (found,) = terminal.objects("consume", topic)
    assert base64.b64decode(found["value"]) == b"\x00\xff\n\n"
    assert found["encoding"] == "base64"
    terminal.good("produce", topic, "--file", "-", stdin="x\ny\n")
    assert values(terminal, topic, "--from-offset", "1") == ["x\ny\n"]
    path.write_text("a\nb\n")
    terminal.good("produce", topic, "--file", str(path), "--lines")
    assert values(terminal, topic, "--from-offset", "2") == ["a", "b"]
    assert "No such file" in terminal.bad("produce", topic, "--file", str(tmp_path / "none"))


@pytest.mark.parametrize("copies", [1, 30])
def test_json_lines_are_messages_as_over_http(terminal: Terminal, topic: str, copies: int) -> None:
    """Whether they get receipts or a summary: the same messages come out."""
    message = {
        "key": "aw==", "value": "/w==", "encoding": "base64", "headers": [["h", "aA=="], ["h", "aQ=="]], "priority": 1,
        "event_time": "2026-01-31T12:00:00Z", "partition": 0, "deliverAt": 1_000,
    }  # fmt: skip
    plain = {"value": "text", "headers": {"a": "b"}, "ttl": "1h"}
    gone = {"tombstone": True, "key": "gone"}
    lines = b"\n".join(msgspec.json.encode(one) for one in [message, gone, plain] * copies)
    terminal.good("produce", topic, "--json-lines", stdin=lines + b"\n\n")
    found = terminal.objects("consume", topic)
    assert len(found) == 3 * copies
    first, second, third = found[:3]
    assert (first["key"], first["value"], first["encoding"]) == ("aw==", "/w==", "base64")
    assert (first["headers"], first["priority"]) == ([["h", "aA=="], ["h", "aQ=="]], "high")
    assert (first["event_time"], first["deliver_at"]) == ("2026-01-31T12:00:00.000Z", "1970-01-01T00:00:01.000Z")
    assert (second["key"], second["value"]) == ("gone", None)
    assert (third["value"], third["headers"]) == ("text", {"a": "b"})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Input data was truncated"),
        ('{"valu": 1}', "unknown field `valu`"),
        ('{"value": 5}', "Expected `str | null`, got `int`"),
        ('{"value": "x", "encoding": "base64"}', "base64, and a part of it is not"),
        ('{"key": "a"}', "value is missing"),
        ('{"key": "a", "value": "b", "tombstone": true}', "a tombstone has no value"),
    ],
)
def test_a_line_that_is_no_message_is_named(terminal: Terminal, topic: str, line: str, why: str) -> None:
    complaint = terminal.bad("produce", topic, "--json-lines", stdin=f"{line}\n", code=2)
    assert complaint.startswith("line 1 is no message (")
    assert why in complaint


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("x", "--priority", "urgent"), "--priority is 'urgent'; it is critical, high"),
        (("x", "--header", "a"), "--header is 'a'; write NAME=VALUE"),
        (("x", "--delay", "1s", "--deliver-at", "+1s"), "give one of them"),
        (("x", "--delay", "soon"), "--delay: 'soon' is no duration"),
        (("x", "--json-lines"), "not both"),
        (("--lines",), "--lines goes with --file"),
        (("--tombstone",), "--tombstone deletes a key"),
        (("x", "--partition", "7"), "partition 7"),
    ],
)
def test_what_cannot_be_a_message_is_refused(terminal: Terminal, topic: str, words: tuple[str, ...], why: str) -> None:
    result = terminal.type("produce", topic, *words)
    assert result.exit_code in (1, 2)
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert values(terminal, topic) == []


def test_a_tombstone_has_no_value(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "--tombstone", "--key", "k")
    assert values(terminal, topic) == [None]


def test_one_bad_message_of_several_fails_alone(terminal: Terminal, topic: str) -> None:
    terminal.good("topic", "alter", topic, "--max-message-bytes", "50")
    result = terminal.type("produce", topic, "small", "x" * 100)
    assert result.exit_code == 1
    assert f"{topic}:0:0" in result.stdout
    assert "✗" in result.stdout
    assert values(terminal, topic) == ["small"]


def test_of_many_those_that_failed_are_counted(terminal: Terminal, topic: str) -> None:
    terminal.good("topic", "alter", topic, "--max-message-bytes", "50")
    result = terminal.type("produce", topic, stdin="ok\n" * 100 + "x" * 100 + "\n")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{topic}: 100 messages")
    assert result.stderr.startswith("error: 1 message not published: ")


def test_an_unknown_topic_is_said_before_anything_is_read(terminal: Terminal) -> None:
    assert "there is no topic 'nowhere'" in terminal.bad("produce", "nowhere", stdin="x\n")


# --- consume


def test_a_table_has_a_line_for_each_message(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "two apples", "-k", "alice", "-H", "source=web", "--priority", "high")
    terminal.good("produce", topic, "-K", ":", stdin=b":\x1b[2J\xff\n")
    rows = terminal.rows("consume", topic)
    assert rows[0][0].endswith(" UTC")
    assert rows[1] == ["part", "offset", "time", "lane", "key", "headers", "value"]
    assert rows[2][:2] + rows[2][3:] == ["0", "0", "high", "alice", "source=web", "two apples"]
    assert rows[3][-1] == r"\x1b[2J\xff"


def test_a_table_stops_at_fifty_and_says_so(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, stdin="x\n" * 60)
    result = terminal.type("consume", topic)
    assert len(result.stdout.splitlines()) == 52
    assert "there is more" in result.stderr
    assert len(terminal.objects("consume", topic)) == 60
    assert len(terminal.rows("consume", topic, "--limit", "55")) == 57


def test_it_begins_and_ends_where_it_is_told_to(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b", "c")
    moments = [parse_time(message["timestamp"]) for message in terminal.objects("consume", topic)]
    assert values(terminal, topic, "--from-offset", "1") == ["b", "c"]
    assert values(terminal, topic, "--from-offset", "1", "-n", "1") == ["b"]
    assert values(terminal, topic, "--from-time", "-1h") == ["a", "b", "c"]
    assert values(terminal, topic, "--from-time", str(moments[-1] + 1)) == []
    assert values(terminal, topic, "--to-time", str(moments[0])) == []
    assert values(terminal, topic, "--to-time", "+1h") == ["a", "b", "c"]
    assert "outside" in terminal.bad("consume", topic, "--from-offset", "9", code=2)
    line = terminal.bad("consume", topic, "--from-offset", "-5", code=2)
    assert line == "--from-offset is -5; it must be at least 0"
    assert "leave one of them out" in terminal.bad("consume", topic, "--follow", "--to-time", "+1h", code=2)
    assert "--limit is 0" in terminal.bad("consume", topic, "--limit", "0", code=2)


def test_partitions_are_merged_by_time(terminal: Terminal) -> None:
    terminal.good("topic", "create", "merged", "-p", "3")
    for number in range(9):
        terminal.good("produce", "merged", str(number), "--partition", str(number % 3))
    found = terminal.objects("consume", "merged")
    assert sorted(message["value"] for message in found) == [str(number) for number in range(9)]
    moments = [message["timestamp"] for message in found]
    assert moments == sorted(moments)
    assert values(terminal, "merged", "--partition", "1") == ["1", "4", "7"]
    assert values(terminal, "merged", "--partition", "1", "--from-offset", "2") == ["7"]
    assert "say with --partition" in terminal.bad("consume", "merged", "--from-offset", "1", code=2)
    assert "it has 0 to 2" in terminal.bad("consume", "merged", "--partition", "3")


def test_large_topics_come_in_pages(terminal: Terminal) -> None:
    terminal.good("topic", "create", "pages", "-p", "2")
    terminal.good("produce", "pages", stdin="".join(f"{number}\n" for number in range(5000)))
    assert sorted(map(int, filter(None, values(terminal, "pages")))) == list(range(5000))


def test_a_template_prints_bytes_as_they_are(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "-K", ":", stdin=b"k:\xff\n")
    found = terminal.type("consume", topic, "--format", r"%p/%o %k=%v 100%%\t%i\n")
    assert found.stdout_bytes == b"0/0 k=\xff 100%%\t".replace(b"%%", b"%") + f"{topic}:0:0\n".encode()
    assert "there is no %z" in terminal.bad("consume", topic, "--format", "%z", code=2)


def test_yaml_has_a_document_for_each_message(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b")
    found = list(yaml.safe_load_all(terminal.good("consume", topic, "-o", "yaml")))
    assert found == terminal.objects("consume", topic)


def test_nothing_there_is_said(terminal: Terminal, topic: str) -> None:
    result = terminal.type("consume", topic)
    assert (result.stdout, result.stderr) == ("", f"note: no messages there in {topic}\n")


def test_what_waits_behind_an_open_transaction_is_told(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "before", "--partition", "0")
    with Client(terminal.address) as client, client.producer() as producer, producer.transaction():
        producer.send(topic, "undecided", partition=0)
        terminal.good("produce", topic, "behind", "--partition", "0")
        found = terminal.type("consume", topic, "-o", "json")
        assert [msgspec.json.decode(line)["value"] for line in found.stdout.splitlines()] == ["before"]
        assert f"partition 0 of {topic} is read up to offset 1, and ends at 3: a transaction" in found.stderr
    assert values(terminal, topic) == ["before", "undecided", "behind"]
    assert terminal.type("consume", topic, "-o", "json").stderr == ""


def test_following_ends_after_as_many_as_wanted(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b")
    assert values(terminal, topic, "--follow", "-n", "2") == ["a", "b"]
