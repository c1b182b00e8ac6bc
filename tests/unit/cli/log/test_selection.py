"""Selecting records while somebody else changes the log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.cli.data_directory import DISK
from goqueue.cli.log import selection
from goqueue.cli.log.selection import Bounds, Unreadable, select
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.offline import OfflineLog
from goqueue.storage.store import Store
from tests.unit.cli.typing_at import SMALL, Person, valued


def offsets(found: Iterator[list[Record] | Unreadable]) -> Iterator[int]:
    for item in found:
        assert not isinstance(item, Unreadable), item
        yield from (record.offset for record in item)


def test_a_segment_cleaned_under_the_reader_is_not_taken_for_damage(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096, compact=True)
    with Store(str(tmp_path)) as store:
        log = store.open_log("n", settings)
        for number in range(600):
            key = b"%d" % (number % 7)
            log.append(codec.encode([Record(key=key, value=b"x" * 20)]), now=1000)
        log.sync()
        reading = offsets(select(log.directory, Bounds()))
        seen = [next(reading)]
        assert clean(log, now=2000).removed_records > 0
        seen += reading
    assert seen == sorted(set(seen))
    assert seen[0] == 0
    assert seen[-1] == 599


def test_a_segment_removed_under_the_reader_is_not_taken_for_damage(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=4096, retention_ms=10)
    with Store(str(tmp_path)) as store:
        log = store.open_log("n", settings)
        for number in range(600):
            log.append(codec.encode(valued(str(number))), now=1000)
        log.sync()
        reading = offsets(select(log.directory, Bounds()))
        seen = [next(reading)]
        assert clean(log, now=5000).removed_segments > 0
        seen += reading
        assert log.start_offset > 0
    assert [offset for offset in seen if offset >= log.start_offset] == list(range(log.start_offset, 600))


def test_records_before_the_start_of_the_log_are_not_shown(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        log = store.open_log("n")
        log.append(codec.encode(valued(*map(str, range(20)))), now=1000)
        log.truncate_prefix(15)
    assert list(offsets(select(log.directory, Bounds()))) == [15, 16, 17, 18, 19]


def test_segments_outside_the_bounds_are_not_opened(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    person.write("n", *((1000 + number, valued(str(number))) for number in range(1000)), settings=SMALL)
    directory = str(person.data_dir / "logs" / "n")
    segments = OfflineLog(directory, DISK).segments()
    wanted = segments[3]
    opened: list[int] = []
    narrowed = selection._narrowed

    def count(segment: object, *rest: object) -> object:
        opened.append(segment.base)  # type: ignore[attr-defined]
        return narrowed(segment, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(selection, "_narrowed", count)
    bounds = Bounds(from_time=1000 + wanted.base + 5, to_time=1000 + wanted.base + 7)
    assert list(offsets(select(directory, bounds))) == [wanted.base + 5, wanted.base + 6]
    assert opened == [wanted.base]
    opened.clear()
    list(select(directory, Bounds(from_offset=wanted.base + 1, to_offset=wanted.base + 2)))
    assert opened == [wanted.base]
