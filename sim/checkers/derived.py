"""What a partition knows of transactions is what its log says: while it lives, after a restart, with views or without."""

from goqueue.broker.partition import Partition
from sim.checkers import require
from sim.checkers.sighted import Sighted

RULE = "derived"


def check(partition: Partition, seen: Sighted) -> None:
    known = partition.transactions
    require(set(known.open) == set(seen.open), RULE, f"{seen.part} has {sorted(known.open)} open, not {seen.open}")
    uncommitted = set(known.uncommitted)
    require(uncommitted == seen.uncommitted, RULE, f"{seen.part}: {uncommitted} are open, not {seen.uncommitted}")
    there = {*seen.records, *seen.markers.values()}
    hidden = set(known.hidden) & there
    require(hidden == seen.hidden, RULE, f"{seen.part} hides {hidden}, not {seen.hidden}")
    for number, offsets in seen.open.items():
        count = known.count(number)
        require(count == len(offsets), RULE, f"transaction {number} has {count} records in {seen.part}, not {offsets}")
