"""`goqueue-cli reader`, `schedule`, `stats`, `cluster`, `producer` and `call` against a broker."""

from collections.abc import Iterator

import msgspec
import pytest

import goqueue
from goqueue.api.operations import OPERATIONS
from goqueue.cli.remote import call as call_module
from tests.unit.cli.remote.terminal import Terminal, live_terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with live_terminal(tmp_path_factory.mktemp("broker")) as found:
        found.good("topic", "create", "orders", "-p", "1")
        found.good("produce", "orders", "a", "b", "--priority", "high")
        found.good("produce", "orders", "c", "--delay", "1h")
        found.good("consume", "orders", "--group", "billing", "-n", "2")
        yield found


# --- readers


def test_a_reader_is_set_listed_described_and_deleted(terminal: Terminal) -> None:
    assert terminal.type("reader", "list").stderr == "note: there are no readers\n"
    rows = terminal.rows("reader", "set", "nightly", "orders:0:2")
    assert rows[0] == ["reader", "nightly"]
    assert [row[0] for row in rows[1:3]] == ["created", "changed"]
    assert rows[3:] == [["topic", "partition", "begins at"], ["orders", "0", "2"]]
    kept = terminal.object("reader", "set", "nightly", "orders:0:0", "--if-absent")
    assert (kept["offsets"], kept["created"]) == ({"orders": {"0": 2}}, False)
    assert terminal.object("reader", "set", "nightly", "orders:0:1", "orders:0:1")["offsets"] == {"orders": {"0": 1}}
    assert terminal.rows("reader", "describe", "nightly")[3:] == [
        ["topic", "partition", "begins at"],
        ["orders", "0", "1"],
    ]
    found = terminal.rows("reader", "list")
    assert found[0] == ["reader", "topics", "partitions", "changed"]
    assert found[1][:3] == ["nightly", "orders", "1"]
    assert terminal.good("reader", "delete", "nightly") == "deleted nightly\n"
    assert "reader list shows those there are" in terminal.bad("reader", "describe", "nightly")
    assert "reader list shows those there are" in terminal.bad("reader", "delete", "nightly")


def test_readers_come_in_pages(terminal: Terminal) -> None:
    for name in ("a", "b", "c"):
        terminal.good("reader", "set", name, "orders:0:0")
    assert terminal.good("reader", "list", "--limit", "2").splitlines()[-1] == "more with --next c"
    assert [one["name"] for one in terminal.object("reader", "list", "--next", "c")["readers"]] == ["c"]
    assert terminal.type("reader", "list", "--next", "d").stderr == "note: there are no more\n"
    for name in ("a", "b", "c"):
        terminal.good("reader", "delete", name)


def test_a_reader_whose_topics_are_gone_is_shown_as_such(terminal: Terminal) -> None:
    terminal.good("topic", "create", "passing", "-p", "1")
    terminal.good("reader", "set", "left", "passing:0:0")
    terminal.good("topic", "delete", "passing", "--yes")
    assert terminal.rows("reader", "list")[1][:3] == ["left", "-", "0"]
    assert terminal.type("reader", "describe", "left").stderr == "note: it has no offsets: its topics were deleted\n"
    terminal.good("reader", "delete", "left")


@pytest.mark.parametrize(
    ("words", "why", "code"),
    [
        (("x", "orders"), "'orders' is no place: write TOPIC:PARTITION:OFFSET, like orders:0:41", 2),
        (("x", "orders:0"), "is no place", 2),
        (("x", "orders:0:-1"), "is no place", 2),
        (("x", ":0:1"), "is no place", 2),
        (("x", "orders:0:1", "orders:0:2"), "another offset of that partition was named before", 2),
        (("x", "orders:0:99"), "offset 99 is outside orders-0", 2),
        (("x", "orders:7:0"), "orders has no partition 7", 1),
        (("x", "ordres:0:0"), "there is no topic 'ordres'; did you mean orders?", 1),
        (("x", "ordres:0:0", "orders:0:0"), "there is no topic 'ordres'", 1),
        (("a b", "orders:0:0"), "'a b' cannot name a reader", 2),
    ],
)
def test_a_reader_that_cannot_be_is_refused(terminal: Terminal, words: tuple[str, ...], why: str, code: int) -> None:
    assert why in terminal.bad("reader", "set", *words, code=code)


# --- schedules


def test_a_schedule_is_made_paused_changed_and_deleted(terminal: Terminal) -> None:
    page = terminal.rows("schedule", "create", "orders", "tick", "--cron", "30 3 * * MON-FRI", "--time-zone",
                         "Europe/Berlin", "-k", "clock", "-H", "a=b", "--priority", "low")  # fmt: skip
    shown = dict(row for row in page if len(row) == 2)
    assert (shown["topic"], shown["runs"]) == ("orders", "30 3 * * MON-FRI Europe/Berlin")
    assert (shown["key"], shown["value"], shown["headers"], shown["lane"]) == ("clock", "tick", "a=b", "low")
    name = shown["schedule"]
    assert terminal.rows("schedule", "list")[0] == ["id", "topic", "runs when", "next", "runs", "failures", "value"]
    assert terminal.good("schedule", "pause", name) == f"{name} is paused\n"
    assert "paused" in terminal.good("schedule", "list", "--topic", "orders")
    assert terminal.good("schedule", "resume", name).startswith(f"{name} runs next at 20")
    changed = terminal.object("schedule", "change", name, "--every", "5m", "--value", "tock", "--missed", "once")
    assert (changed["every"], changed["message"]["value"], changed["missed"]) == ("5m", "tock", "once")
    assert terminal.object("schedule", "describe", name) == changed
    assert terminal.good("schedule", "delete", name) == f"deleted {name}\n"
    assert terminal.type("schedule", "list").stderr == "note: there are no schedules\n"


def test_a_cron_without_a_zone_is_in_utc(terminal: Terminal) -> None:
    shown = dict(row for row in terminal.rows("schedule", "create", "orders", "x", "--cron", "@daily") if len(row) == 2)
    assert shown["runs"].endswith(" UTC")
    terminal.good("schedule", "delete", shown["schedule"])


def test_schedules_come_in_pages(terminal: Terminal) -> None:
    made = [terminal.object("schedule", "create", "orders", "x", "--every", "1h", "--paused")["id"] for _ in range(3)]
    said = terminal.good("schedule", "list", "--limit", "2").splitlines()[-1]
    assert said.startswith("more with --next ")
    rest = terminal.object("schedule", "list", "--next", said.rpartition(" ")[2])
    assert [one["id"] for one in rest["schedules"]] == made[2:]
    for name in made:
        terminal.good("schedule", "delete", name)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("create", "orders", "x"), "say when it runs"),
        (("create", "orders", "x", "--every", "soon"), "--every: 'soon' is no duration: write a number and a unit"),
        (("create", "orders", "x", "--every", "0"), "--every is 0; it must be from 1s to 366d"),
        (("create", "orders", "x", "--every", "60", "--ttl", "0"), "--ttl is 0; it must be from 1ms"),
        (("create", "orders", "x", "--every", "60", "--partition", "-1"), "--partition is -1, which is less than 0"),
        (("create", "orders", "x", "--every", "60", "--priority", "9"), "--priority is '9'; it is critical"),
        (("create", "orders", "x", "--cron", "99 * * * *"), "99"),
        (("change", "0123456789abcdef"), "say what to change"),
        (("change", "0123456789abcdef", "--key", "k"), "give --value"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(terminal: Terminal, words: tuple[str, ...], why: str) -> None:
    assert why in terminal.bad("schedule", *words, code=2)


def test_the_priority_of_a_schedule_may_be_a_number(terminal: Terminal) -> None:
    made = terminal.object("schedule", "create", "orders", "x", "--every", "1h", "--paused", "--priority", "1")
    assert made["message"]["priority"] == "high"


def test_an_unknown_schedule_is_said(terminal: Terminal) -> None:
    assert "schedule list shows those there are" in terminal.bad("schedule", "pause", "0123456789abcdef")


# --- counters


def test_lanes_are_counted(terminal: Terminal) -> None:
    rows = terminal.rows("stats", "priority", "--group", "billing")
    assert rows[0] == ["lane", "ready", "in flight", "served", "waits", "last served"]
    assert ["high", "0", "0", "2"] in [row[:4] for row in rows]
    assert ["billing", "orders", "0", "high", "0", "0", "2"] in [row[:7] for row in rows]
    assert terminal.object("stats", "priority")["lanes"]["high"]["served"] == 2


def test_delays_are_counted(terminal: Terminal) -> None:
    rows = terminal.rows("stats", "delay", "--topic", "orders")
    assert rows[0] == ["topic", "pending", "scheduled", "delivered", "cancelled", "moved", "next due"]
    assert rows[1][:2] == ["all", "1"]
    assert rows[1][-1].startswith("in ")
    assert terminal.object("stats", "delay")["topics"]["orders"]["pending"] == 1


def test_deliveries_are_counted(terminal: Terminal) -> None:
    rows = terminal.rows("stats", "reliability", "--topic", "orders", "--limit", "5")
    assert rows[0][:5] == ["group", "topic", "acked", "nacked", "rejected"]
    assert rows[2][:3] == ["billing", "orders", "2"]
    assert rows[-1] == ["0 dead letters written, 0 about to be"]
    assert terminal.object("stats", "reliability")["acked"] == 2


def test_rebalances_and_the_broker_are_counted(terminal: Terminal) -> None:
    assert terminal.rows("stats", "rebalance")[0] == ["group", "rebalances", "moves", "took", "paused"]
    assert "billing" in terminal.object("stats", "rebalance")["groups"]
    assert "produced    3 messages" in terminal.good("stats", "broker")
    assert terminal.object("stats", "broker")["messages_produced"] == 3


# --- the broker


def test_a_healthy_broker_is_said_to_be_so(terminal: Terminal) -> None:
    assert terminal.good("cluster", "health") == "ok\n"
    assert len(terminal.good("cluster", "health", "--verbose").splitlines()) > 1
    assert terminal.object("cluster", "live")["status"] == "ok"


def test_what_is_running_is_shown(terminal: Terminal) -> None:
    assert terminal.rows("cluster", "version")[0] == ["goqueue", goqueue.__version__]
    assert terminal.object("cluster", "version")["version"] == goqueue.__version__
    rows = terminal.rows("cluster", "overview")
    assert rows[0][:2] == ["node", "state"]
    assert terminal.address in rows[1]
    assert len(terminal.object("cluster", "overview")["nodes"]) == 1


def test_producers_get_ids(terminal: Terminal) -> None:
    made = terminal.object("producer", "init")
    assert terminal.object("producer", "heartbeat", str(made["producer_id"])) == made
    assert terminal.rows("producer", "heartbeat", str(made["producer_id"]), "--epoch", "0")[0][0] == "producer"
    assert terminal.type("producer", "heartbeat", "999999").exit_code == 1


# --- any operation


def test_without_an_operation_the_names_are_listed(terminal: Terminal) -> None:
    assert terminal.good("call").split() == sorted(operation.name for operation in OPERATIONS)


def test_fields_are_json_or_text(terminal: Terminal) -> None:
    (line,) = terminal.good("call", "read_partition", "topic=orders", "partition=0", "limit=1").splitlines()
    assert msgspec.json.decode(line)["messages"][0]["value"] == "a"
    sent = terminal.good("call", "publish", "topic=orders", 'value="5"', 'headers={"a":"b"}', "acks=all")
    assert '"durability":' in sent
    assert "topic: orders" not in terminal.good("call", "describe_topic", "topic=orders", "-o", "yaml")
    assert terminal.good("call", "list_topics", "--json", '{"internal": false}') == '{"topics":["orders"]}\n'
    assert terminal.good("call", "list_topics", "--json", "-", stdin="{}") == '{"topics":["orders"]}\n'


def test_a_field_that_is_wrong_is_named_as_the_api_does(terminal: Terminal) -> None:
    assert "num_partitions is less than 1" in terminal.bad("call", "create_topic", "name=x", "num_partitions=0", code=2)
    assert "did you mean num_partitions?" in terminal.bad("call", "create_topic", "name=x", "num_partition=1", code=2)
    assert "partition" in terminal.bad("call", "read_partition", "topic=orders", code=2)
    assert "write NAME=VALUE" in terminal.bad("call", "health", "verbose", code=2)
    for typed in ("[", "5", "{"):
        line = terminal.bad("call", "health", "--json", typed, code=2)
        assert line.startswith("--json is no JSON object")
        assert "`" not in line, "the decoder's words"
    assert "did you mean list_topics?" in terminal.bad("call", "list_topic", code=2)


@pytest.mark.parametrize("name", call_module.OPERATIONS)
def test_every_operation_answers_or_says_what_it_wants(terminal: Terminal, name: str) -> None:
    """Without fields: it works, or what is missing is said; never a traceback, never that it is unknown."""
    result = terminal.type("call", name)
    assert result.exit_code in (0, 1, 2)
    assert "no operation" not in result.stderr
    assert (result.exit_code == 0) == (result.stderr == "")
