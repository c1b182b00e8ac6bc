"""The runner of transactions: what waits for what, what goes on by itself, and what a crash leaves of it."""

import asyncio
import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from goqueue.broker.participants import Participants
from goqueue.broker.partition import Partition
from goqueue.model import limits
from goqueue.model.errors import (
    Conflict,
    DiskFull,
    NotOwner,
    OffsetOutOfRange,
    StorageFailed,
    TransactionAborted,
    Unavailable,
    UnknownTransaction,
)
from goqueue.model.settings import Fsync
from goqueue.model.topic import Topic
from goqueue.model.transactions import AbortReason, TransactionState
from goqueue.storage.store import SIDECAR, Store
from goqueue.transactions.commands import Begin
from goqueue.transactions.coordinator import Transaction
from goqueue.wire.blocks import FetchRequest
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.support.patience import PATIENCE_S
from tests.unit.broker.brokers import Clock
from tests.unit.broker.consumers import TOPIC, Consumers, consuming, handles_of, message, refused
from tests.unit.broker.images import PhotographedDisk
from tests.unit.broker.writers import TIMEOUT_MS, Writer, markers, time_out, visible

HOUR_MS = 3600 * 1000
Crash = Literal["kill", "power"]


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping comes when a test calls it."""
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 10.0**9)


def full(*_: object, **__: object) -> None:
    raise DiskFull("no space left")


def state(to: Consumers, number: int) -> TransactionState:
    runner = to.broker.transactions
    return runner.state(runner.machine.transaction(number))


def crashed(disk: PhotographedDisk, kind: Crash, seeds: range = range(4)) -> Iterator[PhotographedDisk]:
    """What would be left if that happened now."""
    with disk._lock:
        disk.disk.between = None
        now = copy.deepcopy(disk.disk)
        disk.disk.between = disk._photograph
    for seed in seeds if kind == "power" else range(1):
        image = copy.deepcopy(now)
        image.crash(Random(seed), kind)
        yield PhotographedDisk(image)


async def completed(to: Consumers, number: int) -> Transaction:
    """Once every partition has it durably, which is looked at once a second."""
    runner = to.broker.transactions
    for _ in range(200):
        await runner.look()
        found = runner.machine.transaction(number)
        if found.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{found} does not become complete")


# --- by itself


def test_a_transaction_that_is_open_for_too_long_is_aborted(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            short, long = await Writer.make(to), await Writer.make(to, "job", timeout_ms=2 * TIMEOUT_MS)
            (await short.begin(timeout_ms=5000)).put("short")
            (await long.begin()).put("long")
            await to.pass_by(4999)
            assert short.transaction.is_open
            await time_out(to, 1)
            assert short.transaction.reason is AbortReason.TIMED_OUT
            await to.pass_by(2 * TIMEOUT_MS - 5001)
            assert long.transaction.is_open, "as its transactional id was initialised with"
            await time_out(to, 1)
            assert not long.transaction.is_open
            assert to.broker.transactions.counts[AbortReason.TIMED_OUT] == 2
            assert to.partition().stable_end == to.partition().log.end_offset == 4

    run_timed(work())


def test_a_timeout_on_a_disk_without_any_space_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer = await Writer.make(to)
            await writer.begin(timeout_ms=5000)
            runner = to.broker.transactions

            with monkeypatch.context() as patched:
                patched.setattr(runner.host, "submit", full)
                await to.pass_by(5000)
                await to.followed()
                assert writer.transaction.is_open
            await to.pass_by(1000)
            await to.followed()
            assert writer.transaction.reason is AbortReason.TIMED_OUT

    run_timed(work())


def test_the_timeout_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            writer = await Writer.make(to)
            (await writer.begin(timeout_ms=10_000)).put("m0")
            await to.pass_by(6000)
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(3999)
            assert writer.to_broker(to).transaction.is_open
            await to.pass_by(1)
            await to.followed()
            assert not writer.transaction.is_open

    run_timed(work())


def test_it_is_complete_when_every_partition_has_it_durably(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2, fsync=Fsync.NONE)
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            writer.put("m1", partition=1)
            await writer.commit()
            found = writer.transaction
            assert found.state is TransactionState.COMMITTING
            assert state(to, found.number) is TransactionState.COMMITTED, "as users see it"
            assert (await completed(to, found.number)).state is TransactionState.COMMITTED
            assert to.broker.transactions.parts(found) == []
            aborted = await Writer.make(to)
            (await aborted.begin()).put("m2")
            await aborted.abort()
            assert (await completed(to, aborted.number)).state is TransactionState.ABORTED

    run_timed(work())


def test_a_commit_that_is_repeated_when_it_is_complete_writes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=1)
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            await writer.commit()
            found = await completed(to, writer.number)
            runner = to.broker.transactions
            end = runner.host.log.end_offset
            assert (await runner.commit(found)).duplicate
            await runner.look()
            assert runner.host.log.end_offset == end

    run_timed(work())


def test_one_whose_topic_was_deleted_becomes_complete(tmp_path: Path) -> None:
    """Nobody is left there who could hear of it."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills")
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            writer.put("bill", topic="bills")
            await to.delete()
            await writer.commit()
            assert state(to, writer.number) is TransactionState.COMMITTED
            assert (await completed(to, writer.number)).state is TransactionState.COMMITTED

    run_timed(work())


def test_a_reader_that_waits_for_a_commit_hears_that_its_topic_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            waiting = asyncio.ensure_future(to.broker.reader.wait(to.partition(), 0, 3600))
            await turns()
            await to.delete()
            with pytest.raises(Unavailable, match="was deleted"):
                await asyncio.wait_for(waiting, PATIENCE_S)

    run_timed(work())


def test_ids_that_nobody_uses_are_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await Writer.make(to, "old")
            await to.pass_by(limits.TRANSACTIONAL_ID_EXPIRY_MS)
            await Writer.make(to, "new")
            await to.pass_by(1)
            await to.broker.transactions.look()
            assert list(to.broker.transactions.machine.owners) == ["new"]

    run_timed(work())


def test_a_producer_that_is_not_heard_of_is_shown_as_silent(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            writer = await Writer.make(to)
            await writer.begin()
            runner = to.broker.transactions
            await to.pass_by(limits.PRODUCER_SESSION_MS)
            assert not runner.is_silent(writer.transaction)
            await to.pass_by(1)
            assert runner.is_silent(writer.transaction)
            runner.heard_of(writer.producer_id, writer.epoch)
            assert not runner.is_silent(writer.transaction)

    run_timed(work())


# --- who asked has left


@pytest.mark.parametrize("what", ["commit", "abort"])
def test_what_was_begun_ends_although_nobody_waits_for_it(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.NONE)
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            with syncs_held(disk, f"logs/{TOPIC}" if what == "commit" else "meta/transactions") as held:
                asking = asyncio.ensure_future(writer.commit() if what == "commit" else writer.abort())
                await held.reached()
                if what == "commit":
                    with pytest.raises(Conflict, match="is being committed"):
                        writer.put("late")
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                assert markers(to) == []
            await asyncio.wait(list(to.broker.transactions._tasks))
            assert markers(to) == [(writer.number, what == "commit")]
            assert await visible(to) == (["m0"] if what == "commit" else [])

    run_timed(work())


@pytest.mark.parametrize("by", ["handles", "offsets"])
def test_acks_count_although_nobody_waits_for_their_answer(tmp_path: Path, by: str) -> None:
    """They are the transaction's from when they are written down, not from when that is answered."""

    async def work() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.EVERY)
            member, writer = (await to.join()).member_id, await Writer.make(to)
            to.put("m0")
            polled = await to.poll(member)
            await writer.begin()
            with syncs_held(disk, f"/{SIDECAR}/") as held:
                if by == "handles":
                    asking: asyncio.Task[Any] = asyncio.ensure_future(writer.ack(*handles_of(polled)))
                else:
                    offsets = {TOPIC: {0: 1}}
                    asking = asyncio.ensure_future(writer.ack_below(to.group(), to.member(member), offsets))
                await held.reached()
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
            await writer.commit(messages=0, acks=1)
            assert await to.offsets() == {TOPIC: {0: 1}}

    run_timed(work())


def test_acks_count_where_others_of_the_same_request_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("one")).member_id
            second = (await to.join("two")).member_id
            for number in range(2):
                to.put(f"m{number}", partition=number)
            await to.followed()
            for member in (first, second, first, second):
                await to.poll(member)
            (mine,), (theirs,) = to.owned(first), to.owned(second)
            writer = await Writer.make(to)
            await writer.begin()
            with pytest.raises(NotOwner):
                await writer.ack_below(to.group(), to.member(first), {TOPIC: {mine: 1, theirs: 1}})
            await writer.commit(messages=0, acks=1)
            assert (await to.offsets())[TOPIC] == {mine: 1, theirs: 0}

    run_timed(work())


# --- a full disk


def test_markers_and_decisions_use_what_is_kept_back_of_a_full_disk(tmp_path: Path) -> None:
    async def work() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create()
            member = (await to.join()).member_id
            to.put("acked")
            polled = await to.poll(member)
            writer, other = await Writer.make(to), await Writer.make(to)
            (await writer.begin()).put("m0")
            await writer.ack(*handles_of(polled))
            (await other.begin()).put("aborted")
            disk.free = 0
            with pytest.raises(DiskFull):
                writer.put("no more")
            await writer.commit(messages=1, acks=1)
            await other.abort()
            assert await visible(to) == ["acked", "m0"]
            assert await to.offsets() == {TOPIC: {0: 1}}
            disk.free = None

    run_timed(work())


def test_what_could_not_be_told_is_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers, what groups see of them, and acks: a disk that was full for a while leaves none behind."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            to.put("acked")
            polled = await to.poll(member)
            writer, other = await Writer.make(to), await Writer.make(to)
            (await writer.begin()).put("committed")
            await writer.ack(*handles_of(polled))
            (await other.begin()).put("aborted")
            assert await to.drain(member) == [], "the group has gone past them"

            with monkeypatch.context() as patched:
                patched.setattr(Partition, "mark", full)
                await writer.commit()
                await other.abort()
                assert markers(to) == []
            with monkeypatch.context() as patched:
                patched.setattr(to.broker.sidecars, "write", full)
                await to.broker.transactions.look()
                assert markers(to) == [(writer.number, True)], "groups hear that one was aborted before anybody else"
                await to.broker.transactions.look()
                assert writer.transaction.state is TransactionState.COMMITTING
            await completed(to, writer.number)
            await completed(to, other.number)
            assert await to.drain(member) == ["committed"]
            await to.commit(member, 4)
            assert await to.offsets() == {TOPIC: {0: 5}}

    run_timed(work())


@pytest.mark.parametrize("commits", [True, False])
def test_groups_hear_later_of_messages_whose_end_could_not_be_written_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            to.put("first")
            assert await to.drain(member) == ["first"]
            writer = await Writer.make(to)
            (await writer.begin()).put("in it")
            with monkeypatch.context() as patched:
                patched.setattr(to.broker.sidecars, "write", full)
                await (writer.commit() if commits else writer.abort())
            assert await to.drain(member) == (["in it"] if commits else [])
            await completed(to, writer.number)
            assert await to.drain(member) == []
            await to.commit(member, to.partition().log.end_offset)
            assert await to.offsets() == {TOPIC: {0: 3}}

    run_timed(work())


def test_a_sidecar_that_cannot_be_told_what_was_aborted_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer = await Writer.make(to)
            (await writer.begin()).put("aborted")
            await writer.abort()
            member = (await to.join()).member_id
            with monkeypatch.context() as patched:
                patched.setattr(to.broker.sidecars, "write", full)
                with pytest.raises(DiskFull):
                    await to.poll(member)
            to.put("after")
            assert await to.drain(member) == ["after"]

    run_timed(work())


def test_a_sync_that_fails_is_reported_and_nothing_is_committed(tmp_path: Path) -> None:
    async def work() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.NONE)
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            disk.sync_error_at = 1
            with pytest.raises(StorageFailed):
                await writer.commit()
            assert writer.transaction.is_open
            assert to.broker.failure is not None

    run_timed(work())


# --- crashes


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_with_an_open_transaction(tmp_path: Path, kind: Crash) -> None:
    """After a stop without warning only its writer can tell whether all is there; if it is not, it is aborted."""

    async def work() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create(fsync=Fsync.NONE)
            writer = await Writer.make(to, "job")
            (await writer.begin()).put("durable")
            to.partition().log.sync()
            to.broker.transactions.host.log.sync()
            writer.put("written")
            images = list(crashed(disk, kind))
        lost = 0
        for image in images:
            async with consuming(tmp_path, disk=image, clock=clock) as to:
                writer.to_broker(to)
                with pytest.raises(Conflict, match="stopped without warning"):
                    await writer.commit()
                (part,) = to.broker.transactions.parts(writer.transaction)
                if part.messages == 2:
                    await writer.commit(messages=2, acks=0)
                    assert await visible(to) == ["durable", "written"]
                    continue
                lost += 1
                with pytest.raises(TransactionAborted, match="has 1 messages and 0 acks, its writer says 2 and 0"):
                    await writer.commit(messages=2, acks=0)
                await to.followed()
                assert writer.transaction.reason is AbortReason.LOST
                assert await visible(to) == []
        assert bool(lost) == (kind == "power")

    run_timed(work())


def test_a_life_that_was_stopped_well_vouches_only_for_itself(tmp_path: Path) -> None:
    """The life after it may crash at once: what it lost is not covered by the stop before."""

    async def work() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create(fsync=Fsync.NONE)
            writer = await Writer.make(to, "job")
            (await writer.begin()).put("one")
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            writer.to_broker(to).put("two")
            images = list(crashed(disk, "power"))
            await writer.commit()  # this one is sure
        for image in images:
            async with consuming(tmp_path, disk=image, clock=clock) as to:
                with pytest.raises(Conflict, match="stopped without warning"):
                    await writer.to_broker(to).commit()

    run_timed(work())


def test_a_number_is_not_answered_before_it_is_safe_that_nobody_else_gets_it(tmp_path: Path) -> None:
    async def work() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            producers = [await to.broker.init_producer() for _ in range(2)]
            begin = [partial(Begin, producer_id=producer, epoch=0) for producer in producers]
            with syncs_held(disk, "meta/transactions") as held:
                first = asyncio.ensure_future(to.broker.transactions.begin(begin[0]()))
                await held.reached()
                second = asyncio.ensure_future(to.broker.transactions.begin(begin[1]()))
                await turns()
                assert (first.done(), second.done()) == (False, False)
            assert [(await each).number for each in (first, second)] == [1, 2]

    run_timed(work())


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_commit_that_was_answered_is_never_taken_back(tmp_path: Path, kind: Crash) -> None:
    """Wherever a crash interrupts it, all partitions have it or none, and all if it was answered."""

    async def work() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create(partitions=2, fsync=Fsync.NONE)
            member = (await to.join()).member_id
            to.put("acked")
            polled = await to.poll(member)
            to.partition().log.sync()
            writer = await Writer.make(to, "job")
            (await writer.begin()).put("m0")
            writer.put("m1", partition=1)
            await writer.ack(*handles_of(polled))
            disk.begin(tmp_path)
            await writer.commit(messages=2, acks=1)
            answered = len(disk.images)
            await completed(to, writer.number)
            disk.recording = False
        outcomes = set()
        for when, image in disk.crashed(range(1)):
            if not when.startswith(kind):
                continue
            number = int(when.split("change ")[1].split(",")[0])
            async with consuming(tmp_path, disk=image, clock=clock) as to:
                await to.pass_by(2 * TIMEOUT_MS)
                await to.followed()
                seen = await visible(to), await visible(to, partition=1)
                acked = (await to.offsets()).get(TOPIC, {}).get(0, 0) >= 1
                assert seen in ((["acked", "m0"], ["m1"]), (["acked"], []), ([], [])), when
                assert acked == (seen[1] == ["m1"]), when
                assert acked or number < answered, when
                outcomes.add(acked)
        assert outcomes == {False, True}

    run_timed(work())


def test_records_of_a_transaction_that_nobody_knows_are_aborted_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its begin was lost in a power cut, the records were not."""

    async def work() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create(fsync=Fsync.NONE)
            member = (await to.join()).member_id
            to.put("acked")
            polled = await to.poll(member)
            first, second = await Writer.make(to), await Writer.make(to)
            await first.begin()
            with monkeypatch.context() as patched:
                log = to.broker.transactions.host.log
                patched.setattr(log, "hasten", lambda: None)
                patched.setattr(log, "sync", lambda: None)
                (await second.begin()).put("orphan")
                await second.ack(*handles_of(polled))
                to.partition().log.sync()
                sidecar = to.partition().sidecar
                assert sidecar is not None
                sidecar.log.sync()
                images = list(crashed(disk, "power", range(8)))
        orphans = 0
        for image in images:
            async with consuming(tmp_path, disk=image, clock=clock) as to:
                assert await visible(to) in (["acked"], [])
                machine = to.broker.transactions.machine
                if second.number in machine.by_number:
                    continue
                orphans += 1
                assert markers(to) == [(second.number, False)]
                assert to.deliveries().pledged_to == set()
                await to.pass_by(HOUR_MS)
                member = (await to.join()).member_id
                assert await to.drain(member) == ["acked"], "its ack does not count"
                with pytest.raises(UnknownTransaction):
                    machine.transaction(second.number)
                third = await Writer.make(to)
                assert (await third.begin()).number > second.number, "a number is never given out twice"
        assert orphans

    run_timed(work())


def test_a_topic_that_is_opened_late_hears_of_what_was_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create(partitions=1)
            await to.create("bills")
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            writer.put("bill", topic="bills")
            with monkeypatch.context() as patched:
                patched.setattr(Participants, "tell", lambda *_: [])
                await writer.commit()
            (image,) = crashed(disk, "kill")
        real = Partition.open

        def fails(store: Store, topic: Topic, *given: Any, **named: Any) -> Partition:
            if topic.name == TOPIC:
                raise DiskFull("no space")
            return real(store, topic, *given, **named)

        with monkeypatch.context() as patched:
            patched.setattr(Partition, "open", fails)
            async with consuming(tmp_path, disk=image, clock=clock) as to:
                assert await visible(to, topic="bills") == ["bill"]
                await to.broker.transactions.look()
                assert state(to, writer.number) is TransactionState.COMMITTING
                patched.setattr(Partition, "open", real)
                await to.broker.topics.retry(clock())
                await to.followed()
                assert await visible(to) == ["m0"]
                assert (await completed(to, writer.number)).state is TransactionState.COMMITTED

    run_timed(work())


def test_a_commit_that_counts_nothing_is_refused_where_a_topic_could_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether that topic has something of it: it would not be among those that hear of the commit."""

    async def work() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create(partitions=1)
            await to.create("bills")
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            writer.put("bill", topic="bills")
        real = Partition.open

        def fails(store: Store, topic: Topic, *given: Any, **named: Any) -> Partition:
            if topic.name == TOPIC:
                raise DiskFull("no space")
            return real(store, topic, *given, **named)

        with monkeypatch.context() as patched:
            patched.setattr(Partition, "open", fails)
            async with consuming(tmp_path, disk=disk, clock=clock) as to:
                with pytest.raises(Conflict, match="could not open all"):
                    await writer.to_broker(to).commit()
                patched.setattr(Partition, "open", real)
                await to.broker.topics.retry(clock())
                await writer.commit(messages=2, acks=0)
                assert (await visible(to), await visible(to, topic="bills")) == (["m0"], ["bill"])

    run_timed(work())


# --- ordered reads


def test_what_was_cleaned_while_it_was_read_is_out_of_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What of it was aborted is forgotten then."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer, found = await Writer.make(to), to.partition()
            (await writer.begin()).put("aborted")
            await writer.abort()
            to.put("after")
            real = found.log.read

            def slow(*given: Any, **named: Any) -> Any:
                chunk = real(*given, **named)
                found.log.truncate_prefix(2)
                found.transactions.forget_below(2)
                return chunk

            monkeypatch.setattr(Partition, "reads_warm", lambda *_: False)
            monkeypatch.setattr(found.log, "read", slow)
            with pytest.raises(OffsetOutOfRange):
                await to.broker.reader.ordered(found, 0, max_bytes=1000, max_count=10)

    run_timed(work())


# --- through the wire door


def test_a_fetch_says_with_one_byte_that_it_wants_uncommitted_messages() -> None:
    plain = FetchRequest(1, 0, 5, 100, 10, 0)
    assert plain._replace(uncommitted=True).pack() == plain.pack() + b"\x01"


def test_only_what_is_committed_is_lag_and_none_of_it_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            writer = await Writer.make(to)
            (await writer.begin()).send(message("m0", key="k"), message("m1"))
            assert (await to.lag())[0].lag == 0
            await writer.commit()
            assert (await to.lag())[0].lag == 2
            polled = await to.poll(member)
            assert refused(await to.ack(*handles_of(polled))) == [False, False]
            assert (await to.lag())[0].lag == 0

    run_timed(work())
