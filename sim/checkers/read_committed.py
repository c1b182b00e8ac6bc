"""Ordered reads show what is committed, in order, up to the first record that is not decided about; nothing else."""

from collections.abc import Sequence

from goqueue.transactions.records import Participant
from sim.checkers import Violation, require
from sim.checkers.sighted import Sighted

RULE = "read committed"


def check(seen: Sighted, read: Sequence[int]) -> None:
    """`read` are the offsets that a reader was given."""
    hidden, stable = seen.hidden, seen.stable
    expected = [offset for offset in sorted(seen.records) if offset < stable and offset not in hidden]
    if list(read) != expected:
        raise Violation(RULE, f"a reader of {seen.part} sees {list(read)}, not {expected}")


def check_stable(part: Participant, before: int, stable: int) -> None:
    """In one life."""
    require(stable >= before, RULE, f"the stable offset of {part} went back from {before} to {stable}")
