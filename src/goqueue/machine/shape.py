"""The shape every machine has: decide reads, apply changes, and a log lies between them.

`decide` looks at the state and says what would happen: records for the log and a reply. It changes nothing.
`apply` is the only one that changes hard state; it is the same code live and at restart, so it must depend on
the record and the state alone: no clock, no chance. `snapshot` gives records that, applied to an empty
machine, make this state again.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec


class Decision(NamedTuple):
    """What a command leads to. Without records it is a look at the state."""

    records: Sequence[bytes]
    reply: Any


class Machine(Protocol):
    """Commands and records are the machine's own."""

    @property
    def name(self) -> str:
        """Tells its records from those of other machines over the same log; never changes."""

    def decide(self, command: Any, now: int) -> Decision:
        """Raises a GoQueueError for a command that is refused."""

    def apply(self, record: bytes, offset: int) -> None: ...

    def snapshot(self) -> Iterable[bytes]: ...

    def reset(self) -> None:
        """Back to nothing: a snapshot is about to be applied."""


class Tick(msgspec.Struct, frozen=True):
    """The command every machine with deadlines knows: time has passed."""


class Timed(Machine, Protocol):
    """A machine that wants to be told `Tick` at certain times."""

    def next_deadline(self) -> int | None:
        """When there is something to do, at the earliest, on the same clock as `now`."""
