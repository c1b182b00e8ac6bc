"""A coordinator without a log: commands are decided and applied as a host does it."""

from typing import Any

from goqueue.model.names import TopicId
from goqueue.transactions.commands import Begin, Identify, Identity
from goqueue.transactions.coordinator import Transactions
from goqueue.transactions.records import Participant

NOW = 1_700_000_000_000
HERE = (Participant(TopicId(5), 0), Participant(TopicId(5), 1))


def do(machine: Transactions, command: Any, now: int = NOW) -> Any:
    """Refusals are raised; deciding alone changes nothing but the number that comes next."""
    before = list(machine.snapshot())
    try:
        decision = machine.decide(command, now)
    finally:
        assert list(machine.snapshot()) == before
    for record in decision.records:
        machine.apply(record, 0)
    return decision.reply


def identify(machine: Transactions, name: str = "job", fresh: int = 1, timeout_ms: int = 60_000) -> Identity:
    found = do(machine, Identify(transactional_id=name, producer_id=fresh, timeout_ms=timeout_ms))
    assert isinstance(found, Identity)
    return found


def begin(machine: Transactions, producer_id: int = 1, epoch: int = 0, now: int = NOW, **more: Any) -> int:
    number = do(machine, Begin(producer_id=producer_id, epoch=epoch, **more), now)
    assert isinstance(number, int)
    return number


def restored(machine: Transactions) -> Transactions:
    """Another one, made from this one's snapshot."""
    other = Transactions()
    for record in machine.snapshot():
        other.apply(record, 0)
    return other
