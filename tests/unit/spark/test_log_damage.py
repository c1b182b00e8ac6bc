"""What exactly is wrong where a log is damaged: the record that is gone, the one that is there twice, the bad byte."""

import json
from pathlib import Path

import pytest

from goqueue.io.disk import LocalDisk
from goqueue.model.settings import LogSettings
from goqueue.spark.log_damage import DAMAGED, DISPLACED, DUPLICATED, MISSING, TORN, Finding, examine
from goqueue.spark.log_source import plan
from goqueue.spark.options import log_options
from goqueue.storage.cleaner import clean
from tests.support.planted_directory import PlantedDirectory, messages, segment_files
from tests.unit.storage.logs import flip, positions


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """The second of some sealed ones."""
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        planted.append("orders", messages(range(1000)))
    return segment_files(tmp_path, "orders")[1]


def found(data: Path, **chosen: object) -> list[Finding]:
    """`chosen` are options of the source; offsets are those of the topic's only partition."""
    bounds = {name: json.dumps({"orders": {"0": offset}}) for name, offset in chosen.items()}
    options = log_options({"path": str(data), "isolation": "read_uncommitted", "failOnDataLoss": "false", **bounds})
    parts = plan(options, whole_segments=True)
    return [finding for part in parts for finding in examine(part, LocalDisk())]


def places(findings: list[Finding]) -> list[tuple[str, int, int, int]]:
    return [(each.kind, each.first, each.end, each.position) for each in findings]


def test_a_log_without_damage_has_none(tmp_path: Path, segment: Path) -> None:
    assert found(tmp_path) == []


def test_a_flipped_bit_is_one_damaged_record(tmp_path: Path, segment: Path) -> None:
    offset = int(segment.stem) + 7
    position, end = positions(segment)[offset]
    flip(segment, end - 2)
    findings = found(tmp_path)
    assert places(findings) == [(DAMAGED, offset, offset + 1, position)]
    assert findings[0].path == str(segment)


def test_a_record_that_was_removed_is_missing_and_its_neighbour_in_the_wrong_place(
    tmp_path: Path, segment: Path
) -> None:
    offset = int(segment.stem) + 7
    position, end = positions(segment)[offset]
    data = segment.read_bytes()
    segment.write_bytes(data[:position] + data[end:])
    assert places(found(tmp_path)) == [
        (MISSING, offset, offset + 1, position),
        (DISPLACED, offset + 1, offset + 2, position),
    ]


def test_a_record_that_was_copied_is_there_twice(tmp_path: Path, segment: Path) -> None:
    offset = int(segment.stem) + 7
    position, end = positions(segment)[offset]
    last = max(positions(segment))
    data = segment.read_bytes()
    segment.write_bytes(data[:end] + data[position:end] + data[end:])
    findings = places(found(tmp_path))
    assert findings[0] == (DUPLICATED, offset, offset + 1, end)
    assert {each[0] for each in findings[1:]} == {DISPLACED}
    assert {each[1] for each in findings[1:]} == {offset + 1, last}


def test_a_segment_that_is_gone_is_missing_with_all_its_offsets(tmp_path: Path, segment: Path) -> None:
    first, last = min(positions(segment)), max(positions(segment))
    segment.unlink()
    assert places(found(tmp_path)) == [(MISSING, first, last + 1, 0)]


def test_an_end_without_a_record_is_torn_and_one_with_records_behind_it_is_damaged(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        planted.append("orders", messages(range(50)))
        planted.log("orders").sync()
        planted.append("orders", messages(range(50)))
        (path,) = segment_files(tmp_path, "orders")
        whole = path.read_bytes()
        position, end = positions(path)[99]
        path.write_bytes(whole[: end - 3])
        assert places(found(tmp_path)) == [(TORN, 99, 100, position)]
        path.write_bytes(whole)
        position, end = positions(path)[70]
        flip(path, end - 1)
        assert places(found(tmp_path)) == [(DAMAGED, 70, 71, position), (DISPLACED, 71, 100, end)]
        path.write_bytes(whole)


def test_only_what_is_between_the_offsets_that_are_asked_for_is_told(tmp_path: Path, segment: Path) -> None:
    base = int(segment.stem)
    position, end = positions(segment)[base + 7]
    data = segment.read_bytes()
    segment.write_bytes(data[:position] + data[end:])
    missing, displaced = (MISSING, base + 7, base + 8, position), (DISPLACED, base + 8, base + 9, position)
    assert places(found(tmp_path, endingOffsets=base + 7)) == []
    assert places(found(tmp_path, endingOffsets=base + 8)) == [missing]
    assert places(found(tmp_path, startingOffsets=base + 8)) == [displaced]
    assert places(found(tmp_path, startingOffsets=base + 9)) == []


def test_a_torn_end_is_told_to_those_who_read_up_to_it(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        planted.append("orders", messages(range(50)))
        planted.log("orders").sync()
        planted.append("orders", messages(range(50)))
        (path,) = segment_files(tmp_path, "orders")
        path.write_bytes(path.read_bytes()[:-3])
        assert found(tmp_path, endingOffsets=98) == []
        assert [each.kind for each in found(tmp_path, endingOffsets=99)] == [TORN]


def test_damage_that_is_not_asked_for_does_not_spoil_the_count_of_a_cleaned_segment(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path, segment_bytes=4096) as planted:
        planted.topic("orders")
        planted.append("orders", [*messages(range(50), keys=50), *messages(range(0, 450, 2), keys=50)])
        log = planted.log("orders")
        log.sync()
        log.settings = LogSettings(segment_bytes=4096, compact=True)
        clean(log, now=log.last_timestamp)
    path = segment_files(tmp_path, "orders")[0]
    first, second, *others = sorted(positions(path))
    assert len(others) == 23
    flip(path, positions(path)[first][1] - 2)
    assert [each.kind for each in found(tmp_path)] == [DAMAGED]
    assert found(tmp_path, startingOffsets=second) == []
