"""What the transactions log says: one struct per thing that can happen, as a MessagePack array whose first item tells
which.

To change the format: add fields with defaults at the end of a struct, or a new struct with a new number; never change
the meaning of one. `docs/internals/transactions.md` lists them, and golden bytes hold them.
"""

from typing import NamedTuple

import msgspec

from goqueue.model.names import TopicId
from goqueue.model.transactions import AbortReason, TransactionState


class Participant(NamedTuple):
    """A partition that has messages of a transaction, or acks."""

    topic_id: TopicId
    partition: int


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """The base of all."""


class NumbersReserved(_Event, frozen=True, array_like=True, tag=1):
    """Transactions may have been given numbers below `below`."""

    below: int


class Identified(_Event, frozen=True, array_like=True, tag=2):
    """A transactional id belongs to this producer, in this epoch, from now on: whoever came before must stop."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    at: int
    incarnation: str = ""
    """Of the program that initialised it; empty if it did not say."""
    former_id: int = 0
    """As whom the same program wrote before, when it said so; 0 if it did not."""
    former_epoch: int = 0
    fenced: tuple[str, ...] = ()
    """Incarnations that must stop, the last of them last."""


class Begun(_Event, frozen=True, array_like=True, tag=3):
    number: int
    producer_id: int
    epoch: int
    transactional_id: str
    name: str
    at: int
    timeout_ms: int


class CommitDecided(_Event, frozen=True, array_like=True, tag=4):
    """These will be committed, all of them, whatever happens from here on; under a token if `name` is not empty."""

    numbers: tuple[int, ...]
    participants: tuple[Participant, ...]
    """Where they have messages or acks, all together."""
    at: int
    name: str = ""
    token: int = 0


class AbortDecided(_Event, frozen=True, array_like=True, tag=5):
    """These are aborted. Of what nothing is known that is so, too: this is for whoever asks."""

    numbers: tuple[int, ...]
    reason: AbortReason
    at: int


class Completed(_Event, frozen=True, array_like=True, tag=6):
    """Every participant has it, durably, what was decided."""

    numbers: tuple[int, ...]


class Forgotten(_Event, frozen=True, array_like=True, tag=7):
    """Transactional ids that were not used for long."""

    transactional_ids: tuple[str, ...]


class Stopped(_Event, frozen=True, array_like=True, tag=8):
    """The broker was stopped, with everything durable."""


class Started(_Event, frozen=True, array_like=True, tag=9):
    """It was started again: what comes from here on may be lost in a crash."""


class Kept(_Event, frozen=True, array_like=True, tag=10):
    """In snapshots: all there is to know about one transaction."""

    number: int
    producer_id: int
    epoch: int
    transactional_id: str
    name: str
    began_at: int
    timeout_ms: int
    state: TransactionState
    decided_at: int
    reason: AbortReason | None
    participants: tuple[Participant, ...]


class Token(_Event, frozen=True, array_like=True, tag=11):
    """In snapshots: the last number that was committed under a name."""

    name: str
    number: int


class Spent(_Event, frozen=True, array_like=True, tag=12):
    """In snapshots: the epochs of this producer id are used up, so nobody may use it any more."""

    producer_id: int


Event = (
    NumbersReserved | Identified | Begun | CommitDecided | AbortDecided | Completed | Forgotten | Stopped | Started
    | Kept | Token | Spent
)  # fmt: skip

_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
encode = msgspec.msgpack.Encoder().encode
decode = _decoder.decode
