"""The machine that knows every redrive and how far it has come.

It is an outbox. A batch of letters is *intended*: a record names them and where they go. When that is durable they are
published, as often as it takes, always under the same sequences, by which a second time is recognised; then they are
marked as redriven, beside the dead letters. The next batch is intended when all of that is durable. So a letter is
published once, whatever is killed when; and since the record names the letters, it makes no difference what else
changes meanwhile: marks, the cleaner, the target's partitions.

Invariants: a dead-letter topic has at most one redrive that is running; a redrive that has ended never changes.

What is published, and how, is not known here.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from goqueue.jobs import redrive_records as records
from goqueue.jobs.redrive import Batch, Plan, Redrive, RedriveId
from goqueue.jobs.redrive_records import BatchIntended, Event, RedriveEnded, RedriveRestored, RedriveStarted
from goqueue.machine.shape import Decision
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, UnknownRedrive
from goqueue.model.jobs import RedriveState
from goqueue.model.names import TopicId

# --- commands


class StartRedrive(msgspec.Struct, frozen=True):
    """Replies with the redrive."""

    plan: Plan


class IntendBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch before is done. Replies with the redrive; one that has ended is left as it is."""

    redrive_id: RedriveId
    batch: Batch
    next_offset: int
    skipped: int = 0


class EndRedrive(msgspec.Struct, frozen=True, kw_only=True):
    """Replies with the redrive; one that has ended is left as it is. Of one that is done, all the rest is skipped."""

    redrive_id: RedriveId
    state: RedriveState
    redriven: int = 0
    """Letters of the last batch that are published, and marked."""
    skipped: int = 0
    error: str | None = None


# --- the machine


class Redrives:
    """One for all redrives of a broker."""

    name = "redrives"

    def __init__(self) -> None:
        self._decisions: dict[type, Callable[[Any, int], Decision]] = {
            StartRedrive: self._decide_start,
            IntendBatch: self._decide_batch,
            EndRedrive: self._decide_end,
        }
        self._changes: dict[type, Callable[[Any], None]] = {
            RedriveStarted: self._apply_started,
            BatchIntended: self._apply_batch,
            RedriveEnded: self._apply_ended,
            RedriveRestored: lambda event: self._keep(event.redrive),
        }
        self.reset()

    def reset(self) -> None:
        self.by_id: dict[RedriveId, Redrive] = {}
        self._running: dict[TopicId, RedriveId] = {}
        """By dead-letter topic."""
        self._ended: dict[RedriveId, None] = {}
        """In the order in which they ended."""

    # --- looking

    def redrive(self, redrive_id: RedriveId) -> Redrive:
        redrive = self.by_id.get(redrive_id)
        if redrive is None:
            raise UnknownRedrive(
                f"there is no redrive {redrive_id[:80]!r}; of those that have ended the last "
                f"{limits.REDRIVES_REMEMBERED} are remembered"
            )
        return redrive

    @property
    def running(self) -> list[Redrive]:
        return [self.by_id[redrive_id] for redrive_id in self._running.values()]

    def check_free(self, dlq_id: TopicId, topic: str) -> None:
        """Conflict when the dead letters of a topic are being redriven, or there is too much of it."""
        running = self._running.get(dlq_id)
        if running is not None:
            raise Conflict(
                f"redrive {running} of the dead letters of {topic} is running; wait for its end, or cancel it"
            )
        if len(self._running) >= limits.MAX_RUNNING_REDRIVES:
            raise Conflict(
                f"{limits.MAX_RUNNING_REDRIVES} redrives are running, which is the most; wait for one to end"
            )

    # --- the shape of a machine

    def decide(self, command: Any, now: int) -> Decision:
        return self._decisions[type(command)](command, now)

    def apply(self, record: bytes, offset: int) -> None:
        try:
            event = records.decode(record)
        except msgspec.DecodeError as error:
            raise DamagedData(
                f"offset {offset} of the jobs log is not understood ({error}); start the version that wrote it"
            ) from error
        self._changes[type(event)](event)

    def snapshot(self) -> Iterable[bytes]:
        """Those that have ended come first, in the order in which they did."""
        for redrive_id in [*self._ended, *self._running.values()]:
            yield records.encode(RedriveRestored(redrive=self.by_id[redrive_id]))

    # --- decisions

    def _decide_start(self, command: StartRedrive, now: int) -> Decision:
        plan = command.plan
        if plan.redrive_id in self.by_id:
            raise Conflict(f"the redrive id {plan.redrive_id!r} is taken; try again")
        self.check_free(plan.dlq_id, plan.topic)
        return _decided(Redrive(plan=plan), RedriveStarted(plan=plan))

    def _decide_batch(self, command: IntendBatch, now: int) -> Decision:
        redrive = self.redrive(command.redrive_id)
        if not redrive.is_running:
            return Decision((), redrive)
        event = BatchIntended(**msgspec.structs.asdict(command))
        return _decided(_with_batch(redrive, event), event)

    def _decide_end(self, command: EndRedrive, now: int) -> Decision:
        redrive = self.redrive(command.redrive_id)
        if not redrive.is_running:
            return Decision((), redrive)
        skipped = command.skipped
        if command.state is RedriveState.DONE:  # what was there when they were counted and is not any more
            skipped = redrive.plan.matched - redrive.redriven - command.redriven - redrive.skipped
        event = RedriveEnded(
            redrive_id=command.redrive_id,
            state=command.state,
            finished_ms=now,
            redriven=command.redriven,
            skipped=max(skipped, 0),
            error=None if command.error is None else command.error[: limits.MAX_JOB_ERROR],
        )
        return _decided(_end(redrive, event), event)

    # --- changes

    def _apply_started(self, event: RedriveStarted) -> None:
        self._keep(Redrive(plan=event.plan))

    def _apply_batch(self, event: BatchIntended) -> None:
        self._keep(_with_batch(self.by_id[event.redrive_id], event))

    def _apply_ended(self, event: RedriveEnded) -> None:
        self._keep(_end(self.by_id[event.redrive_id], event))

    def _keep(self, redrive: Redrive) -> None:
        """In place of what it was."""
        name, dlq_id = redrive.redrive_id, redrive.plan.dlq_id
        self.by_id[name] = redrive
        if redrive.is_running:
            self._running[dlq_id] = name
            return
        if self._running.get(dlq_id) == name:
            del self._running[dlq_id]
        self._ended[name] = None
        while len(self._ended) > limits.REDRIVES_REMEMBERED:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self.by_id[oldest]


def _with_batch(redrive: Redrive, event: BatchIntended) -> Redrive:
    return redrive.with_batch(event.batch, offset=event.next_offset, skipped=event.skipped)


def _end(redrive: Redrive, event: RedriveEnded) -> Redrive:
    return msgspec.structs.replace(
        redrive,
        state=event.state,
        batch=None,
        redriven=redrive.redriven + event.redriven,
        skipped=redrive.skipped + event.skipped,
        finished_ms=event.finished_ms,
        error=event.error,
    )


def _decided(reply: Any, *events: Event) -> Decision:
    return Decision([records.encode(event) for event in events], reply)
