"""Schedules in a broker: runs are published when they are due, each exactly once, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue import codec
from goqueue.broker.own_messages import OwnPublisher
from goqueue.broker.partition import Partition
from goqueue.broker.schedules import ScheduledMessage, read_message
from goqueue.codec.partitioning import partition_of
from goqueue.jobs.records import ScheduleId
from goqueue.jobs.schedule import Schedule
from goqueue.jobs.schedules import ChangeSchedule
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, DiskFull, InvalidRequest, UnknownSchedule
from goqueue.model.jobs import Missed
from goqueue.model.record import Extension, Record
from goqueue.producers.own import run_producer
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import HeldSyncs, syncs_held
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock, values
from tests.unit.broker.consumers import TOPIC, Consumers, consuming
from tests.unit.broker.images import PhotographedDisk

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


class Stage:
    """Schedules of one broker and time that a test moves. All are about the topic `orders`."""

    def __init__(self, to: Consumers) -> None:
        self.to = to
        self.runner = to.broker.schedules

    async def create(
        self,
        value: str = "tick",
        *,
        key: str | None = None,
        partition: int | None = None,
        cron: str | None = None,
        every_ms: int | None = None,
        missed: str = "skip",
        **more: Any,
    ) -> Schedule:
        message = ScheduledMessage(value=value, key=key, partition=partition, **more)
        if cron is None and every_ms is None:
            every_ms = MINUTE
        return await self.runner.create(
            self.to.broker.topics.named(TOPIC),
            message,
            cron=cron,
            time_zone=None,
            every_ms=every_ms,
            missed=Missed(missed),
            paused=False,
        )

    async def change(self, schedule: Schedule, **fields: Any) -> Schedule:
        return await self.runner.change(ChangeSchedule(schedule_id=schedule.schedule_id, **fields))

    async def wait(self, ms: int) -> None:
        """Both clocks go on; what is due by then is done."""
        self.to.clock.now += ms
        self.to.time.move(ms)
        await self.quiet()

    async def quiet(self) -> None:
        """Until what happens by itself has happened."""
        await turns()
        while self.runner._at_work:
            await asyncio.wait(list(self.runner._at_work.values()))
            await turns()

    def look(self, schedule: Schedule) -> Schedule:
        return self.runner.machine.schedule(schedule.schedule_id)

    def values(self, number: int = 0) -> list[str]:
        return values(self.to.partition(number))

    def all_values(self) -> list[list[str]]:
        return [values(partition) for partition in self.to.broker.topics.named(TOPIC).partitions]


@asynccontextmanager
async def staged(
    path: Path, *, clock: Clock | None = None, disk: Any = None, topic: bool = True
) -> AsyncIterator[Stage]:
    """Run it with `run_timed`. `topic` says whether there is to be a new one."""
    async with consuming(path, clock=clock, disk=disk) as to:
        if topic:
            await to.create(partitions=3)
        stage = Stage(to)
        await stage.quiet()
        yield stage


def records_of(partition: Partition) -> list[Record]:
    found: list[Record] = []
    offset = partition.log.start_offset
    while offset < partition.log.end_offset:
        chunk = partition.log.read(offset, max_bytes=1 << 20)
        found += codec.decode(chunk.data)
        offset = chunk.next_offset
    return found


# --- running


def test_a_run_is_published_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            made = await stage.create(partition=0)
            await stage.wait(MINUTE - 1)
            assert stage.values() == []
            await stage.wait(1)
            assert stage.values() == ["tick"]
            found = stage.look(made)
            assert (found.runs, found.missed_runs, found.failures) == (1, 0, 0)
            assert found.last_run is not None
            assert (found.last_run.due_ms, found.last_run.partition, found.last_run.offset) == (T0 + MINUTE, 0, 0)
            for _ in range(3):
                await stage.wait(MINUTE)
            assert stage.values() == ["tick"] * 4
            assert stage.look(made).next_run_ms == T0 + 5 * MINUTE

    run_timed(go())


def test_a_run_is_the_message_as_it_was_given(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            record = Record(
                key=b"k",
                value=b"\xff\x00",
                priority=1,
                headers=(("a", b"1"), ("a", b"\xfe")),
                extension=Extension(expires_at=-5000),
            )
            kept = ScheduledMessage.keep(record, 2)
            assert kept.encoding == "base64"
            topic = stage.to.broker.topics.named(TOPIC)
            await stage.runner.create(
                topic, kept, cron=None, time_zone=None, every_ms=MINUTE, missed=Missed.SKIP, paused=False
            )
            await stage.wait(MINUTE)
            (found,) = records_of(stage.to.partition(2))
            assert (found.key, found.value, found.priority, found.headers) == (b"k", b"\xff\x00", 1, record.headers)
            assert found.extension is not None
            assert found.extension.expires_at == found.timestamp + 5000

    run_timed(go())


@pytest.mark.parametrize(
    "record",
    [
        Record(value=b"caf\xc3\xa9", key=b""),
        Record(value=None, key=b"k"),
        Record(value=b"", headers=(("h", b"x"),), priority=4),
        Record(value=b"\xff", key=None),
        Record(value=b"text", key=b"\xff", extension=Extension(expires_at=-1)),
    ],
    ids=str,
)
def test_a_message_is_kept_as_text_or_as_base64_and_comes_back_as_it_was(record: Record) -> None:
    kept = msgspec.Raw(msgspec.json.encode(ScheduledMessage.keep(record, None)))
    assert read_message(kept).to_record() == record


def test_a_partition_is_given_or_follows_the_key_or_is_the_next_one_each_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create("fixed", partition=1)
            await stage.create("keyed", key="abc")
            await stage.create("free")
            for _ in range(3):
                await stage.wait(MINUTE)
            found = stage.all_values()
            assert [part.count("fixed") for part in found] == [0, 3, 0]
            assert found[partition_of(b"abc", 3)].count("keyed") == 3
            assert [part.count("free") for part in found] == [1, 1, 1]

    run_timed(go())


def test_many_schedules_that_are_due_at_once_all_run(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            for number in range(300):
                await stage.create(f"s{number}")
            await stage.wait(MINUTE)
            found = sorted(value for part in stage.all_values() for value in part)
            assert found == sorted(f"s{number}" for number in range(300))
            assert stage.runner.machine.pending_runs == []

    run_timed(go())


def test_a_schedule_of_a_topic_that_grew_goes_by_its_new_partitions(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create("free")
            await stage.to.grow(6)
            for _ in range(6):
                await stage.wait(MINUTE)
            assert stage.all_values() == [["free"]] * 6

    run_timed(go())


def test_runs_are_numbered_over_failures_and_partitions_without_being_taken_for_duplicates(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            made = await stage.create("x" * 100, missed="all")
            for turn in range(9):
                allowed = 10 if turn in (1, 4, 5) else 1000
                await stage.to.broker.topics.change(TOPIC, {"max_message_bytes": allowed}, stage.to.clock())
                await stage.wait(MINUTE)
            found = stage.look(made)
            assert (found.runs, found.failures) == (6, 3)
            assert found.last_error is not None
            assert "100 bytes in key, value and headers; orders allows 10" in found.last_error
            assert [len(part) for part in stage.all_values()] == [3, 1, 2]

    run_timed(go())


def test_the_ids_of_a_schedules_producer_go_on_when_its_epochs_are_used_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            made = await stage.create(partition=0)
            machine = stage.runner.machine
            late = msgspec.structs.replace(machine.by_id[made.schedule_id], intended=2**15 - 2)
            machine._keep(late)
            for _ in range(5):
                await stage.wait(MINUTE)
            found = records_of(stage.to.partition(0))
            numbers = [run_producer(int(made.schedule_id, 16), 2**15 - 2 + run) for run in range(5)]
            assert [record.extension.producer for record in found if record.extension is not None] == numbers

    run_timed(go())


# --- clocks


def test_a_step_of_the_clock_is_noticed_by_the_look_once_a_second(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create(partition=0, every_ms=HOUR)
            stage.to.clock.now += HOUR
            await stage.quiet()
            assert stage.values() == [], "the timer does not know"
            await stage.to.broker._housekeeping.tick()
            await stage.quiet()
            assert stage.values() == ["tick"]

    run_timed(go())


def test_a_clock_that_was_set_back_makes_no_run_twice(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create(partition=0)
            await stage.wait(MINUTE)
            stage.to.clock.now -= 30 * SECOND
            for _ in range(3):
                await stage.wait(20 * SECOND)
            assert stage.values() == ["tick"]
            await stage.wait(30 * SECOND)
            assert stage.values() == ["tick", "tick"]

    run_timed(go())


# --- changing, pausing, removing


def test_a_paused_schedule_does_not_run_and_misses_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            made = await stage.create(partition=0, missed="all")
            await stage.wait(MINUTE)
            assert (await stage.change(made, paused=True)).next_run_ms is None
            await stage.wait(10 * MINUTE + 1)
            assert (await stage.change(made, paused=False)).next_run_ms == T0 + 12 * MINUTE
            await stage.wait(MINUTE - 1)
            assert stage.values() == ["tick", "tick"]
            assert stage.look(made).missed_runs == 0

    run_timed(go())


def test_another_timetable_counts_from_now(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            made = await stage.create(partition=0, every_ms=HOUR)
            await stage.change(made, every_ms=SECOND, message=ScheduledMessage(value="new", partition=1))
            await stage.wait(SECOND)
            assert stage.all_values() == [[], ["new"], []]

    run_timed(go())


def test_a_removed_schedule_is_gone(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            made = await stage.create(partition=0)
            kept = await stage.create("kept", partition=0)
            await stage.runner.remove(made.schedule_id)
            with pytest.raises(UnknownSchedule):
                await stage.runner.get(made.schedule_id)
            assert await stage.runner.list() == [kept]
            await stage.wait(MINUTE)
            assert stage.values() == ["kept"]

    run_timed(go())


def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            with pytest.raises(InvalidRequest, match="cron has 1 field"):
                await stage.create(cron="often")
            with pytest.raises(InvalidRequest, match="leave one of them out"):
                await stage.create(cron="@daily", every_ms=MINUTE)
            with pytest.raises(UnknownSchedule):
                await stage.runner.remove(ScheduleId("nobody"))

    run_timed(go())


def test_there_are_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SCHEDULES", 1)

    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create()
            with pytest.raises(Conflict):
                await stage.create()

    run_timed(go())


# --- topics that go


def test_the_schedules_of_a_deleted_topic_go_with_it_and_a_new_one_of_its_name_has_none(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create(partition=0)
            await stage.to.delete()
            assert await stage.runner.list() == []
            await stage.to.create()
            await stage.wait(5 * MINUTE)
            assert stage.values() == []

    run_timed(go())


def test_a_deletion_that_the_schedules_did_not_hear_of_is_followed_at_the_next_start(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create(partition=0)
            stage.to.broker.topics.on_change = lambda _: None  # it dies before they hear
            await stage.to.delete()
        async with staged(tmp_path, clock=stage.to.clock) as stage:
            assert await stage.runner.list() == []

    run_timed(go())


def test_a_removal_for_which_there_is_no_room_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create(partition=0)
            with monkeypatch.context() as patch:
                patch.setattr(stage.runner._jobs, "submit", refuse)
                await stage.to.delete()
                assert len(await stage.runner.list()) == 1
            stage.runner.look()
            assert await stage.runner.list() == []

    run_timed(go())


def refuse(*_: object, **__: object) -> None:
    raise DiskFull("no space")


# --- when it cannot be done


def test_a_full_disk_makes_a_run_wait_and_it_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            made = await stage.create(partition=0, missed="once")
            with monkeypatch.context() as patch:
                patch.setattr(OwnPublisher, "append", refuse)
                stage.to.clock.now += MINUTE
                stage.to.time.move(MINUTE)
                await turns()
                await stage.runner._jobs.sure()
                await turns()
                assert [run.run for run in stage.runner.machine.pending_runs] == [0]
            await stage.wait(10 * MINUTE)
            assert stage.values() == ["tick", "tick"]
            found = stage.look(made)
            assert (found.runs, found.missed_runs, found.failures) == (2, 9, 0)

    run_timed(go())


def test_a_tick_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            await stage.create(partition=0)
            host = stage.runner._jobs.host
            with monkeypatch.context() as patch:
                patch.setattr(host.log, "append", refuse)
                await stage.wait(MINUTE)
                assert stage.values() == []
            await stage.wait(SECOND)
            assert stage.values() == ["tick"]

    run_timed(go())


def test_a_partition_that_is_damaged_fails_its_runs_and_others_go_on(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            damaged, good = await stage.create(partition=1), await stage.create(partition=2)
            stage.to.broker.topics.named(TOPIC).slots[1] = DamagedData("its state is gone")
            await stage.wait(MINUTE)
            assert (stage.look(damaged).failures, stage.look(damaged).last_error) == (1, "its state is gone")
            assert stage.look(good).runs == 1

    run_timed(go())


# --- other lives


def test_nothing_is_published_before_its_intent_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with staged(tmp_path, disk=disk) as stage:
            made = await stage.create(partition=0)
            with syncs_held(disk, "/meta/jobs/") as held:
                stage.to.clock.now += MINUTE
                stage.to.time.move(MINUTE)
                await turns()
                await held.reached()
                await turns()
                assert [run.run for run in stage.runner.machine.pending_runs] == [0]
                assert stage.values() == []
            await stage.quiet()
            assert (stage.values(), stage.look(made).runs) == (["tick"], 1)

    run_timed(go())


def test_a_run_waits_until_it_is_durable_that_the_one_before_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tried again must be the last that was published, or it is not recognised."""
    disk = FaultyDisk()
    holding: list[HeldSyncs] = []
    append = OwnPublisher.append

    def hold_first(self: OwnPublisher, *arguments: Any) -> Any:
        if not holding:
            holding.append(HeldSyncs(disk, "/meta/jobs/"))
        return append(self, *arguments)

    async def go() -> None:
        async with staged(tmp_path, disk=disk) as stage:
            await stage.create(partition=0, missed="all")
            monkeypatch.setattr(OwnPublisher, "append", hold_first)
            stage.to.clock.now += 2 * MINUTE
            stage.to.time.move(2 * MINUTE)
            while not holding:
                await asyncio.sleep(0.001)
            try:
                await holding[0].reached()
                await turns()
                assert [run.run for run in stage.runner.machine.pending_runs] == [1]
                assert stage.values() == ["tick"]
            finally:
                holding[0].release()
            await stage.quiet()
            assert stage.values() == ["tick", "tick"]

    run_timed(go())


def test_what_is_missed_while_the_broker_is_away_is_treated_as_the_schedule_says(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with staged(tmp_path, clock=clock) as stage:
            for missed in Missed:
                await stage.create(missed, missed=missed, partition=0, cron="*/10 * * * *")
        clock.now += HOUR + 5 * MINUTE
        async with staged(tmp_path, clock=clock, topic=False) as stage:
            assert sorted(stage.values()) == ["all"] * 6 + ["once"]
            left_out = {read_message(each.message).value: each.missed_runs for each in await stage.runner.list()}
            assert left_out == {"skip": 6, "once": 5, "all": 0}

    run_timed(go())


def stopping(stage: Stage, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nobody gets past one of the steps of a run."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    submit = stage.runner._jobs.submit

    def never_done(machine: Any, command: Any, **more: Any) -> Any:
        if type(command).__name__ == "FinishRun":
            raise asyncio.CancelledError
        return submit(machine, command, **more)

    if before == "publishing":
        monkeypatch.setattr(stage.runner, "_publish", hang)
    else:
        monkeypatch.setattr(stage.runner._jobs, "submit", never_done)


@pytest.mark.parametrize("before", ["publishing", "saying so"])
@pytest.mark.parametrize("missed", ["once", "all"])
def test_a_run_that_was_interrupted_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, missed: str
) -> None:
    async def go() -> None:
        clock = Clock()
        async with staged(tmp_path, clock=clock) as stage:
            made = await stage.create(partition=0, missed=missed)
            await stage.wait(MINUTE)
            stopping(stage, before, monkeypatch)
            stage.to.clock.now += 3 * MINUTE
            stage.to.time.move(3 * MINUTE)
            wanted = 2 if before == "saying so" else 1
            for _ in range(1000):
                await asyncio.sleep(0.001)
                if stage.runner.machine.pending_runs and len(stage.values()) == wanted:
                    break
            assert len(stage.values()) == wanted
        async with staged(tmp_path, clock=clock, topic=False) as stage:
            expected = 2 if missed == "once" else 4
            assert stage.values() == ["tick"] * expected
            found = stage.look(made)
            assert (found.runs, found.runs + found.missed_runs) == (expected, 4)
            assert found.last_run is not None
            assert found.last_run.offset == expected - 1

    run_timed(go())


def test_wherever_a_crash_comes_every_run_is_published_once(tmp_path: Path) -> None:
    """Kills and power cuts at every step that changes the disk, from before the first run to after the last."""

    async def go() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with staged(tmp_path, clock=clock, disk=disk) as stage:
            made = [await stage.create(partition=0, missed="all"), await stage.create("free", missed="all")]
            await stage.wait(MINUTE)
            disk.begin(tmp_path)
            await stage.wait(2 * MINUTE)
            disk.recording = False
            assert [stage.look(each).runs for each in made] == [3, 3]
        assert len(disk.images) > 10
        for when, image in disk.crashed():
            async with staged(tmp_path, clock=clock, disk=image, topic=False) as stage:
                found = [value for part in stage.all_values() for value in part]
                assert found.count("tick") == found.count("free") == 3, when
                assert [stage.look(each).runs for each in made] == [3, 3], when
                assert [part.count("free") for part in stage.all_values()] == [1, 1, 1], when

    run_timed(go())


def test_snapshots_keep_what_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        clock = Clock()
        async with staged(tmp_path, clock=clock) as stage:
            await stage.create(partition=0, missed="all")
            with monkeypatch.context() as patch:
                stopping(stage, "publishing", patch)
                stage.to.clock.now += 3 * MINUTE
                stage.to.time.move(3 * MINUTE)
                await turns()
                assert len(stage.runner.machine.pending_runs) == 3
                await stage.to.broker._housekeeping.snapshot(stage.runner._jobs.host)
        async with staged(tmp_path, clock=clock, topic=False) as stage:
            assert stage.values() == ["tick"] * 3

    run_timed(go())
