"""The machine that gives out producer ids.

Hard state is one number: ids below `reserved` may have been given out. Ids are reserved a thousand at a time and
handed out from memory (`_next`, soft): after a restart the rest of a reservation is left out. No id is ever given
out twice.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from goqueue.machine.shape import Decision
from goqueue.model import limits

_FIRST: Final = 1


class InitProducer(msgspec.Struct, frozen=True):
    """A new producer asks for an id."""


class IdsReserved(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="producer_ids_reserved"):
    """Ids below `below` may have been given out."""

    below: int


_decoder = msgspec.json.Decoder(IdsReserved)


class ProducerRegistry:
    """Replies with the id."""

    name = "producers"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.reserved = self._next = _FIRST

    def decide(self, command: Any, now: int) -> Decision:
        assert isinstance(command, InitProducer)
        producer_id = self._next
        self._next += 1
        if producer_id < self.reserved:
            return Decision((), producer_id)
        below = producer_id + limits.PRODUCER_IDS_RESERVED
        return Decision([msgspec.json.encode(IdsReserved(below=below))], producer_id)

    def apply(self, record: bytes, offset: int) -> None:
        self.reserved = _decoder.decode(record).below

    def snapshot(self) -> Iterable[bytes]:
        yield msgspec.json.encode(IdsReserved(below=self.reserved))

    def begin_life(self) -> None:
        """After a restart, before the first command: whatever was reserved counts as given out."""
        self._next = self.reserved

    def knows(self, producer_id: int) -> bool:
        """Whether this id was ever given out."""
        return _FIRST <= producer_id < min(self._next, self.reserved)
