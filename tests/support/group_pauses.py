"""For how long nobody was delivered from a partition: while it stays with its owner, and when it moves.

A pause of a partition that moves begins with the later of the last delivery to its old owner and the moment at which
that one said it is done with it. Who had it in between without receiving anything is known from samples of the group's
description. Where one of them died silently, or was replaced by its next process, the pause is told apart.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.support.group_ledger import Delivery, History, Life, Told

RESTARTED = "restarted"
SILENT = "silent"
CLEAN = "clean"


class Sample(NamedTuple):
    """Who had which partition: member ids by partition."""

    at: int
    owners: dict[int, str]


class Move(NamedTuple):
    """A partition that got to another owner. `silence_ns` is from delivery to delivery."""

    kind: str
    partition: int
    at: int
    pause_ns: int
    silence_ns: int
    path: str


class Gap(NamedTuple):
    """Between two deliveries to the owner of a partition that stays."""

    ns: int
    partition: int
    at: int


class Pauses(NamedTuple):
    stays: list[Gap]
    moves: list[Move]
    taken_back: list[Gap]
    """Partitions that were to be given up and, before they were, need not any more."""

    def of(self, kind: str) -> list[Move]:
        return [move for move in self.moves if move.kind == kind]


def measure(history: History, samples: Sequence[Sample], begin: int, end: int) -> Pauses:
    """Between two moments."""
    pauses = Pauses([], [], [])
    by_id = {life.member_id: life for life in history.lives}
    asked = {
        life: [event for event in life.events if isinstance(event, Told) and event.revoke] for life in by_id.values()
    }
    times = [sample.at for sample in samples]
    for partition, deliveries in history.deliveries.items():
        within = [delivery for delivery in deliveries if begin <= delivery.at <= end]
        for last, first in pairwise(within):
            if last.life is first.life and last.received.high == first.received.high:
                gap = Gap(first.at - last.at, partition, last.at)
                (pauses.taken_back if _was_asked(asked[last.life], gap) else pauses.stays).append(gap)
            else:
                seen = samples[bisect_left(times, last.at) : bisect_left(times, first.at)]
                holders = {by_id[sample.owners[partition]] for sample in seen if sample.owners.get(partition) in by_id}
                pauses.moves.append(_weigh(partition, last, first, (holders | {last.life}) - {first.life}))
    return pauses


def _was_asked(asked: Iterable[Told], gap: Gap) -> bool:
    return any(gap.at <= event.at <= gap.at + gap.ns and gap.partition in event.revoke for event in asked)


def _weigh(partition: int, last: Delivery, first: Delivery, holders: Iterable[Life]) -> Move:
    kind, start = CLEAN, last.at
    for life in (*holders, last.life):
        done = life.released_at(partition, last.at, first.at)
        if life.end is not None and life.end.how in (RESTARTED, SILENT):
            kind, done = life.end.how, life.end.at
        if done is not None:
            start = max(start, done)
    path = " -> ".join(life.name for life in (last.life, *(set(holders) - {last.life}), first.life))
    return Move(kind, partition, last.at, first.at - start, first.at - last.at, path)


def percentiles_ms(times_ns: Iterable[int]) -> tuple[float, float, float]:
    """p50, p99 and the longest."""
    ordered = sorted(times_ns) or [0]
    return (
        ordered[len(ordered) // 2] / 1e6,
        ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)] / 1e6,
        ordered[-1] / 1e6,
    )
