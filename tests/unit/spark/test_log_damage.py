"""What exactly is wrong where a log is damaged: the record that is gone, the one that is there twice, the bad byte."""

from pathlib import Path

import pytest

from goqueue.io.disk import LocalDisk
from goqueue.spark.log_damage import DAMAGED, DISPLACED, DUPLICATED, MISSING, TORN, Finding, diagnose
from goqueue.spark.log_reading import Loss, PartReader
from goqueue.spark.log_source import plan
from goqueue.spark.options import log_options
from tests.support.planted_directory import PlantedDirectory, messages, segment_files
from tests.unit.storage.logs import flip, positions


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """The second of some sealed ones."""
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        planted.append("orders", messages(range(1000)))
    return segment_files(tmp_path, "orders")[1]


def found(data: Path) -> list[Finding]:
    options = log_options({"path": str(data), "isolation": "read_uncommitted"})
    findings = []
    for part in plan(options, whole_segments=True):
        for item in PartReader(part, LocalDisk()).read():
            if isinstance(item, Loss):
                findings += diagnose(item, LocalDisk())
        if part.torn is not None:
            findings += diagnose(part.torn, LocalDisk(), torn=True)
    return findings


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
