"""Which partition a key belongs to. Other languages agree by the vectors in `docs/internals/partitioning.md`."""

from goqueue.codec import murmur3


def partition_of(key: bytes, partitions: int) -> int:
    """murmur3 (x86, 32 bit, seed 0) of the key, as an unsigned number, modulo the count of partitions."""
    return murmur3(key) % partitions
