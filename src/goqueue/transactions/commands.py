"""What the coordinator of transactions can be told to do."""

from typing import NamedTuple

import msgspec

from goqueue.model.transactions import AbortReason
from goqueue.transactions.records import Participant


class Former(NamedTuple):
    """As whom a program wrote until now."""

    producer_id: int
    epoch: int


class Identify(msgspec.Struct, frozen=True, kw_only=True):
    """A program takes a transactional id, or asks for another epoch of its own. Replies with `Identity`.

    `producer_id` is one that nobody has; it is used when the id is new, or its epochs are used up. `incarnation` names
    this life of the program, `former` the identity that it has now: by them a request that is sent again is recognised,
    and a program that was replaced does not take the id back.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    incarnation: str = ""
    former: Former | None = None


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """Replies with the transaction."""

    producer_id: int
    epoch: int
    transactional_id: str = ""
    name: str = ""
    timeout_ms: int | None = None


class Commit(msgspec.Struct, frozen=True):
    """Everything it has is durable, in these partitions. Replies with `Committed`."""

    number: int
    participants: tuple[Participant, ...]


class CommitMany(msgspec.Struct, frozen=True, kw_only=True):
    """The same for several that were begun under one name, once per token. Replies with `Committed`."""

    name: str
    token: int
    numbers: tuple[int, ...]
    participants: tuple[Participant, ...]


class Abort(msgspec.Struct, frozen=True):
    """Those that are open. Replies with their numbers."""

    numbers: tuple[int, ...]
    reason: AbortReason


class Complete(msgspec.Struct, frozen=True):
    """Every participant has it durably, what was decided of these."""

    numbers: tuple[int, ...]


class ForgetIdle(msgspec.Struct, frozen=True):
    """Transactional ids that were not used since a time."""

    before: int


class Stop(msgspec.Struct, frozen=True):
    """Everything is durable, and nothing comes after this."""


class Start(msgspec.Struct, frozen=True):
    """Life begins."""


class Identity(NamedTuple):
    producer_id: int
    epoch: int
    aborted: tuple[int, ...]
    """What was left open."""


class Committed(NamedTuple):
    numbers: tuple[int, ...]
    duplicate: bool
    """They were committed before, by this token or by an earlier try."""
    aborted: tuple[int, ...] = ()
    """Those of a batch that was committed before by others."""
