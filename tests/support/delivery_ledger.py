"""What publishers, consumers and an operator of one topic saw, and what the broker must therefore have done.

Whatever they ask for is written down before it goes out, and again when it is answered; what has no answer may have
been done or not. Messages are known by numbers in their values, never by their offsets alone. Times are Unix
milliseconds of this machine, whose clock the broker uses too; events are in the order in which they were seen.

The demands, a method of `History` each: what was settled is not delivered again; what was cancelled never is; nothing
is delivered before its time; nobody is given what another one has; deliveries are counted, and there are no more of
them than the topic allows; a handle that is good is not refused; a dead letter is written once, for a reason, and
published again once; and in the end every message that was acknowledged to its publisher is acked, dead or cancelled.

A broker that is killed forgets nothing it has written. One whose power was cut may forget leases, for which nobody
waits: then what was delivered before may come again at once, and counts as if it had not been delivered.
"""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from tests.chaos.ledger import Lost, Phantom, Violation

DONE: Final = ""
STALE: Final = "stale_handle"
NOT_TOLD: Final = 0
_ROUNDING_MS: Final = 2
"""Two clocks that count milliseconds, read one after the other."""


class DeliveredAgain(Violation):
    """What was settled, or is with somebody, came again."""


class Early(Violation):
    """Something was delivered before its time."""


class Uncounted(Violation):
    """Deliveries were not counted, or there were too many."""


class Refused(Violation):
    """A handle was refused that had to be accepted."""


class WrongLetter(Violation):
    """A dead letter is there twice, without a reason, or is not there."""


# ---------------------------------------------------------------- events


class Place(NamedTuple):
    partition: int
    offset: int


class Verb(StrEnum):
    """What can be asked about one message."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "extend"
    CANCEL = "cancel"
    MOVE = "move"


class Event(msgspec.Struct, frozen=True):
    at: int


class Sending(Event, frozen=True):
    """`deliver_at` is the earliest time it may be due at; 0 for at once."""

    number: int
    lane: int = 2
    key: str | None = None
    deliver_at: int = 0


class Sent(Event, frozen=True):
    """It was acknowledged."""

    number: int
    place: Place
    deliver_at: int = 0


class Received(Event, frozen=True):
    """`asked_at` is when the poll was sent: the lease was not made before that. It is for `lease_ms`."""

    asked_at: int
    group: str
    number: int
    place: Place
    poll: int
    deliveries: int
    lease_ms: int
    lane: int = 2
    key: str | None = None


class Asking(Event, frozen=True):
    """`poll` and `deliveries` are of the handle's delivery. `value` is the span of an extend, the time of a move."""

    request: int
    verb: Verb
    number: int
    place: Place
    group: str = ""
    poll: int = 0
    deliveries: int = 0
    value: int = 0


class Answered(Event, frozen=True):
    """`code` is of the error, or DONE. `visible_at` is when it is tried again; without one a nack made it dead.

    Who is not told what became of a nack says NOT_TOLD.
    """

    request: int
    code: str = DONE
    visible_at: int | None = None


class Ended(Event, frozen=True):
    """The broker was killed; or its power was cut, and it `forgets` leases."""

    forgets: bool = False


AnyEvent = Sending | Sent | Received | Asking | Answered | Ended


class Letter(NamedTuple):
    """A dead letter as it is found in the end. `number` and `place` are those of the message that died."""

    group: str
    number: int
    place: Place
    deliveries: int
    reason: str


class Rules(NamedTuple):
    """What the topic says, and who reads it."""

    groups: tuple[str, ...]
    max_retries: int
    redriven: bool = False
    """Whether dead letters were published again: then there is one more copy of a message for each."""


# ---------------------------------------------------------------- what it adds up to


class Request(NamedTuple):
    """Something that was asked, with its answer if there was one."""

    asked: Asking
    answered: Answered | None

    @property
    def is_done(self) -> bool:
        return self.answered is not None and self.answered.code == DONE

    @property
    def in_doubt(self) -> bool:
        return self.answered is None

    @property
    def settles(self) -> bool:
        """Whether the broker said that the message is not delivered any more."""
        if not self.is_done:
            return False
        assert self.answered is not None
        verb = self.asked.verb
        return verb in (Verb.ACK, Verb.REJECT) or (verb is Verb.NACK and self.answered.visible_at is None)


class Copy(NamedTuple):
    """A message in the log. There is one of each number, unless dead letters are published again."""

    number: int
    place: Place


class Told(NamedTuple):
    """One group and one message: what it was delivered and what it asked, in order."""

    group: str
    copy: Copy
    deliveries: list[Received]
    requests: list[Request]

    def __str__(self) -> str:
        return f"message {self.copy.number} at {tuple(self.copy.place)}, group {self.group}"


class History:
    """Of one run, when everything is over."""

    def __init__(self, events: Iterable[AnyEvent], letters: Sequence[Letter], rules: Rules) -> None:
        self.rules = rules
        self.letters = letters
        self.sending: dict[int, Sending] = {}
        self.sent: dict[int, Sent] = {}
        self.received: list[Received] = []
        self.endings: list[Ended] = []
        asked: list[Asking] = []
        answers: dict[int, Answered] = {}
        for event in events:
            match event:
                case Sending():
                    self.sending[event.number] = event
                case Sent():
                    self.sent[event.number] = event
                case Received():
                    self.received.append(event)
                case Asking():
                    asked.append(event)
                case Answered():
                    answers[event.request] = event
                case Ended():
                    self.endings.append(event)
        self.requests = [Request(each, answers.get(each.request)) for each in asked]
        self._forgotten = [each.at for each in self.endings if each.forgets]
        self._dead = {(letter.group, _copy(letter)) for letter in letters}
        self._of_delay: dict[Copy, list[Request]] = defaultdict(list)
        """Cancels and moves."""
        self._told: dict[tuple[str, Copy], Told] = {}
        for delivery in self.received:
            self._of(delivery.group, _copy(delivery)).deliveries.append(delivery)
        for request in self.requests:
            if request.asked.verb in (Verb.CANCEL, Verb.MOVE):
                self._of_delay[_copy(request.asked)].append(request)
            else:
                self._of(request.asked.group, _copy(request.asked)).requests.append(request)

    def _of(self, group: str, copy: Copy) -> Told:
        found = self._told.get((group, copy))
        if found is None:
            found = self._told[group, copy] = Told(group, copy, [], [])
        return found

    def _life(self, at: int) -> int:
        """How many power cuts there had been by then."""
        return bisect(self._forgotten, at)

    # --- the demands

    def check(self) -> None:
        self.check_messages()
        self.check_settled()
        self.check_cancelled()
        self.check_times()
        self.check_counts()
        self.check_leases()
        self.check_refusals()
        self.check_letters()
        self.check_copies()
        self.check_lost()

    def check_messages(self) -> None:
        """Everything that is delivered was published, and is as it was published."""
        for each in self.received:
            sending = self.sending.get(each.number)
            if sending is None:
                raise Phantom(f"nobody published message {each.number}: {each}")
            if (each.lane, each.key) != (sending.lane, sending.key):
                raise Phantom(f"{sending} was delivered as {each}")

    def check_copies(self) -> None:
        """A message is there once, and once more for each of its dead letters, if they were published again.

        One that was delivered and then lost with the power is published again once more.
        """
        places = {number: {sent.place} for number, sent in self.sent.items()}
        for each in self.received:
            places.setdefault(each.number, set()).add(each.place)
        letters = Counter(copy.number for _, copy in self._dead if self.rules.redriven)
        for number, found in places.items():
            if len(found) > 1 + letters[number] and not self._forgotten:
                raise Phantom(f"message {number} had {letters[number]} letters to redrive, and is at {sorted(found)}")
            if len(found) < 1 + letters[number]:
                raise Lost(f"message {number} had {letters[number]} letters to redrive, and is only at {sorted(found)}")

    def check_settled(self) -> None:
        """Once an ack, a reject or a last nack was answered the group is not delivered the message any more.

        The reply to a poll of before may be read late. It is told by its count, and by when it was asked for.
        """
        for told in self._told.values():
            for request in told.requests:
                if not request.settles:
                    continue
                assert request.answered is not None
                for each in told.deliveries:
                    same_life = self._same_life(each.at, request.asked.at)
                    if not same_life and self._may_be_gone(told.copy):
                        continue  # it is another one, which took the lost one's place
                    later = each.deliveries > request.asked.deliveries and same_life
                    if later or each.asked_at > request.answered.at:
                        raise DeliveredAgain(f"{told}: settled by {request}, and yet there is {each}")

    def _same_life(self, one: int, other: int) -> bool:
        return self._life(one) == self._life(other)

    def check_cancelled(self) -> None:
        """Only what is pending can be cancelled: whenever it was delivered, the cancel or the delivery was wrong."""
        for each in self.received:
            for request in self._of_delay.get(_copy(each), ()):
                if request.asked.verb is Verb.CANCEL and request.is_done:
                    raise DeliveredAgain(f"message {each.number} was cancelled by {request}, and yet there is {each}")

    def check_times(self) -> None:
        """Nothing comes before it is due, nor before the time that a nack was told."""
        for each in self.received:
            due = min(self._due_times(each))
            if each.at < due:
                raise Early(f"message {each.number} is due at {due}, {due - each.at} ms after {each}")
        for told in self._told.values():
            for request in told.requests:
                answer = request.answered
                if request.asked.verb is not Verb.NACK or answer is None or answer.visible_at is None:
                    continue
                for each in told.deliveries:
                    is_later = each.deliveries > request.asked.deliveries and each.at >= request.asked.at
                    if is_later and each.at < answer.visible_at - _ROUNDING_MS:
                        raise Early(f"{told}: {request}, and yet there is {each}")

    def _due_times(self, delivery: Received) -> list[int]:
        """When the message may have been due, as far as anybody knew when it was delivered."""
        sent = self.sent.get(delivery.number)
        if sent is not None and sent.place != delivery.place:
            return [0]  # it died and was published again, not delayed
        times = [self.sending[delivery.number].deliver_at if sent is None else sent.deliver_at]
        for request in self._of_delay.get(_copy(delivery), ()):
            if request.asked.verb is not Verb.MOVE or request.asked.at > delivery.at:
                continue
            if request.answered is not None and request.answered.at <= delivery.at:
                times = [request.asked.value] if request.is_done else times
            else:
                times.append(request.asked.value)
        return times

    def check_counts(self) -> None:
        """Every delivery has a number of its own, and the last one is what the topic allows."""
        most = self.rules.max_retries + 1
        for told in self._told.values():
            seen: set[tuple[int, int]] = set()
            for each in told.deliveries:
                if not 1 <= each.deliveries <= most:
                    raise Uncounted(f"{told}: at most {most} deliveries, and yet there is {each}")
                count = self._life(each.at), each.deliveries
                if count in seen:
                    raise Uncounted(f"{told}: two deliveries are the {each.deliveries}.; the later one: {each}")
                seen.add(count)

    def check_leases(self) -> None:
        """While somebody has a message nobody else is given it, unless it was given back."""
        for told in self._told.values():
            deliveries = sorted(told.deliveries, key=lambda each: (self._life(each.at), each.deliveries))
            for one, other in pairwise(deliveries):
                if self._same_life(one.at, other.at) and other.at < self._held_until(told, one, other.at):
                    raise DeliveredAgain(f"{told}: {one} lasts, and yet there is {other}")

    def _held_until(self, told: Told, delivery: Received, by: int) -> int:
        """The earliest time at which its lease is over, as far as was asked `by` then. 0 if it may have ended early."""
        until = delivery.asked_at + delivery.lease_ms
        for request in _about(told, delivery):
            if request.asked.at > by:
                continue
            if request.asked.verb is not Verb.EXTEND:
                return 0
            if request.is_done:
                until = max(until, request.asked.at + request.asked.value)
        return until - _ROUNDING_MS

    def check_refusals(self) -> None:
        """Whoever has a message for sure may say what becomes of it."""
        for told in self._told.values():
            for delivery in told.deliveries:
                earlier = told._replace(requests=[])
                for request in _about(told, delivery):
                    answer = request.answered
                    if answer is not None and answer.code not in (DONE, STALE):
                        raise Refused(f"{told}: {request}")
                    if (
                        answer is not None
                        and answer.code == STALE
                        and self._same_life(delivery.at, answer.at)
                        and answer.at < self._held_until(earlier, delivery, answer.at)
                    ):
                        raise Refused(f"{told}: {delivery} lasts, and yet {request}")
                    earlier.requests.append(request)

    def check_letters(self) -> None:
        """Once for each message and group, for a reason, and always when it was said."""
        written = Counter((letter.group, _copy(letter)) for letter in self.letters)
        for (group, copy), count in written.items():
            if count > 1 and not self._may_be_gone(copy):
                raise WrongLetter(f"{count} dead letters are about {copy} and group {group}")
        for letter in self.letters:
            self._check_letter(letter)
        for told in self._told.values():
            if (told.group, told.copy) in self._dead or self._may_be_gone(told.copy):
                continue
            for request in told.requests:
                if request.settles and request.asked.verb is not Verb.ACK:
                    raise WrongLetter(f"{told}: {request}, and yet there is no dead letter")

    def _may_be_gone(self, copy: Copy) -> bool:
        """Whether it may have been lost with the power, because nobody was told that it is durable.

        Then nothing is left to write a letter about; and a dead letter that is published again may take its place.
        """
        sent = self.sent.get(copy.number)
        return bool(self._forgotten) and (sent is None or sent.place != copy.place)

    def _check_letter(self, letter: Letter) -> None:
        told = self._told.get((letter.group, _copy(letter)))
        if told is None:
            raise WrongLetter(f"{letter} is about a message that the group was never delivered")
        most = self.rules.max_retries + 1
        asked = {request.asked.verb for request in told.requests}
        reasons = {
            "rejected": Verb.REJECT in asked and letter.deliveries <= most,
            "nacked": Verb.NACK in asked and letter.deliveries == most,
            "lapsed": letter.deliveries == most,
        }
        if not reasons.get(letter.reason, False):
            raise WrongLetter(f"{letter}: for that there is no reason in {told.deliveries}, {told.requests}")
        acked = any(request.is_done and request.asked.verb is Verb.ACK for request in told.requests)
        if acked and not self._may_be_gone(told.copy):
            raise WrongLetter(f"{letter} is about a message that was acked: {told.requests}")

    def check_lost(self) -> None:
        """In the end nothing is left that anybody would still have to be delivered.

        What was delivered and is not known to be durable may be lost with the power.
        """
        copies = {Copy(number, sent.place) for number, sent in self.sent.items()}
        if not self._forgotten:
            copies |= {_copy(each) for each in self.received}
        for copy in copies:
            if any(each.asked.verb is Verb.CANCEL and _may_be_done(each) for each in self._of_delay.get(copy, ())):
                continue
            for group in self.rules.groups:
                told = self._told.get((group, copy))
                requests = [] if told is None else told.requests
                if (group, copy) in self._dead or any(
                    each.asked.verb is Verb.ACK and _may_be_done(each) for each in requests
                ):
                    continue
                how = "was not delivered" if told is None else f"was delivered {told.deliveries}, {told.requests}"
                raise Lost(f"{copy} {how} to group {group}, and is neither acked nor dead nor cancelled")

    # --- for the report

    def unanswered(self, since: int, until: int) -> int:
        """Requests that went out in this time and had no answer."""
        sent = sum(each.number not in self.sent for each in self.sending.values() if since <= each.at <= until)
        return sent + sum(each.in_doubt for each in self.requests if since <= each.asked.at <= until)

    @property
    def redriven(self) -> int:
        """Deliveries of dead letters that were published again."""
        return sum(each.number in self.sent and self.sent[each.number].place != each.place for each in self.received)

    def done(self, verb: Verb) -> int:
        """How often it was asked and answered."""
        return sum(each.is_done for each in self.requests if each.asked.verb is verb)


def _copy(one: Received | Asking | Letter) -> Copy:
    return Copy(one.number, one.place)


def _about(told: Told, delivery: Received) -> Iterator[Request]:
    """What was asked with the handle of this delivery."""
    return (each for each in told.requests if each.asked.poll == delivery.poll)


def _may_be_done(request: Request) -> bool:
    return request.is_done or request.in_doubt
