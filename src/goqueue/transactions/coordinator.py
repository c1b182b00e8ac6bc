"""The machine that decides about transactions: who may write in one, and whether it is committed or aborted.

A transaction is *ongoing* from its begin until it is decided about. A commit is decided by one record, of one
transaction or of many; from then on it is *committing*, and nothing can abort it. It has *ended* when every partition
that takes part has it durably; only then may it be forgotten. A transaction of which nothing is known is aborted: so
a begin, and an abort, may be lost, a decision to commit may not.

A producer has at most one ongoing transaction. Every transaction has a number of its own, which all its records carry:
what comes late, from a producer that does not know that its transaction has ended, finds it out.

Invariants: `by_producer` names the ongoing ones; a number is never given out twice; tokens of a name only grow as long
as it is remembered.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from goqueue.machine.shape import Decision
from goqueue.model import limits
from goqueue.model.errors import (
    Busy,
    Conflict,
    DamagedData,
    InvalidRequest,
    ProducerFenced,
    StaleToken,
    TransactionAborted,
    UnknownProducer,
    UnknownTransaction,
)
from goqueue.model.times import show_duration
from goqueue.model.transactions import AbortReason, TransactionState, transaction_id
from goqueue.transactions import commands, records
from goqueue.transactions.commands import Committed, Identity
from goqueue.transactions.owners import Owner, is_again, owner_of, record_of, succeed
from goqueue.transactions.records import (
    AbortDecided,
    Begun,
    CommitDecided,
    Completed,
    Event,
    Forgotten,
    Identified,
    Kept,
    NumbersReserved,
    Participant,
    Spent,
    Started,
    Stopped,
    Token,
)

_FIRST: Final = 1
_LAST_EPOCH: Final = 2**15 - 1
_NOTHING: Final = Decision((), None)

_REASONS: Final = {
    AbortReason.ASKED: "an abort was asked for",
    AbortReason.TIMED_OUT: "it was open for longer than its timeout",
    AbortReason.REINITIALISED: "its transactional id was initialised again",
    AbortReason.LOST: "the broker's machine crashed and lost some of its messages",
    AbortReason.REPLACED: "its batch was committed before",
}


class Transaction(msgspec.Struct):
    """Changed only by what the log says."""

    number: int
    producer_id: int
    epoch: int
    transactional_id: str
    name: str
    began_at: int
    timeout_ms: int
    state: TransactionState = TransactionState.ONGOING
    decided_at: int = 0
    reason: AbortReason | None = None
    participants: tuple[Participant, ...] = ()
    """From the decision to commit it until all of them have it."""

    @property
    def transaction_id(self) -> str:
        return transaction_id(self.number)

    @property
    def is_open(self) -> bool:
        return self.state is TransactionState.ONGOING

    @property
    def is_complete(self) -> bool:
        """Whether every partition has heard of it."""
        return self.state in (TransactionState.COMMITTED, TransactionState.ABORTED)

    @property
    def is_committed(self) -> bool:
        return self.state in (TransactionState.COMMITTING, TransactionState.COMMITTED)

    def end_again(self, now: int, wall: int) -> int:
        """When its time is over, on a clock that never steps, if it began in an earlier life."""
        return now + min(max(self.began_at + self.timeout_ms - wall, 0), self.timeout_ms)


class Writer(NamedTuple):
    """Who says that it writes in a transaction."""

    producer_id: int
    epoch: int
    transactional_id: str = ""


class Transactions:
    """One for a broker."""

    name = "transactions"

    def __init__(self) -> None:
        self._decisions: dict[type, Callable[[Any, int], Decision]] = {
            commands.Identify: self._decide_identify,
            commands.Begin: self._decide_begin,
            commands.Commit: self._decide_commit,
            commands.CommitMany: self._decide_commit_many,
            commands.Abort: self._decide_abort,
            commands.Complete: self._decide_complete,
            commands.ForgetIdle: self._decide_forget_idle,
            commands.Stop: lambda *_: _decided(None, Stopped()),
            commands.Start: lambda *_: _decided(None, Started()) if self.is_stopped else _NOTHING,
        }
        self._changes: dict[type, Callable[[Any], None]] = {
            NumbersReserved: self._apply_reserved,
            Identified: self._apply_identified,
            Begun: self._apply_begun,
            CommitDecided: self._apply_commit,
            AbortDecided: self._apply_abort,
            Completed: self._apply_completed,
            Forgotten: self._apply_forgotten,
            Stopped: lambda _: None,
            Started: lambda _: None,
            Kept: self._apply_kept,
            Token: self._apply_token,
            Spent: self._apply_spent,
        }
        self.reset()

    def reset(self) -> None:
        self.owners: dict[str, Owner] = {}
        """By transactional id."""
        self._epochs: dict[int, int] = {}
        """Of producer ids that belong to a transactional id: the epoch that may write."""
        self._names: dict[int, str] = {}
        """Of the same producers: the transactional id."""
        self._last: dict[int, int] = {}
        """By producer the last of its transactions that is remembered."""
        self.by_number: dict[int, Transaction] = {}
        """All that are known, the oldest first."""
        self.by_producer: dict[int, int] = {}
        self._ended: dict[int, None] = {}
        """In the order in which they ended."""
        self.tokens: dict[str, int] = {}
        """By name the last number that was committed; the names in the order in which they were last used."""
        self.is_stopped = False
        """Whether the last thing that was written is that everything is durable."""
        self.reserved = self._next = _FIRST

    def begin_life(self) -> None:
        """After a restart, before the first command: whatever was reserved counts as given out."""
        self._next = self.reserved

    # --- looking

    def transaction(self, number: int) -> Transaction:
        found = self.by_number.get(number)
        if found is None:
            raise UnknownTransaction(
                f"there is no transaction {transaction_id(number)}; of those that have ended the last "
                f"{limits.TRANSACTIONS_REMEMBERED} are remembered"
            )
        return found

    @property
    def open(self) -> list[Transaction]:
        return [self.by_number[number] for number in self.by_producer.values()]

    @property
    def deciding(self) -> list[Transaction]:
        """Decided about, and not everybody may have it."""
        return [found for found in self.by_number.values() if not found.is_open and not found.is_complete]

    def named(self, name: str) -> list[Transaction]:
        """The ongoing ones that were begun under a name."""
        return [found for found in self.open if found.name == name]

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuse a producer that was replaced, whatever it wants."""
        known = self._epochs.get(producer_id)
        if known is None or epoch == known:
            return
        if epoch > known:
            raise InvalidRequest(f"producer {producer_id} is in epoch {known}; there is no epoch {epoch}")
        raise ProducerFenced(
            f"producer {producer_id} has been taken over by epoch {known}: its transactional id was initialised again; "
            f"epoch {epoch} must stop"
        )

    def check_writer(self, writer: Writer) -> None:
        """Refuse who does not own the transactional id it names, or was replaced."""
        self.check_epoch(writer.producer_id, writer.epoch)
        if not writer.transactional_id:
            return
        owner = self.owners.get(writer.transactional_id)
        if owner is None:
            raise UnknownProducer(
                f"nobody has the transactional id {writer.transactional_id!r}; initialise a producer with it"
            )
        if owner.producer_id != writer.producer_id:
            raise ProducerFenced(
                f"the transactional id {writer.transactional_id!r} belongs to producer {owner.producer_id}, not to "
                f"{writer.producer_id}"
            )

    def writing(self, number: int, producer_id: int, epoch: int) -> Transaction:
        """The transaction, if it is ongoing and this producer's. For every block that is published in one."""
        found = self.transaction(number)
        if found.producer_id != producer_id or found.epoch != epoch:
            self.check_epoch(producer_id, epoch)
            raise Conflict(f"{found.transaction_id} was begun by another producer; begin one of your own")
        if not found.is_open:
            raise ended(found)
        return found

    def of(self, writer: Writer, number: int | None) -> Transaction:
        """The transaction of that number, or the one the writer has open; it must be the writer's."""
        self.check_writer(writer)
        if number is None:
            number = self.by_producer.get(writer.producer_id)
            if number is None:
                last = self.by_number.get(self._last.get(writer.producer_id, 0))
                if last is not None and last.epoch == writer.epoch and not last.is_committed:
                    raise ended(last)
                raise Conflict(f"producer {writer.producer_id} has no open transaction; begin one")
        found = self.transaction(number)
        if found.producer_id != writer.producer_id:
            raise Conflict(f"{found.transaction_id} was begun by another producer; begin one of your own")
        if found.epoch != writer.epoch:
            raise ProducerFenced(f"{found.transaction_id} was begun in epoch {found.epoch}, not in {writer.epoch}")
        return found

    # --- the shape of a machine

    def decide(self, command: Any, now: int) -> Decision:
        return self._decisions[type(command)](command, now)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
            self._changes[type(event)](event)
        except (msgspec.DecodeError, LookupError) as error:
            raise DamagedData(
                f"offset {offset} of the transactions log is not understood ({error}); start the version that wrote it"
            ) from error
        self.is_stopped = isinstance(event, Stopped)

    def snapshot(self) -> Iterable[bytes]:
        """Those that have ended come first, in the order in which they did."""
        yield records.encode(NumbersReserved(self.reserved))
        for name, owner in self.owners.items():
            yield records.encode(record_of(name, owner))
        for producer_id, epoch in self._epochs.items():
            if epoch > _LAST_EPOCH:
                yield records.encode(Spent(producer_id))
        for name, number in self.tokens.items():
            yield records.encode(Token(name, number))
        others = [number for number in self.by_number if number not in self._ended]
        for number in [*self._ended, *others]:
            kept = msgspec.structs.astuple(self.by_number[number])
            yield records.encode(Kept(*kept))

    # --- decisions

    def _decide_identify(self, command: commands.Identify, now: int) -> Decision:
        owner = self.owners.get(command.transactional_id)
        if owner is None and len(self.owners) >= limits.MAX_TRANSACTIONAL_IDS:
            raise Busy(f"there are {len(self.owners)} transactional ids, which is the most; use fewer, or old ones")
        if owner is not None and is_again(owner, command):
            return Decision((), Identity(owner.producer_id, owner.epoch, ()))
        producer_id, epoch = command.producer_id, 0
        if owner is not None and owner.epoch < _LAST_EPOCH:
            producer_id, epoch = owner.producer_id, owner.epoch + 1
        successor = succeed(owner, command, producer_id=producer_id, epoch=epoch, now=now)
        events: list[Event] = []
        number = None if owner is None else self.by_producer.get(owner.producer_id)
        aborted = () if number is None else (number,)
        if aborted:
            events.append(AbortDecided(aborted, AbortReason.REINITIALISED, now))
        events.append(record_of(command.transactional_id, successor))
        return _decided(Identity(producer_id, epoch, aborted), *events)

    def _decide_begin(self, command: commands.Begin, now: int) -> Decision:
        self.check_writer(Writer(command.producer_id, command.epoch, command.transactional_id))
        current = self.by_producer.get(command.producer_id)
        if current is not None:
            raise Conflict(
                f"producer {command.producer_id} has {transaction_id(current)} open; commit or abort it first, or "
                "initialise another producer"
            )
        if len(self.by_producer) >= limits.MAX_OPEN_TRANSACTIONS:
            raise Busy(f"{len(self.by_producer)} transactions are open, which is the most; try again")
        number = self._next
        self._next += 1
        events: list[Event] = []
        if number >= self.reserved:
            events.append(NumbersReserved(number + limits.TRANSACTION_NUMBERS_RESERVED))
        transactional_id = self._names.get(command.producer_id, "")
        owner = self.owners.get(transactional_id)
        usual = limits.DEFAULT_TRANSACTION_MS if owner is None else owner.timeout_ms
        timeout_ms = usual if command.timeout_ms is None else command.timeout_ms
        begun = Begun(number, command.producer_id, command.epoch, transactional_id, command.name, now, timeout_ms)
        return _decided(number, *events, begun)

    def _decide_commit(self, command: commands.Commit, now: int) -> Decision:
        found = self.transaction(command.number)
        if found.is_committed:
            return Decision((), Committed((found.number,), True))
        if not found.is_open:
            raise ended(found)
        event = CommitDecided((found.number,), command.participants, now)
        return _decided(Committed(event.numbers, False), event)

    def check_many(self, name: str, token: int, numbers: Iterable[int]) -> bool:
        """Whether that token was committed before; raises when these cannot be committed under it."""
        last = self.tokens.get(name)
        if last is not None and token < last:
            raise StaleToken(f"{last} was committed under {name!r}, and {token} is lower: it is too late for it")
        if token == last:
            return True
        for number in numbers:
            found = self.transaction(number)
            if not found.is_open:
                raise ended(found)
            if found.name != name:
                raise Conflict(f"{found.transaction_id} was begun under {found.name!r}, not under {name!r}")
        return False

    def _decide_commit_many(self, command: commands.CommitMany, now: int) -> Decision:
        if self.check_many(command.name, command.token, command.numbers):
            left = tuple(
                number
                for number in command.numbers
                if (found := self.by_number.get(number)) is not None and found.is_open and found.name == command.name
            )
            events = [AbortDecided(left, AbortReason.REPLACED, now)] if left else []
            return _decided(Committed((), True, left), *events)
        event = CommitDecided(command.numbers, command.participants, now, command.name, command.token)
        return _decided(Committed(command.numbers, False), event)

    def _decide_abort(self, command: commands.Abort, now: int) -> Decision:
        left = tuple(
            number for number in command.numbers if (found := self.by_number.get(number)) is not None and found.is_open
        )
        return _decided(left, AbortDecided(left, command.reason, now)) if left else Decision((), left)

    def _decide_complete(self, command: commands.Complete, now: int) -> Decision:
        return _decided(None, Completed(command.numbers))

    def _decide_forget_idle(self, command: commands.ForgetIdle, now: int) -> Decision:
        idle = tuple(
            name
            for name, owner in self.owners.items()
            if owner.used_at < command.before and owner.producer_id not in self.by_producer
        )
        return _decided(idle, Forgotten(idle)) if idle else Decision((), idle)

    # --- changes

    def _apply_reserved(self, event: NumbersReserved) -> None:
        self.reserved = event.below

    def _apply_identified(self, event: Identified) -> None:
        before = self.owners.get(event.transactional_id)
        if before is not None and before.producer_id != event.producer_id:
            self._apply_spent(Spent(before.producer_id))
        self.owners[event.transactional_id] = owner_of(event)
        self._epochs[event.producer_id] = event.epoch
        self._names[event.producer_id] = event.transactional_id

    def _apply_begun(self, event: Begun) -> None:
        self.by_number[event.number] = Transaction(
            event.number,
            event.producer_id,
            event.epoch,
            event.transactional_id,
            event.name,
            event.at,
            event.timeout_ms,
        )
        self.by_producer[event.producer_id] = self._last[event.producer_id] = event.number
        owner = self.owners.get(event.transactional_id)
        if owner is not None:
            owner.used_at = event.at

    def _apply_commit(self, event: CommitDecided) -> None:
        for number in event.numbers:
            found = self._decide_now(number, TransactionState.COMMITTING, event.at)
            found.participants = event.participants
        if event.name:
            self._keep_token(event.name, event.token)

    def _apply_abort(self, event: AbortDecided) -> None:
        for number in event.numbers:
            self._decide_now(number, TransactionState.ABORTING, event.at).reason = event.reason

    def _decide_now(self, number: int, state: TransactionState, at: int) -> Transaction:
        found = self.by_number[number]
        found.state = state
        found.decided_at = at
        del self.by_producer[found.producer_id]
        return found

    def _apply_completed(self, event: Completed) -> None:
        for number in event.numbers:
            found = self.by_number.get(number)
            if found is not None and not found.is_open:
                found.state = TransactionState.COMMITTED if found.is_committed else TransactionState.ABORTED
                self._keep_ended(found)

    def _keep_ended(self, found: Transaction) -> None:
        found.participants = ()  # nobody asks any more, and a batch has as many for each of its transactions
        self._ended[found.number] = None
        if len(self._ended) > limits.TRANSACTIONS_REMEMBERED:
            oldest = next(iter(self._ended))
            gone = self.by_number.pop(oldest)
            del self._ended[oldest]
            if self._last.get(gone.producer_id) == oldest:
                del self._last[gone.producer_id]

    def _apply_forgotten(self, event: Forgotten) -> None:
        for name in event.transactional_ids:
            owner = self.owners.pop(name, None)
            if owner is not None:
                self._epochs.pop(owner.producer_id, None)
                self._names.pop(owner.producer_id, None)

    def _apply_kept(self, event: Kept) -> None:
        found = self.by_number[event.number] = Transaction(*msgspec.structs.astuple(event))
        self._last[found.producer_id] = max(found.number, self._last.get(found.producer_id, 0))
        if found.is_open:
            self.by_producer[found.producer_id] = found.number
        elif found.is_complete:
            self._keep_ended(found)

    def _apply_token(self, event: Token) -> None:
        self._keep_token(event.name, event.number)

    def _keep_token(self, name: str, number: int) -> None:
        self.tokens.pop(name, None)
        self.tokens[name] = number
        if len(self.tokens) > limits.MAX_TOKENS:
            del self.tokens[next(iter(self.tokens))]

    def _apply_spent(self, event: Spent) -> None:
        self._epochs[event.producer_id] = _LAST_EPOCH + 1
        self._names.pop(event.producer_id, None)


def ended(found: Transaction) -> Conflict:
    """Why nothing more can be done in it."""
    if found.is_committed:
        return Conflict(f"{found.transaction_id} was committed; begin another one")
    reason = _REASONS.get(found.reason or AbortReason.ASKED, "it was aborted")
    lasted = f" ({show_duration(found.timeout_ms)})" if found.reason is AbortReason.TIMED_OUT else ""
    return TransactionAborted(
        f"{found.transaction_id} was aborted: {reason}{lasted}; begin another one and do it again"
    )


def _decided(reply: object, *events: Event) -> Decision:
    return Decision([records.encode(event) for event in events], reply)
