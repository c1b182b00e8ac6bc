"""Who has a transactional id: the program that initialised it last.

A program that asks for an identity may never hear the answer, and its request may arrive twice. So it can say which
*incarnation* of the program it is, and as whom it wrote until now, its *former* identity. By these a request that comes
again is told from another program: only another program fences.

Invariants: what comes again changes nothing; who was replaced never gets the id back by asking as who it was.
"""

from typing import Final

import msgspec

from goqueue.model import limits
from goqueue.model.errors import ProducerFenced
from goqueue.transactions.commands import Former, Identify
from goqueue.transactions.records import Identified

_NOBODY: Final = Former(0, 0)
"""In records: no producer has the id 0."""


class Owner(msgspec.Struct):
    """Who a transactional id belongs to."""

    producer_id: int
    epoch: int
    timeout_ms: int
    used_at: int
    incarnation: str = ""
    """Of the program that has it; empty if it did not say."""
    former: Former | None = None
    """As whom that program wrote before, if it went on from there."""
    fenced: tuple[str, ...] = ()
    """Incarnations that had it and must stop."""

    def is_of(self, incarnation: str) -> bool:
        """Whether it may be this incarnation's: one that is not named agrees with any."""
        return not incarnation or not self.incarnation or incarnation == self.incarnation


def owner_of(event: Identified) -> Owner:
    """As the record says."""
    former = Former(event.former_id, event.former_epoch) if event.former_id else None
    return Owner(event.producer_id, event.epoch, event.timeout_ms, event.at, event.incarnation, former, event.fenced)


def record_of(transactional_id: str, owner: Owner) -> Identified:
    """The record that `owner_of` reads."""
    return Identified(
        transactional_id,
        owner.producer_id,
        owner.epoch,
        owner.timeout_ms,
        owner.used_at,
        owner.incarnation,
        *(owner.former or _NOBODY),
        owner.fenced,
    )


def is_again(owner: Owner, command: Identify) -> bool:
    """Whether what is asked for was done before: the answer was lost, or the request arrived twice."""
    if command.former is not None:
        return command.former == owner.former and owner.is_of(command.incarnation)
    return bool(command.incarnation) and command.incarnation == owner.incarnation


def succeed(owner: Owner | None, command: Identify, *, producer_id: int, epoch: int, now: int) -> Owner:
    """The next owner. ProducerFenced for a program that was replaced."""
    incarnation, fenced = command.incarnation, () if owner is None else owner.fenced
    if owner is not None:
        _check_not_replaced(owner, command)
        if command.former is not None:
            incarnation = incarnation or owner.incarnation
        elif owner.incarnation:
            fenced = (*fenced, owner.incarnation)[-limits.FENCED_REMEMBERED :]
    return Owner(producer_id, epoch, command.timeout_ms, now, incarnation, command.former, fenced)


def _check_not_replaced(owner: Owner, command: Identify) -> None:
    is_replaced = command.incarnation in owner.fenced
    if command.former is not None:
        current = (owner.producer_id, owner.epoch)
        is_replaced = is_replaced or command.former != current or not owner.is_of(command.incarnation)
    if is_replaced:
        raise ProducerFenced(
            f"the transactional id {command.transactional_id!r} was initialised by another program, which is producer "
            f"{owner.producer_id} in epoch {owner.epoch}: this one must stop"
        )
