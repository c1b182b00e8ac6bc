"""The machine that knows every named reader: what it decides, what it refuses, and that only `apply` changes it."""

from typing import Any

import pytest

from goqueue.machine.host import Host
from goqueue.machine.shape import Machine
from goqueue.metadata.readers import DeleteReader, FindReader, Put, PutReader, Reader, Readers, TopicGone
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, DiskFull, InvalidRequest, UnknownReader
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from tests.support.faulty_disk import FaultyDisk
from tests.support.memory_disk import MemoryDisk

NOW = 1_700_000_000_000
LATER = NOW + 60_000
A, B, C = TopicId(1), TopicId(2), TopicId(2**64 - 1)


def put(name: str, offsets: dict[TopicId, dict[int, int]], *, if_absent: bool = False) -> PutReader:
    return PutReader(name=name, offsets=offsets, if_absent=if_absent)


def do(machine: Readers, command: Any, now: int = NOW) -> Any:
    """Decide and apply, as a host does; deciding alone must change nothing, and a snapshot must make it all again."""
    before = list(machine.snapshot())
    try:
        decision = machine.decide(command, now)
    finally:
        assert list(machine.snapshot()) == before
    for record in decision.records:
        machine.apply(record, 0)
    other = Readers()
    for record in machine.snapshot():
        other.apply(record, 0)
    assert state(other) == state(machine)
    assert machine.size == sum(reader.size for reader in machine.by_name.values())
    return decision.reply


def state(machine: Readers) -> tuple[object, ...]:
    return machine.by_name, machine.size


def offsets_of(machine: Readers, name: str = "nightly") -> dict[TopicId, dict[int, int]]:
    return machine.reader(name).offsets


@pytest.fixture
def machine() -> Readers:
    made = Readers()
    do(made, put("nightly", {A: {0: 5, 1: 7}}))
    return made


def test_it_has_the_shape_of_a_machine_and_a_name_that_never_changes(machine: Readers) -> None:
    held: Machine = machine
    assert held.name == "readers", "its records in every metadata log are found by it"


def test_the_first_put_creates_a_reader_in_either_way() -> None:
    for if_absent in (False, True):
        machine = Readers()
        made = do(machine, put("nightly", {B: {1: 2, 0: 1}, A: {0: 5}}, if_absent=if_absent))
        reader = Reader(name="nightly", offsets={A: {0: 5}, B: {0: 1, 1: 2}}, created_ms=NOW, changed_ms=NOW)
        assert made == Put(reader, created=True)
        assert list(made.reader.offsets) == [A, B], "in order, so that the same offsets are the same bytes"
        assert machine.reader("nightly") == reader


def test_a_put_replaces_all_that_was_there(machine: Readers) -> None:
    reader, created = do(machine, put("nightly", {B: {0: 1}}), LATER)
    assert (reader.offsets, created) == ({B: {0: 1}}, False)
    assert (reader.created_ms, reader.changed_ms) == (NOW, LATER)


def test_if_absent_what_is_there_stays_and_only_other_partitions_are_added(machine: Readers) -> None:
    reader, created = do(machine, put("nightly", {A: {0: 99, 2: 9}, C: {0: 3}}, if_absent=True), LATER)
    assert (reader.offsets, created) == ({A: {0: 5, 1: 7, 2: 9}, C: {0: 3}}, False)
    assert (reader.created_ms, reader.changed_ms) == (NOW, LATER)


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_put_that_changes_nothing_writes_nothing(machine: Readers, if_absent: bool) -> None:
    decision = machine.decide(put("nightly", {A: {1: 7, 0: 5}}, if_absent=if_absent), LATER)
    assert decision == ((), Put(machine.reader("nightly"), created=False))


def test_a_put_without_offsets_is_refused(machine: Readers) -> None:
    empty: tuple[dict[TopicId, dict[int, int]], ...] = ({}, {A: {}})
    for nothing in empty:
        with pytest.raises(InvalidRequest, match="is put with offsets"):
            do(machine, put("nightly", nothing))


def test_a_topic_without_partitions_is_left_out(machine: Readers) -> None:
    assert do(machine, put("nightly", {A: {0: 5}, B: {}})).reader.offsets == {A: {0: 5}}


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a" * 256, "a\n"])
def test_a_name_that_cannot_be_is_refused(machine: Readers, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a reader"):
        do(machine, put(name, {A: {0: 1}}))


def test_a_reader_that_is_not_there_is_not_found_and_not_deleted(machine: Readers) -> None:
    assert do(machine, FindReader("nightly")) == machine.reader("nightly")
    for command in (FindReader("daily"), DeleteReader("daily")):
        with pytest.raises(UnknownReader, match="there is no reader 'daily'"):
            do(machine, command)


def test_a_deleted_reader_begins_anew(machine: Readers) -> None:
    before = machine.reader("nightly")
    assert do(machine, DeleteReader("nightly")) == before
    assert (machine.by_name, machine.size) == ({}, 0)
    assert do(machine, put("nightly", {A: {0: 9}}, if_absent=True), LATER).created
    assert machine.reader("nightly").created_ms == LATER


def test_offsets_of_a_deleted_topic_go_from_all_readers_and_readers_stay(machine: Readers) -> None:
    do(machine, put("both", {A: {0: 1}, B: {0: 2}}))
    do(machine, put("other", {B: {0: 3}}))
    assert machine.topic_ids == {A, B}
    assert do(machine, TopicGone(A), LATER) == 2
    assert [offsets_of(machine, name) for name in ("nightly", "both", "other")] == [{}, {B: {0: 2}}, {B: {0: 3}}]
    assert machine.topic_ids == {B}
    assert machine.decide(TopicGone(A), LATER) == ((), 0), "once is enough"
    assert do(machine, put("nightly", {C: {0: 4}}, if_absent=True)).reader.offsets == {C: {0: 4}}


def test_there_is_an_end_to_readers(machine: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_READERS", 2)
    do(machine, put("daily", {A: {0: 1}}))
    with pytest.raises(Conflict, match="there are 2 readers, which is the most; delete one first"):
        do(machine, put("hourly", {A: {0: 1}}))
    do(machine, put("daily", {A: {0: 2}}))
    do(machine, DeleteReader("nightly"))
    do(machine, put("hourly", {A: {0: 1}}))


def test_there_is_an_end_to_the_topics_of_a_reader(machine: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_READER_TOPICS", 1)
    for topics in ({A: {0: 5}, B: {0: 1}}, {B: {0: 1}}):
        with pytest.raises(Conflict, match="reader nightly would have 2 topics, and 1 are the most"):
            do(machine, put("nightly", topics, if_absent=True))
    assert do(machine, put("nightly", {B: {0: 1}})).reader.offsets == {B: {0: 1}}


def test_there_is_an_end_to_offsets(machine: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_READER_OFFSETS", 3)
    with pytest.raises(Conflict, match="all readers together would have 4 offsets, and 3 are the most"):
        do(machine, put("daily", {A: {0: 1, 1: 2}}))
    do(machine, put("daily", {A: {0: 1}}))
    do(machine, put("nightly", {B: {0: 1, 1: 2}}), LATER)
    with pytest.raises(Conflict):
        do(machine, put("nightly", {B: {2: 3}}, if_absent=True))


def test_a_record_that_is_not_understood_stops_the_start(machine: Readers) -> None:
    with pytest.raises(DamagedData, match="offset 12 of the metadata log is not understood"):
        machine.apply(b'{"type":"reader_renamed"}', 12)


def test_a_restart_finds_what_was_put_with_and_without_a_snapshot() -> None:
    disk = FaultyDisk(MemoryDisk())

    def start() -> tuple[Host, Readers]:
        machine = Readers()
        return Host(Log.open("/meta/test", disk=disk, settings=LogSettings(fsync=Fsync.EVERY)), [machine]), machine

    host, machine = start()
    host.submit(machine, put("nightly", {A: {0: 5}, B: {0: 1}}), NOW)
    host.submit(machine, put("daily", {A: {1: 6}}), NOW)
    host.submit(machine, TopicGone(B), NOW)
    host.submit(machine, put("gone", {C: {0: 0}}), NOW)
    host.submit(machine, DeleteReader("gone"), NOW)
    assert state(start()[1]) == state(machine)
    for _ in range(2):
        host.snapshot(NOW)
    host.log.sync()
    host.forget()
    assert host.log.start_offset > 0
    host.submit(machine, put("nightly", {A: {9: 9}}, if_absent=True), LATER)
    again_host, again = start()
    assert state(again) == state(machine)
    disk.free = 0
    with pytest.raises(DiskFull):
        again_host.submit(again, put("daily", {A: {1: 7}}), LATER)
    assert state(again) == state(machine), "a full disk refuses and changes nothing"
