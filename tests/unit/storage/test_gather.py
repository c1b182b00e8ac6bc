"""Records at offsets that are far apart, read in one go; whatever is odd is left to `read`."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.model import limits
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from tests.unit.storage.logs import T0, flip_record, open_log

SETTINGS = LogSettings(segment_bytes=4096, index_interval_bytes=256)
COUNT = 500


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(tmp_path, SETTINGS)
    for number in range(COUNT):
        opened.append(codec.encode([Record(key=b"k", value=b"%040d" % number)]), now=T0)
    opened.sync()
    yield opened
    opened.close()


def gathered(log: Log, *offsets: int, max_bytes: int = 1 << 20) -> list[int] | None:
    """Of those asked for, the ones that came."""
    wanted = array("q", offsets)
    block = log.gather(wanted, max_bytes=max_bytes)
    if block is None:
        return None
    found = [record.offset for record in codec.decode(bytes(block))]
    assert found == sorted(set(found)), "each once, in order"
    return list(codec.pick(bytes(block), wanted, max_bytes=max_bytes).offsets)


def test_offsets_far_apart_are_found_in_several_segments(log: Log) -> None:
    assert len(log.segments) > 3
    assert gathered(log, 0, 7, 100, 101, 333, COUNT - 1) == [0, 7, 100, 101, 333, COUNT - 1]


@pytest.mark.parametrize("step", [1, 2, 9, 50, 499])
def test_every_step_gives_what_was_asked_for(log: Log, step: int) -> None:
    assert gathered(log, *range(0, COUNT, step)) == list(range(0, COUNT, step))[: limits.GATHERED_AT_ONCE]


def test_little_is_read_of_what_lies_between(log: Log) -> None:
    block = log.gather(array("q", [10, 400]), max_bytes=1 << 20)
    assert block is not None
    assert len(codec.decode(bytes(block))) == 2


def test_it_ends_when_there_is_enough_and_gives_one_at_least(log: Log) -> None:
    assert gathered(log, *range(0, COUNT, 50), max_bytes=1) == [0]
    some = log.gather(array("q", range(0, COUNT, 50)), max_bytes=200)
    assert some is not None
    assert 1 < len(codec.decode(bytes(some))) < 10


def test_what_is_not_there_is_left_to_read(log: Log) -> None:
    assert gathered(log, COUNT) is None
    assert gathered(log, 0, COUNT) is None
    assert gathered(log) is None


def test_a_hole_is_left_to_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, SETTINGS)
    for number in range(COUNT):
        log.append(codec.encode([Record(key=b"%d" % (number % 7), value=b"%040d" % number)]), now=T0)
    log.roll()
    log.sync()
    log.settings = LogSettings(segment_bytes=4096, index_interval_bytes=256, compact=True)
    clean(log, T0)
    assert log.read(0, max_bytes=1, max_count=1).next_offset > 1
    assert gathered(log, 0, 250) is None
    log.close()


def test_damage_is_left_to_read(log: Log) -> None:
    flip_record(log.directory, 0, 0)
    assert gathered(log, 0, 400) is None


def test_a_log_that_begins_later_is_left_to_read(log: Log) -> None:
    log.truncate_prefix(100)
    assert gathered(log, 50, 400) is None
    assert gathered(log, 150, 400) == [150, 400]
