"""How a transaction ends, step by step: what has to be durable before what. Whoever runs it does the waiting.

Commit: everything it has is durable; then the decision, by one record; then each partition is told, with a marker.
From the decision on it is committed, whoever is killed when: at the next start the partitions that have not heard are
told again. Abort: the same without the first step. When all partitions have it durably, the coordinator may forget it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from goqueue.machine.host import Outcome
from goqueue.model.record import Extension, Record
from goqueue.storage.log import Log
from goqueue.transactions.coordinator import Transaction

VERSION = 1


class Durable(NamedTuple):
    """A log must be durable up to a position."""

    log: Log
    position: int

    @property
    def is_so(self) -> bool:
        return self.log.durable.value >= self.position


class Site(Protocol):
    """A partition that takes part in transactions."""

    def saved(self) -> Sequence[Durable]:
        """What makes all it has by now durable."""

    def tell(self, number: int, commits: bool, marker: Record) -> Sequence[Durable]:
        """A transaction has ended. What makes that durable. Nothing changes if it is known here, or was never here."""


Step = Sequence[Durable]


def decide_commit(log: Log, sites: Iterable[Site], decide: Callable[[], Outcome]) -> Iterator[Step]:
    """Up to the decision; what `decide` found out is for its owner."""
    yield [each for site in sites for each in site.saved()]
    yield [Durable(log, decide().position)]


def tell(transactions: Iterable[Transaction], sites: Iterable[Site]) -> list[Durable]:
    """After the decision, and again after a restart."""
    told: list[Durable] = []
    for transaction in transactions:
        marker = marker_of(transaction)
        for site in sites:
            told += site.tell(transaction.number, transaction.is_committed, marker)
    return told


class MarkerValue(msgspec.Struct, frozen=True, array_like=True):
    """What a marker says beside its flags and its transaction's number: for people, and for those who come later."""

    version: int
    producer_id: int
    epoch: int
    transactional_id: str


def marker_of(transaction: Transaction) -> Record:
    """The control record that ends it in one partition."""
    value = MarkerValue(VERSION, transaction.producer_id, transaction.epoch, transaction.transactional_id)
    return _marker(transaction.number, msgspec.msgpack.encode(value), commits=transaction.is_committed)


def orphan_marker(number: int) -> Record:
    """For records of a transaction that nobody knows any more: it is aborted."""
    return _marker(number, msgspec.msgpack.encode(MarkerValue(VERSION, 0, 0, "")), commits=False)


def _marker(number: int, value: bytes, *, commits: bool) -> Record:
    return Record(value=value, extension=Extension(transaction=number), control=True, commit=commits)
