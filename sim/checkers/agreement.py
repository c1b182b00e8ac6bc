"""Every read path agrees: from any offset, by time, in small pieces, and after all indexes and views were lost."""

from random import Random

from goqueue.model.errors import Quarantined
from goqueue.storage.log import Log
from sim.checkers import require
from sim.checkers.observed import Observed, Seen, split

RULE = "agreement"


def check(log: Log, observed: Observed, rng: Random, *, samples: int = 12) -> None:
    """Compare look-ups with the sequential read `observed`; a few of them, at random, unless the log is small."""
    offsets = range(observed.start, observed.end)
    for offset in offsets if len(offsets) <= samples else rng.sample(offsets, samples):
        check_read(
            log,
            observed,
            offset,
            max_bytes=rng.choice((1, 200, 1000, 100_000)),
            max_count=rng.randint(1, 40),
            to_offset=rng.choice((observed.end, observed.end, offset + rng.randint(1, 20))),
        )
    times = sorted({seen.timestamp for seen in observed.read})
    for time in times if len(times) <= samples else rng.sample(times, samples):
        check_time(log, observed, time - rng.randint(0, 1))
    if times:
        check_time(log, observed, times[-1] + 1)


def check_read(log: Log, observed: Observed, offset: int, *, max_bytes: int, max_count: int, to_offset: int) -> None:
    what = f"a read at {offset} (to {to_offset}, at most {max_bytes} bytes, {max_count} records)"
    end = min(to_offset, observed.end)
    try:
        chunk = log.read(offset, max_bytes=max_bytes, max_count=max_count, to_offset=to_offset)
    except Quarantined as damage:
        reached = max(offset, damage.first)
        require(
            observed.is_quarantined(reached)
            and reached < damage.next_offset
            and not any(offset <= seen.offset < reached for seen in observed.read),
            RULE,
            f"{what} says {damage.first} to {damage.next_offset} are quarantined, reading in sequence did not",
        )
        return
    require(not observed.is_quarantined(offset), RULE, f"{what} gives records; in sequence it was quarantined")
    got = split(chunk.data)
    there = [seen for seen in observed.read if offset <= seen.offset < end]
    expected = there[: len(got)]
    require(got == expected, RULE, f"{what} gives {_names(got)}; in sequence there are {_names(expected)}")
    require(chunk.count == len(got), RULE, f"{what} counts {chunk.count} records and has {len(got)}")
    require(len(got) <= max_count, RULE, f"{what} gives {len(got)} records")
    require(len(got) <= 1 or len(chunk.data) <= max_bytes, RULE, f"{what} gives {len(chunk.data)} bytes")
    following = there[len(got)].offset if len(got) < len(there) else end
    require(
        offset < chunk.next_offset <= following,
        RULE,
        f"{what} goes on at {chunk.next_offset}; the next record is {following}",
    )
    gap = range(got[-1].offset + 1 if got else offset, chunk.next_offset)
    require(
        not any(observed.is_quarantined(missing) for missing in gap), RULE, f"{what} passes over a quarantined range"
    )


def check_time(log: Log, observed: Observed, time: int) -> None:
    """Reading from the offset it names gives the first record of that time or later."""
    found = log.offset_at(time)
    expected = next((seen.offset for seen in observed.read if seen.timestamp >= time), observed.end)
    passed = [seen.offset for seen in observed.read if found <= seen.offset < expected]
    require(
        observed.start <= found <= expected and not passed,
        RULE,
        f"time {time} is said to be at offset {found}, it is at {expected}",
    )


def check_same(before: Observed, after: Observed) -> None:
    """Two looks at the same log, the second after all indexes and views were lost."""
    require(before == after, RULE, "the log reads differently after its indexes and views were rebuilt")


def _names(seen: list[Seen]) -> str:
    return f"{len(seen)} records {[one.offset for one in seen[:5]]}..."
