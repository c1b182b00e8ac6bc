"""Who was replaced gets nothing in any more, and nobody into a transaction that is over, or being decided about."""

from collections.abc import Sequence

from goqueue.broker.partition import Partition
from goqueue.transactions.coordinator import Writer
from sim.checkers import require
from sim.rooms.deeds import Deed

RULE = "fenced"


def check(last: int, who: Writer, what: str) -> None:
    """It was let in. `last` is the last epoch that was answered when it came."""
    require(who.epoch >= last, RULE, f"{what} of {who} is taken; the last epoch was {last}")


def check_left(numbers: Sequence[int], transactional_id: str) -> None:
    """Transactions of earlier epochs that are open once somebody was told of a new one."""
    require(not numbers, RULE, f"{transactional_id} was initialised again, and {numbers} are still open")


def check_again(first: Sequence[int], again: Sequence[int], transactional_id: str) -> None:
    """The answers to a request that was sent twice."""
    require(first == again, RULE, f"{transactional_id} was initialised once, and given {first}, then {again}")


def check_refused_itself(transactional_id: str, refusal: Exception) -> None:
    """A program whose transactional id nobody else has was refused."""
    require(False, RULE, f"{transactional_id} was fenced off, and by nobody but itself: {refusal}")


def check_open(deed: Deed, *, closing: bool, is_open: bool) -> None:
    """Something came into it."""
    require(is_open, RULE, f"something came into transaction {deed.number}, which is decided about")
    require(not closing, RULE, f"something came into transaction {deed.number}, which is being committed")
    require(not deed.told, RULE, f"something came into transaction {deed.number}, which is committed")


def state(partition: Partition) -> tuple[int, list[int], int]:
    """What a block that is refused must not change."""
    return partition.log.end_offset, partition.transactions.open, len(partition.delays.pending)


def check_refused(before: tuple[int, list[int], int], partition: Partition) -> None:
    require(state(partition) == before, RULE, f"a refused block changed {before} to {state(partition)}")
