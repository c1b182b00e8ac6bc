"""Transactions: begun, written in, committed together with acks, aborted; and what is done about those left behind.

What is decided, and when, is the coordinator's business (`transactions.coordinator`), in which order things become
durable that of `transactions.ending`, and who takes part and has heard that of `broker.participants`. Nothing is lost
with this object but counters.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from goqueue.base.deadlines import Deadlines
from goqueue.broker.participants import Part, Participants, transactions_in
from goqueue.broker.partition import Partition
from goqueue.broker.timer import Timer
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.broker.waiting import until
from goqueue.machine.host import Host, Outcome
from goqueue.model import limits
from goqueue.model.errors import Conflict, GoQueueError, LogClosed, StorageFailed, TransactionAborted, Unavailable
from goqueue.model.record import Producer
from goqueue.model.transactions import AbortReason, TransactionState, transaction_id
from goqueue.storage.driver import OnFailure
from goqueue.storage.log import Log
from goqueue.storage.store import Store
from goqueue.telemetry import logs
from goqueue.transactions import commands
from goqueue.transactions.commands import Abort, Begin, Committed, Complete, ForgetIdle, Former, Identify, Identity
from goqueue.transactions.coordinator import Transaction, Transactions, ended
from goqueue.transactions.ending import Durable, decide_commit, tell
from goqueue.transactions.records import Participant

log = logs.get("transactions")

T = TypeVar("T")

_RETRY_MS: Final = 1000
_FORGET_EVERY_MS: Final = 3600 * 1000
_STOP_S: Final = 5.0
_STOPPING: Final = "the broker is stopping; try again"


class TransactionRunner:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        store: Store,
        log: Log,
        topics: TopicCatalogue,
        participants: Participants,
        new_producer: Callable[[], Awaitable[int]],
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        on_failure: OnFailure,
    ) -> None:
        self._store = store
        self._topics = topics
        self._participants = participants
        self._new_producer = new_producer
        self._clock = clock
        self._monotonic = monotonic
        self._on_failure = on_failure
        self.machine = Transactions()
        self.host = Host(log, (self.machine,))
        self._is_sure = self.machine.is_stopped
        self.machine.begin_life()
        self._closing: Counter[int] = Counter()
        """Those that are about to be decided about: nothing more comes in."""
        self._unsure: set[int] = set()
        """Open since before a life that did not end well, or before a start that did not find everything: something of
        them may have been lost, or is not there now."""
        self._reserved_at = 0
        """Where numbers were last reserved: until that is durable none of them may be told."""
        self._decided_at = 0
        """Where something was decided last: until that is durable nobody may be told what it is."""
        self._told: dict[int, list[Durable]] = {}
        """Decided, and every partition has heard: when this is durable they are complete."""
        self._deadlines: Deadlines[int] = Deadlines()
        self._timer = Timer(lambda: self._deadlines.earliest, monotonic, self._time_out)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._forgets_at = monotonic() + _FORGET_EVERY_MS
        self._seen: dict[int, int] = {}
        """When producers of open transactions were last heard of."""
        self.counts: Counter[str] = Counter()
        """Since the start: begun, committed, and aborted by reason."""

    # --- beginning and ending a life

    async def start(self) -> None:
        """Once the topics are open: go on with what was decided, and drop what nobody knows."""
        machine = self.machine
        if self._is_sure:
            started = self._submit(commands.Start())
            await self._durable([Durable(self.host.log, started.position)])  # else the next life is sure of this one
        if not self._is_sure or not self._topics.is_whole:
            self._unsure = {found.number for found in machine.open}
        now, wall = self._monotonic(), self._clock()
        for found in machine.open:
            self._deadlines.arm(found.number, found.end_again(now, wall))
        for topic in list(self._topics.by_id.values()):
            self.follow(topic)
        for found in machine.deciding:
            self._told.setdefault(found.number, [])
        self._timer.arm()

    def follow(self, topic: OpenTopic) -> None:
        """A topic was opened, or has new partitions: what they have of transactions is looked at."""
        for partition in topic.partitions:
            for number in transactions_in(partition):
                self._adopt(partition, number)

    def _adopt(self, partition: Partition, number: int) -> None:
        found = self.machine.by_number.get(number)
        if found is None:
            self._participants.drop(number, partition)
            return
        self.take_part(number, partition)
        if not found.is_open:
            self._tell_one(number)

    async def stop(self) -> None:
        self._timer.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        numbers = [found.number for found in self.machine.open]
        try:
            await self._durable(
                [each for number in numbers for site in self._participants.sites((number,)) for each in site.saved()]
            )
            if numbers and self._unsure.isdisjoint(numbers):  # what was lost in a life before stays lost
                self._submit(commands.Stop())
        except GoQueueError as error:  # then the next life is not sure
            log.warning("transactions are open, and not all is durable", reason=str(error))

    # --- what happens by itself

    async def look(self) -> None:
        """Once a second: what was told and is durable by now is complete."""
        self._participants.catch_up()
        complete = []
        for count, number in enumerate(list(self._told), 1):
            if not self._is_told(number):
                self._tell_one(number)
            left = self._told[number] = [each for each in self._told[number] if not _is_over(each)]
            for each in left:
                each.log.hasten()
            if not left and self._is_told(number):
                complete.append(number)
            if count % limits.TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)
        if complete:
            self._submit(Complete(tuple(complete)))
            for number in complete:
                del self._told[number]
                self._participants.forget(number)
        if self._monotonic() >= self._forgets_at:
            self._forgets_at = self._monotonic() + _FORGET_EVERY_MS
            self._submit(ForgetIdle(self._clock() - limits.TRANSACTIONAL_ID_EXPIRY_MS))

    def _is_told(self, number: int) -> bool:
        found = self.machine.by_number.get(number)
        return self._participants.have_heard(number, () if found is None else found.participants)

    def _time_out(self) -> None:
        due = tuple(self._deadlines.due(self._monotonic()))
        left = tuple(number for number in due if self._is_open(number))
        if left:
            self._spawn(self._abort_late(left))
        self._timer.arm()

    async def _abort_late(self, numbers: tuple[int, ...]) -> None:
        try:
            await self._abort(numbers, AbortReason.TIMED_OUT)
        except GoQueueError as error:
            log.warning("transactions that are over time will be aborted later", reason=str(error))
            for number in numbers:
                self._deadlines.arm(number, self._monotonic() + _RETRY_MS)
            self._timer.arm()

    async def _finished(self, work: Coroutine[Any, Any, T]) -> T:
        """It is finished for its own sake: whoever asked may have left."""
        return await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _is_open(self, number: int) -> bool:
        found = self.machine.by_number.get(number)
        return found is not None and found.is_open

    # --- producers

    async def identify(
        self, transactional_id: str, timeout_ms: int, *, incarnation: str = "", former: Former | None = None
    ) -> Identity:
        """A program takes this id, and whoever had it before must stop; or it goes on from `former` in a new epoch."""
        return await self._finished(self._identify(transactional_id, timeout_ms, incarnation, former))

    async def _identify(
        self, transactional_id: str, timeout_ms: int, incarnation: str, former: Former | None
    ) -> Identity:
        fresh = await self._new_producer()
        command = Identify(
            transactional_id=transactional_id,
            producer_id=fresh,
            timeout_ms=timeout_ms,
            incarnation=incarnation,
            former=former,
        )
        outcome = self._decide(command)
        await self._durable([Durable(self.host.log, outcome.position)])
        identity: Identity = self._reply(outcome)
        self._count_aborted(identity.aborted, AbortReason.REINITIALISED)
        await self._tell(identity.aborted)
        return identity

    def heard_of(self, producer_id: int, epoch: int) -> None:
        """It is there."""
        self.machine.check_epoch(producer_id, epoch)
        if producer_id in self.machine.by_producer:
            self._seen[producer_id] = self._monotonic()

    def is_silent(self, found: Transaction) -> bool:
        """Whether its producer was not heard of for long. That alone aborts nothing."""
        seen = self._seen.get(found.producer_id)
        return seen is None or self._monotonic() - seen > limits.PRODUCER_SESSION_MS

    # --- beginning, and taking part

    async def begin(self, command: Begin) -> Transaction:
        reserved = self.machine.reserved
        outcome = self._submit(command)
        if self.machine.reserved != reserved:
            self._reserved_at = outcome.position
        number: int = self._reply(outcome)
        found = self.machine.transaction(number)
        self._deadlines.arm(number, self._monotonic() + found.timeout_ms)
        self._timer.arm()
        self._seen[found.producer_id] = self._monotonic()
        self.counts["begun"] += 1
        if self.host.log.durable.value < self._reserved_at:  # else a lost number would be given out twice
            await self._durable([Durable(self.host.log, self._reserved_at)])
        return found

    def check_producer(self, producer: Producer) -> None:
        """For every block of a producer: raises when it was replaced."""
        self.machine.check_epoch(producer.producer_id, producer.producer_epoch)

    def check_block(self, number: int, producer: Producer) -> None:
        """For every block in a transaction: raises when it cannot be published in it."""
        self.writing(self.machine.writing(number, producer.producer_id, producer.producer_epoch))

    def writing(self, found: Transaction) -> Transaction:
        """The transaction, if more may come into it."""
        if not found.is_open:
            raise ended(found)
        if found.number in self._closing:
            raise Conflict(f"{found.transaction_id} is being committed; begin another one")
        self._seen[found.producer_id] = self._monotonic()
        return found

    def take_part(self, number: int, partition: Partition) -> None:
        """The partition has, or will have, something of it."""
        self._participants.add(number, partition)

    # --- ending

    async def commit(self, found: Transaction, *, messages: int | None = None, acks: int | None = None) -> Committed:
        """With `messages` and `acks`, as many as its writer knows of: nothing may have been lost."""
        if found.is_open:
            await self._check_whole(found, messages, acks)
        work = self._commit((found.number,), lambda parts: commands.Commit(found.number, parts))
        return await self._finished(work)

    async def _check_whole(self, found: Transaction, messages: int | None, acks: int | None) -> None:
        has = self.parts(found)
        here = sum(part.messages for part in has), sum(part.acks for part in has)
        wanted = here[0] if messages is None else messages, here[1] if acks is None else acks
        if wanted != here:
            what = (
                f"{found.transaction_id} has {here[0]} messages and {here[1]} acks, its writer says {wanted[0]} and "
                f"{wanted[1]}"
            )
            if found.number not in self._unsure:
                raise Conflict(f"{what}; add what is missing, or abort it: a group that was reset drops its acks")
            await self._finished(self._abort((found.number,), AbortReason.LOST))
            raise TransactionAborted(
                f"{what}: the broker stopped without warning and lost the others, so it is aborted; do it again"
            )
        # Who commits others' transactions together may know of their messages alone.
        doubtful = messages is None or (acks is None and (here[1] > 0 or not found.name))
        if found.number in self._unsure and doubtful:
            raise Conflict(
                f"the broker stopped without warning while {found.transaction_id} was open, or could not open all its "
                "topics since, and may miss some of it; say with messages and acks how many it has, or abort it"
            )

    async def commit_many(
        self,
        name: str,
        token: int,
        numbers: Sequence[int],
        messages: Mapping[int, int] | None = None,
        acks: Mapping[int, int] | None = None,
    ) -> Committed:
        """All of them or none, once per token. `messages` and `acks`: how many each has; see `commit`."""
        listed = tuple(dict.fromkeys(numbers))
        if not self.machine.check_many(name, token, listed):
            for number in listed:
                found = self.machine.transaction(number)
                await self._check_whole(found, (messages or {}).get(number), (acks or {}).get(number))
        work = self._commit(
            listed,
            lambda parts: commands.CommitMany(name=name, token=token, numbers=listed, participants=parts),
        )
        return await self._finished(work)

    async def _commit(self, numbers: tuple[int, ...], command: Callable[[tuple[Participant, ...]], Any]) -> Committed:
        sites = self._participants.sites(numbers)
        outcomes: list[Outcome] = []

        def decide() -> Outcome:
            outcomes.append(self._decide(command(tuple(site.participant for site in sites))))
            return outcomes[0]

        self._closing.update(numbers)
        try:
            for step in decide_commit(self.host.log, sites, decide):
                await self._durable(step)
        finally:
            self._closing -= Counter(numbers)
        committed: Committed = self._reply(outcomes[0])
        if not committed.duplicate:
            self.counts["committed"] += len(committed.numbers)
        self._count_aborted(committed.aborted, AbortReason.REPLACED)
        undone = [number for number in committed.numbers if not self.machine.transaction(number).is_complete]
        await self._tell((*undone, *committed.aborted))
        return committed

    async def abort(self, numbers: Iterable[int], reason: AbortReason = AbortReason.ASKED) -> tuple[int, ...]:
        """Those of them that were open."""
        return await self._finished(self._abort(tuple(numbers), reason))

    async def _abort(self, numbers: tuple[int, ...], reason: AbortReason) -> tuple[int, ...]:
        outcome = self._decide(Abort(numbers, reason))
        aborted: tuple[int, ...] = self._reply(outcome)
        self._count_aborted(aborted, reason)
        await self._durable([Durable(self.host.log, outcome.position)])
        await self._tell(aborted)
        return aborted

    def _count_aborted(self, numbers: Sequence[int], reason: AbortReason) -> None:
        self.counts[reason] += len(numbers)
        if numbers and reason is not AbortReason.ASKED:
            names = ", ".join(map(transaction_id, numbers[:3]))
            log.warning("transactions were aborted", count=len(numbers), first=names, reason=reason.value)

    # --- telling the partitions

    async def _tell(self, numbers: Iterable[int]) -> None:
        """What was decided. Others get a turn while there are many."""
        for count, number in enumerate(numbers, 1):
            self._tell_one(number)
            if count % limits.TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _tell_one(self, number: int) -> None:
        """What cannot be told now is told later."""
        found = self.machine.transaction(number)
        self._unsure.discard(number)
        self._deadlines.disarm(number)
        self._seen.pop(found.producer_id, None)
        where = self._told.setdefault(number, [])
        for site in self._participants.sites((number,)):
            try:
                where += tell((found,), (site,))
            except LogClosed:
                continue  # its topic was deleted
            except GoQueueError as error:
                log.warning("a partition hears of a transaction later", reason=str(error))

    # --- looking

    async def sure(self) -> None:
        """Until all that was decided by now is durable: only then may it be told how transactions ended."""
        if self.host.log.durable.value < self._decided_at:
            await self._durable([Durable(self.host.log, self._decided_at)])

    def parts(self, found: Transaction) -> list[Part]:
        """What it has, and where, as long as it is open."""
        return self._participants.parts(found.number)

    @property
    def oldest_ms(self) -> int:
        """How long the oldest of the open ones is open."""
        now = self._clock()
        return max(now - min((found.began_at for found in self.machine.open), default=now), 0)

    @property
    def outcomes(self) -> dict[str, int]:
        """How many ended since the start, by how they did."""
        reasons = {reason.value: self.counts[reason] for reason in AbortReason}
        return {"committed": self.counts["committed"], **reasons}

    def state(self, found: Transaction) -> TransactionState:
        """As users are told: it has ended when every partition has heard of it."""
        if found.number in self._told and self._is_told(found.number):
            return TransactionState.COMMITTED if found.is_committed else TransactionState.ABORTED
        return found.state

    # --- the log

    def _decide(self, command: Any) -> Outcome:
        """Write down how transactions end."""
        outcome = self._submit(command)
        self._decided_at = outcome.position
        return outcome

    def _submit(self, command: Any) -> Outcome:
        try:
            return self._store.spending(lambda: self.host.submit(self.machine, command, self._clock()))
        except StorageFailed as failure:
            self._on_failure(failure)
            raise
        except LogClosed:
            raise Unavailable(_STOPPING) from None

    def _reply(self, outcome: Outcome) -> Any:
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.reply

    async def _durable(self, step: Sequence[Durable]) -> None:
        for each in step:
            each.log.hasten()
        for each in step:
            try:
                await until(each.log.durable, each.position)
            except StorageFailed as failure:
                self._on_failure(failure)
                raise
            except Unavailable:
                if each.log is self.host.log:
                    raise  # else its topic was deleted: nothing of it counts


def _is_over(each: Durable) -> bool:
    """Durable, or its topic is gone."""
    return each.is_so or isinstance(each.log.written.failure, LogClosed)
