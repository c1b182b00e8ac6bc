"""What simulated members and their broker say to each other."""

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.rooms.ledger import Value
from sim.rooms.tenures import Tenure

Result = TypeVar("Result")
Steps = Generator[int, None, Result]
"""A request: it yields how many milliseconds it waits, and returns its answer."""


class Batch(NamedTuple):
    """Messages of one partition that one reply carried, by offset."""

    group: GroupNumber
    part: Part
    tenure: Tenure
    generation: int
    poll: int
    voided: int
    """How often the offsets of the partition had lost their meaning by then."""
    messages: Sequence[tuple[int, Value]]


class Reply(NamedTuple):
    """To a poll."""

    number: int
    owned: frozenset[Part]
    revoke: frozenset[Part]
    batches: list[Batch]


class Commit(NamedTuple):
    """Done with what was delivered below an offset."""

    batch: Batch
    below: int
    fenced: bool
    """It says in which generation, and by which poll, it was delivered."""
