"""One redrive: which dead letters are published again, where to, and how far it has come.

It is a value: a change makes another one. It goes through the partitions of the dead-letter topic one after the other,
so one partition and one offset say where it is.
"""

from typing import NewType

import msgspec

from goqueue.jobs.letters import LetterFilter
from goqueue.model.jobs import RedriveState
from goqueue.model.names import TopicId

RedriveId = NewType("RedriveId", str)
"""Given at its start, by chance: never used again, because what it has published is recognised by it."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for, and what was found then. It never changes, so that another life does the same."""

    redrive_id: RedriveId
    topic: str
    """Whose dead letters they are."""
    dlq_id: TopicId
    target: str
    target_id: TopicId
    target_partitions: int
    """As many as it had then. Where a letter goes may depend on it."""
    ends: dict[int, int]
    """By partition of the dead-letter topic: up to where it looks."""
    matched: int
    started_ms: int
    filter: LetterFilter = LetterFilter()
    rate: float | None = None
    """Letters per second, at most."""
    incomplete: dict[int, str] = msgspec.field(default_factory=dict)
    """By partition of the dead-letter topic: why letters there may match, and stay."""


class Batch(msgspec.Struct, frozen=True):
    """Letters of one partition that are published, or about to be."""

    partition: int
    """Of the dead-letter topic."""
    letters: tuple[tuple[int, int], ...]
    """Each one's offset, and the partition of the target it goes to."""

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _ in self.letters]

    def by_target(self) -> dict[int, list[int]]:
        """Offsets by where they go, in their order."""
        found: dict[int, list[int]] = {}
        for offset, target in self.letters:
            found.setdefault(target, []).append(offset)
        return found


class Redrive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Letters before `partition` and `offset` are dealt with, or in the batch."""

    plan: Plan
    state: RedriveState = RedriveState.RUNNING
    partition: int = 0
    offset: int = 0
    batch: Batch | None = None
    """The last one; whether it is published is not known until the next one is intended, or all has ended."""
    sequences: dict[int, int] = msgspec.field(default_factory=dict)
    """By partition of the target: how many letters of earlier batches are there."""
    redriven: int = 0
    """Without the batch."""
    skipped: int = 0
    """Letters that matched and could not be redriven."""
    finished_ms: int | None = None
    error: str | None = None

    @property
    def redrive_id(self) -> RedriveId:
        return self.plan.redrive_id

    @property
    def is_running(self) -> bool:
        return self.state is RedriveState.RUNNING

    def with_batch(self, batch: Batch, *, offset: int, skipped: int) -> "Redrive":
        """The batch before is done."""
        sequences, redriven = self.sequences, self.redriven
        if self.batch is not None:
            sequences = dict(sequences)
            for target, offsets in self.batch.by_target().items():
                sequences[target] = sequences.get(target, 0) + len(offsets)
            redriven += len(self.batch.letters)
        return msgspec.structs.replace(
            self,
            partition=batch.partition,
            offset=offset,
            batch=batch,
            sequences=sequences,
            redriven=redriven,
            skipped=self.skipped + skipped,
        )
