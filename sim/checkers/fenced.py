"""Who was replaced gets nothing in any more, and nothing comes into a transaction that is being decided about or over."""

from goqueue.broker.partition import Partition
from sim.checkers import require
from sim.rooms.deeds import Deed, Deeds

RULE = "fenced"


def check(deeds: Deeds, transactional_id: str, epoch: int, what: str) -> None:
    """It was let in."""
    last = deeds.epochs.get(transactional_id, epoch)
    require(epoch >= last, RULE, f"{what} of {transactional_id} in epoch {epoch} is taken; it is in {last}")


def check_open(deed: Deed, *, closing: bool, is_open: bool) -> None:
    """Something came into it."""
    require(is_open, RULE, f"something came into transaction {deed.number}, which is decided about")
    require(not closing, RULE, f"something came into transaction {deed.number}, which is being committed")
    require(deed.told is None, RULE, f"something came into transaction {deed.number}; somebody was told {deed.told}")


def state(partition: Partition) -> tuple[int, list[int], int]:
    """What a block that is refused must not change."""
    return partition.log.end_offset, partition.transactions.open, len(partition.delays.pending)


def check_refused(before: tuple[int, list[int], int], partition: Partition) -> None:
    require(state(partition) == before, RULE, f"a refused block changed {before} to {state(partition)}")
