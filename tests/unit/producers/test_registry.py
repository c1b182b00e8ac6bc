"""The machine that gives out producer ids: never one twice, whatever happens in between."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.machine.host import Host
from goqueue.machine.shape import Machine
from goqueue.model import limits
from goqueue.model.errors import DiskFull
from goqueue.model.settings import Fsync, LogSettings
from goqueue.producers.registry import InitProducer, ProducerRegistry
from goqueue.storage.log import Log
from sim.disk import SimDisk
from tests.support.faulty_disk import FaultyDisk
from tests.support.memory_disk import MemoryDisk

NOW = 1_700_000_000_000
GOLDEN = b'{"type":"producer_ids_reserved","below":1001}'


def given_out(host: Host, registry: ProducerRegistry) -> int:
    reply: int = host.submit(registry, InitProducer(), NOW).reply
    return reply


def start(disk: MemoryDisk | FaultyDisk | SimDisk) -> tuple[Host, ProducerRegistry]:
    registry = ProducerRegistry()
    host = Host(Log.open("/meta/test", disk=disk, settings=LogSettings(fsync=Fsync.EVERY)), [registry])
    registry.begin_life()
    return host, registry


def test_it_has_the_shape_of_a_machine_and_a_name_that_never_changes() -> None:
    held: Machine = ProducerRegistry()
    assert held.name == "producers", "its records in every metadata log are found by it"


def test_the_record_has_the_golden_bytes() -> None:
    registry = ProducerRegistry()
    decision = registry.decide(InitProducer(), NOW)
    assert (decision.records, decision.reply) == ([GOLDEN], 1)
    registry.apply(GOLDEN, 0)
    assert registry.reserved == 1001
    assert list(registry.snapshot()) == [GOLDEN]


def test_deciding_changes_nothing_that_is_kept() -> None:
    registry = ProducerRegistry()
    before = list(registry.snapshot())
    registry.decide(InitProducer(), NOW)
    assert list(registry.snapshot()) == before


def test_ids_are_given_out_one_after_the_other() -> None:
    host, registry = start(MemoryDisk())
    assert [given_out(host, registry) for _ in range(2500)] == list(range(1, 2501))
    assert host.log.end_offset == 3, "one record for each thousand"


def test_a_restart_leaves_the_rest_of_a_reservation_out() -> None:
    disk = MemoryDisk()
    host, registry = start(disk)
    assert given_out(host, registry) == 1
    host, registry = start(disk)
    assert given_out(host, registry) == 1 + limits.PRODUCER_IDS_RESERVED


def test_a_restart_before_the_first_id_begins_at_the_first() -> None:
    disk = MemoryDisk()
    start(disk)
    host, registry = start(disk)
    assert given_out(host, registry) == 1


def test_an_id_whose_reservation_failed_is_not_lost_to_the_next() -> None:
    disk = FaultyDisk(MemoryDisk())
    host, registry = start(disk)
    disk.free = 0
    for _ in range(3):
        with pytest.raises(DiskFull):
            given_out(host, registry)
    disk.free = None
    found = [given_out(host, registry) for _ in range(1100)]
    assert len(set(found)) == 1100
    assert max(found) < registry.reserved
    again_host, again = start(disk)
    assert given_out(again_host, again) >= registry.reserved


def test_a_full_disk_concerns_only_who_needs_a_new_reservation() -> None:
    disk = FaultyDisk(MemoryDisk())
    host, registry = start(disk)
    assert given_out(host, registry) == 1
    disk.free = 0
    assert [given_out(host, registry) for _ in range(999)] == list(range(2, 1001))
    with pytest.raises(DiskFull):
        given_out(host, registry)


def test_it_knows_the_ids_that_were_given_out() -> None:
    disk = MemoryDisk()
    host, registry = start(disk)
    assert not registry.knows(1)
    given_out(host, registry)
    assert [registry.knows(number) for number in (-1, 0, 1, 2, 2**62)] == [False, False, True, False, False]
    host, registry = start(disk)
    assert registry.knows(1)
    assert not registry.knows(registry.reserved)


def test_an_id_that_could_not_be_reserved_is_not_known() -> None:
    disk = FaultyDisk(MemoryDisk())
    host, registry = start(disk)
    disk.free = 0
    with pytest.raises(DiskFull):
        given_out(host, registry)
    assert not registry.knows(1)


def test_a_snapshot_keeps_what_was_reserved() -> None:
    disk = MemoryDisk()
    host, registry = start(disk)
    given_out(host, registry)
    for _ in range(2):
        host.snapshot(NOW)
    host.log.sync()
    host.forget()
    assert host.log.start_offset > 0
    assert given_out(host, registry) == 2, "a snapshot does not disturb the one that runs"
    host, registry = start(disk)
    assert given_out(host, registry) == 1001


def test_a_reset_forgets_everything() -> None:
    registry = ProducerRegistry()
    registry.apply(GOLDEN, 0)
    registry.reset()
    registry.begin_life()
    assert (registry.reserved, registry.decide(InitProducer(), NOW).reply) == (1, 1)


steps = st.lists(
    st.sampled_from(["ask", "ask", "ask", "ask many", "sync", "snapshot", "forget", "full", "kill", "power"]),
    max_size=40,
)


@given(steps, st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_no_id_is_told_twice(steps: list[str], seed: int) -> None:
    """Kills and power cuts at any point, full disks too. An id is told once its position is durable."""
    rng = Random(seed)
    disk = SimDisk(Random(seed))
    disk.make_directory("/meta")
    host, registry = start(disk)
    told: set[int] = set()
    waiting: list[tuple[int, int]] = []

    def tell() -> None:
        for number, position in waiting:
            if position <= host.log.durable.value:
                assert number not in told
                told.add(number)
        waiting[:] = [entry for entry in waiting if entry[1] > host.log.durable.value]

    def ask() -> None:
        outcome = host.submit(registry, InitProducer(), NOW)
        assert registry.knows(outcome.reply)
        waiting.append((outcome.reply, outcome.position))
        tell()

    for step in steps:
        if step in ("kill", "power"):
            disk.crash(rng, "kill" if step == "kill" else "power")
            waiting.clear()
            host, registry = start(disk)
        elif step == "snapshot":
            host.snapshot(NOW)
        elif step == "forget":
            host.log.sync()
            host.forget()
        elif step == "sync":
            host.log.sync()
        elif step == "full":
            disk.capacity = 0
            try:
                ask()
            except DiskFull:
                pass
            disk.capacity = None
        else:
            for _ in range(1 if step == "ask" else 700):
                ask()
        tell()
