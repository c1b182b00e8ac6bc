"""Where transactions meet other features: a test per row of the interplay table, named after it."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from goqueue.model import limits
from goqueue.model.errors import (
    Conflict,
    ProducerFenced,
    StaleToken,
    TransactionAborted,
    UnknownDelay,
    UnknownTransaction,
)
from goqueue.model.groups import Mode, Place
from goqueue.model.topic import CleanupPolicy
from goqueue.model.transactions import TransactionState
from goqueue.storage.cleaner import clean
from goqueue.transactions.ending import Durable
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import Clock
from tests.unit.broker.consumers import (
    LATEST,
    TOPIC,
    Consumers,
    consuming,
    deliveries_of,
    handle_of,
    handles_of,
    message,
    refused,
    texts,
)
from tests.unit.broker.writers import Writer, markers, time_out, visible

SECOND_MS = 1000
HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping comes when a test calls it."""
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 10.0**9)


async def ready(to: Consumers, mode: Mode = Mode.PARTITION, **settings: Any) -> tuple[str, Writer]:
    """A topic, a member of a group that reads it, and a writer."""
    await to.create(**settings)
    member = (await to.join(mode=mode)).member_id
    await to.drain(member)
    return member, await Writer.make(to)


# --- transaction x groups


@pytest.mark.parametrize("mode", Mode)
def test_transaction_x_groups(tmp_path: Path, mode: Mode) -> None:
    """An open transaction is a hold on its own records; others flow."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, mode)
            to.put("before")
            (await writer.begin()).put("one", "two")
            to.put("after")
            assert await to.drain(member) == ["before", "after"]
            assert (await to.lag())[0].lag == 2, "what is not committed is no lag"
            await to.commit(member, 4)
            assert (await to.lag())[0].lag == 0
            waiting = await to.parked(member)
            await writer.commit()
            assert texts(await waiting) == ["one", "two"]
            await to.commit(member, 5)
            assert await to.offsets() == {TOPIC: {0: 5}}, "the marker holds nobody up"
            assert await to.drain(member) == []

    run_timed(work())


@pytest.mark.parametrize("mode", Mode)
def test_what_is_aborted_is_never_delivered(tmp_path: Path, mode: Mode) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, mode)
            (await writer.begin()).put("one", "two", key="k")
            to.put("after")
            await writer.abort()
            assert await to.drain(member) == ["after"]
            await to.commit(member, 3)
            assert await to.offsets() == {TOPIC: {0: 4}}
            (await writer.begin()).put("three", key="k")
            await writer.commit()
            assert await to.drain(member) == ["three"]

    run_timed(work())


def test_a_group_that_comes_later_sees_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer, other = await Writer.make(to), await Writer.make(to)
            (await writer.begin()).put("aborted")
            await writer.abort()
            (await writer.begin()).put("committed")
            await writer.commit()
            (await other.begin()).put("open")
            member = (await to.join()).member_id
            assert await to.drain(member) == ["committed"]
            await other.commit()
            assert await to.drain(member) == ["open"]
            await to.commit(member, 6)
            assert await to.offsets() == {TOPIC: {0: 6}}

    run_timed(work())


def test_all_partitions_see_it_or_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=3)
            await to.create("bills")
            writer = await Writer.make(to)
            await writer.begin()
            for number in range(3):
                writer.put(f"m{number}", partition=number)
            writer.put("bill", topic="bills")
            assert [await visible(to, partition=number) for number in range(3)] == [[], [], []]
            await writer.commit(messages=4, acks=0)
            assert [await visible(to, partition=number) for number in range(3)] == [["m0"], ["m1"], ["m2"]]
            assert await visible(to, topic="bills") == ["bill"]
            assert [markers(to, partition=number) for number in range(3)] == [[(writer.number, True)]] * 3

    run_timed(work())


# --- transaction x key order


def test_transaction_x_key_order(tmp_path: Path) -> None:
    """In `key` mode an open transaction holds its keys from its first record on."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, Mode.KEY)
            (await writer.begin()).put("a1", key="a")
            to.send(message("a2", key="a"), message("b1", key="b"))
            writer.put("b2", key="b")
            to.send(message("b3", key="b"), message("c1", key="c"))
            polled = await to.poll(member)
            assert texts(polled) == ["b1", "c1"]
            await to.ack(*handles_of(polled))
            assert await to.texts(member) == [], "b3 waits for b2, a2 for a1"
            await writer.commit()
            polled = await to.poll(member)
            assert sorted(texts(polled)) == ["a1", "b2"]
            await to.ack(*handles_of(polled))
            assert sorted(await to.drain(member)) == ["a2", "b3"]

    run_timed(work())


def test_an_abort_lets_the_rest_of_a_key_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, Mode.KEY)
            to.send(message("a0", key="a"))
            (await writer.begin()).put("a1", "a2", key="a")
            to.send(message("a3", key="a"))
            polled = await to.poll(member)
            assert texts(polled) == ["a0"]
            await writer.abort()
            await to.ack(*handles_of(polled))
            assert await to.drain(member) == ["a3"]

    run_timed(work())


def test_a_large_transaction_holds_up_its_own_keys_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its messages share a key, and whatever is behind them; and in the end all comes in order."""
    monkeypatch.setattr(limits, "MAX_IN_LINE", 20)

    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, Mode.KEY)
            await writer.begin()
            for number in range(10):
                writer.send(*(message(f"t{number}.{at}", key=f"k{at % 3}") for at in range(30)))
                to.send(message(f"p{number}", key="k0"), message(f"q{number}", key=f"other {number}"))
            assert await drained(to, member) == [f"q{number}" for number in range(10)]
            other = await Writer.make(to)
            (await other.begin()).put("u", key="k0")
            await writer.commit()
            first = await drained(to, member)
            to.send(message("last", key="k0"))
            assert len(first) == 300 + 10
            assert await drained(to, member) == [], "it waits for the other one"
            await other.commit()
            rest = await drained(to, member)
            wanted = [f"t{number}.{at}" for number in range(10) for at in range(30) if at % 3 == 0]
            assert rest == ["u", "last"]
            of_k0 = [text for text in first if text in wanted or text[0] == "p"]
            expected = [[*(f"t{number}.{at}" for at in range(0, 30, 3)), f"p{number}"] for number in range(10)]
            assert of_k0 == [text for some in expected for text in some]

    run_timed(work())


async def drained(to: Consumers, member: str) -> list[str]:
    """What polls bring that are acked."""
    found: list[str] = []
    while True:
        polled = await to.poll(member)
        if not texts(polled):
            return found
        found += texts(polled)
        await to.ack(*handles_of(polled))


def test_in_other_modes_its_records_join_the_order_when_it_is_committed(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, Mode.PARTITION)
            (await writer.begin()).put("a1", key="a")
            to.send(message("a2", key="a"))
            assert await to.texts(member) == ["a2"]
            await writer.commit()
            assert await to.texts(member) == ["a1"]

    run_timed(work())


# --- transaction x ordered reads


def test_transaction_x_ordered_reads(tmp_path: Path) -> None:
    """They stop at the last stable offset, leave out what was aborted, and never see a marker."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            first, second = await Writer.make(to), await Writer.make(to)
            to.put("m0")
            (await first.begin()).put("m1")
            (await second.begin()).put("m2")
            to.put("m3")
            assert await visible(to) == ["m0"]
            assert await visible(to, uncommitted=True) == ["m0", "m1", "m2", "m3"]
            assert to.partition().stable_end == 1
            await first.abort()
            assert await visible(to) == ["m0"]
            assert to.partition().stable_end == 2
            await second.commit()
            assert await visible(to) == ["m0", "m2", "m3"]
            assert await visible(to, uncommitted=True) == ["m0", "m1", "m2", "m3"]
            assert to.partition().stable_end == to.partition().log.end_offset == 6

    run_timed(work())


def test_a_reader_that_waits_hears_of_a_commit(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            waiting = asyncio.ensure_future(to.broker.reader.wait(to.partition(), 0, 3600))
            await to.followed()
            assert not waiting.done()
            await writer.commit()
            await waiting

    run_timed(work())


# --- delay x transaction


@pytest.mark.parametrize("grouped", [True, False])
def test_delay_x_transaction(tmp_path: Path, grouped: bool) -> None:
    """Holds until both committed and due; aborted never fires."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id if grouped else ""
            writers = [await Writer.make(to) for _ in range(3)]
            for writer, text in zip(writers, ("early", "late", "never"), strict=True):
                (await writer.begin(timeout_ms=HOUR_MS)).send(message(text, deliver_at=-10 * SECOND_MS))
            with pytest.raises(UnknownDelay):
                await to.broker.delayed.get(to.broker.topics.named(TOPIC), 0, 0)
            assert await to.broker.delayed.list(to.broker.topics.named(TOPIC), skip=0, limit=10) == ([], 0, {})
            await writers[0].commit()
            await writers[2].abort()
            member = member or (await to.join()).member_id
            assert await to.drain(member) == [], "it is committed, and not due"
            await to.pass_by(10 * SECOND_MS + 20)
            assert await to.drain(member) == ["early"], "the next one is due, and not committed"
            await writers[1].commit()
            assert await to.drain(member) == ["late"]
            await to.commit(member, 6)
            await to.pass_by(DAY_MS)
            member = (await to.join()).member_id
            assert await to.drain(member) == []
            assert await to.offsets() == {TOPIC: {0: 6}}

    run_timed(work())


def test_an_aborted_delayed_message_never_fires_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            aborted, left = await Writer.make(to), await Writer.make(to)
            (await aborted.begin()).send(message("aborted", deliver_at=-HOUR_MS))
            await aborted.abort()
            (await left.begin()).send(message("left open", deliver_at=-HOUR_MS))
        async with consuming(tmp_path, clock=clock) as to:
            await time_out(to)
            assert left.to_broker(to).transaction.state is not TransactionState.ONGOING
            await to.pass_by(2 * HOUR_MS)
            member = (await to.join()).member_id
            assert await to.drain(member) == []
            assert not to.partition().delays.pending

    run_timed(work())


# --- transaction x dead letters, acks


@pytest.mark.parametrize("mode", Mode)
def test_transaction_x_dead_letters_acks(tmp_path: Path, mode: Mode) -> None:
    """An ack inside an aborted transaction never counts; attempts do."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, mode, max_retries=1)
            to.send(message("m0", key="k"), message("m1", key="l"))
            polled = await to.poll(member)
            await writer.begin()
            assert refused(await writer.ack(handle_of(polled, "m0"))) == [False]
            assert refused(await to.ack(handle_of(polled, "m0"))) == [True], "it is the transaction's now"
            await time_out(to, HOUR_MS - 60 * SECOND_MS - 1)
            assert writer.transaction.state is not TransactionState.ONGOING, "it was open for too long"
            member = (await to.join()).member_id
            await to.pass_by(SECOND_MS + 50)
            again = await to.poll(member)
            assert sorted(zip(texts(again), deliveries_of(again), strict=True)) == [("m0", 2), ("m1", 2)]
            await writer.begin()
            assert refused(await writer.ack(handle_of(again, "m0"))) == [False]
            await writer.abort()
            await to.nack(handle_of(again, "m1"))
            assert await to.drain(member) == []
            letters = {record.value or b"": story for record, story in await to.letters()}
            assert sorted(letters) == [b"m0", b"m1"]
            told = letters[b"m0"]
            assert (told.reason, told.detail, told.deliveries) == ("nacked", f"txn-{writer.number} was aborted", 2)
            assert await to.offsets() == {TOPIC: {0: 2}}

    run_timed(work())


def test_an_abort_gives_its_acks_back_with_a_backoff(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to)
            to.put("m0")
            for tries in range(1, 4):
                polled = await to.poll(member)
                assert deliveries_of(polled) == [tries]
                await writer.begin()
                await writer.ack(*handles_of(polled))
                await writer.abort()
                assert await to.drain(member) == [], "it waits, as after a nack"
                await to.pass_by(2 ** (tries - 1) * SECOND_MS + 50)

    run_timed(work())


@pytest.mark.parametrize("mode", Mode)
def test_a_committed_ack_counts_with_the_messages_it_came_with(tmp_path: Path, mode: Mode) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to, mode)
            await to.create("bills")
            to.put("m0", "m1")
            polled = await to.poll(member)
            (await writer.begin()).put("bill", topic="bills")
            assert refused(await writer.ack(*handles_of(polled))) == [False, False]
            assert (await to.lag())[0].lag == 2
            assert await visible(to, topic="bills") == []
            await writer.commit(messages=1, acks=2)
            assert (await to.lag())[0].lag == 0
            assert await visible(to, topic="bills") == ["bill"]
            assert await to.offsets() == {TOPIC: {0: 2}}

    run_timed(work())


def test_a_pledged_message_is_not_delivered_while_its_transaction_is_open(tmp_path: Path) -> None:
    """Not when the lease would lapse, not when its member leaves, not after a restart."""

    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            member, writer = await ready(to)
            to.put("m0")
            polled = await to.poll(member)
            await writer.begin(timeout_ms=HOUR_MS)
            await writer.ack(*handles_of(polled))
            await to.leave(member)
            await to.pass_by(10 * 60 * SECOND_MS)
            other = (await to.join("other")).member_id
            assert await to.drain(other) == []
        async with consuming(tmp_path, clock=clock) as to:
            other = (await to.join("third")).member_id
            assert await to.drain(other) == []
            await writer.to_broker(to).commit()
            assert await to.drain(other) == []
            assert await to.offsets() == {TOPIC: {0: 1}}

    run_timed(work())


def test_offsets_of_a_group_are_committed_with_a_transaction(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, writer = await ready(to)
            to.put("m0", "m1", "m2")
            await to.poll(member, max_messages=2)
            await writer.begin()
            await writer.ack_below(to.group(), to.member(member), {TOPIC: {0: 2}})
            assert await to.offsets() == {TOPIC: {0: 0}}
            await writer.commit(messages=0, acks=2)
            assert await to.offsets() == {TOPIC: {0: 2}}
            assert await to.drain(member) == ["m2"]

    run_timed(work())


# --- aborted stays aborted


def test_what_was_aborted_stays_hidden_after_a_restart_and_after_every_view_is_deleted(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(segment_bytes=1 << 20)
            writer, left = await Writer.make(to), await Writer.make(to)
            (await writer.begin()).put("aborted 1", "aborted 2")
            to.partition().log.roll()
            await writer.abort()
            (await writer.begin()).put("committed")
            (await left.begin(timeout_ms=HOUR_MS)).put("open")
            to.partition().log.roll()
            await writer.commit()
            to.put("plain")
            to.partition().log.roll()
        for kind in ("view", "index", "timeindex"):
            gone = list(tmp_path.glob(f"logs/{TOPIC}/*/0/*.{kind}"))
            assert gone
            for path in gone:
                path.unlink()
        async with consuming(tmp_path, clock=clock) as to:
            member = (await to.join()).member_id
            assert await to.drain(member) == ["committed", "plain"]
            assert await visible(to) == ["committed"]
            await left.to_broker(to).commit()
            assert await to.drain(member) == ["open"]
            assert await visible(to) == ["committed", "open", "plain"]

    run_timed(work())


@pytest.mark.parametrize("policy", [CleanupPolicy.DELETE, CleanupPolicy.COMPACT])
def test_the_cleaner_leaves_alone_what_was_sealed_after_it_was_told_what_is_open(
    tmp_path: Path, policy: CleanupPolicy
) -> None:
    """It runs aside, and may take long."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create(cleanup_policy=policy, retention_bytes=0)
            partition, writer = to.partition(), await Writer.make(to)
            to.send(message("old", key="k"))
            times = partition.due_times
            (await writer.begin()).put("open", key="k")
            partition.log.roll()
            partition.log.sync()
            clean(partition.log, to.clock(), times)
            assert await visible(to, uncommitted=True) == ["old", "open"]
            await writer.abort()
            assert await visible(to) == ["old"]

    run_timed(work())


# --- restart


def test_a_transaction_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create()
            writer = await Writer.make(to, "job")
            (await writer.begin()).put("one")
        async with consuming(tmp_path, clock=clock) as to:
            assert await visible(to) == []
            writer.to_broker(to).put("two")
            await writer.commit()
            assert await visible(to) == ["one", "two"]
        async with consuming(tmp_path, clock=clock) as to:
            assert await visible(to) == ["one", "two"]
            assert (await writer.to_broker(to).commit()).duplicate, "the answer was lost, so it asks again"

    run_timed(work())


def test_what_a_crash_may_have_lost_stays_doubtful_over_a_clean_stop(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path / "lives", clock=clock) as to:
            await to.create()
            writer = await Writer.make(to)
            (await writer.begin()).put("one")
            shutil.copytree(tmp_path / "lives", tmp_path / "left")
        async with consuming(tmp_path / "left", clock=clock):
            pass
        async with consuming(tmp_path / "left", clock=clock) as to:
            with pytest.raises(Conflict, match="stopped without warning"):
                await writer.to_broker(to).commit()
            await writer.commit(messages=1, acks=0)
            assert await visible(to) == ["one"]

    run_timed(work())


def test_after_a_crash_a_commit_says_how_many_acks_there_were(tmp_path: Path) -> None:
    """All of them may be lost; then nothing here tells that there were any."""

    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path / "lives", clock=clock) as to:
            await to.create()
            writer = await Writer.make(to)
            (await writer.begin()).put("one")
            shutil.copytree(tmp_path / "lives", tmp_path / "left")
        async with consuming(tmp_path / "left", clock=clock) as to:
            with pytest.raises(Conflict, match="say with messages and acks"):
                await writer.to_broker(to).commit(messages=1)
            with pytest.raises(TransactionAborted, match="its writer says 1 and 2"):
                await writer.commit(messages=1, acks=2)
            assert await visible(to) == []

    run_timed(work())


def test_no_number_is_told_before_its_reservation_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut would give it out twice, and what was written under it would be somebody else's."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writers = [await Writer.make(to) for _ in range(2)]
            synced = asyncio.Event()

            async def wait(step: Sequence[Durable]) -> None:
                if not all(each.is_so for each in step):
                    await synced.wait()

            monkeypatch.setattr(to.broker.transactions, "_durable", wait)
            begins = [asyncio.ensure_future(writer.begin()) for writer in writers]
            await to.followed()
            assert [begin.done() for begin in begins] == [False, False]
            synced.set()
            await asyncio.gather(*begins)
            assert [writer.number for writer in writers] == [1, 2]

    run_timed(work())


# --- fencing


def test_a_zombie_is_fenced_in_every_operation(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            member, _ = await ready(to)
            to.put("m0")
            polled = await to.poll(member)
            zombie = await Writer.make(to, "job")
            (await zombie.begin()).put("of the zombie")
            heir = await Writer.make(to, "job")
            assert (heir.producer_id, heir.epoch) == (zombie.producer_id, zombie.epoch + 1)
            with pytest.raises(ProducerFenced):
                await zombie.begin()
            with pytest.raises(ProducerFenced):
                zombie.put("late")
            with pytest.raises(ProducerFenced):
                await zombie.ack(*handles_of(polled))
            with pytest.raises(ProducerFenced):
                await zombie.commit()
            with pytest.raises(ProducerFenced):
                await zombie.abort()
            with pytest.raises(ProducerFenced):
                to.broker.transactions.heard_of(zombie.producer_id, zombie.epoch)
            (await heir.begin()).put("of the heir")
            with pytest.raises(ProducerFenced):
                zombie.send(message("in its transaction"), number=heir.number)
            await heir.commit()
            assert await visible(to) == ["m0", "of the heir"]

    run_timed(work())


def test_what_comes_late_into_a_transaction_that_has_ended_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer, other = await Writer.make(to), await Writer.make(to)
            (await writer.begin()).put("one")
            await other.begin()
            with pytest.raises(Conflict, match="another producer"):
                writer.send(message("x"), number=other.number)
            with pytest.raises(UnknownTransaction):
                writer.send(message("x"), number=999)
            with pytest.raises(Conflict, match="open; commit or abort it first"):
                await writer.begin()
            await time_out(to)
            with pytest.raises(TransactionAborted, match="longer than its timeout"):
                writer.put("two")
            with pytest.raises(TransactionAborted):
                await writer.commit()
            assert await writer.abort() == ()
            assert await visible(to) == []

    run_timed(work())


# --- several as one


def test_the_same_token_twice_and_what_was_not_listed(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            runner = to.broker.transactions
            tasks = [await Writer.make(to) for _ in range(3)]
            for number, task in enumerate(tasks):
                (await task.begin("query")).put(f"task {number}")
            listed = [tasks[0].number, tasks[2].number]
            done = await runner.commit_many("query", 7, listed)
            assert (done.numbers, done.duplicate) == (tuple(listed), False)
            assert runner.machine.tokens["query"] == 7
            again = await runner.commit_many("query", 7, listed)
            assert again.duplicate
            with pytest.raises(StaleToken):
                await runner.commit_many("query", 6, [tasks[1].number])
            await runner.abort([found.number for found in runner.machine.named("query")])
            assert await visible(to) == ["task 0", "task 2"]
            replay = await (await Writer.make(to)).begin("query")
            replay.put("task 0 again")
            again = await runner.commit_many("query", 7, [replay.number])
            assert (again.duplicate, again.aborted) == (True, (replay.number,))
            assert await visible(to) == ["task 0", "task 2"]

    run_timed(work())


def test_acks_of_a_batch_are_counted_also_without_its_messages(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            _, writer = await ready(to)
            (await writer.begin("load")).put("m0")
            with pytest.raises(Conflict, match="its writer says 1 and 2"):
                await to.broker.transactions.commit_many("load", 1, [writer.number], acks={writer.number: 2})

    run_timed(work())


def test_one_that_was_begun_under_another_name_is_not_committed_by_a_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            mine, other = await Writer.make(to), await Writer.make(to)
            (await mine.begin("query")).put("mine")
            (await other.begin("another")).put("other")
            with pytest.raises(Conflict, match="under 'another'"):
                await to.broker.transactions.commit_many("query", 1, [mine.number, other.number])
            assert await visible(to) == []
            assert "query" not in to.broker.transactions.machine.tokens

    run_timed(work())


# --- transaction x retention, compaction


def seal(to: Consumers) -> None:
    log = to.partition().log
    log.roll()
    log.sync()


def test_transaction_x_retention(tmp_path: Path) -> None:
    """What is not decided about stays; a marker stays as long as a record it decides about does."""

    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(retention_hours=24)
            late, left = await Writer.make(to), await Writer.make(to)
            (await late.begin()).send(message("late", deliver_at=-10 * DAY_MS), message("soon"))
            (await left.begin(timeout_ms=limits.MAX_TRANSACTION_MS)).put("open")
            seal(to)
            await late.commit()
            to.put("plain")
            seal(to)
            clock.now += 2 * DAY_MS
            clean(to.partition().log, clock.now, to.partition().due_times)
            to.partition().transactions.forget_below(to.partition().log.start_offset)
            assert await visible(to) == ["late"], "one is pending, one undecided, and the marker"
            await left.commit()
            assert await visible(to) == ["late", "open"]
        async with consuming(tmp_path, clock=clock) as to:
            assert await visible(to) == ["late", "open"]
            member = (await to.join()).member_id
            assert await to.drain(member) == ["open"]
            await to.pass_by(9 * DAY_MS)
            member = (await to.join()).member_id
            assert await to.drain(member) == ["open", "late"]

    run_timed(work())


def test_transaction_x_compaction(tmp_path: Path) -> None:
    """An aborted value replaces nothing; an open one neither, until it is committed."""

    async def work() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(cleanup_policy=CleanupPolicy.COMPACT)
            writer, left = await Writer.make(to), await Writer.make(to)
            to.send(message("a1", key="a"), message("b1", key="b"), message("c1", key="c"))
            (await writer.begin()).put("a2 aborted", key="a")
            await writer.abort()
            (await left.begin()).put("b2 open", key="b")
            (await writer.begin()).put("c2", key="c")
            await writer.commit()
            seal(to)
            partition = to.partition()
            clean(partition.log, clock.now, partition.due_times)
            assert await visible(to, uncommitted=True) == ["a1", "b1", "b2 open", "c2"]
            await left.commit()
            seal(to)
            for _ in range(2):
                clean(partition.log, clock.now, partition.due_times)
            assert await visible(to) == ["a1", "b2 open", "c2"]
            kept = markers(to)
            assert len(kept) == 2, f"the aborted one left nothing behind: {kept}"
        async with consuming(tmp_path, clock=clock) as to:
            assert await visible(to) == ["a1", "b2 open", "c2"]

    run_timed(work())


# --- topic delete x transaction


def test_topic_delete_x_transaction(tmp_path: Path) -> None:
    """What was in the topic is gone; the rest of the transaction is committed."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills")
            writer = await Writer.make(to)
            (await writer.begin()).put("m0")
            writer.put("bill", topic="bills")
            await to.delete()
            await to.create()
            await writer.commit()
            assert await visible(to, topic="bills") == ["bill"]
            assert await visible(to) == []
            await to.followed()
            await to.broker.transactions.look()

    run_timed(work())


def test_a_group_that_begins_at_the_end_gets_what_is_committed_later(tmp_path: Path) -> None:
    """And nothing of what was there to be seen; also when it is moved there."""

    async def work() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            writer = await Writer.make(to)
            to.put("old")
            (await writer.begin()).put("open")
            to.put("old, too")
            member = (await to.join(start=LATEST)).member_id
            other = (await to.join(group="other")).member_id
            assert await to.drain(other, group="other") == ["old", "old, too"]
            await to.reset(Place.LATEST, group="other")
            assert await to.drain(member) == []
            await writer.commit()
            to.put("new")
            assert await to.drain(member) == ["open", "new"]
            assert await to.drain(other, group="other") == ["open", "new"]

    run_timed(work())
