"""`goqueue-cli txn`, and reading beside transactions, against a broker."""

from collections.abc import Iterator

import msgspec
import pytest

from tests.unit.cli.remote.terminal import Terminal, live_terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with live_terminal(tmp_path_factory.mktemp("broker")) as found:
        found.good("topic", "create", "orders", "-p", "1")
        found.good("produce", "orders", "before")
        yield found


def begun(terminal: Terminal, *values: str, **fields: str) -> str:
    """One that has these messages, of a producer of its own."""
    whose = f"producer_id={terminal.object('producer', 'init')['producer_id']}"
    said = [f"{name}={value}" for name, value in fields.items()]
    made = msgspec.json.decode(terminal.good("call", "begin_transaction", whose, *said))
    for value in values:
        terminal.good("call", "transaction_publish", whose, "topic=orders", f"value={value}")
    transaction_id: str = made["transaction_id"]
    return transaction_id


def test_where_there_are_none_that_is_said(terminal: Terminal) -> None:
    assert terminal.type("txn", "list").stderr == "note: there are no transactions\n"
    assert terminal.type("txn", "list", "--name", "x").stderr == "note: there are no such transactions\n"
    assert terminal.type("txn", "token", "nightly").stderr == "note: nothing was committed under nightly\n"
    assert terminal.type("txn", "abort", "--name", "nightly").stderr == "note: nothing was open\n"


def test_one_is_listed_described_and_aborted(terminal: Terminal) -> None:
    name = begun(terminal, "a", "b", name="nightly", timeout="10m")
    rows = terminal.rows("txn", "list", "--state", "ongoing", "--limit", "5")
    assert rows[0] == ["id", "state", "transactional id", "name", "producer", "began", "ends"]
    assert rows[1][:4] == [name, "ongoing", "-", "nightly"]
    assert rows[1][-1].startswith("in 9m")
    page = terminal.rows("txn", "describe", name)
    shown = dict(row for row in page if len(row) == 2)
    assert (shown["transaction"], shown["state"], shown["name"]) == (name, "ongoing", "nightly")
    assert "(in 9m" in shown["is aborted"]
    assert page[-2:] == [["topic", "partition", "messages", "acks"], ["orders", "0", "2", "0"]]
    assert terminal.object("txn", "describe", name)["partitions"] == [
        {"topic": "orders", "partition": 0, "messages": 2, "acks": 0}
    ]
    assert "state: ongoing" in terminal.good("txn", "describe", name, "-o", "yaml")
    assert dict(terminal.rows("txn", "stats"))["open"] == "1"
    assert terminal.good("txn", "abort", name) == f"aborted {name}\n"
    assert terminal.type("txn", "abort", name).stderr == f"note: {name} was aborted before\n"
    shown = dict(row for row in terminal.rows("txn", "describe", name) if len(row) == 2)
    assert shown["because"] == "it was asked for"
    assert "is aborted" not in shown
    assert dict(terminal.rows("txn", "stats"))["aborted"] == "1: 1 asked"
    assert terminal.object("txn", "stats")["aborted"]["asked"] == 1


def test_all_of_a_name_are_aborted_and_there_may_be_more_than_are_shown(terminal: Terminal) -> None:
    names = [begun(terminal, name="many") for _ in range(3)]
    assert terminal.good("txn", "list", "--name", "many", "--limit", "2").splitlines()[-1] == (
        "1 more; --limit, --name or --state shows others"
    )
    assert terminal.good("txn", "abort", "--name", "many") == f"aborted {', '.join(names)}\n"
    assert terminal.object("txn", "list", "--name", "many")["total"] == 3


def test_a_token_is_the_last_number_that_was_committed(terminal: Terminal) -> None:
    name = begun(terminal, name="batch")
    token = '{"name":"batch","number":70000}'
    terminal.good("call", "commit_many", f"token={token}", f'transactions=["{name}"]')
    assert terminal.good("txn", "token", "batch") == "70000\n"
    assert terminal.object("txn", "token", "batch") == {"name": "batch", "number": 70000}
    assert "was committed" in terminal.bad("txn", "abort", name)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("abort",), 2, "say which one"),
        (("abort", "txn-1", "--name", "x"), 2, "say which one"),
        (("describe", "txn-999"), 1, "txn list shows those there are"),
        (("abort", "seventeen"), 2, "ID is 'seventeen', which is not written as it may be"),
        (("describe", "seventeen"), 1, "is no transaction id"),
        (("list", "--name", "a b"), 2, "--name is 'a b'"),
        (("list", "--limit", "0"), 2, "--limit is 0"),
        (("list", "--state", "gone"), 2, "gone"),
    ],
)
def test_what_cannot_be_is_refused(terminal: Terminal, words: tuple[str, ...], code: int, why: str) -> None:
    assert why in terminal.bad("txn", *words, code=code)


def test_reading_ends_in_front_of_an_open_one_unless_all_is_wanted(terminal: Terminal) -> None:
    name = begun(terminal, "inside")
    terminal.good("produce", "orders", "behind")
    read = ("consume", "orders", "--format", "%v")
    assert terminal.good(*read).split() == ["before"]
    assert terminal.good(*read, "--isolation", "read_committed").split() == ["before"]
    everything = terminal.good(*read, "--isolation", "read_uncommitted").split()
    assert [value for value in everything if value not in "ab"] == ["before", "inside", "behind"]
    terminal.good("txn", "abort", name)
    assert terminal.good(*read).split() == ["before", "behind"], "it steps over what was aborted"
    assert "--isolation is for reading without a group" in terminal.bad(
        "consume", "orders", "--group", "g", "--isolation", "read_committed", code=2
    )
