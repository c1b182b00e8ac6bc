"""The broker's own producer ids: for what it publishes by itself, so that what is published again is recognised.

| bits | are |
|---|---|
| 61 | set: the id is the broker's own (`limits.OWN_PRODUCERS`); no client is ever given one |
| 60 and 59 | the kind of work |
| 58 to 0 | a number that tells one piece of work from others of its kind, by chance |

Clients are not believed when they name such an id: only what was given out is (`registry`).
"""

from enum import IntEnum
from typing import Final

from goqueue.model import limits
from goqueue.model.record import Producer

_NUMBER_BITS: Final = 59
_EPOCH_BITS: Final = 15


class Work(IntEnum):
    """What the broker publishes by itself."""

    DEAD_LETTERS = 0
    """The number is that of the topic whose messages died; sequences are the numbers of the outbox."""
    SCHEDULES = 1
    """See `run_producer`."""
    REDRIVES = 2
    """The number is that of the job; sequences count what it has published to a partition."""


def own_producer(work: Work, number: int) -> int:
    """The id. Of a longer number the lower bits count."""
    return limits.OWN_PRODUCERS | work << _NUMBER_BITS | number & (1 << _NUMBER_BITS) - 1


def run_producer(schedule: int, run: int) -> Producer:
    """For one run of a schedule, both by their numbers.

    Each run is an epoch of its own: those that fail, or go to another partition, leave no gap in a sequence. They must
    be published one after the other, and what is tried again must be the last one. When the epochs are used up the next
    id is taken.
    """
    producer_id = own_producer(Work.SCHEDULES, schedule + (run >> _EPOCH_BITS))
    return Producer(producer_id, run & (1 << _EPOCH_BITS) - 1, 0)
