"""Opening a log after odd things happened to its directory: what is kept, what is said, what is left alone."""

import os
from pathlib import Path
from random import Random

import pytest

from goqueue import codec
from goqueue.codec import Scan
from goqueue.codec.layout import HEADER, HEADER_BYTES, MAGIC, VALUE_LENGTH_AT, VERSION
from goqueue.io.disk import Buffer
from goqueue.model import limits
from goqueue.model.errors import DamagedState, Quarantined
from goqueue.model.record import Record
from goqueue.model.settings import LogSettings
from goqueue.storage import state as hard_state
from goqueue.storage.log import Log
from goqueue.storage.recovery import Cut, Quarantine, RecoveryReport, clean_path, segment_bases
from goqueue.storage.walk import Damage
from sim.disk import CRASH_KINDS, Crashed, CrashKind, SimDisk
from tests.unit.storage.disks import WatchedDisk, unreadable
from tests.unit.storage.logs import (
    SMALL,
    T0,
    answers,
    drop_companions,
    fill,
    fill_segments,
    flip,
    flip_record,
    message,
    offsets,
    open_log,
    positions,
    put,
    read_all,
    read_around_damage,
    segment_path,
    stamped,
)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# --- the report


def test_a_report_of_nothing_is_false_and_has_no_lines() -> None:
    report = RecoveryReport()
    assert (bool(report), report.lines()) == (False, [])


def test_a_report_says_everything_a_line_each() -> None:
    report = RecoveryReport()
    report.notes.append("a note")
    report.quarantined.append(Quarantine("a.log", Damage(5, 8, 100, 400, "its checksum does not match")))
    report.cut = Cut(20, 77, 2, ("a.cut", "b.cut"))
    assert report
    assert report.lines() == [
        "a note",
        "quarantined offsets 5 to 7 in a.log: its checksum does not match",
        "cut 77 bytes from offset 20 on (2 whole records among them), saved as a.cut, b.cut",
    ]


@pytest.mark.parametrize("field", ["cut", "quarantined", "notes"])
def test_each_part_of_a_report_makes_it_true(field: str) -> None:
    report = RecoveryReport()
    parts = {"cut": Cut(0, 1, 0, ("a",)), "quarantined": [Quarantine("a", Damage(0, 1, 0, 1, ""))], "notes": ["a"]}
    setattr(report, field, parts[field])
    assert report
    assert len(report.lines()) == 1


# --- a clean stop, and none


def test_a_clean_stop_leaves_nothing_to_say_or_do(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 100)
    log.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    disk = WatchedDisk()
    assert not open_log(tmp_path, disk=disk).recovery
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert disk.open_count == 0


def test_whole_records_above_the_synced_mark_are_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.sync()
    fill(log, 60, now=T0 + 1000)
    before = answers(log)
    again = open_log(tmp_path)
    assert answers(again) == before
    assert not again.recovery
    assert again.durable.value == 70


def test_what_was_kept_is_durable_before_the_log_is_open(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 60)
    disk = WatchedDisk()
    again = open_log(tmp_path, disk=disk)
    synced = {done.path for done in disk.of_kind("sync", ".log")}
    assert synced == {segment.key.path for segment in again.segments}
    last_data = max(at for at, done in enumerate(disk.operations) if done.kind == "sync" and done.path in synced)
    mark = min(at for at, done in enumerate(disk.operations) if done.kind == "write" and done.path.endswith("/synced"))
    assert last_data < mark


def test_a_new_log_costs_three_fsyncs_beside_its_directorys_name(tmp_path: Path) -> None:
    """The mark, the state, and their names; the name of the first segment waits for its first records."""
    disk = WatchedDisk()
    log = open_log(tmp_path / "0", disk=disk)
    steps = [(done.kind, done.path.rpartition("/")[2]) for done in disk.operations if done.kind.startswith("sync")]
    assert steps == [("sync", "synced"), ("sync", "log.state.tmp"), ("sync_directory", "0")]
    disk.operations.clear()
    log.sync()
    assert disk.operations == []
    fill(log, 5)
    log.sync()
    assert len(disk.of_kind("sync_directory", "/0")) == 1


def test_a_log_that_was_stopped_cleanly_costs_two_fsyncs(tmp_path: Path) -> None:
    """Of the directory and of the active segment: nobody knows whether a kill came before."""
    log = open_log(tmp_path)
    fill_segments(log, 2)
    fill(log, 5)
    log.close()
    disk = WatchedDisk()
    log = open_log(tmp_path, disk=disk)
    steps = [(done.kind, done.path.rpartition("/")[2]) for done in disk.operations if done.kind.startswith("sync")]
    assert steps == [("sync_directory", tmp_path.name), ("sync", "00000000000000000020.log")]
    assert not disk.of_kind("write")


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_a_log_whose_creation_is_interrupted_anywhere_is_created_by_the_next_opening(kind: CrashKind) -> None:
    for seed in range(20):
        for stop in range(1, 20):
            disk = SimDisk(Random(seed))
            disk.crash_at(stop)
            try:
                log = Log.open("/logs/a/0", disk=disk, settings=SMALL)
                fill(log, 5)
                log.sync()
                durable = log.durable.value
            except Crashed:
                durable = 0
            disk.crash(Random(100 * seed + stop), kind)
            again = Log.open("/logs/a/0", disk=disk, settings=SMALL)
            assert again.end_offset >= durable
            fill(again, 5, now=T0 + 1000)
            again.sync()
            end = again.end_offset
            disk.crash(Random(seed), "power")
            assert offsets(read_all(Log.open("/logs/a/0", disk=disk, settings=SMALL))) == list(range(end))


# --- the tail


def test_a_torn_end_is_cut_saved_aside_and_reported(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.sync()
    fill(log, 5, now=T0 + 100, block=1)
    path = segment_path(tmp_path, 0)
    spans = positions(path)
    whole = path.read_bytes()
    torn = bytearray(whole)
    torn[spans[12][0] + 50] ^= 1
    path.write_bytes(torn)
    again = open_log(tmp_path)
    assert offsets(read_all(again)) == list(range(12))
    saved = tmp_path / f"{0:020d}-{spans[12][0]}.cut"
    assert again.recovery.cut == Cut(12, len(whole) - spans[12][0], 2, (str(saved),))
    assert saved.read_bytes() == bytes(torn[spans[12][0] :])
    assert path.read_bytes() == whole[: spans[12][0]]
    assert put(again, message(12), now=T0 + 900).first_offset == 12
    again.close()
    assert not open_log(tmp_path).recovery


def test_a_tear_in_an_early_segment_takes_the_later_ones_aside_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.roll()
    fill(log, 10)
    log.roll()
    fill(log, 10)
    flip_record(tmp_path, 0, 7)
    sizes = {base: segment_path(tmp_path, base).stat().st_size for base in (0, 10, 20)}
    position = positions(segment_path(tmp_path, 0))[6][1]
    again = open_log(tmp_path)
    assert offsets(read_all(again)) == list(range(7))
    cut = again.recovery.cut
    assert cut is not None
    assert (cut.first_offset, cut.size, cut.valid_records) == (7, sum(sizes.values()) - position, 22)
    assert [Path(path).name for path in cut.saved_as] == [
        f"{0:020d}-{position}.cut",
        f"{10:020d}-0.cut",
        f"{20:020d}-0.cut",
    ]
    assert segment_bases(WatchedDisk().list(str(tmp_path))) == [0]


def test_damage_below_the_synced_mark_is_quarantined_and_nothing_is_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.sync()
    fill(log, 5, now=T0 + 100)
    flip_record(tmp_path, 0, 4)
    again = open_log(tmp_path)
    assert again.recovery.cut is None
    assert [(found.damage.first, found.damage.next_offset) for found in again.recovery.quarantined] == [(4, 5)]
    assert "quarantined offset 4 in" in again.recovery.lines()[0]
    found, refused = read_around_damage(again)
    assert (found, refused) == ([offset for offset in range(15) if offset != 4], [(4, 5)])
    assert put(again, message(15), now=T0 + 900).first_offset == 15
    again.sync()
    again.close()
    once_more = open_log(tmp_path)
    assert read_around_damage(once_more) == ([offset for offset in range(16) if offset != 4], [(4, 5)])


def test_a_lost_mark_counts_everything_up_to_the_last_valid_record_as_synced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 12, block=1)
    log.close()
    (tmp_path / "synced").unlink()
    flip_record(tmp_path, 0, 5)
    again = open_log(tmp_path)
    assert again.recovery.notes == ["the synced mark is lost; taking 12 as synced"]
    assert again.recovery.cut is None
    assert read_around_damage(again) == ([offset for offset in range(12) if offset != 5], [(5, 6)])


def test_a_damaged_mark_is_a_lost_mark(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 12)
    log.close()
    (tmp_path / "synced").write_bytes(bytes(8192))
    again = open_log(tmp_path)
    assert again.recovery.notes == ["the synced mark is lost; taking 12 as synced"]
    again.close()
    assert not open_log(tmp_path).recovery


def test_a_missing_mark_of_an_empty_log_is_nothing_to_speak_of(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    (tmp_path / "synced").unlink()
    again = open_log(tmp_path)
    assert not again.recovery
    assert again.end_offset == 0


def test_a_missing_active_file_that_held_records_is_reported_and_its_offsets_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 1)
    fill(log, 6)
    log.close()
    segment_path(tmp_path, 10).unlink()
    again = open_log(tmp_path)
    assert any("00000000000000000010.log is missing" in line for line in again.recovery.lines())
    assert (again.start_offset, again.end_offset) == (0, 16)
    assert read_around_damage(again) == (list(range(10)), [(10, 16)])
    assert put(again, message(16)).first_offset == 16
    again.close()
    once_more = open_log(tmp_path)
    assert read_around_damage(once_more) == ([*range(10), 16], [(10, 16)])


def test_a_missing_empty_active_file_is_made_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 1)
    log.close()
    segment_path(tmp_path, 10).unlink()
    again = open_log(tmp_path)
    assert not again.recovery
    assert put(again, message(10)).first_offset == 10


# --- sealed segments


def test_a_missing_sealed_file_is_reported_and_only_its_offsets_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    log.close()
    segment_path(tmp_path, 10).unlink()
    again = open_log(tmp_path)
    lines = again.recovery.lines()
    assert any("00000000000000000010.log is missing" in line for line in lines)
    assert any(line.startswith("quarantined offsets 10 to 19 in") for line in lines)
    assert read_around_damage(again) == ([*range(10), *range(20, 30)], [(10, 20)])


def test_a_shortened_sealed_file_lacks_exactly_its_last_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    log.close()
    path = segment_path(tmp_path, 10)
    spans = positions(path)
    path.write_bytes(path.read_bytes()[: spans[16][0] + 3])
    again = open_log(tmp_path)
    assert read_around_damage(again)[0] == [*range(16), *range(20, 30)]
    assert {offset for _, damage in again.recovery.quarantined for offset in range(*damage[:2])} == {16, 17, 18, 19}


def test_nothing_of_a_sealed_segment_is_read_at_opening(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 5)
    log.close()
    disk = WatchedDisk()
    open_log(tmp_path, disk=disk)
    assert disk.of_kind("read", ".log") == []
    assert disk.of_kind("read", ".index") == []


# --- leftovers


def test_a_rewrite_the_state_does_not_speak_of_is_dropped(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 2)
    before = answers(log)
    log.close()
    leftover = Path(clean_path(str(tmp_path), 0, 99))
    leftover.write_bytes(b"half a segment")
    (tmp_path / "log.state.tmp").write_bytes(b"half a state")
    again = open_log(tmp_path)
    assert not leftover.exists()
    assert not (tmp_path / "log.state.tmp").exists()
    assert answers(again) == before
    assert not again.recovery


def test_a_rewrite_the_state_speaks_of_is_put_in_place(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 2)
    before = answers(log)
    log.close()
    entry = log.sealed[0]
    segment_path(tmp_path, 0).rename(clean_path(str(tmp_path), 0, entry.seal))
    again = open_log(tmp_path)
    assert answers(again) == before
    assert not list(tmp_path.glob("*.clean"))


def test_a_segment_the_state_no_longer_lists_is_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 3)
    log.close()
    kept = {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if name.startswith(f"{0:020d}")}
    log = open_log(tmp_path)
    log.truncate_prefix(10)
    log.close()
    for name, data in kept.items():
        (tmp_path / name).write_bytes(data)
    again = open_log(tmp_path)
    assert offsets(read_all(again)) == list(range(10, 30))
    assert not [name for name in names(tmp_path) if name.startswith(f"{0:020d}")]


def test_files_that_are_none_of_the_logs_are_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 1)
    fill(log, 3)
    log.close()
    for name in ("notes.txt", "1.log", "x.index", "0.5.clean"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "sub").mkdir()
    again = open_log(tmp_path)
    assert offsets(read_all(again)) == list(range(13))
    for name in ("notes.txt", "1.log", "x.index", "0.5.clean"):
        assert (tmp_path / name).read_bytes() == b"mine"


def test_a_segment_file_beyond_the_end_is_left_alone_and_noted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 1)
    fill(log, 3)
    log.close()
    stray = segment_path(tmp_path, 5000)
    stray.write_bytes(segment_path(tmp_path, 10).read_bytes())
    again = open_log(tmp_path)
    assert offsets(read_all(again))[:13] == list(range(13))
    assert again.end_offset == 13
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir() if "5000" in path.name)
    assert everything == segment_path(tmp_path, 10).read_bytes()
    assert any("5000" in line for line in again.recovery.lines())


def test_a_missing_or_damaged_state_refuses_the_log_and_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill_segments(log, 2)
    log.close()
    state = tmp_path / hard_state.FILE_NAME
    data = state.read_bytes()
    state.unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DamagedState, match="is missing although there are segments"):
        open_log(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    state.write_bytes(data[:-1])
    with pytest.raises(DamagedState, match="is damaged"):
        open_log(tmp_path)
    state.write_bytes(data)
    assert offsets(read_all(open_log(tmp_path))) == list(range(20))


# --- values made to be taken for records


def test_opening_after_a_tear_in_a_hostile_value_reads_each_byte_a_few_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 300_000
    ends = range(size - HEADER_BYTES, 0, -HEADER_BYTES)
    hostile = b"".join(HEADER.pack(MAGIC, VERSION, 2, 0, 5, 1, 2, 0, 0, max(left - 40, 0), 0) for left in ends)
    log = open_log(tmp_path, LogSettings())
    put(log, message(0))
    log.sync()
    put(log, Record(value=hostile))
    path = segment_path(tmp_path, 0)
    os.truncate(path, path.stat().st_size - 1)
    whole = path.stat().st_size
    looked_at = 0
    scan = codec.scan

    def count(more: int) -> None:
        nonlocal looked_at
        looked_at += more
        assert looked_at <= 20 * whole, "this would take a time that grows with the square of the size"

    def counted(data: Buffer) -> Scan:
        count(len(data))
        return scan(data)

    monkeypatch.setattr(codec, "scan", counted)
    monkeypatch.setattr(limits, "RESYNC_BYTES", 2 * size, raising=False)
    disk = WatchedDisk(lambda operation: count(operation.size if operation.kind == "read" else 0))
    again = open_log(tmp_path, LogSettings(), disk)
    assert again.end_offset == 1
    cut = again.recovery.cut
    assert cut is not None
    assert (cut.first_offset, cut.valid_records) == (1, 0)


@pytest.mark.parametrize("sealed", [False, True])
def test_records_forged_inside_a_damaged_value_are_never_served_and_the_real_ones_are(
    tmp_path: Path, sealed: bool
) -> None:
    log = open_log(tmp_path)
    put(log, message(0))
    inner, _ = stamped(*(Record(value=b"FORGED") for _ in range(3)), offset=2)
    put(log, Record(value=b"x" * 200 + inner))
    fill(log, 5, block=1)
    if sealed:
        log.roll()
    log.close()
    path = segment_path(tmp_path, 0)
    flip(path, positions(path)[1][0] + VALUE_LENGTH_AT, bit=6)
    again = open_log(tmp_path)
    assert read_around_damage(again) == ([0, *range(2, 7)], [(1, 2)])
    for offset in range(2, 7):
        (record,) = again.records(offset, max_bytes=1)
        assert record.value == message(offset).value


# --- cut twice


def test_a_second_tear_at_the_same_place_leaves_what_the_first_one_saved(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, message(0))
    log.sync()
    path = segment_path(tmp_path, 0)
    position = path.stat().st_size
    saved = []
    for life in range(3):
        put(log, Record(value=b"life %d" % life * 30), message(2))
        flip(path, position + 60)
        saved.append(path.read_bytes()[position:])
        log = open_log(tmp_path)
        cut = log.recovery.cut
        assert cut is not None
        (named,) = cut.saved_as
        assert Path(named).read_bytes() == saved[-1]
        assert (cut.first_offset, log.end_offset) == (1, 1)
    assert sorted(kept.read_bytes() for kept in tmp_path.glob("*.cut")) == sorted(saved)
    assert not open_log(tmp_path).recovery


# --- sectors that cannot be read

SECTOR = 4096
LARGE = LogSettings(segment_bytes=1 << 20)


def touching(path: Path, sector: int) -> set[int]:
    """The offsets of the records that have a byte in that sector."""
    start, end = sector * SECTOR, (sector + 1) * SECTOR
    return {offset for offset, (first, after) in positions(path).items() if first < end and start < after}


@pytest.mark.parametrize("sealed", ["active", "sealed", "sealed, without its companions"])
@pytest.mark.parametrize("sector", [0, 1, 5, -1])
def test_a_sector_that_cannot_be_read_costs_the_records_in_it_and_no_others(
    tmp_path: Path, sector: int, sealed: str
) -> None:
    log = open_log(tmp_path, LARGE)
    fill(log, 300)
    if sealed != "active":
        log.roll()
        log.sync()
        fill(log, 10)
    log.close()
    path = segment_path(tmp_path, 0)
    if sealed == "sealed, without its companions":
        drop_companions(tmp_path)
    sector = sector if sector >= 0 else (path.stat().st_size - 1) // SECTOR
    lost = touching(path, sector)
    assert lost
    disk = WatchedDisk(unreadable(str(path), sector * SECTOR, (sector + 1) * SECTOR))
    end = log.end_offset
    for _ in range(2):
        again = open_log(tmp_path, LARGE, disk)
        assert again.recovery.cut is None
        found, refused = read_around_damage(again)
        assert {offset for first, after in refused for offset in range(first, after)} == lost
        assert found == [offset for offset in range(end) if offset not in lost]
        for offset in lost:
            with pytest.raises(Quarantined):
                again.read(offset, max_bytes=1)
        assert put(again, message(end), now=T0 + 10**6).first_offset == end
        end += 1
        again.close()
