"""Machines made again from records: snapshots replace what was before them, unfinished ones never were."""

import pytest

from goqueue.machine.replay import SNAPSHOT_BEGINS, SNAPSHOT_DROPPED, SNAPSHOT_ENDS, Replay
from goqueue.model.errors import DamagedData
from goqueue.model.record import Record
from tests.unit.machine.adders import Adder


def numbered(*records: Record, first: int = 0) -> list[Record]:
    return [
        Record(offset=first + at, key=each.key, value=each.value, control=each.control)
        for at, each in enumerate(records)
    ]


def add(amount: int) -> Record:
    return Record(key=b"adder", value=b"%d" % amount)


def control(key: bytes) -> Record:
    return Record(key=key, control=True)


BEGINS, ENDS, DROPPED = map(control, (SNAPSHOT_BEGINS, SNAPSHOT_ENDS, SNAPSHOT_DROPPED))


def replayed(*records: Record, start: int = 0) -> tuple[Adder, Replay]:
    adder = Adder()
    replay = Replay("meta/numbers", {adder.name: adder}, start)
    for each in numbered(*records, first=start):  # one by one: what is left open stays open
        replay.feed([each])
    return adder, replay


def test_records_add_up() -> None:
    adder, replay = replayed(add(1), add(2))
    assert (adder.total, replay.finish(), replay.snapshots) == (3, None, [])


def test_a_snapshot_replaces_what_was_before_it() -> None:
    adder, replay = replayed(add(1), add(2), BEGINS, add(3), ENDS, add(4))
    assert adder.total == 7
    assert (replay.finish(), replay.snapshots, replay.since, replay.snapshot_records) == (None, [2], 5, 3)


def test_a_snapshot_without_an_end_never_was() -> None:
    adder, replay = replayed(add(1), BEGINS, add(100))
    assert (adder.total, replay.finish()) == (1, 1)
    adder, replay = replayed(add(1), BEGINS, add(100), DROPPED, add(2))
    assert (adder.total, replay.finish()) == (3, None)


def test_a_log_that_lost_its_beginning_needs_a_snapshot() -> None:
    _, replay = replayed(add(1), start=5)
    with pytest.raises(DamagedData, match="meta/numbers has no complete snapshot"):
        replay.finish()
    adder, replay = replayed(BEGINS, add(9), ENDS, start=5)
    assert (adder.total, replay.finish()) == (9, None)


def test_what_belongs_to_nobody_is_refused() -> None:
    with pytest.raises(DamagedData, match="offset 0 belongs to b'other', which this GoQueue does not know"):
        replayed(Record(key=b"other", value=b"1"))
