"""What a sidecar shows of its groups: the input of every checker of deliveries. Taken from its snapshot alone.

Each message of each group is in one place: settled, leased, waiting, dead, or ready.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from goqueue.base.offset_sets import unpack
from goqueue.delivery import records
from goqueue.delivery.deliveries import Deliveries
from goqueue.delivery.records import Delivered, HeldDeath, Mourned, Postponed, Resting
from goqueue.model.names import GroupNumber
from sim.checkers import require

RULE = "one place"

_NONE: Final[Mapping[int, Any]] = MappingProxyType({})


class Lease(NamedTuple):
    """Of one message."""

    poll: int
    holder: str
    until: int
    span_ms: int


class Shown(NamedTuple):
    """A group's delivery on one partition."""

    low: int
    above: frozenset[int] = frozenset()
    """Offsets above the low mark that are settled."""
    leased: Mapping[int, Lease] = _NONE
    waiting: Mapping[int, tuple[int, int]] = _NONE
    """Until when, and how long that is from when it began to wait."""
    dead: frozenset[int] = frozenset()
    tries: Mapping[int, tuple[int, int]] = _NONE
    """How often it was delivered before, and whose handle may settle it."""
    keys: frozenset[int] = frozenset()
    """Offsets whose keys are remembered."""

    def is_settled(self, offset: int) -> bool:
        return offset < self.low or offset in self.above


class Sight(NamedTuple):
    """All there is to be seen of a sidecar."""

    groups: Mapping[GroupNumber, Shown] = MappingProxyType({})
    """Every group that was ever here."""
    first_letter: int = 0
    deaths: tuple[HeldDeath, ...] = ()
    cancelled: frozenset[int] = frozenset()
    moved: Mapping[int, int] = _NONE

    @property
    def next_letter(self) -> int:
        return self.first_letter + len(self.deaths)


def show(deliveries: Deliveries) -> Sight:
    groups: dict[GroupNumber, Shown] = {}
    sight = Sight(groups)
    for record in deliveries.snapshot():
        event = records.decode(record)
        if isinstance(event, Resting):
            groups.update((group, Shown(low)) for group, low in event.lows)
        elif isinstance(event, Delivered):
            groups[event.group] = _delivered(event)
        elif isinstance(event, Mourned):
            sight = sight._replace(first_letter=event.first, deaths=event.deaths)
        elif isinstance(event, Postponed):
            sight = sight._replace(cancelled=frozenset(unpack(event.cancelled)), moved=dict(event.moved))
    for group, shown in groups.items():
        _check(group, shown, sight)
    return sight


def _delivered(event: Delivered) -> Shown:
    leased = [(offset, Lease(*held[:4])) for held in event.leases for offset in unpack(held.offsets)]
    waiting = [(offset, (held.until, held.span_ms)) for held in event.waits for offset in unpack(held.offsets)]
    tries = [(held.offset, (held.deliveries, held.poll)) for held in event.tries]
    for what, found in (("leased", leased), ("waiting", waiting), ("tried", tries)):
        require(len(found) == len({offset for offset, _ in found}), RULE, f"an offset is {what} twice: {found}")
    return Shown(
        event.low,
        frozenset(unpack(event.settled)) if event.settled else frozenset(),
        dict(leased),
        dict(waiting),
        frozenset(unpack(event.dead)),
        dict(tries),
        frozenset(offset for offset, _ in event.keys),
    )


def _check(group: GroupNumber, shown: Shown, sight: Sight) -> None:
    """Every offset is in one place."""
    _apart(shown.leased, shown.waiting, "leased and waiting")
    _apart(shown.leased, shown.dead, "leased and dead")
    _apart(shown.waiting, shown.dead, "waiting and dead")
    for what, offsets in (
        ("leased", shown.leased),
        ("waiting", shown.waiting),
        ("dead", shown.dead),
        ("tried", shown.tries),
        ("one whose key is remembered", shown.keys),
    ):
        both = sorted(offset for offset in offsets if shown.is_settled(offset))
        require(not both, RULE, f"offsets {both} are settled and {what} for group {group}: {shown}")
    require(shown.waiting.keys() <= shown.tries.keys(), RULE, f"something waits that was never delivered: {shown}")
    mourned = {death.offset for death in sight.deaths if death.group == group}
    require(shown.dead <= mourned, RULE, f"offsets {sorted(shown.dead - mourned)} of {group} are dead without a letter")


def _apart(some: Iterable[int], others: Iterable[int], what: str) -> None:
    both = sorted(set(some) & set(others))
    require(not both, RULE, f"offsets {both} are {what}")
