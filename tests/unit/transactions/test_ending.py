"""How a transaction ends: what must be durable before what, and the bytes of a marker."""

from collections.abc import Sequence

import msgspec
import pytest

from goqueue import codec
from goqueue.machine.host import Outcome
from goqueue.model.record import Extension, Record
from goqueue.model.transactions import AbortReason
from goqueue.storage.log import Log
from goqueue.transactions.commands import Abort, Commit
from goqueue.transactions.coordinator import Transaction, Transactions
from goqueue.transactions.ending import (
    VERSION,
    Durable,
    MarkerValue,
    decide_commit,
    marker_of,
    orphan_marker,
    tell,
)
from tests.support.memory_disk import MemoryDisk
from tests.unit.machine.adders import open_log
from tests.unit.transactions.script import HERE, begin, do, identify

GOLDEN = {True: "94 01 07 00 a36a6f62", False: "94 01 00 00 a0"}
"""Values of a marker that commits a transaction of producer 7, and of one for a transaction that nobody knows."""


@pytest.fixture
def log() -> Log:
    return open_log(MemoryDisk())


class Site:
    """Writes down what it is asked."""

    def __init__(self, name: str, log: Log, said: list[str]) -> None:
        self.name, self.log, self.said = name, log, said

    def saved(self) -> Sequence[Durable]:
        self.said.append(f"{self.name} saves")
        return [Durable(self.log, 3)]

    def tell(self, number: int, commits: bool, marker: Record) -> Sequence[Durable]:
        self.said.append(f"{self.name} hears that {number} is {'committed' if commits else 'aborted'}")
        assert marker.commit == commits
        return [Durable(self.log, 9)]


def decided(command_of: type) -> Transaction:
    machine = Transactions()
    identify(machine, fresh=7)
    number = begin(machine, 7, transactional_id="job")
    do(machine, Commit(number, HERE) if command_of is Commit else Abort((number,), AbortReason.ASKED))
    return machine.transaction(number)


def test_nothing_is_decided_before_everything_is_saved(log: Log) -> None:
    said: list[str] = []
    sites = [Site("a", log, said), Site("b", log, said)]

    def decide() -> Outcome:
        said.append("decided")
        return Outcome(None, None, 5)

    steps = decide_commit(log, sites, decide)
    assert next(steps) == [Durable(log, 3), Durable(log, 3)]
    assert said == ["a saves", "b saves"]
    assert next(steps) == [Durable(log, 5)]
    assert said[2:] == ["decided"]
    assert list(steps) == []


@pytest.mark.parametrize("what", [Commit, Abort])
def test_every_site_hears_of_it(log: Log, what: type) -> None:
    said: list[str] = []
    assert tell([decided(what)], [Site("a", log, said), Site("b", log, said)]) == [Durable(log, 9)] * 2
    how = "committed" if what is Commit else "aborted"
    assert said == [f"a hears that 1 is {how}", f"b hears that 1 is {how}"]


def test_it_is_durable_when_the_log_is(log: Log) -> None:
    assert Durable(log, 0).is_so
    assert not Durable(log, 1).is_so


def test_a_marker_has_these_bytes() -> None:
    committed, orphan = marker_of(decided(Commit)), orphan_marker(17)
    assert [committed.value, orphan.value] == [bytes.fromhex(value) for value in GOLDEN.values()]
    assert committed.extension == Extension(transaction=1)
    assert orphan.extension == Extension(transaction=17)
    assert (committed.control, committed.commit, orphan.control, orphan.commit) == (True, True, True, False)
    assert not marker_of(decided(Abort)).commit
    value = msgspec.msgpack.decode(bytes.fromhex(GOLDEN[True]), type=MarkerValue)
    assert value == MarkerValue(VERSION, 7, 0, "job")
    (record,) = codec.decode(codec.encode([committed]))
    assert (record.value, record.extension, record.key) == (committed.value, committed.extension, None)
