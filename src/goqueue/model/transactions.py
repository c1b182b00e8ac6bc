"""Transactions as users meet them: their ids and states."""

from enum import StrEnum
from typing import Final

from goqueue.model.errors import UnknownTransaction

_PREFIX: Final = "txn-"


class TransactionState(StrEnum):
    ONGOING = "ongoing"
    COMMITTING = "committing"
    """Decided: it will be committed, whatever happens; some partitions may not say so yet."""
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


class AbortReason(StrEnum):
    ASKED = "asked"
    TIMED_OUT = "timed_out"
    REINITIALISED = "reinitialised"
    """Its transactional id was initialised again: by the same program after a crash, or by another one."""
    LOST = "lost"
    """Some of its messages did not survive a crash of the broker's machine."""
    REPLACED = "replaced"
    """Its work was committed before, by others under the same token."""


def show_undecided(topic: str, partition: int, stable: int, end: int) -> str:
    """Why readers stop before the end of a partition."""
    return (
        f"partition {partition} of {topic} is read up to offset {stable}, and ends at {end}: a transaction is not "
        "decided about (goqueue-cli txn list)"
    )


def transaction_id(number: int) -> str:
    """As users see it."""
    return f"{_PREFIX}{number}"


def transaction_number(text: str) -> int:
    """The number records carry."""
    digits = text.removeprefix(_PREFIX)
    if digits == text or not digits.isascii() or not digits.isdigit() or len(digits) > len(str(2**63)):
        raise UnknownTransaction(f"{text[:80]!r} is no transaction id; begin gives them out, like {_PREFIX}17")
    return int(digits)
