"""The model beside simulated deliveries: what was published, leased, received, worked off and settled, by value.

Offsets are not to be trusted: after a power cut another message may stand at an old one. The ledger is told before and
after each write to a sidecar. A write that a crash interrupted is *in doubt* until the sidecar is looked at again.
It never reads a disk.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType

from goqueue.delivery.deliveries import Forget, GiveBack, Lease, Open, ResetTo, Settle, Start
from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.disk import CrashKind

Value = NewType("Value", int)
"""No two messages have the same."""


class Held(NamedTuple):
    """A leased message."""

    value: Value
    """0 for one that is gone and is not remembered."""
    poll: int


@dataclass(slots=True)
class Account:
    """One group on one partition."""

    held: dict[int, Held] = field(default_factory=dict)
    """What is leased, by offset."""
    leased: set[Value] = field(default_factory=set)
    """What was ever leased, or may have been."""
    promised: dict[Value, int] = field(default_factory=dict)
    """Settled, and never to be delivered again; with the position in the sidecar from which on that is so."""
    passed: set[Value] = field(default_factory=set)
    """What the group need not have been delivered: it began, or was once put, behind it."""
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

    def renumber(self, leased: dict[int, int]) -> None:
        """Only so many polls are told apart; which of them count as one by now is the sidecar's to say."""
        if len({*leased.values()}) < len({held.poll for held in self.held.values()}):
            self.held = {offset: held._replace(poll=leased[offset]) for offset, held in self.held.items()}

    def after(self, command: Any) -> dict[int, Held]:
        """What is leased once this was done."""
        match command:
            case Open() | ResetTo() | Forget():
                return {}
            case Settle(below=below, to=to):
                return {offset: held for offset, held in self.held.items() if offset >= below or held.poll > to}
            case GiveBack(after=after, to=to):
                return {offset: held for offset, held in self.held.items() if not after < held.poll <= to}
        return dict(self.held)


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

    def find(self, spans: Iterable[tuple[int, int]]) -> dict[int, Value]:
        offsets = (offset for first, end in spans for offset in range(first, end))
        return {offset: self.values.get(offset) or self.gone[offset] for offset in offsets}

    def forget(self, start: int) -> None:
        for offset in range(self.start, start):
            self.gone[offset] = self.values.pop(offset)
        self.start = max(self.start, start)


class Ledger:
    """Of one simulated broker, over all its lives."""

    def __init__(self) -> None:
        self.contents: defaultdict[Part, Content] = defaultdict(Content)
        self.accounts: defaultdict[tuple[GroupNumber, Part], Account] = defaultdict(Account)
        self.received: defaultdict[GroupNumber, set[Value]] = defaultdict(set)
        self.worked: defaultdict[GroupNumber, set[Value]] = defaultdict(set)
        """What a member has worked off; only this may be settled."""
        self.doubts: dict[Part, Any] = {}
        """The write to a sidecar that is under way."""
        self.crashes: list[CrashKind] = []
        """Since the sidecars were last looked at."""
        self._last_value = 0

    def new_value(self) -> Value:
        self._last_value += 1
        return Value(self._last_value)

    # Writes to a sidecar

    def begin(self, part: Part, command: Any) -> None:
        self.doubts[part] = command
        account = self.accounts[command.group, part]
        match command:
            case Lease(spans=spans):
                account.leased.update(self.contents[part].find(spans).values())
            case ResetTo(low=low):
                account.voided += 1
                self._put(account, part, low)
            case Start(low=low) if not account.marks:
                self._put(account, part, low)
            case Forget():
                del self.accounts[command.group, part]

    def _put(self, account: Account, part: Part, low: int) -> None:
        for offset, value in self.contents[part].values.items():
            if offset < low:
                account.passed.add(value)
            else:
                account.promised.pop(value, None)

    def end(self, part: Part, command: Any, position: int, low: int | None) -> list[Value]:
        """It is written. What it has settled."""
        del self.doubts[part]
        if isinstance(command, Forget):
            return []
        account = self.accounts[command.group, part]
        settled: list[Value] = []
        match command:
            case Lease(spans=spans, poll=poll):
                found = self.contents[part].find(spans)
                account.held.update((offset, Held(value, poll)) for offset, value in found.items())
            case Settle():
                rest = account.after(command)
                settled = [held.value for offset, held in account.held.items() if offset not in rest and held.value]
                account.promised.update((value, position) for value in settled)
            case ResetTo():
                account.put_at = position
        account.held = account.after(command)
        if low is not None:
            account.marks.append((position, low))
            account.floor = low
        return settled

    def answered(self, group: GroupNumber, part: Part, values: Iterable[Value]) -> None:
        """A member was told that these are committed, durably."""
        account = self.accounts[group, part]
        account.promised.update((value, 0) for value in values if value in account.promised)

    # Crashes

    def crashed(self, kind: CrashKind, durable: dict[Part, int]) -> None:
        """`durable` says up to where each sidecar has called itself so while the broker last lived."""
        self.crashes.append(kind)
        for (group, part), account in self.accounts.items():
            known = durable.get(part, 0)
            if kind == "power":
                account.promised = {value: at for value, at in account.promised.items() if at <= known}
                account.voided += account.put_at > known
            account.floor = min(account.floor, account.lowest(known if kind == "power" else None))
            command = self.doubts.get(part)
            if isinstance(command, ResetTo) and command.group == group:
                account.floor = min(account.floor, command.low)

    def reread(self, part: Part, start: int, values: dict[int, Value], end: int) -> None:
        """What a crash has left of a partition."""
        before = self.contents[part].values
        lost = any(offset >= start and values.get(offset) != value for offset, value in before.items())
        self.contents[part] = Content(start, end, values)
        if lost:
            for (_, other), account in self.accounts.items():
                account.voided += other == part

    def adopt(self, part: Part, leased: dict[GroupNumber, dict[int, int]], marks: dict[GroupNumber, int]) -> None:
        """The sidecar was looked at after a crash, and every checker agreed."""
        self.doubts.pop(part, None)
        values = self.contents[part].values
        for (group, other), account in self.accounts.items():
            if other == part:
                before = {offset: held.value for offset, held in account.held.items()}
                account.held = {
                    offset: Held(values.get(offset) or before.get(offset, Value(0)), poll)
                    for offset, poll in leased.get(group, {}).items()
                }
                account.marks = [(0, marks[group])] if group in marks else []
                account.floor = marks.get(group, 0)
                account.put_at = 0
