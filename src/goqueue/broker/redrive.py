"""Redriving: publishing dead letters again where they came from, or elsewhere; each exactly once.

A redrive goes through a dead-letter topic up to where that ended when it began. It takes a few letters that match and
were not redriven before, and writes down which; when that is durable it publishes them, with sequences of its own; when
that is durable it marks them as redriven; when that is durable it takes the next ones. A crash anywhere in between
makes the same letters be published again, and recognised.

Letters belong to a topic by its id. Those of a topic that was deleted go to a target that was named, never by
themselves into a new topic of the old name.

A letter keeps its lane, key, value, headers and event time. Its story is gone, and so is what was said of when to
deliver it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from goqueue import codec
from goqueue.base.entropy import Entropy
from goqueue.broker.jobs import JobLog
from goqueue.broker.letters import Letter, Letters
from goqueue.broker.own_messages import OwnPublisher
from goqueue.broker.partition import Partition
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.broker.waiting import until
from goqueue.codec.partitioning import partition_of
from goqueue.jobs.letters import LetterFilter
from goqueue.jobs.redrive import Batch, Plan, Redrive, RedriveId
from goqueue.jobs.redrives import EndRedrive, IntendBatch, Redrives, StartRedrive
from goqueue.model import limits
from goqueue.model.errors import (
    GoQueueError,
    InvalidRequest,
    StorageFailed,
    Unavailable,
    UnknownTopic,
)
from goqueue.model.jobs import RedriveState
from goqueue.model.names import TopicId, dlq_name, is_dlq
from goqueue.model.record import Extension, Producer, Record
from goqueue.producers.own import Work, own_producer
from goqueue.producers.sequences import LAST_SEQUENCE
from goqueue.telemetry import logs

log = logs.get("redrive")

_MOST_REASON: Final = 500
"""Characters that are kept of why a partition is damaged."""
_RETRY_S: Final = 1.0
_BATCHES_PER_S: Final = 10
"""Of a redrive with a rate, at most: slow ones take few letters at a time rather than many at once and a long rest."""
_GONE: Final = Record(key=b"gone", control=True)
"""In place of a letter that was intended and is not there any more: a sequence has no gaps."""


class _Taken(NamedTuple):
    """What a redrive does next."""

    batch: Batch
    records: list[Record]
    next_offset: int
    skipped: int


class _Worker:
    """What one redrive knows in this life."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.records: list[Record] | None = None
        """Those of the batch, if they were just read."""
        self.delivered: Batch | None = None
        """The batch that is published and marked."""
        self.failure: GoQueueError | None = None
        """Why it cannot go on."""
        self.due_s = 0.0
        """When the next letters may be published, by the time of the loop."""

    async def rest(self, span_s: float) -> None:
        """Until the time is over, or it is to stop."""
        try:
            async with asyncio.timeout(span_s):
                await self.stopping.wait()
        except TimeoutError:
            pass


class Begun(NamedTuple):
    redrive: Redrive | None
    """None when there is nothing to do, or it was only asked."""
    matched: int
    incomplete: dict[int, str]
    """Partitions of the dead-letter topic that may have more letters, and why."""


class RedriveRunner:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        jobs: JobLog,
        machine: Redrives,
        topics: TopicCatalogue,
        letters: Letters,
        publisher: OwnPublisher,
        clock: Callable[[], int],
        entropy: Entropy,
    ) -> None:
        self._jobs = jobs
        self.machine = machine
        self._topics = topics
        self._letters = letters
        self._publisher = publisher
        self._clock = clock
        self._entropy = entropy
        self._workers: dict[RedriveId, _Worker] = {}

    # --- what users do

    async def begin(
        self,
        topic: str,
        wanted: LetterFilter,
        *,
        target: str | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        deleted: bool = False,
    ) -> Begun:
        """How many letters of a topic match; and a redrive of them, unless there are none or it was only asked.

        With `deleted` those of topics that had the name before.
        """
        origin, dlq = await self._letters.topic_of(topic)
        wanted = self._letters.meant(origin, wanted, deleted=deleted)
        if target is None and wanted.deleted:
            raise InvalidRequest(
                f"the letters of a deleted topic go to a target that is named; name one, it may be {origin} if there "
                "is such a topic again"
            )
        into = origin if target is None else target
        if is_dlq(into):
            raise InvalidRequest(f"{into} is for dead letters; redrive them to another topic")
        found = self._topics.named(into)
        if dlq is None:
            return Begun(None, 0, {})
        if not dry_run:
            self.machine.check_free(dlq.meta.topic_id, origin)
        incomplete = dlq.damage
        whole = [number for number in range(len(dlq.slots)) if number not in incomplete]
        ends = {number: await self._durable_end(dlq.partition(number)) for number in whole}
        matched = await self._count(dlq, ends, wanted, incomplete)
        if dry_run or not matched:
            return Begun(None, matched, incomplete)
        plan = Plan(
            redrive_id=RedriveId(f"{self._entropy(8):016x}"),
            topic=origin,
            dlq_id=dlq.meta.topic_id,
            target=into,
            target_id=found.meta.topic_id,
            target_partitions=len(found.slots),
            ends=ends,
            matched=matched,
            started_ms=self._clock(),
            filter=wanted,
            rate=rate,
            incomplete={number: reason[:_MOST_REASON] for number, reason in incomplete.items()},
        )
        outcome = self._jobs.submit(self.machine, StartRedrive(plan))
        if outcome.refusal is None:
            self._work_on(plan.redrive_id)
        redrive: Redrive = await self._jobs.settled(outcome)
        log.info("redrive started", redrive=plan.redrive_id, topic=origin, target=into, letters=matched)
        return Begun(redrive, matched, incomplete)

    async def _durable_end(self, partition: Partition) -> int:
        """A letter must not be lost after it was redriven: it would be written again, and not be known as redriven."""
        end = partition.log.end_offset
        partition.log.hasten()
        await until(partition.log.durable, end)
        return end

    async def _count(
        self, dlq: OpenTopic, ends: dict[int, int], wanted: LetterFilter, incomplete: dict[int, str]
    ) -> int:
        """What could not be read is said in `incomplete`."""
        count = 0
        for number, end in ends.items():
            partition, offset = dlq.partition(number), 0
            while offset < end:
                some = await self._letters.look(
                    partition, offset, end, wanted, limits.LETTERS_AT_ONCE, limits.MAX_READ_BYTES
                )
                count += len(some.letters)
                if some.damage:
                    incomplete.setdefault(number, some.damage)
                offset = some.next_offset
                await asyncio.sleep(0)
        return count

    async def get(self, redrive_id: RedriveId) -> Redrive:
        redrive = self.machine.redrive(redrive_id)
        await self._jobs.sure()
        return redrive

    def redriven(self, redrive: Redrive) -> int:
        """How many letters are published again by now."""
        worker, batch = self._workers.get(redrive.redrive_id), redrive.batch
        is_delivered = worker is not None and batch is not None and worker.delivered is batch
        return redrive.redriven + (len(batch.letters) if batch is not None and is_delivered else 0)

    async def cancel(self, redrive_id: RedriveId) -> Redrive:
        """Stop it. What is under way is finished first; if that takes long, it goes on meanwhile."""
        self.machine.redrive(redrive_id)
        worker = self._workers.get(redrive_id)
        if worker is not None and worker.task is not None:
            worker.stopping.set()
            await asyncio.wait((worker.task,), timeout=limits.REDRIVE_CANCEL_S)
        return await self.get(redrive_id)

    # --- what happens by itself

    def start(self) -> None:
        """Once the topics are open: what was running goes on."""
        for redrive in self.machine.running:
            self._work_on(redrive.redrive_id)

    async def stop(self) -> None:
        """What is not done is done after the next start."""
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _work_on(self, redrive_id: RedriveId) -> None:
        worker = self._workers[redrive_id] = _Worker()
        worker.task = asyncio.get_running_loop().create_task(self._work(redrive_id, worker))

    async def _work(self, redrive_id: RedriveId, worker: _Worker) -> None:
        try:
            while (redrive := self.machine.by_id.get(redrive_id)) is not None and redrive.is_running:
                try:
                    await self._step(redrive, worker)
                except StorageFailed:
                    return  # the broker stops
                except Unavailable as error:
                    log.warning("a redrive waits", redrive=redrive_id, reason=str(error))
                    await (asyncio.sleep if worker.stopping.is_set() else worker.rest)(_RETRY_S)
                except GoQueueError as error:
                    worker.failure = error
                except Exception as error:
                    log.error("a redrive broke and will be tried again", redrive=redrive_id, error=error)
                    await asyncio.sleep(_RETRY_S)
        finally:
            del self._workers[redrive_id]

    async def _step(self, redrive: Redrive, worker: _Worker) -> None:
        batch = redrive.batch
        if worker.failure is not None:
            await self._end(redrive, worker, RedriveState.FAILED)
        elif worker.stopping.is_set():
            await self._end(redrive, worker, RedriveState.CANCELLED)
        elif batch is not None and worker.delivered is not batch:
            await self._deliver(redrive, batch, worker)
        elif (taken := await self._take(redrive, worker)) is not None:
            await self._intend(redrive, taken, worker)
        elif not worker.stopping.is_set():
            await self._end(redrive, worker, RedriveState.DONE)

    # --- taking letters

    async def _take(self, redrive: Redrive, worker: _Worker) -> _Taken | None:
        """The next letters; None when there are no more, or it is to stop."""
        plan = redrive.plan
        dlq, target = self._find(plan.dlq_id, dlq_name(plan.topic)), self._find(plan.target_id, plan.target)
        most = _batch_size(plan.rate)
        number, offset, skipped = redrive.partition, redrive.offset, 0
        while number <= max(plan.ends) and not worker.stopping.is_set():
            end = plan.ends.get(number, 0)
            if offset >= end:
                number, offset = number + 1, 0
                continue
            partition = dlq.partition(number)
            some = await self._letters.look(partition, offset, end, plan.filter, most, limits.REDRIVEN_AT_ONCE_BYTES)
            offset = some.next_offset
            fitting = _fitting(some.letters, target.meta.settings.max_message_bytes)
            skipped += len(some.letters) - len(fitting)
            if fitting:
                letters = tuple((letter.record.offset, _place(plan, letter)) for letter in fitting)
                records = [_anew(letter.record) for letter in fitting]
                return _Taken(Batch(number, letters), records, offset, skipped)
            await asyncio.sleep(0)
        return None

    async def _intend(self, redrive: Redrive, taken: _Taken, worker: _Worker) -> None:
        wait_s = worker.due_s - asyncio.get_running_loop().time()
        if wait_s > 0:
            await worker.rest(wait_s)
        if worker.stopping.is_set():
            return
        command = IntendBatch(
            redrive_id=redrive.redrive_id,
            batch=taken.batch,
            next_offset=taken.next_offset,
            skipped=taken.skipped,
        )
        outcome = self._jobs.submit(self.machine, command)
        worker.records = taken.records
        await self._jobs.settled(outcome)

    # --- publishing them

    async def _deliver(self, redrive: Redrive, batch: Batch, worker: _Worker) -> None:
        plan, now_s = redrive.plan, asyncio.get_running_loop().time()
        source = self._find(plan.dlq_id, dlq_name(plan.topic)).partition(batch.partition)
        target = self._find(plan.target_id, plan.target)
        await self._letters.prepare(source)  # or letters could be published that cannot be marked
        records = worker.records
        if records is None:
            records = [await self._read(source, offset) for offset in batch.offsets]
        by_offset = dict(zip(batch.offsets, records, strict=True))
        await self._jobs.sure()
        sent = [
            self._publisher.append(
                target, number, [by_offset[offset] for offset in offsets], _producer(redrive, number)
            )
            for number, offsets in batch.by_target().items()
        ]
        for each in sent:
            await each.durable()
        await self._letters.mark(source, batch.offsets)
        worker.delivered, worker.records = batch, None
        if plan.rate is not None:
            worker.due_s = max(worker.due_s, now_s) + len(batch.letters) / plan.rate

    async def _read(self, source: Partition, offset: int) -> Record:
        record = await self._letters.read(source, offset)
        if record is None:
            log.error("a letter that was to be redriven is gone", topic=source.topic.name, offset=offset)
            return _GONE
        return _anew(record)

    # --- the end

    async def _end(self, redrive: Redrive, worker: _Worker, state: RedriveState) -> None:
        batch, redriven = redrive.batch, 0
        if batch is not None:
            redriven = len(batch.letters) if worker.delivered is batch else await self._settle(redrive, batch)
        command = EndRedrive(
            redrive_id=redrive.redrive_id,
            state=state,
            redriven=redriven,
            error=None if worker.failure is None else str(worker.failure),
        )
        ended: Redrive = await self._jobs.settled(self._jobs.submit(self.machine, command, must=True))
        log.info("redrive ended", redrive=redrive.redrive_id, state=state, redriven=ended.redriven)

    async def _settle(self, redrive: Redrive, batch: Batch) -> int:
        """How many letters of a batch that is not to be published are, all the same; they are marked."""
        plan = redrive.plan
        there: list[int] = []
        try:
            target = self._find(plan.target_id, plan.target)
            for number, offsets in batch.by_target().items():
                partition = target.partition(number)
                known = partition.producers.check(_producer(redrive, number), len(offsets)).known
                there += offsets[: sum(found.count for found in known)]
                await self._durable_end(partition)
            if there:
                source = self._find(plan.dlq_id, dlq_name(plan.topic)).partition(batch.partition)
                await self._letters.mark(source, there)
        except (Unavailable, StorageFailed):
            raise
        except GoQueueError as error:
            log.warning("letters that were redriven may not be marked", redrive=redrive.redrive_id, reason=str(error))
        return len(there)

    def _find(self, topic_id: TopicId, name: str) -> OpenTopic:
        try:
            return self._topics.identified(topic_id)
        except UnknownTopic:
            raise UnknownTopic(f"the topic {name} was deleted") from None


def _batch_size(rate: float | None) -> int:
    most = limits.REDRIVEN_AT_ONCE
    return most if rate is None else min(max(int(rate / _BATCHES_PER_S), 1), most)


def _place(plan: Plan, letter: Letter) -> int:
    """The partition a letter goes to: where it came from, if it is there; in another topic where its key says."""
    key, origin = letter.record.key, letter.story.partition
    if plan.target == plan.topic and origin < plan.target_partitions:
        return origin
    return origin % plan.target_partitions if key is None else partition_of(key, plan.target_partitions)


def _anew(record: Record) -> Record:
    """As it was published the first time, to be published again."""
    event_time = None if record.extension is None else record.extension.event_time
    extension = None if event_time is None else Extension(event_time=event_time)
    return Record(0, 0, record.key, record.value, record.priority, record.headers, extension)


def _fitting(letters: list[Letter], limit: int) -> list[Letter]:
    """Those that a topic allows."""

    def largest(some: list[Letter]) -> int:
        return codec.survey(codec.encode([_anew(letter.record) for letter in some])).largest

    if not letters or largest(letters) <= limit:  # nearly always
        return letters
    return [letter for letter in letters if largest([letter]) <= limit]


def _producer(redrive: Redrive, number: int) -> Producer:
    """For what goes to a partition of the target, with the sequence of the batch's first letter there."""
    producer_id = own_producer(Work.REDRIVES, int(redrive.redrive_id, 16))
    return Producer(producer_id, 0, redrive.sequences.get(number, 0) & LAST_SEQUENCE)
