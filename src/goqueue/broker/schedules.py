"""Running schedules: runs that are due are intended, published, and said to be done; each exactly once.

A run is published when its intent is durable, by a producer of the schedule's own, with the run's number for an epoch:
so one that was published before is recognised, in whatever life. Runs of one schedule follow each other: the next one
waits until it is durable that the one before is done. What the disk has no room for is tried again, what its topic
refuses for good has failed.

Schedules go by the wall's clock, which steps. A timer that was set before a step is wrong, so there is a look once a
second beside it.
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from goqueue import codec
from goqueue.base.entropy import Entropy
from goqueue.broker.jobs import JobLog
from goqueue.broker.own_messages import OwnPublisher
from goqueue.broker.timer import Timer
from goqueue.broker.topic import OpenTopic
from goqueue.broker.topics import TopicCatalogue
from goqueue.codec.partitioning import partition_of
from goqueue.jobs.records import ScheduleId
from goqueue.jobs.schedule import PendingRun, Schedule
from goqueue.jobs.schedules import (
    ChangeSchedule,
    CreateSchedule,
    FailRun,
    FinishRun,
    Place,
    RemoveSchedule,
    Schedules,
    SetBack,
    TopicGone,
)
from goqueue.machine.shape import Tick
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, StorageFailed, TooLarge, Unavailable, UnknownTopic
from goqueue.model.jobs import Missed
from goqueue.model.names import TopicId
from goqueue.model.record import Extension, Lane, Record
from goqueue.producers.own import run_producer
from goqueue.telemetry import logs

log = logs.get("schedules")

_RETRY_S: Final = 1.0


class ScheduledMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule publishes, as the jobs log keeps it: text, or base64 if `encoding` says so."""

    value: str | None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    priority: int = int(Lane.NORMAL)
    partition: int | None = None
    ttl_ms: int | None = None
    encoding: Literal["base64"] | None = None

    @classmethod
    def keep(cls, record: Record, partition: int | None) -> "ScheduledMessage":
        """A record that no broker has stamped yet, and the partition it must go to, if there is one."""
        is_text = _is_text(record)
        show = _decode if is_text else _to_base64
        expires_at = None if record.extension is None else record.extension.expires_at
        return cls(
            value=None if record.value is None else show(record.value),
            key=None if record.key is None else show(record.key),
            headers=tuple((name, show(text)) for name, text in record.headers),
            priority=record.priority,
            partition=partition,
            ttl_ms=None if expires_at is None else -expires_at,
            encoding=None if is_text else "base64",
        )

    def to_record(self) -> Record:
        read = str.encode if self.encoding is None else b64decode
        return Record(
            key=self.key_bytes,
            value=None if self.value is None else read(self.value),
            priority=self.priority,
            headers=tuple((name, read(text)) for name, text in self.headers),
            extension=None if self.ttl_ms is None else Extension(expires_at=-self.ttl_ms),
        )

    @property
    def key_bytes(self) -> bytes | None:
        if self.key is None:
            return None
        return self.key.encode() if self.encoding is None else b64decode(self.key)


_decoder = msgspec.json.Decoder(ScheduledMessage)


def read_message(kept: msgspec.Raw) -> ScheduledMessage:
    """What a schedule, or a run, publishes."""
    return _decoder.decode(kept)


def placing(topics: TopicCatalogue) -> Place:
    """Where runs go: to the partition their message names, or by its key, or to each in turn."""

    def place(schedule: Schedule, run: int) -> int:
        message = read_message(schedule.message)
        if message.partition is not None:
            return message.partition
        shape = topics.shape_of(topics.name_of(schedule.topic_id) or "")
        partitions = 1 if shape is None else shape[1]  # if the topic is gone its schedules are about to be removed
        key = message.key_bytes
        return run % partitions if key is None else partition_of(key, partitions)

    return place


class ScheduleRunner:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        jobs: JobLog,
        machine: Schedules,
        topics: TopicCatalogue,
        publisher: OwnPublisher,
        clock: Callable[[], int],
        entropy: Entropy,
    ) -> None:
        self._jobs = jobs
        self.machine = machine
        self._topics = topics
        self._publisher = publisher
        self._clock = clock
        self._entropy = entropy
        self._timer = Timer(machine.next_deadline, clock, self._tick)
        self._intended_at: dict[ScheduleId, int] = {}
        """Up to where the jobs log must be durable before the pending runs of a schedule are published."""
        self._at_work: dict[ScheduleId, asyncio.Task[None]] = {}
        self._gone: set[TopicId] = set()
        """Topics that were deleted, whose schedules are to be removed."""
        self._turns = asyncio.Semaphore(limits.RUNS_UNDER_WAY)
        self._stopped = False

    # --- what happens by itself

    def start(self) -> None:
        """Once the topics are open: what was pending is published, what is due is looked at."""
        self._gone = {topic_id for topic_id in self.machine.topic_ids if self._topics.name_of(topic_id) is None}
        self._remove_gone()
        self._hand_out({run.schedule_id for run in self.machine.pending_runs})
        self._timer.arm()

    async def stop(self) -> None:
        """What is not published is published after the next start."""
        self._stopped = True
        self._timer.stop()
        tasks = list(self._at_work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> None:
        """Once a second or so: the clock may have been set, and what could not be written may be possible now."""
        self._remove_gone()
        self._follow_clock()
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self._clock():
            self._tick()

    def _follow_clock(self) -> None:
        """Where it was set back, also before the last start, schedules go on by what it shows now."""
        try:
            while self.machine.is_ahead(self._clock()):
                count = self._jobs.submit(self.machine, SetBack()).reply
                log.warning("the wall clock was set back; schedules go on by what it shows now", schedules=count)
        except GoQueueError as error:
            log.warning("schedules that are ahead of the clock will be looked at again", reason=str(error))
        self._timer.arm()

    def follow(self, topic: OpenTopic) -> None:
        """A topic was opened, has changed, or is gone."""
        if not self._stopped and self._topics.name_of(topic.meta.topic_id) is None:
            self._gone.add(topic.meta.topic_id)
            self._remove_gone()

    def _remove_gone(self) -> None:
        for topic_id in sorted(self._gone):
            try:
                removed = self._jobs.submit(self.machine, TopicGone(topic_id), must=True).reply
            except GoQueueError as error:
                log.warning("schedules of a deleted topic remain for now", reason=str(error))
                return
            self._gone.discard(topic_id)
            for schedule in removed:
                log.info("schedule removed: its topic was deleted", schedule=schedule.schedule_id, topic=schedule.topic)
        self._timer.arm()

    def _tick(self) -> None:
        try:
            outcome = self._jobs.submit(self.machine, Tick())
        except GoQueueError as error:  # the machine asks again
            log.warning("schedules will be looked at again", reason=str(error))
        else:
            concerned = {run.schedule_id for run in outcome.reply}
            self._intended_at |= dict.fromkeys(concerned, outcome.position)
            self._hand_out(concerned)
        self._timer.arm()

    def _hand_out(self, schedule_ids: set[ScheduleId]) -> None:
        loop = asyncio.get_running_loop()
        for schedule_id in schedule_ids - self._at_work.keys():
            self._at_work[schedule_id] = loop.create_task(self._work(schedule_id))

    async def _work(self, schedule_id: ScheduleId) -> None:
        """Publish what a schedule has pending, one after the other."""
        try:
            while runs := self.machine.pending_of(schedule_id):
                try:
                    await self._jobs.durable(self._intended_at.get(schedule_id, 0))
                    async with self._turns:
                        await self._run(runs[0])
                except (StorageFailed, UnknownTopic):  # the broker stops; the schedule is removed
                    return
                except Unavailable as error:
                    log.warning("a run waits", schedule=schedule_id, run=runs[0].run, reason=str(error))
                    await asyncio.sleep(_RETRY_S)
                except Exception as error:
                    log.error("a run broke and will be tried again", schedule=schedule_id, error=error)
                    await asyncio.sleep(_RETRY_S)
        finally:
            del self._at_work[schedule_id]
            self._intended_at.pop(schedule_id, None)

    async def _run(self, run: PendingRun) -> None:
        command: FinishRun | FailRun
        try:
            offset = await self._publish(run)
            command = FinishRun(schedule_id=run.schedule_id, run=run.run, partition=run.partition, offset=offset)
        except (Unavailable, StorageFailed, UnknownTopic):
            raise
        except GoQueueError as error:
            log.warning("a run failed", schedule=run.schedule_id, run=run.run, reason=str(error))
            command = FailRun(schedule_id=run.schedule_id, run=run.run, error=str(error))
        outcome = self._jobs.submit(self.machine, command)
        self._timer.arm()
        await self._jobs.settled(outcome)

    async def _publish(self, run: PendingRun) -> int:
        """Where it is."""
        topic = self._topics.identified(run.topic_id)
        record = read_message(run.message).to_record()
        size, limit = codec.survey(codec.encode([record])).largest, topic.meta.settings.max_message_bytes
        if size > limit:
            raise TooLarge(f"the message has {size} bytes in key, value and headers; {run.topic} allows {limit}")
        producer = run_producer(int(run.schedule_id, 16), run.run)
        sent = self._publisher.append(topic, run.partition, [record], producer)
        await sent.durable()
        return sent.placed[0].first_offset

    # --- what users do

    async def create(
        self,
        topic: OpenTopic,
        message: ScheduledMessage,
        *,
        cron: str | None,
        time_zone: str | None,
        every_ms: int | None,
        missed: Missed,
        paused: bool,
    ) -> Schedule:
        command = CreateSchedule(
            schedule_id=ScheduleId(f"{self._entropy(8):016x}"),
            topic=topic.meta.name,
            topic_id=topic.meta.topic_id,
            message=message,
            cron=cron,
            time_zone=time_zone,
            every_ms=every_ms,
            missed=missed,
            paused=paused,
        )
        schedule: Schedule = await self._change(command)
        log.info("schedule created", schedule=schedule.schedule_id, topic=schedule.topic)
        return schedule

    async def change(self, command: ChangeSchedule) -> Schedule:
        schedule: Schedule = await self._change(command)
        return schedule

    async def remove(self, schedule_id: ScheduleId) -> Schedule:
        schedule: Schedule = await self._change(RemoveSchedule(schedule_id))
        log.info("schedule removed", schedule=schedule_id, topic=schedule.topic)
        return schedule

    async def _change(self, command: CreateSchedule | ChangeSchedule | RemoveSchedule) -> Any:
        outcome = self._jobs.submit(self.machine, command, must=not isinstance(command, CreateSchedule))
        self._timer.arm()
        return await self._jobs.settled(outcome)

    async def get(self, schedule_id: ScheduleId) -> Schedule:
        schedule = self.machine.schedule(schedule_id)
        await self._jobs.sure()
        return schedule

    async def list(self) -> list[Schedule]:
        """In the order in which they were created."""
        schedules = list(self.machine.by_id.values())
        await self._jobs.sure()
        return schedules


def _is_text(record: Record) -> bool:
    try:
        for data in (record.key, record.value, *(text for _, text in record.headers)):
            if data is not None:
                data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decode(data: bytes) -> str:
    return data.decode()


def _to_base64(data: bytes) -> str:
    return b64encode(data).decode()
