"""`goqueue-cli consume --group`, `message`, `group`, `delay` and `dlq` against a broker."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.patience import wait_until
from tests.unit.cli.remote.terminal import Terminal, live_terminal

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with live_terminal(tmp_path_factory.mktemp("delivery")) as found:
        yield found


@pytest.fixture
def topic(terminal: Terminal) -> str:
    name = f"topic-{next(NUMBERS)}"
    terminal.good("topic", "create", name, "-p", "1", "--backoff-base", "1ms")
    return name


def take(terminal: Terminal, topic: str, group: str, *words: str) -> list[Any]:
    return terminal.objects("consume", topic, "--group", group, "--wait", "50ms", *words)


# --- as a member of a group


def test_messages_are_acked_once_they_are_printed(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b", "c", "-k", "k")
    rows = terminal.type("consume", topic, "-g", "acks", "--wait", "50ms")
    assert rows.stderr == "note: 3 messages, acked\n"
    header = rows.stdout.splitlines()[1]
    assert header.split() == ["part", "offset", "time", "lane", "try", "key", "value"]
    assert take(terminal, topic, "acks") == []
    assert terminal.good("group", "list").splitlines().count("acks") == 1


def test_in_json_a_message_is_what_a_poll_answers(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a")
    (found,) = take(terminal, topic, "shape")
    assert found.keys() == {
        "offset", "partition", "timestamp", "key", "value", "headers", "priority", "message_id", "topic",
        "delivery_count", "receipt_handle",
    }  # fmt: skip


def test_it_takes_no_more_than_wanted(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b", "c")
    assert [one["value"] for one in take(terminal, topic, "few", "--max", "2")] == ["a", "b"]
    assert [one["value"] for one in take(terminal, topic, "few", "--follow", "-n", "1")] == ["c"]


def test_without_an_ack_the_handle_is_shown_and_good(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b", "c", "d")
    result = terminal.type("consume", topic, "-g", "by-hand", "--no-ack", "--wait", "50ms")
    assert result.stderr == "note: 4 messages, not settled\n"
    first, second, third, fourth = (
        line.strip() for line in result.stdout.splitlines() if line.startswith(f"  {topic}:0:")
    )
    assert "is kept until " in terminal.good("message", "extend", first, "--for", "5m")
    assert terminal.good("message", "ack", first, "--group", "by-hand") == f"{topic}:0:0:1 is done\n"
    assert "comes again " in terminal.good("message", "nack", second, "--delay", "1h", "--group", "by-hand")
    assert terminal.object("message", "reject", third, "--reason", "no")["rejected"] is True
    assert terminal.object("message", "release", fourth) == {"released": True}
    both = terminal.type("message", "ack", first, second)
    assert both.exit_code == 1
    assert [line.partition(": ")[0] for line in both.stderr.splitlines()] == ["error", "error"]
    assert "is not a receipt handle" in terminal.bad("message", "ack", "made:0:0:1:up", code=2)


def test_what_is_nacked_comes_again_and_what_is_rejected_does_not(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a")
    (first,) = take(terminal, topic, "again", "--nack", "-n", "1")
    (second,) = wait_until(lambda: take(terminal, topic, "again", "--nack-delay", "1ms", "-n", "1"))
    assert (first["delivery_count"], second["delivery_count"]) == (1, 2)
    assert wait_until(lambda: take(terminal, topic, "again", "--reject", "cannot be read"))
    assert take(terminal, topic, "again") == []
    (letter,) = wait_until(lambda: terminal.object("dlq", "list", topic)["messages"])
    assert (letter["reason"], letter["detail"]) == ("rejected", "cannot be read")


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_nacked_for_the_last_time_is_said_to_be_dead(terminal: Terminal, topic: str, kept: bool) -> None:
    terminal.good("topic", "alter", topic, "--max-retries", "1", "--dlq" if kept else "--no-dlq")
    terminal.good("produce", topic, "a", "b", "c")
    words = ("consume", topic, "-g", "last", "--wait", "50ms", "--nack-delay", "1ms", "-n")
    assert terminal.type(*words, "1").stderr == "note: 1 message, given back\n"
    said = terminal.type(*words, "5").stderr
    where = f"in {topic}.dlq" if kept else "dropped"
    assert said == f"note: 5 messages, given back; 3 of them failed too often and are {where} now\n"
    terminal.good("produce", topic, "d")
    assert len(take(terminal, topic, "last", "--nack-delay", "1ms", "-n", "1")) == 1
    handle = terminal.good("consume", topic, "-g", "last", "--no-ack", "-n", "1", "--format", "%r").strip()
    ended = f"{topic}.dlq" if kept else "nowhere"
    said = terminal.good("message", "nack", handle)
    assert said == f"{handle.rpartition(':')[0]} failed too often, went to {ended}\n"


def test_a_group_begins_where_it_is_told_to(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b", "c")
    assert take(terminal, topic, "late", "--start", "latest") == []
    assert [one["value"] for one in take(terminal, topic, "second", "--start", "2", "--mode", "shared")] == ["c"]
    assert len(take(terminal, topic, "then", "--start", "-1h", "--visibility", "1m")) == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--from-offset", "1", "--group", "g"), "--from-offset is for reading without a group"),
        (("--no-ack",), "--no-ack is about a group: give --group"),
        (("--group", "g", "--nack", "--reject", "x"), "choose one"),
        (("--group", "g", "--mode", "odd"), "--mode is 'odd'; it must be one of"),
        (("--group", "g", "--start", "never"), "--start: 'never' is no time"),
        (("--group", "g", "--visibility", "0"), "--visibility is 0; it must be from 1ms to 12h"),
        (("--group", "g", "--nack-delay", "8d"), "--nack-delay is 8d; it must be from 0s to 7d"),
        (("--group", "a b"), "group"),
    ],
)
def test_what_does_not_go_together_is_refused(terminal: Terminal, topic: str, words: tuple[str, ...], why: str) -> None:
    assert why in terminal.bad("consume", topic, *words, code=2)


def test_nothing_that_came_is_said(terminal: Terminal, topic: str) -> None:
    result = terminal.type("consume", topic, "-g", "idle", "--wait", "20ms")
    assert result.stderr == "note: nothing came within 20 ms\n"


# --- groups


def test_a_group_is_described_with_its_lag_and_offsets(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b", "c")
    take(terminal, topic, "lagging", "-n", "1")
    assert terminal.rows("group", "describe", "lagging")[:2] == [["group", "lagging"], ["state", "empty"]]
    rows = terminal.rows("group", "lag", "lagging")
    assert rows[0] == ["topic", "partition", "settled to", "end", "lag", "oldest", "in flight", "delayed"]
    assert rows[1][:5] == [topic, "0", "1", "3", "2"]
    assert rows[2] == ["2 in all"]
    assert terminal.object("group", "lag", "lagging")["total_lag"] == 2
    assert terminal.rows("group", "offsets", "lagging") == [["topic", "partition", "offset"], [topic, "0", "1"]]
    assert terminal.object("group", "offsets", "lagging", "--topic", topic) == {"offsets": {topic: {"0": 1}}}


def test_members_of_a_group_are_shown(terminal: Terminal, topic: str) -> None:
    terminal.good("call", "join_group", "group=full", "client_id=worker", f'topics=["{topic}"]')
    rows = terminal.rows("group", "describe", "full")
    assert ["member", "client", "instance", "partitions", "gives up"] in rows
    assert rows[-1][1:] == ["worker", "-", f"{topic}-0", "-"]
    assert "members" in terminal.bad("group", "delete", "full")


@pytest.mark.parametrize(
    ("to", "offset"), [("earliest", 0), ("latest", 3), ("1", 1), ("-1h", 0), ("2100-01-01T00:00:00Z", 3)]
)
def test_a_group_is_moved_or_would_be(terminal: Terminal, topic: str, to: str, offset: int) -> None:
    terminal.good("produce", topic, "a", "b", "c")
    group = f"moved-{topic}"
    take(terminal, topic, group, "-n", "2")
    words = ("group", "reset-offsets", group, "--topic", topic, "--to", to)
    tried = terminal.type(*words, "--dry-run")
    assert tried.stderr == "note: nothing was changed; leave --dry-run out to do it\n"
    assert terminal.object("group", "offsets", group) == {"offsets": {topic: {"0": 2}}}
    assert terminal.rows(*words)[1:] == [[topic, "0", str(offset)]]
    assert terminal.object("group", "offsets", group) == {"offsets": {topic: {"0": offset}}}


def test_an_offset_that_is_not_there_is_the_nearer_end_and_said_to_be(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "a", "b", "c")
    group = f"far-{topic}"
    take(terminal, topic, group, "-n", "2")
    found = terminal.type("group", "reset-offsets", group, "--topic", topic, "--to", "99999999")
    assert found.stdout.splitlines()[1].split() == [topic, "0", "3"]
    assert found.stderr == "note: offset 99999999 is outside of partition 0: there it is the nearer end\n"


def test_a_place_that_is_none_is_refused(terminal: Terminal, topic: str) -> None:
    words = ("group", "reset-offsets", "g", "--topic", topic, "--to")
    assert "is no place" in terminal.bad(*words, "there", code=2)
    assert "--to: 'x' is no duration" in terminal.bad(*words, "-x", code=2)


def test_a_deleted_group_is_gone_and_an_unknown_one_guessed(terminal: Terminal, topic: str) -> None:
    take(terminal, topic, "billing")
    assert terminal.bad("group", "describe", "biling") == "there is no group 'biling'; did you mean billing?"
    assert terminal.good("group", "delete", "billing") == "deleted billing\n"
    assert "billing" not in terminal.object("group", "list")["groups"]


# --- delays


def test_delayed_messages_are_listed_moved_and_cancelled(terminal: Terminal, topic: str) -> None:
    assert terminal.type("delay", "list", topic).stderr == f"note: nothing is delayed in {topic}\n"
    terminal.good("produce", topic, "a", "b", "c", "-k", "k", "--delay", "1h")
    rows = terminal.rows("delay", "list", topic, "--limit", "2")
    assert rows[0] == ["id", "due", "lane", "key"]
    assert [rows[1][0], rows[2][0]] == ["0:0", "0:1"]
    assert rows[3] == ["3 in all; more with --skip 2"]
    assert terminal.object("delay", "list", topic)["count"] == 3
    assert terminal.rows("delay", "get", topic, "0:1")[:2] == [["message", f"{topic}:0:1"], ["state", "pending"]]
    assert terminal.object("delay", "get", topic, "1") == terminal.object("delay", "get", topic, f"{topic}:0:1")
    moved = terminal.object("delay", "reschedule", topic, "0", "--at", "2100-01-01T00:00:00Z")
    assert moved["deliver_at"] == "2100-01-01T00:00:00.000Z"
    assert "(in " in terminal.good("delay", "reschedule", topic, "0:0", "--delay", "2h")
    assert terminal.good("delay", "cancel", topic, "0:0") == f"cancelled {topic}:0:0\n"
    result = terminal.type("delay", "cancel", topic, "0:0", "0:1", "2")
    assert (result.exit_code, result.stdout) == (1, "cancelled 2 messages\n")
    assert result.stderr == f"error: {topic}:0:0 was not pending\n"


def test_a_delayed_message_must_be_named(terminal: Terminal, topic: str) -> None:
    assert "write PARTITION:OFFSET" in terminal.bad("delay", "get", topic, "first", code=2)
    assert "one of the two" in terminal.bad("delay", "reschedule", topic, "0:0", code=2)
    assert terminal.type("delay", "get", topic, "0:99").exit_code == 1


# --- dead letters


def bury(terminal: Terminal, topic: str, count: int) -> None:
    terminal.good("produce", topic, *(f"letter {number}" for number in range(count)), "-k", "k", "-H", "a=b")
    terminal.good("consume", topic, "-g", "undertaker", "--reject", "bad", "-n", str(count))
    wait_until(lambda: len(terminal.object("dlq", "list", topic)["messages"]) == count)


def test_dead_letters_are_listed_and_filtered(terminal: Terminal, topic: str) -> None:
    bury(terminal, topic, 3)
    rows = terminal.rows("dlq", "list", topic, "--limit", "2")
    assert rows[0] == ["letter", "message", "died", "group", "why", "tries", "key", "value"]
    assert rows[1][:2] == ["0:0", f"{topic}:0:0"]
    assert rows[1][3:] == ["undertaker", "rejected: bad", "1", "k", "letter 0"]
    assert rows[3][0].startswith("more with --next ")
    rest = terminal.object("dlq", "list", topic, "--next", rows[3][0].rpartition(" ")[2])
    assert [one["value"] for one in rest["messages"]] == ["letter 2"]
    filters = ("--reason", "rejected", "--group", "undertaker", "--key", "k", "-H", "a=b", "--from-time", "-1h",
               "--to-time", "+1h")  # fmt: skip
    assert len(terminal.object("dlq", "list", topic, *filters)["messages"]) == 3
    assert [one["value"] for one in terminal.object("dlq", "list", topic, "--letter", "0:1")["messages"]] == [
        "letter 1"
    ]
    assert "write PARTITION:OFFSET" in terminal.bad("dlq", "list", topic, "--letter", "x", code=2)
    assert terminal.type("dlq", "list", topic, "--key", "x").stderr == (
        f"note: there are no dead letters of {topic} like that\n"
    )
    assert "--reason is 'odd'; it must be one of" in terminal.bad("dlq", "redrive", topic, "--reason", "odd", code=2)


def test_dead_letters_are_redriven(terminal: Terminal, topic: str) -> None:
    bury(terminal, topic, 3)
    assert terminal.good("dlq", "redrive", topic, "--dry-run") == "3 dead letters would be published again\n"
    assert terminal.object("dlq", "redrive", topic, "--key", "x") == {"id": None, "matched": 0}
    page = dict(row for row in terminal.rows("dlq", "redrive", topic, "--wait") if len(row) == 2)
    assert (page["state"], page["published"], page["from"], page["into"]) == ("done", "3 of 3", topic, topic)
    assert terminal.object("dlq", "status", page["redrive"])["redriven"] == 3
    assert len(take(terminal, topic, "undertaker")) == 3
    assert terminal.type("dlq", "redrive", topic).stderr == f"note: there are no dead letters of {topic}\n"


def test_the_letter_of_the_list_is_the_one_to_redrive(terminal: Terminal, topic: str) -> None:
    terminal.good("produce", topic, "fine", "broken")
    terminal.good("consume", topic, "-g", "careful", "-n", "1")
    terminal.good("consume", topic, "-g", "careful", "--reject", "bad", "-n", "1")
    assert wait_until(lambda: terminal.object("dlq", "list", topic)["messages"])
    row = terminal.rows("dlq", "list", topic)[1]
    assert row[:2] == ["0:0", f"{topic}:0:1"]
    wrong = terminal.type("dlq", "redrive", topic, "--letter", "0:1")
    assert wrong.stderr == (
        f"note: there are no dead letters of {topic} like that; --letter takes what goqueue-cli dlq list {topic} has "
        "below letter, which is not the message's id\n"
    )
    assert terminal.type("dlq", "redrive", topic, "--letter", "0:1", "--dry-run").stderr == wrong.stderr
    assert terminal.type("dlq", "list", topic, "--letter", "0:1").stderr == wrong.stderr
    page = dict(line for line in terminal.rows("dlq", "redrive", topic, "--letter", row[0], "--wait") if len(line) == 2)
    assert (page["published"], page["filter"]) == ("1 of 1", "letter 0:0")


def test_the_filter_of_a_redrive_is_shown_as_it_is_typed(terminal: Terminal, topic: str) -> None:
    bury(terminal, topic, 12)
    letters = [word for number in range(12) for word in ("--letter", f"0:{number}")]
    words = ("dlq", "redrive", topic, "--reason", "rejected", "-H", "a=b", *letters, "--wait")
    page = dict(row for row in terminal.rows(*words) if len(row) == 2)
    assert page["filter"] == ("reason rejected, header a=b, letters 0:0 0:1 0:2 0:3 0:4 0:5 0:6 0:7 0:8 0:9 and 2 more")


def test_a_redrive_is_watched_and_stopped(terminal: Terminal, topic: str) -> None:
    bury(terminal, topic, 3)
    said = terminal.good("dlq", "redrive", topic, "--rate", "0.01", "--target", topic)
    assert said.startswith("publishing 3 dead letters again: ")
    redrive = said.split()[-1]
    page = dict(row for row in terminal.rows("dlq", "status", redrive) if len(row) == 2)
    assert (page["state"], page["rate"]) == ("running", "0.01 a second")
    assert terminal.object("dlq", "cancel", redrive)["state"] == "cancelled"
    assert "the id is what dlq redrive answered" in terminal.bad("dlq", "status", "0123456789abcdef")
