"""What views pass on from segment to segment: at a roll, after a broken append, at opening, cleaning and truncation."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from goqueue.codec import Scan
from goqueue.io.disk import Buffer, Disk
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from goqueue.storage.segment import Segment
from goqueue.storage.views import View
from sim.disk import SimDisk
from tests.support.faulty_disk import FaultyDisk
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import SMALL, T0, drop_companions, fill, fill_segments, message, put


class Known:
    """A view that knows the offsets of all records so far, or, with nothing inherited, of its own segment's."""

    breaks = 0
    """How many of the next folds break."""

    def __init__(self, inherited: frozenset[int] | None) -> None:
        self.inherited = inherited
        self.own: set[int] = set()

    def on_damage(self, first: int, next_offset: int) -> None:
        pass

    def on_append(self, block: Buffer, scan: Scan) -> None:
        self.own.update(scan.offsets)
        if Known.breaks:
            Known.breaks -= 1
            raise ValueError("a bug in a view")

    def inherit(self, older: Sequence[View]) -> None:
        assert not self.own
        assert all(isinstance(view, Known) for view in older)
        newest = older[-1]
        assert isinstance(newest, Known)
        self.inherited = None if newest.inherited is None else frozenset(newest.inherited | newest.own)

    def anew(self) -> "Known":
        return Known(self.inherited)

    @property
    def carries(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        return json.dumps([None if self.inherited is None else sorted(self.inherited), sorted(self.own)]).encode()

    @property
    def size(self) -> int:
        return 100


class Knowing:
    """The first segment of a log has nothing before it, and knows that."""

    name = "known"

    def empty(self, base: int) -> Known:
        return Known(frozenset() if base == 0 else None)

    def load(self, base: int, data: bytes) -> Known:
        inherited, own = json.loads(data)
        view = Known(None if inherited is None else frozenset(inherited))
        view.own = set(own)
        return view


def open_knowing(path: Path | str, disk: Disk | None = None, settings: LogSettings = SMALL) -> Log:
    return Log.open(str(path), disk=disk or WatchedDisk(), settings=settings, views=[Knowing()])


def view(log: Log, segment: Segment) -> Known:
    found = log.derived(segment).views["known"]
    assert isinstance(found, Known)
    return found


def assert_all_known(log: Log) -> None:
    """Every view knows every record up to the end of its segment, its own ones by itself."""
    for segment in log.segments:
        known = view(log, segment)
        assert known.inherited == frozenset(range(segment.base)), segment.base
        assert known.own == set(range(segment.base, segment.end)), segment.base


def test_a_segment_inherits_from_the_one_before_it(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    fill(log, 100)
    assert len(log.segments) > 2
    assert_all_known(log)
    log.sync()
    assert_all_known(log)


def test_what_was_inherited_is_saved_with_the_segment(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    fill_segments(log, 3)
    log.close()
    again = open_knowing(tmp_path)
    assert [view(again, segment).inherited for segment in again.segments[:3]] == [
        frozenset(range(base)) for base in (0, 10, 20)
    ]


def test_a_view_rebuilt_from_records_alone_has_inherited_nothing(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    fill_segments(log, 3)
    log.close()
    drop_companions(tmp_path)
    again = open_knowing(tmp_path)
    assert view(again, again.segments[1]).inherited is None
    assert view(again, again.segments[1]).own == set(range(10, 20))


def test_at_opening_the_first_of_the_tail_inherits_from_nobody_and_the_next_from_it(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    fill_segments(log, 1)
    for _ in range(2):
        fill(log, 10)
        log.roll()
    fill(log, 3)
    again = open_knowing(tmp_path)
    assert [segment.base for segment in again.segments] == [0, 10, 20, 30]
    assert view(again, again.segments[1]).inherited is None
    unsealed = [view(again, segment) for segment in again.segments[1:]]
    assert [sorted(known.own) for known in unsealed] == [
        list(range(first, end)) for first, end in ((10, 20), (20, 30), (30, 33))
    ]
    assert [known.inherited for known in unsealed] == [None, None, None]


def test_at_opening_the_tail_of_a_log_without_sealed_segments_knows_everything(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    for _ in range(3):
        fill(log, 10)
        log.roll()
    assert_all_known(open_knowing(tmp_path))


@pytest.mark.parametrize("breaks", [1, 3])
@pytest.mark.parametrize("rolled", [False, True])
def test_after_a_broken_append_a_view_has_what_it_had_inherited_and_nothing_of_the_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled: bool, breaks: int
) -> None:
    log = open_knowing(tmp_path)
    fill(log, 10)
    if rolled:
        log.roll()
        log.sync()
        fill(log, 5)
    inherited = view(log, log.segments[-1]).inherited
    monkeypatch.setattr(Known, "breaks", breaks)
    while Known.breaks:  # with three, the view cannot be rebuilt at once either
        with pytest.raises(ValueError, match="a bug in a view"):
            put(log, message(99))
    put(log, message(log.end_offset))
    assert view(log, log.segments[-1]).inherited == inherited
    assert_all_known(log)


def test_what_was_inherited_survives_a_broken_append_after_the_older_segments_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_knowing(tmp_path)
    fill_segments(log, 2)
    fill(log, 5)
    log.remove(log.sealed)
    drop_companions(tmp_path)
    monkeypatch.setattr(Known, "breaks", 1)
    with pytest.raises(ValueError, match="a bug in a view"):
        put(log, message(99))
    put(log, message(25))
    assert_all_known(log)


def test_after_a_write_that_failed_for_lack_of_space_nothing_is_lost_or_added(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_knowing(tmp_path, disk)
    fill(log, 10)
    log.roll()
    log.sync()
    fill(log, 2)
    disk.free = 50
    with pytest.raises(Exception, match="no space"):
        put(log, message(12))
    disk.free = None
    put(log, message(12))
    assert_all_known(log)
    assert disk.hits


# --- the cleaner


@pytest.mark.parametrize("lost", [False, True])
def test_a_rewritten_segment_inherits_from_those_it_replaces(tmp_path: Path, lost: bool) -> None:
    """Of the records only the newest of the key are left; what was known of the others is not."""
    settings = LogSettings(segment_bytes=4096, index_interval_bytes=256, compact=True)
    log = open_knowing(tmp_path, settings=settings)
    for number in range(3):
        for _ in range(4):
            put(log, Record(key=b"one", value=b"v"), now=T0 + number)
        log.roll()
        log.sync()
    if lost:
        log.close()
        drop_companions(tmp_path)
        log = open_knowing(tmp_path, settings=settings)
    report = clean(log, T0 + 10)
    assert report.rewritten_segments == 3
    rewritten = view(log, log.segments[0])
    assert (log.segments[0].base, log.segments[0].end, log.segments[0].count) == (0, 12, 1)
    assert rewritten.own == {11}
    assert rewritten.inherited == (None if lost else frozenset(range(12)))
    log.close()
    again = open_knowing(tmp_path, settings=settings)
    assert view(again, again.segments[0]).inherited == rewritten.inherited


def test_removing_segments_leaves_the_knowledge_of_the_others_alone(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    fill_segments(log, 4)
    log.remove(log.sealed[1:3])
    assert view(log, log.segments[-1]).inherited == frozenset(range(40))
    assert view(log, log.segments[1]).inherited == frozenset(range(30))


# --- truncation


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 20, 25, 30, 33, 40, 41, 45])
def test_after_a_truncation_every_view_knows_what_is_left(tmp_path: Path, offset: int, cached: bool) -> None:
    """Three sealed segments of ten (0, 10, 20), one rolled (30), one active (40 to 44)."""
    log = open_knowing(tmp_path)
    fill_segments(log, 3)
    fill(log, 10)
    log.roll()
    fill(log, 5)
    if not cached:
        for segment in log.segments:
            if segment.seal:
                segment.derived = None
    log.truncate(offset)
    assert log.end_offset == offset
    assert_all_known(log)
    fill(log, 30, now=T0 + 10**6)
    log.roll()
    log.sync()
    assert_all_known(log)
    log.close()
    again = open_knowing(tmp_path)
    for segment in again.segments:
        if segment.seal:
            assert view(again, segment).inherited == frozenset(range(segment.base))


def test_a_truncation_of_segments_whose_views_are_lost_leaves_them_incomplete_and_right(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    fill_segments(log, 3)
    log.close()
    drop_companions(tmp_path)
    again = open_knowing(tmp_path)
    again.truncate(15)
    assert [sorted(view(again, segment).own) for segment in again.segments] == [
        list(range(10)),
        list(range(10, 15)),
        [],
    ]
    assert [view(again, segment).inherited for segment in again.segments[1:]] == [None, None]


def test_a_companion_that_the_disk_cannot_read_does_not_keep_a_log_from_being_truncated(tmp_path: Path) -> None:
    log = open_knowing(tmp_path)
    fill_segments(log, 2)
    log.close()
    disk = FaultyDisk()
    again = open_knowing(tmp_path, disk)

    def unreadable(operation: str, path: str) -> None:
        if operation == "open" and path.endswith(".view"):
            disk.before = lambda *_: None
            raise OSError(5, "Input/output error", path)

    disk.before = unreadable
    again.truncate(15)
    assert sorted(view(again, again.segments[1]).own) == list(range(10, 15))
    put(again, message(15))
    assert again.end_offset == 16


# --- any order of all of these


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_to_a_log_that_stays_open_its_views_know_everything(seed: int) -> None:
    rng = Random(seed)
    disk = SimDisk(rng)
    log = open_knowing("/log", disk)
    for _ in range(60):
        chance = rng.random()
        if chance < 0.5:
            fill(log, rng.randint(1, 12))
        elif chance < 0.65:
            log.roll()
        elif chance < 0.8:
            log.sync()
        elif chance < 0.9:
            log.truncate(rng.randint(log.start_offset, log.end_offset))
        elif chance < 0.95:
            Known.breaks = 1
            with pytest.raises(ValueError, match="a bug in a view"):
                fill(log, 1)
        for segment in log.segments:
            if segment.seal and rng.random() < 0.3:
                segment.derived = None
        assert_all_known(log)
