"""Blocks of records that use everything a record can have, mostly small, sometimes larger than a segment."""

from random import Random
from typing import Final

from goqueue.model.record import Extension, Record

KEYS: Final = (b"a", b"b", b"c", b"dd", b"", b"a longer key")


def some_records(rng: Random) -> list[Record]:
    return [_record(rng) for _ in range(rng.choice((1, 1, 2, 3, 5, 12)))]


def _record(rng: Random) -> Record:
    luck = rng.random()
    size = rng.randrange(40) if luck < 0.6 else rng.randrange(400) if luck < 0.97 else rng.randrange(5000)
    extension = None
    if rng.random() < 0.15:
        extension = Extension(deliver_at=-rng.choice((1, 500, 10_000)), event_time=rng.randrange(1 << 40))
    return Record(
        key=rng.choice(KEYS) if rng.random() < 0.7 else None,
        value=None if luck < 0.08 else rng.randbytes(size),
        priority=rng.randrange(5),
        headers=(("trace", rng.randbytes(4)),) if rng.random() < 0.2 else (),
        extension=extension,
    )
