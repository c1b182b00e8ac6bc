"""The model beside simulated deliveries: what was published, leased, received, worked off and settled, by value.

Offsets are not to be trusted: after a power cut another message may stand at an old one. The ledger is told before and
after each write to a sidecar. A write that a crash interrupted is *in doubt* until the sidecar is looked at again.
It never reads a disk.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NewType

import msgspec

from goqueue.delivery.commands import Bury, Cancel, Forget, Lapse, Lease, Move, ResetTo, Start
from goqueue.groups.group import Part
from goqueue.model import limits
from goqueue.model.names import GroupNumber
from sim.checkers.delivered import Sight
from sim.disk import CrashKind
from sim.rooms.places import Effects, Held, Moment, Places, Tried, Waiting

Value = NewType("Value", int)
"""No two messages have the same."""


class Message(NamedTuple):
    """What was published under a value."""

    key: bytes | None = None
    lane: int = 0
    deliver_at: int | None = None


PLAIN: Final = Message()
TOLERANCE_MS: Final = 5
"""Two readings of two clocks are never made at once."""

# ---------------------------------------------------------------- of one group on one partition


@dataclass(slots=True)
class Account:
    places: Places = field(default_factory=Places)
    leased: set[Value] = field(default_factory=set)
    """What was ever leased, or may have been."""
    promised: dict[Value, int] = field(default_factory=dict)
    """Settled or dead, and never to be delivered again; with the position in the sidecar from which on that is so."""
    passed: set[Value] = field(default_factory=set)
    """What the group need not have been delivered: it began, or was once put, behind it."""
    ended: set[Value] = field(default_factory=set)
    """What may be settled although nobody worked it off: dead and buried, dropped, expired."""
    failed: dict[Value, int] = field(default_factory=dict)
    """How often each failed, at most."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Positions in the sidecar, and the low mark there."""
    put_at: int = 0
    """The position of the last reset."""
    floor: int = 0
    """The group has settled everything up to here at least, if the messages are still there."""
    voided: int = 0
    """How often offsets lost their meaning: the group was put elsewhere, or messages were lost."""

    def lowest(self, durable: int | None) -> int:
        """The low mark; or the lowest it may be if the sidecar lost what is not durable."""
        if not self.marks or durable is None:
            return self.marks[-1][1] if self.marks else 0
        before = [low for at, low in self.marks if at <= durable]
        return min(before[-1:] + [low for at, low in self.marks if at > durable], default=0) if before else 0


# ---------------------------------------------------------------- of one partition


@dataclass(slots=True)
class Content:
    """What a partition holds."""

    start: int = 0
    end: int = 0
    values: dict[int, Value] = field(default_factory=dict)
    gone: dict[int, Value] = field(default_factory=dict)
    """What retention took in this life: a poll may have read it just before."""

    def append(self, values: Iterable[Value]) -> None:
        for value in values:
            self.values[self.end] = value
            self.end += 1

    def find(self, offsets: Iterable[int]) -> Iterator[Value]:
        """Those of these offsets that are there, or just were."""
        for offset in offsets:
            value = self.values.get(offset) or self.gone.get(offset)
            if value is not None:
                yield value

    def forget(self, start: int, gone: Iterable[int] = ()) -> None:
        """It begins at `start` by now; these are not there any more either."""
        for offset in (*range(self.start, start), *gone):
            if offset in self.values:
                self.gone[offset] = self.values.pop(offset)
        self.start = max(self.start, start)


class Intent(NamedTuple):
    """A dead letter that is to be written, or was."""

    group: GroupNumber
    offset: int
    value: Value | None
    """None if the message was gone already."""
    deliveries: int
    position: int


@dataclass(slots=True)
class Letters:
    """A partition's dead letters; the first has number 0, and so on."""

    intents: list[Intent] = field(default_factory=list)
    buried: int = 0
    """Those below are called written."""


class Left(NamedTuple):
    """Of a delay: how much there was of it, and when."""

    ms: int
    at: int


@dataclass(slots=True)
class Postponed:
    """A partition's delayed messages, as far as somebody has touched them."""

    cancelled: dict[Value, int] = field(default_factory=dict)
    """With the position in the sidecar from which on that is so."""
    moved: dict[Value, list[tuple[int, int]]] = field(default_factory=dict)
    """Positions, and the time from there on."""
    left: dict[Value, Left] = field(default_factory=dict)
    """In this life."""

    def times(self, value: Value, message: Message, durable: int | None = None) -> list[int]:
        """When it may be due: the last of these; or any, if what is not `durable` was lost."""
        moves = self.moved.get(value, [])
        if message.deliver_at is None:
            return []
        if durable is None:
            return [moves[-1][1] if moves else message.deliver_at]
        before = [message.deliver_at, *(time for at, time in moves if at <= durable)]
        return [before[-1], *(time for at, time in moves if at > durable)]


class Ended(NamedTuple):
    """What a write has ended."""

    settled: list[Value]
    """Because somebody said so."""
    others: list[Value]
    """Dropped, or dead."""


class Doubt(NamedTuple):
    """A write to a sidecar that is under way, and what it leads to."""

    command: Any
    places: dict[GroupNumber, Places]
    effects: Effects
    half_way: Places | None = None
    """If it is written in two steps, and only the first one was taken."""


_NOTHING = Effects([], [], [])

# ---------------------------------------------------------------- of all


class Ledger:
    """Of one simulated broker, over all its lives."""

    def __init__(self) -> None:
        self.contents: defaultdict[Part, Content] = defaultdict(Content)
        self.accounts: defaultdict[tuple[GroupNumber, Part], Account] = defaultdict(Account)
        self.letters: defaultdict[Part, Letters] = defaultdict(Letters)
        self.postponed: defaultdict[Part, Postponed] = defaultdict(Postponed)
        self.messages: dict[Value, Message] = {}
        self.missing: set[Value] = set()
        """What retention, or a power cut, took."""
        self.received: defaultdict[GroupNumber, set[Value]] = defaultdict(set)
        self.worked: defaultdict[GroupNumber, set[Value]] = defaultdict(set)
        """What a member has worked off; only this may be settled."""
        self.doubts: dict[Part, Doubt] = {}
        self.crashes: list[CrashKind] = []
        """Since the sidecars were last looked at."""
        self.durable: dict[Part, int] = {}
        """After a power cut: up to where each sidecar had called itself durable."""

    def new_value(self, message: Message = PLAIN) -> Value:
        value = Value(len(self.messages) + 1)
        self.messages[value] = message
        return value

    def publish(self, part: Part, values: Iterable[Value], at: Moment) -> None:
        """They are written."""
        for value in values:
            self.contents[part].append([value])
            deliver_at = self.messages[value].deliver_at
            if deliver_at is not None:
                self.postponed[part].left[value] = Left(deliver_at - at.wall, at.now)

    def step(self, at: Moment) -> None:
        """The wall's clock is about to be set: what is due by now was due, whatever the wall will say."""
        for part, postponed in self.postponed.items():
            for value in [value for value in postponed.left if self.is_due(part, value, at)]:
                del postponed.left[value]

    def is_due(self, part: Part, value: Value, at: Moment) -> bool:
        """Whether the time of a delayed message has come, on the wall and, as far as this life knows, really."""
        postponed = self.postponed[part]
        left = postponed.left.get(value)
        if left is None:
            return True
        passed = left.ms <= 0 or at.now - left.at >= left.ms - TOLERANCE_MS
        return passed and at.wall >= postponed.times(value, self.messages[value])[0]

    def retain(self, part: Part, start: int, gone: Collection[int] = ()) -> None:
        """Retention went on."""
        content = self.contents[part]
        self.missing.update(content.find([*range(content.start, start), *gone]))
        content.forget(start, gone)

    def possible(self, group: GroupNumber, part: Part) -> list[Places]:
        """Where everything is, or if something is in doubt may be."""
        doubt = self.doubts.get(part)
        found = [self.accounts[group, part].places]
        if doubt is not None and group in doubt.places:
            found += [doubt.places[group]]
            found += [doubt.half_way] if doubt.half_way is not None else []
        return found

    # --- writes to a sidecar

    def begin(self, part: Part, command: Any, at: Moment) -> None:
        group = getattr(command, "group", None)
        if group is None:
            self._begin_for_all(part, command)
            return
        account = self.accounts[group, part]
        places = account.places.copy()
        effects = _NOTHING
        if not (isinstance(command, Start) and account.marks):
            effects = places.do(command, at)
        half_way = None
        if isinstance(command, Lapse):  # what failed too often is ended by a record of its own
            half_way = account.places.copy()
            half_way.do(msgspec.structs.replace(command, retries=command.retries._replace(most=limits.MAX_RETRIES)), at)
        self.doubts[part] = Doubt(command, {group: places}, effects, half_way)
        account.ended.update(self.contents[part].find(effects.dropped))
        match command:
            case Lease(offsets=offsets):
                account.leased.update(self.contents[part].find(offsets))
            case ResetTo(low=low):
                account.voided += 1
                self._put(account, part, low)
            case Start(low=low) if not account.marks:
                self._put(account, part, low)

    def _begin_for_all(self, part: Part, command: Any) -> None:
        after: dict[GroupNumber, Places] = {}
        letters = self.letters[part]
        if isinstance(command, Bury):
            done = [
                intent for intent in letters.intents[letters.buried : command.below] if self._is_there(part, intent)
            ]
            for group, account in self._accounts(part):
                offsets = [intent.offset for intent in done if intent.group == group]
                after[group] = account.places.copy()
                after[group].bury(offsets)
                account.ended.update(self.contents[part].find(offsets))
        self.doubts[part] = Doubt(command, after, _NOTHING)

    def _is_there(self, part: Part, intent: Intent) -> bool:
        """Or another message has its offset by now."""
        return next(self.contents[part].find([intent.offset]), None) in (None, intent.value)

    def _accounts(self, part: Part) -> Iterator[tuple[GroupNumber, Account]]:
        return ((group, account) for (group, other), account in list(self.accounts.items()) if other == part)

    def _put(self, account: Account, part: Part, low: int) -> None:
        for offset, value in self.contents[part].values.items():
            if offset < low:
                account.passed.add(value)
            else:
                account.promised.pop(value, None)

    def refused(self, part: Part) -> None:
        """Nothing was written."""
        del self.doubts[part]

    def end(
        self, part: Part, position: int, lows: Mapping[GroupNumber, int], at: Moment, left: Collection[int] = ()
    ) -> Ended:
        """It is written, but for the delayed messages that were `left` alone."""
        command, after, effects, _ = self.doubts.pop(part)
        if isinstance(command, Forget):
            del self.accounts[command.group, part]
        else:
            for group, places in after.items():
                self._place(self.accounts[group, part], part, places)
        content, postponed = self.contents[part], self.postponed[part]
        match command:
            case ResetTo(group=group):
                self.accounts[group, part].put_at = position
            case Bury(below=below):
                self.letters[part].buried = below
            case Cancel(offsets=offsets):
                found = content.find(offset for offset in offsets if offset not in left)
                postponed.cancelled.update((value, position) for value in found)
            case Move(offsets=offsets, deliver_at=deliver_at):
                for value in content.find(offset for offset in offsets if offset not in left):
                    postponed.moved.setdefault(value, []).append((position, deliver_at))
                    postponed.left[value] = Left(deliver_at - at.wall, at.now)
        for group, account in self._accounts(part):
            if group in lows:
                account.marks.append((position, lows[group]))
                account.floor = lows[group]
        return self._ended(part, command, effects, position)

    def _place(self, account: Account, part: Part, places: Places) -> None:
        account.places = places
        for offset, tried in places.tries.items():
            for value in self.contents[part].find([offset]):
                account.failed[value] = max(account.failed.get(value, 0), tried.count)

    def _ended(self, part: Part, command: Any, effects: Effects, position: int) -> Ended:
        content = self.contents[part]
        doomed = [offset for offset, _ in effects.doomed]
        ended = Ended(list(content.find(effects.settled)), list(content.find([*effects.dropped, *doomed])))
        if ended.settled or ended.others:
            promised = self.accounts[command.group, part].promised
            promised.update((value, position) for values in ended for value in values)
        self.letters[part].intents += self.intents(part, command, effects, position)
        return ended

    def intents(self, part: Part, command: Any, effects: Effects, position: int) -> list[Intent]:
        """The dead letters that a command leads to."""
        content = self.contents[part]
        return [
            Intent(command.group, offset, next(content.find([offset]), None), count, position)
            for offset, count in effects.doomed
        ]

    def answered(self, group: GroupNumber, part: Part, values: Iterable[Value]) -> None:
        """Somebody was told that these are settled, durably."""
        account = self.accounts[group, part]
        account.promised.update((value, 0) for value in values if value in account.promised)

    # --- crashes

    def crashed(self, kind: CrashKind, durable: dict[Part, int]) -> None:
        """`durable` says up to where each sidecar has called itself so while the broker last lived."""
        self.crashes.append(kind)
        if kind == "power":
            self.durable = {part: min(at, self.durable.get(part, at)) for part, at in durable.items()}
        for (group, part), account in self.accounts.items():
            known = durable.get(part, 0)
            if kind == "power":
                account.promised = {value: at for value, at in account.promised.items() if at <= known}
                account.voided += account.put_at > known
            account.floor = min(account.floor, account.lowest(known if kind == "power" else None))
            doubt = self.doubts.get(part)
            if doubt is not None and isinstance(doubt.command, ResetTo) and doubt.command.group == group:
                account.floor = min(account.floor, doubt.command.low)

    def reread(self, part: Part, start: int, values: dict[int, Value], end: int) -> None:
        """What a crash has left of a partition."""
        before = self.contents[part].values
        lost = {value for offset, value in before.items() if offset >= start and values.get(offset) != value}
        self.missing |= set(before.values()) - set(values.values())
        self.contents[part] = Content(start, end, values)
        if lost:
            for _, account in self._accounts(part):
                account.voided += 1

    def adopt(self, part: Part, sight: Sight, at: Moment) -> None:
        """The sidecar was looked at after a crash, and every checker agreed."""
        self.doubts.pop(part, None)
        content = self.contents[part]
        for group, account in self._accounts(part):
            shown = sight.groups.get(group)
            account.marks = [(0, shown.low)] if shown is not None else []
            account.floor = shown.low if shown is not None else 0
            account.put_at = 0
            account.places = Places()
            if shown is not None:
                account.places = Places(
                    {offset for offset in range(content.end) if shown.is_settled(offset)},
                    {offset: Held(*lease, at.again(*lease[2:])) for offset, lease in shown.leased.items()},
                    {offset: Waiting(*wait, at.again(*wait)) for offset, wait in shown.waiting.items()},
                    set(shown.dead),
                    {offset: Tried(*each) for offset, each in shown.tries.items()},
                )
        letters = self.letters[part]
        del letters.intents[sight.next_letter :]
        letters.buried = sight.first_letter
        self._adopt_delays(part, sight, at)

    def _adopt_delays(self, part: Part, sight: Sight, at: Moment) -> None:
        content = self.contents[part]
        cancelled = dict.fromkeys(content.find(sight.cancelled), 0)
        moved = {content.values[at]: [(0, time)] for at, time in sight.moved.items() if at in content.values}
        postponed = self.postponed[part] = Postponed(cancelled, moved)
        for value in content.values.values():
            for time in postponed.times(value, self.messages[value]):
                postponed.left[value] = Left(time - at.wall, at.now)
