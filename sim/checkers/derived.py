"""What a partition knows of transactions is what its log says: live, after a restart, with its views or without."""

from goqueue.broker.partition import Partition
from sim.checkers import Violation
from sim.checkers.sighted import Sighted

RULE = "derived"


def check(partition: Partition, seen: Sighted) -> None:
    known = partition.transactions
    there = {*seen.records, *seen.markers.values()}
    pairs = (
        ("open", set(known.open), set(seen.open)),
        ("uncommitted", set(known.uncommitted), seen.uncommitted),
        ("hidden", set(known.hidden) & there, seen.hidden),
        ("counted", *_counts(partition, seen)),
    )
    for what, found, expected in pairs:
        if found != expected:
            raise Violation(RULE, f"{seen.part}: {what} are {found}, not {expected}")


def _counts(partition: Partition, seen: Sighted) -> tuple[dict[int, int], dict[int, int]]:
    found = {number: partition.transactions.count(number) for number in seen.open}
    return found, {number: len(offsets) for number, offsets in seen.open.items()}
