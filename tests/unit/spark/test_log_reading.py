"""Cutting a partition's log into parts, and reading them: every record once, whatever is done to the files."""

from pathlib import Path
from threading import Thread

import pytest

from goqueue import codec
from goqueue.io.disk import LocalDisk
from goqueue.model.settings import LogSettings
from goqueue.spark import log_directory, log_reading
from goqueue.spark.log_directory import DataDirectory
from goqueue.spark.log_reading import LogPart, Loss, PartReader, cut
from goqueue.spark.places import Stretch
from goqueue.storage.cleaner import clean
from tests.support.planted_directory import PlantedDirectory, messages, segment_files
from tests.unit.storage.logs import drop_companions, flip_record, offsets, read_all


def parts_of(data: Path, start: int = 0, end: int | None = None, **how: int) -> list[LogPart]:
    directory = DataDirectory(str(data))
    found = directory.partition(directory.topics["orders"], 0, committed=True)
    stretch = Stretch("orders", "", 0, max(start, found.start), found.stable if end is None else end)
    return cut(found, stretch, most_records=how.get("most_records"))


def read(*parts: LogPart) -> tuple[list[int], list[tuple[str, int, int]]]:
    """The offsets, as often as they are there, and what is lost."""
    seen: list[int] = []
    losses = []
    for part in parts:
        for item in PartReader(part, LocalDisk()).read():
            if isinstance(item, Loss):
                losses.append((item.damage.reason, item.damage.first, item.damage.next_offset))
            else:
                found = [record.offset for record in codec.decode(item.data) if record.offset >= item.start]
                seen += [offset for offset in found if offset < part.stretch.end]
    return seen, losses


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "PART_BYTES", 4 * 1024)
    monkeypatch.setattr(log_reading, "PIECE_BYTES", 1024)
    monkeypatch.setattr(log_directory, "START_BYTES", 1024)


def planted(data: Path, count: int, *, segment_bytes: int = 16 * 1024) -> PlantedDirectory:
    found = PlantedDirectory(data, segment_bytes=segment_bytes)
    found.topic("orders")
    found.append("orders", messages(range(count)), block=10)
    return found


@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20], ids=["small segments", "one that is not sealed"])
@pytest.mark.parametrize("companions", [True, False], ids=["with indexes", "without"])
def test_parts_have_every_offset_once(tmp_path: Path, small: None, segment_bytes: int, companions: bool) -> None:
    with planted(tmp_path, 1000, segment_bytes=segment_bytes):
        if not companions:
            for path in segment_files(tmp_path, "orders")[:1]:
                drop_companions(path.parent)
        parts = parts_of(tmp_path)
        assert len(parts) > 10
        assert read(*parts) == ([*range(1000)], [])
        assert read(*parts_of(tmp_path, 333, 777)) == ([*range(333, 777)], [])
        many = parts_of(tmp_path, most_records=7)
        assert max(part.stretch.size for part in many) <= 7
        assert read(*many) == ([*range(1000)], [])


def test_small_segments_share_a_part(tmp_path: Path) -> None:
    with planted(tmp_path, 1000, segment_bytes=4096):
        assert len(segment_files(tmp_path, "orders")) > 20
        (part,) = parts_of(tmp_path)
        assert read(part) == ([*range(1000)], [])


def test_what_was_cleaned_away_since_the_plan_is_a_loss(tmp_path: Path, small: None) -> None:
    with planted(tmp_path, 500, segment_bytes=4096) as found:
        parts = parts_of(tmp_path)
        log = found.log("orders")
        log.sync()
        log.truncate_prefix(120)
        clean(log, now=0)
        seen, losses = read(*parts)
        assert seen == [*range(120, 500)]
        assert {reason for reason, _, _ in losses} == {"they were cleaned away since the read was planned"}
        assert sum(end - first for _, first, end in losses) == 120


def test_a_segment_that_was_rewritten_since_the_plan_is_read_as_it_is_now(tmp_path: Path, small: None) -> None:
    with planted(tmp_path, 500, segment_bytes=4096) as found:
        parts = parts_of(tmp_path)
        log = found.log("orders")
        log.sync()
        log.settings = LogSettings(segment_bytes=4096, compact=True)
        clean(log, now=log.last_timestamp)
        left = offsets(read_all(log))
        assert len(left) < 150
        assert read(*parts) == (left, [])


def test_damage_is_told_in_the_part_it_is_in_and_the_rest_is_read(tmp_path: Path, small: None) -> None:
    with planted(tmp_path, 500, segment_bytes=4096):
        pass
    base = int(segment_files(tmp_path, "orders")[2].stem)
    flip_record(segment_files(tmp_path, "orders")[0].parent, base, base + 3)
    segment_files(tmp_path, "orders")[4].unlink()
    seen, losses = read(*parts_of(tmp_path))
    missing = set(range(500)) - set(seen)
    assert len(seen) == len(set(seen))
    assert missing == {offset for _, first, end in losses for offset in range(first, end)}
    assert ("its checksum does not match", base + 3, base + 4) in losses
    assert "the file is missing" in {reason for reason, _, _ in losses}
    assert len(missing) > 20


def test_a_record_that_is_gone_from_a_cleaned_segment_is_missed(tmp_path: Path) -> None:
    with planted(tmp_path, 500, segment_bytes=4096) as found:
        log = found.log("orders")
        log.sync()
        log.settings = LogSettings(segment_bytes=4096, compact=True)
        clean(log, now=log.last_timestamp)
    path = next(path for path in segment_files(tmp_path, "orders") if path.stat().st_size)
    data = path.read_bytes()
    records = codec.decode(data)
    assert len(records) > 2
    first, second = len(codec.encode(records[:1])), len(codec.encode(records[:2]))
    path.write_bytes(data[:first] + data[second:])
    _, losses = read(*parts_of(tmp_path))
    counted = f"the segment holds {len(records) - 1} records, the log's state says {len(records)}"
    assert [reason for reason, _, _ in losses] == [counted]


def test_beside_a_writer_a_read_is_a_beginning_of_the_log(tmp_path: Path, small: None) -> None:
    lengths = [0]
    with planted(tmp_path, 50, segment_bytes=4096) as found:

        def write() -> None:
            for _ in range(100):
                found.append("orders", messages(range(20)), block=5)

        writer = Thread(target=write)
        writer.start()
        try:
            while writer.is_alive() or len(lengths) < 3:
                seen, losses = read(*parts_of(tmp_path))
                assert (seen, losses) == ([*range(len(seen))], [])
                assert len(seen) >= lengths[-1]
                lengths.append(len(seen))
        finally:
            writer.join()
        assert read(*parts_of(tmp_path)) == ([*range(2050)], [])
