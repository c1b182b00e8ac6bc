"""Who should own each partition of a group: from who owns it now and who wants what. Nothing else is known here.

Whatever the assignor, a partition has an owner if and only if somebody subscribes its topic, the owner is one of
those, and the same question has the same answer. An owner who left or no longer subscribes is no owner. To add an
assignor, write a function and name it in ASSIGNORS and in `model.groups`.

Sticky, the usual one, keeps every partition where it is, gives what nobody owns to those who have fewest, then moves
one partition at a time from who has most to who has fewest, until no move would help: nobody could take a partition
from somebody who has at least two more. If all members subscribe the same, no other balanced result moves fewer.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import Final, NamedTuple

from goqueue.model.groups import Assignor
from goqueue.model.names import TopicId

Partitions = Mapping[TopicId, Sequence[str | None]]
"""By topic: who owns each partition now (member id), or None."""
Subscriptions = Mapping[str, Collection[TopicId]]
"""By member id, in the order members joined: the topics it wants. Some may not be there (any more)."""
Assignment = dict[TopicId, list[str | None]]
"""By topic: who should own each partition. None only where nobody subscribes."""


def assign(assignor: Assignor, partitions: Partitions, subscriptions: Subscriptions) -> Assignment:
    """Who should own each partition. None only where nobody subscribes."""
    return ASSIGNORS[assignor](partitions, subscriptions)


def _subscribers(partitions: Partitions, subscriptions: Subscriptions) -> dict[TopicId, list[int]]:
    """By topic: who subscribes it, as places in the order of joining, ascending."""
    found: dict[TopicId, list[int]] = {topic: [] for topic in partitions}
    for place, topics in enumerate(subscriptions.values()):
        for topic in found.keys() & topics:
            found[topic].append(place)
    return found


# ---------------------------------------------------------------- range


def assign_ranges(partitions: Partitions, subscriptions: Subscriptions) -> Assignment:
    """Of each topic, neighbours go to the same member; the first members get one more if it does not come out even."""
    names = list(subscriptions)
    subscribers = _subscribers(partitions, subscriptions)
    result: Assignment = {}
    for topic, owners in partitions.items():
        places = subscribers[topic]
        if not places:
            result[topic] = [None] * len(owners)
            continue
        each, more = divmod(len(owners), len(places))
        result[topic] = [names[place] for turn, place in enumerate(places) for _ in range(each + (turn < more))]
    return result


# ---------------------------------------------------------------- round-robin


def assign_in_turn(partitions: Partitions, subscriptions: Subscriptions) -> Assignment:
    """One partition each, topic after topic; whoever does not subscribe the topic is passed over."""
    names = list(subscriptions)
    subscribers = _subscribers(partitions, subscriptions)
    result: Assignment = {}
    turn = 0
    for topic, owners in partitions.items():
        places = subscribers[topic]
        if not places or not owners:
            result[topic] = [None] * len(owners)
            continue
        first = bisect_left(places, turn)
        dealt = [places[(first + number) % len(places)] for number in range(len(owners))]
        result[topic] = [names[place] for place in dealt]
        turn = dealt[-1] + 1
    return result


# ---------------------------------------------------------------- sticky


class _Slot(NamedTuple):
    """One partition: where its owner is written."""

    owners: list[str | None]
    partition: int
    depth: int
    """How many other partitions of the topic its owner had before this one."""


class _Member:
    __slots__ = ("count", "held", "name", "place", "pools")

    def __init__(self, name: str, place: int) -> None:
        self.name = name
        self.place = place
        self.count = 0
        self.pools: set[_Pool] = set()
        """What it may hold."""
        self.held: dict[_Pool, list[_Slot]] = {}
        """What it does hold, no list empty; what it would rather give comes last."""


class _Pool:
    """The partitions of all topics that the same members subscribe. Where one of them may go, all may.

    With equal subscriptions there is one pool, and a decision costs the same however many topics there are.
    """

    __slots__ = ("_fewest", "subscribers", "unowned")

    def __init__(self, subscribers: list[_Member]) -> None:
        self.subscribers = subscribers
        self.unowned: list[_Slot] = []
        self._fewest: list[tuple[int, int, _Member]] = []

    def poorest(self) -> _Member:
        """The subscriber with the fewest partitions, the first to join of several.

        An entry of the heap is put right only when it comes to the top. One that is too low is found there; one
        that is too high is of a member that gave, and such a member cannot gain (see `_level`).
        """
        fewest = self._fewest
        if not fewest:
            fewest += [(member.count, member.place, member) for member in self.subscribers]
            heapify(fewest)
        count, _, member = fewest[0]
        while count != member.count:
            heapreplace(fewest, (member.count, member.place, member))
            count, _, member = fewest[0]
        return member


def assign_sticky(partitions: Partitions, subscriptions: Subscriptions) -> Assignment:
    """As even as subscriptions allow, moving as little as possible."""
    members = {name: _Member(name, place) for place, name in enumerate(subscriptions)}
    pools = _make_pools(_subscribers(partitions, subscriptions), list(members.values()))
    result = _keep(partitions, pools, members)
    # Pools with few subscribers first: what many may take evens out what only few may.
    for pool in sorted(dict.fromkeys(pools.values()), key=lambda pool: len(pool.subscribers)):
        for slot in pool.unowned:
            _put(slot, pool, pool.poorest())
    _level(list(members.values()))
    return result


def _make_pools(subscribers: dict[TopicId, list[int]], members: list[_Member]) -> dict[TopicId, _Pool]:
    """By topic, those that somebody subscribes; topics with the same subscribers have the same pool."""
    pools: dict[tuple[int, ...], _Pool] = {}
    by_topic: dict[TopicId, _Pool] = {}
    for topic, places in subscribers.items():
        if not places:
            continue
        key = tuple(places)
        pool = pools.get(key)
        if pool is None:
            pool = pools[key] = _Pool([members[place] for place in places])
            for member in pool.subscribers:
                member.pools.add(pool)
        by_topic[topic] = pool
    return by_topic


def _keep(partitions: Partitions, pools: dict[TopicId, _Pool], members: dict[str, _Member]) -> Assignment:
    """Leave every partition where it is, if it may stay there."""
    result: Assignment = {}
    for topic, owners in partitions.items():
        kept: list[str | None] = [None] * len(owners)
        result[topic] = kept
        pool = pools.get(topic)
        if pool is None:
            continue
        depths: dict[str, int] = {}
        for partition, owner in enumerate(owners):
            member = None if owner is None else members.get(owner)
            if member is None or pool not in member.pools:
                pool.unowned.append(_Slot(kept, partition, 0))
            else:
                depth = depths[member.name] = depths.get(member.name, -1) + 1
                _put(_Slot(kept, partition, depth), pool, member)
    # Who has many partitions of one topic gives of these first: that spreads the topic and costs no move more.
    for member in members.values():
        for slots in member.held.values():
            slots.sort(key=attrgetter("depth"))
    return result


def _put(slot: _Slot, pool: _Pool, member: _Member) -> None:
    slot.owners[slot.partition] = member.name
    member.held.setdefault(pool, []).append(slot)
    member.count += 1


def _move(pool: _Pool, giver: _Member, taker: _Member) -> None:
    slots = giver.held[pool]
    _put(slots.pop(), pool, taker)
    giver.count -= 1
    if not slots:
        del giver.held[pool]


def _level(members: list[_Member]) -> None:
    """Move partitions from who has most to who has fewest, until no move helps.

    The richest member gives as long as somebody with at least two less may take. Then it is done, and nobody still to
    be looked at has more than it. So whoever gives is left with at most one less than any of those, and only a member
    that is done could have two more than it: `_refill`.
    """
    richest = [(-member.count, member.place) for member in members]
    heapify(richest)
    done: dict[int, list[_Member]] = {}
    while richest:
        negated, place = heappop(richest)
        giver = members[place]
        if giver.count != -negated or not giver.count:
            continue
        pool, taker = min(((pool, pool.poorest()) for pool in giver.held), key=lambda offer: offer[1].count)
        if giver.count - taker.count < 2:
            done.setdefault(giver.count, []).append(giver)
            continue
        _move(pool, giver, taker)
        _refill(giver, done)
        heappush(richest, (-giver.count, giver.place))
        heappush(richest, (-taker.count, taker.place))


def _refill(poorer: _Member, done: dict[int, list[_Member]]) -> None:
    """This member has just given. One that was done and now has two more gives to it, another one to that, and so on.

    Each ends with as many as before, but for the last, which has one less. All are done still: nobody they could
    give to has less than before.
    """
    last = poorer
    while (found := _find_richer(last, done.get(last.count + 2, ()))) is not None:
        pool, giver = found
        _move(pool, giver, last)
        last = giver
    if last is not poorer:
        done.setdefault(last.count, []).append(last)


def _find_richer(member: _Member, done: Sequence[_Member]) -> tuple[_Pool, _Member] | None:
    """Somebody with two partitions more than this member, and a pool out of which one may go to it."""
    for giver in done:
        if giver.count == member.count + 2:  # or it has given since
            for pool in giver.held:
                if pool in member.pools:
                    return pool, giver
    return None


ASSIGNORS: Final[dict[Assignor, Callable[[Partitions, Subscriptions], Assignment]]] = {
    Assignor.STICKY: assign_sticky,
    Assignor.RANGE: assign_ranges,
    Assignor.ROUND_ROBIN: assign_in_turn,
}
