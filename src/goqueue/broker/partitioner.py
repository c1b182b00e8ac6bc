"""Which partition a message goes to when it does not say so. Other languages agree by the published vectors."""

from itertools import count

from goqueue.codec import murmur3


def partition_of(key: bytes, partitions: int) -> int:
    """murmur3 (x86, 32 bit, seed 0) of the key, as an unsigned number, modulo the count of partitions."""
    return murmur3(key) % partitions


class RoundRobin:
    """For messages without a key: one partition per batch, the next one for the next batch."""

    def __init__(self) -> None:
        self._turns = count()

    def next(self, partitions: int) -> int:
        return next(self._turns) % partitions
