"""Redriving dead letters: each is published again exactly once, whatever happens in between."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue.broker import redrive as redrive_module
from goqueue.broker.own_messages import OwnPublisher
from goqueue.broker.redrive import _batch_size
from goqueue.codec.partitioning import partition_of
from goqueue.jobs.letters import LetterFilter
from goqueue.jobs.redrive import Redrive, RedriveId
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, DiskFull, InvalidRequest, UnknownRedrive, UnknownTopic
from goqueue.model.jobs import RedriveState
from goqueue.model.record import Extension, Record
from goqueue.producers.own import Work, own_producer
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock, block
from tests.unit.broker.consumers import TOPIC, deliveries_of, numbered, texts
from tests.unit.broker.graveyard import DLQ, Graveyard, graveyard, messages_of
from tests.unit.broker.images import PhotographedDisk


def counts(redrive: Redrive) -> tuple[RedriveState, int, int, int]:
    return redrive.state, redrive.plan.matched, redrive.redriven, redrive.skipped


async def eventually(condition: Callable[[], Any]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not happen")


def has(yard: Graveyard, count: int) -> Callable[[], bool]:
    return lambda: len(yard.values()) >= count


def time_passed(yard: Graveyard, ms: int) -> bool:
    """Whether all redrives have ended; if not, time goes on."""
    if yard.runner._workers:
        yard.to.time.move(ms)
    return not yard.runner._workers


# --- what is redriven, and where to


def test_letters_go_back_to_where_they_came_from(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path, partitions=3) as yard:
            await yard.kill(*numbered(3), partition=0)
            await yard.kill(*numbered(2, 3), partition=2, key="wherever this hashes to")
            found = await yard.redrive()
            assert counts(found) == (RedriveState.DONE, 5, 5, 0)
            assert found.finished_ms == T0
            assert yard.values(0) == [*numbered(3), *numbered(3)]
            assert yard.values(2) == [*numbered(2, 3), *numbered(2, 3)]
            assert await yard.dead() == []

    run_timed(go())


def test_a_letter_is_the_message_again_without_its_story(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            message = Record(
                key=b"\xff",
                value=None,
                priority=4,
                headers=(("traceparent", b"00-aa-bb-01"), ("x", b"\x00"), ("x", b"")),
                extension=Extension(event_time=77, deliver_at=T0, expires_at=T0 + 10**9),
            )
            await yard.kill_records([message])
            redrive = await yard.redrive()
            found = messages_of(yard.partition(0))[1]
            assert (found.key, found.value, found.priority) == (b"\xff", None, 4)
            assert found.headers == message.headers
            assert found.extension is not None
            assert (found.extension.event_time, found.extension.blob) == (77, None)
            assert found.extension.deliver_at is found.extension.expires_at is None
            assert found.extension.producer is not None
            assert found.extension.producer.producer_id == own_producer(Work.REDRIVES, int(redrive.redrive_id, 16))

    run_timed(go())


def test_a_group_gets_them_like_any_message(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b")
            member = (await yard.to.join()).member_id
            waiting = await yard.to.parked(member)
            await yard.redrive()
            polled = await waiting
            assert (texts(polled), deliveries_of(polled)) == (["a", "b"], [1, 1])
            await yard.reject(polled)
            found = await yard.dead()
            assert [(letter.record.offset, letter.story.offset) for letter in found] == [(2, 2), (3, 3)]
            assert counts(await yard.redrive())[1:] == (2, 2, 0), "who dies again can be redriven again"

    run_timed(go())


def test_in_another_topic_a_letter_goes_where_its_key_says(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path, partitions=4) as yard:
            await yard.to.create("other", 3)
            await yard.kill("keyed", partition=3, key="abc")
            await yard.kill("free", partition=3)
            found = await yard.redrive(target="other")
            assert (found.plan.target, found.redriven) == ("other", 2)
            expected: list[list[str]] = [[], [], []]
            expected[partition_of(b"abc", 3)] += ["keyed"]
            expected[0] += ["free"]
            assert [sorted(yard.values(number, "other")) for number in range(3)] == [sorted(part) for part in expected]

    run_timed(go())


def test_a_partition_that_the_topic_no_longer_has_is_replaced(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path, partitions=5) as yard:
            await yard.kill("a", partition=4)
            await yard.kill("b", partition=1)
            await yard.to.delete()
            await yard.to.create(partitions=3)
            redrive, matched, _ = await yard.runner.begin(TOPIC, LetterFilter(), target=TOPIC, deleted=True)
            assert redrive is not None
            assert (matched, (await yard.ended(redrive)).redriven) == (2, 2)
            assert [yard.values(number) for number in range(3)] == [[], ["b", "a"], []]

    run_timed(go())


def test_only_what_matches_is_redriven(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b", key="x")
            await yard.kill("c", key="y", group="shipping")
            assert counts(await yard.redrive(key="x", group="billing"))[1:] == (2, 2, 0)
            assert await yard.dead_values() == ["a", "b", "c"]
            assert counts(await yard.redrive(offsets={0: (3,)}))[1:] == (1, 1, 0)
            assert yard.values()[3:] == ["a", "b", "b"]
            assert await yard.dead_values() == ["a", "c"]

    run_timed(go())


def test_nothing_is_redriven_twice(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(3))
            await yard.redrive(offsets={0: (1,)})
            assert counts(await yard.redrive())[1:] == (2, 2, 0)
            assert await yard.runner.begin(TOPIC, LetterFilter()) == (None, 0, {})
            assert sorted(yard.values()) == sorted([*numbered(3), *numbered(3)])

    run_timed(go())


def test_many_go_in_batches_and_what_dies_meanwhile_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LETTERS_AT_ONCE", 64)

    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(350))
            redrive = await yard.begin()
            await yard.kill("late", group="shipping")
            found = await yard.ended(redrive)
            assert counts(found) == (RedriveState.DONE, 350, 350, 0)
            assert yard.values()[350:].count("late") == 1
            assert [value for value in yard.values()[350:] if value != "late"] == numbered(350)
            assert "late" in await yard.dead_values(group="shipping")

    run_timed(go())


def test_batches_are_bounded_by_bytes_and_one_letter_may_be_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REDRIVEN_AT_ONCE_BYTES", 1000)
    sizes: list[int] = []
    append = OwnPublisher.append

    def watched(self: OwnPublisher, topic: Any, number: int, records: Any, producer: Any) -> Any:
        sizes.append(len(records))
        return append(self, topic, number, records, producer)

    monkeypatch.setattr(OwnPublisher, "append", watched)

    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("x" * 400, "x" * 400, "x" * 400, "x" * 5000, "x")
            sizes.clear()  # the letters were published as well
            assert (await yard.redrive()).redriven == 5
            assert sizes == [2, 1, 1, 1]

    run_timed(go())


def test_letters_that_the_target_does_not_allow_are_skipped(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("small", "x" * 100, "small too")
            await yard.broker.topics.change(TOPIC, {"max_message_bytes": 50}, T0)
            assert counts(await yard.redrive()) == (RedriveState.DONE, 3, 2, 1)
            assert yard.values()[3:] == ["small", "small too"]
            assert await yard.dead_values() == ["x" * 100]

    run_timed(go())


def test_letters_that_are_gone_when_their_turn_comes_are_skipped(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(4))
            log = yard.partition(0, DLQ).log
            log.roll()
            await yard.kill("m4")
            log.sync()
            redrive = await yard.begin(rate=0.001)
            await eventually(lambda: yard.runner._workers[redrive.redrive_id].due_s)
            await turns()
            log.truncate_prefix(4)
            await eventually(lambda: time_passed(yard, 1000 * 1000))
            assert counts(yard.look(redrive)) == (RedriveState.DONE, 5, 3, 2)
            assert yard.values()[5:] == ["m0", "m1", "m4"]

    run_timed(go())


# --- asking only


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            assert await yard.runner.begin(TOPIC, LetterFilter()) == (None, 0, {}), "nothing has died"
            await yard.kill("a", "b")
            for name in (TOPIC, DLQ):
                assert await yard.runner.begin(name, LetterFilter(), dry_run=True) == (None, 2, {})
            assert await yard.runner.begin(TOPIC, LetterFilter(reason="lapsed"), dry_run=True) == (None, 0, {})
            assert await yard.runner.begin(TOPIC, LetterFilter(reason="lapsed")) == (None, 0, {})
            assert yard.values() == ["a", "b"]
            assert await yard.dead_values() == ["a", "b"]
            assert yard.runner.machine.by_id == {}

    run_timed(go())


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            with pytest.raises(UnknownTopic):
                await yard.runner.begin("nope", LetterFilter())
            await yard.kill("a", "b")
            with pytest.raises(UnknownTopic):
                await yard.runner.begin(TOPIC, LetterFilter(), target="nope")
            with pytest.raises(InvalidRequest, match=r"orders\.dlq is for dead letters"):
                await yard.runner.begin(TOPIC, LetterFilter(), target=DLQ)
            with pytest.raises(UnknownRedrive):
                await yard.runner.get(RedriveId("nobody"))
            with pytest.raises(UnknownRedrive):
                await yard.runner.cancel(RedriveId("nobody"))
            first = await yard.begin(rate=0.001)
            with pytest.raises(Conflict, match=f"redrive {first.redrive_id} of the dead letters of orders is running"):
                await yard.runner.begin(TOPIC, LetterFilter())
            await yard.runner.begin(TOPIC, LetterFilter(), dry_run=True)
            yard.broker.topics.named(DLQ).slots[0] = DamagedData("its state is gone")
            await yard.runner.cancel(first.redrive_id)
            assert await yard.runner.begin(TOPIC, LetterFilter()) == (None, 0, {0: "its state is gone"})

    run_timed(go())


# --- rate


def test_a_rate_is_kept_by_a_timer(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(10))
            redrive = await yard.begin(rate=0.01)
            worker = yard.runner._workers[redrive.redrive_id]
            for done in range(1, 10):
                await eventually(lambda: worker.due_s > asyncio.get_running_loop().time())
                assert len(yard.values()) == 10 + done, "one at a time"
                yard.to.time.move(90_000)
                await turns()
                assert len(yard.values()) == 10 + done, "not before its time"
                yard.to.time.move(10_000)
                await eventually(has(yard, 11 + done))
            assert (await yard.ended(redrive)).redriven == 10

    run_timed(go())


@pytest.mark.parametrize(
    ("rate", "batch"), [(0.5, 1), (10, 1), (19, 1), (20, 2), (100, 10), (999, 99), (1000, 100), (1e6, 100), (None, 100)]
)
def test_a_fast_one_takes_more_at_a_time(rate: float | None, batch: int) -> None:
    assert _batch_size(rate) == batch


def test_a_batch_is_followed_by_the_rest_it_has_earned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_module, "_BATCHES_PER_S", 0.01)

    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(30))
            redrive = await yard.begin(rate=0.1)
            worker = yard.runner._workers[redrive.redrive_id]
            for done in (10, 20):
                await eventually(lambda: worker.due_s > asyncio.get_running_loop().time())
                assert len(yard.values()) == 30 + done
                yard.to.time.move(90_000)
                await turns()
                assert len(yard.values()) == 30 + done
                yard.to.time.move(10_000)
                await eventually(has(yard, 31 + done))
            assert (await yard.ended(redrive)).redriven == 30, "it does not rest when all is done"

    run_timed(go())


# --- cancelling


def test_a_cancelled_redrive_stops_and_leaves_the_rest(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(5))
            redrive = await yard.begin(rate=0.001)
            await eventually(lambda: yard.runner._workers[redrive.redrive_id].due_s)
            found = await yard.runner.cancel(redrive.redrive_id)
            assert counts(found) == (RedriveState.CANCELLED, 5, 1, 0)
            assert yard.values()[5:] == ["m0"]
            assert await yard.dead_values() == numbered(4, 1)
            assert await yard.runner.cancel(redrive.redrive_id) == found, "again changes nothing"
            assert counts(await yard.redrive()) == (RedriveState.DONE, 4, 4, 0)

    run_timed(go())


def refuse(*_: object, **__: object) -> None:
    raise DiskFull("no space")


def test_one_that_cannot_publish_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b")
            with monkeypatch.context() as patch:
                patch.setattr(OwnPublisher, "append", refuse)
                redrive = await yard.begin()
                await eventually(lambda: yard.look(redrive).batch is not None)
                found = await yard.runner.cancel(redrive.redrive_id)
            assert counts(found) == (RedriveState.CANCELLED, 2, 0, 0)
            assert yard.values() == await yard.dead_values() == ["a", "b"]
            assert (await yard.redrive()).redriven == 2

    run_timed(go())


def test_one_that_waits_for_space_goes_on_when_there_is_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b")
            with monkeypatch.context() as patch:
                patch.setattr(OwnPublisher, "append", refuse)
                redrive = await yard.begin()
                await eventually(lambda: yard.look(redrive).batch is not None)
                await turns()
            yard.to.time.move(1000)
            assert counts(await yard.ended(redrive)) == (RedriveState.DONE, 2, 2, 0)
            assert yard.values() == ["a", "b", "a", "b"]

    run_timed(go())


def test_of_a_batch_that_is_there_in_part_what_is_there_counts_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = OwnPublisher.append

    def only_the_first(self: OwnPublisher, topic: Any, number: int, records: Any, producer: Any) -> Any:
        if number == 2:
            raise DiskFull("no space")
        return append(self, topic, number, records, producer)

    async def go() -> None:
        async with graveyard(tmp_path, partitions=3) as yard:
            await yard.to.create("other", 3)
            keys: dict[int, str] = {}
            for number in range(100):
                keys.setdefault(partition_of(str(number).encode(), 3), str(number))
            records = [Record(key=keys[number].encode(), value=keys[number].encode()) for number in (0, 0, 2, 2)]
            await yard.kill_records(records)
            with monkeypatch.context() as patch:
                patch.setattr(OwnPublisher, "append", only_the_first)
                redrive = await yard.begin(target="other")
                await eventually(lambda: len(yard.values(0, "other")) == 2)
                found = await yard.runner.cancel(redrive.redrive_id)
            assert counts(found) == (RedriveState.CANCELLED, 4, 2, 0)
            assert await yard.dead_values() == [keys[2], keys[2]]
            assert (await yard.redrive(target="other")).redriven == 2
            assert (yard.values(0, "other"), yard.values(2, "other")) == ([keys[0]] * 2, [keys[2]] * 2)

    run_timed(go())


# --- topics that go


@pytest.mark.parametrize("gone", [TOPIC, DLQ])
def test_a_redrive_whose_topic_is_deleted_fails_and_says_so(tmp_path: Path, gone: str) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b")
            redrive = await yard.begin(rate=0.001)
            await eventually(lambda: yard.runner._workers[redrive.redrive_id].due_s)
            await yard.to.delete(gone)
            yard.to.time.move(1000 * 1000)
            found = await yard.ended(redrive)
            assert counts(found) == (RedriveState.FAILED, 2, 1, 0)
            assert found.error == f"the topic {gone} was deleted"

    run_timed(go())


@pytest.mark.parametrize("gone", [TOPIC, DLQ])
def test_also_when_it_was_deleted_while_the_broker_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b")
            with monkeypatch.context() as patch:
                patch.setattr(OwnPublisher, "append", refuse)
                redrive = await yard.begin()
                await eventually(lambda: yard.look(redrive).batch is not None)
                await yard.runner.stop()
                await yard.to.delete(gone)
        async with graveyard(tmp_path, partitions=None) as yard:
            await yard.quiet()
            found = yard.look(redrive)
            assert counts(found) == (RedriveState.FAILED, 2, 0, 0)
            assert found.error == f"the topic {gone} was deleted"

    run_timed(go())


def test_a_new_topic_of_the_old_name_is_another_one(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b")
            redrive = await yard.begin(rate=0.001)
            await eventually(lambda: yard.runner._workers[redrive.redrive_id].due_s)
            await yard.to.delete()
            await yard.to.create()
            yard.to.time.move(1000 * 1000)
            assert (await yard.ended(redrive)).state is RedriveState.FAILED
            assert yard.values() == []
            assert await yard.runner.begin(TOPIC, LetterFilter()) == (None, 0, {})

    run_timed(go())


# --- other lives


def test_nothing_is_published_before_its_intent_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with graveyard(tmp_path, disk=disk) as yard:
            await yard.kill("a", "b")
            await yard.redrive(offsets={0: (0,)})
            with syncs_held(disk, "/meta/jobs/") as held:
                beginning = asyncio.ensure_future(yard.begin())
                await held.reached()
                await eventually(lambda: any(redrive.batch for redrive in yard.runner.machine.running))
                await turns()
                assert yard.values() == ["a", "b", "a"]
            assert (await yard.ended(await beginning)).redriven == 1

    run_timed(go())


def test_a_letter_must_be_durable_before_it_is_redriven(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with graveyard(tmp_path, disk=disk, fsync="none") as yard:
            await yard.kill("a")
            story = (await yard.dead())[0].record
            log = yard.partition(0, DLQ).log
            with syncs_held(disk, f"/{DLQ}/") as held:
                log.append(block(msgspec.structs.replace(story, value=b"b")), now=T0)
                beginning = asyncio.ensure_future(yard.begin())
                await held.reached()
                await turns()
                assert yard.runner.machine.by_id == {}
            assert (await yard.ended(await beginning)).redriven == 2

    run_timed(go())


def stop_before(yard: Graveyard, step: str, patch: pytest.MonkeyPatch) -> None:
    """From now on nobody gets past one of the steps of a batch."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    if step == "publishing":
        patch.setattr(yard.runner, "_deliver", hang)
    elif step == "marking":
        patch.setattr(yard.letters, "mark", hang)


@pytest.mark.parametrize("step", ["publishing", "marking", "the next batch"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_redrive_that_was_interrupted_goes_on_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, snapshot: bool
) -> None:
    monkeypatch.setattr(limits, "REDRIVEN_AT_ONCE", 4)
    monkeypatch.setattr(redrive_module, "_BATCHES_PER_S", 0.01)

    async def go() -> None:
        async with graveyard(tmp_path, partitions=2) as yard:
            await yard.kill(*numbered(10))
            await yard.kill(*numbered(3, 10), partition=1)
            redrive = await yard.begin(rate=0.03)
            worker = yard.runner._workers[redrive.redrive_id]
            await eventually(lambda: worker.due_s)
            with monkeypatch.context() as patch:
                stop_before(yard, step, patch)
                if step != "the next batch":  # for that it rests
                    yard.to.time.move(100 * 1000)
                expected = {"publishing": 13, "marking": 16, "the next batch": 13}[step]
                intended = {"publishing": 6, "marking": 6, "the next batch": 3}[step]
                await eventually(lambda: yard.look(redrive).offset == intended and len(yard.values()) == expected)
                await turns()
                if snapshot:
                    await yard.broker._housekeeping.snapshot(yard.runner._jobs.host)
        async with graveyard(tmp_path, partitions=None) as yard:
            await eventually(lambda: time_passed(yard, 100 * 1000))
            found = yard.look(redrive)
            assert counts(found) == (RedriveState.DONE, 13, 13, 0)
            assert yard.values() == [*numbered(10), *numbered(10)]
            assert yard.values(1) == [*numbered(3, 10), *numbered(3, 10)]
            assert await yard.dead() == []

    run_timed(go())


def test_a_letter_that_the_cleaner_took_while_the_broker_was_away_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a", "b")
            log = yard.partition(0, DLQ).log
            log.roll()
            await yard.kill("c")
            log.sync()
            with monkeypatch.context() as patch:
                stop_before(yard, "publishing", patch)
                redrive = await yard.begin()
                await eventually(lambda: yard.look(redrive).batch is not None)
            log.truncate_prefix(2)
        async with graveyard(tmp_path, partitions=None) as yard:
            await yard.quiet()
            assert yard.look(redrive).state is RedriveState.DONE
            assert yard.values()[3:] == ["c"]
            assert await yard.dead() == []
            await yard.kill("d", group="shipping")
            assert await yard.dead_values() == ["a", "b", "c", "c", "d"]
            assert (await yard.redrive()).redriven == 5

    run_timed(go())


def test_what_has_ended_is_remembered_in_another_life(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a")
            found = await yard.redrive(reason="rejected")
        async with graveyard(tmp_path, partitions=None) as yard:
            assert await yard.runner.get(found.redrive_id) == found

    run_timed(go())


@pytest.mark.one_codec
@pytest.mark.parametrize("fsync", ["none", "every"])
def test_wherever_a_crash_comes_every_letter_is_redriven_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str
) -> None:
    """Kills and power cuts at every step that changes the disk, from before the redrive to after its end."""
    monkeypatch.setattr(limits, "REDRIVEN_AT_ONCE", 2)

    async def go() -> None:
        disk, clock = PhotographedDisk(), Clock()
        async with graveyard(tmp_path, clock=clock, disk=disk, partitions=2, fsync=fsync) as yard:
            await yard.kill(*numbered(3))
            await yard.kill(*numbered(2, 3), partition=1)
            for number in range(2):
                yard.partition(number).log.sync()
            disk.begin(tmp_path)
            redrive = await yard.redrive()
            disk.recording = False
            assert redrive.redriven == 5
        assert len(disk.images) > 10
        outcomes = set()
        for when, image in disk.crashed():
            async with graveyard(tmp_path, clock=clock, disk=image, partitions=None) as yard:
                await yard.quiet()
                known = redrive.redrive_id in yard.runner.machine.by_id
                outcomes.add(known)
                if not known:
                    assert yard.values() == numbered(3), when
                    await yard.redrive()
                else:
                    assert counts(yard.look(redrive)) == (RedriveState.DONE, 5, 5, 0), when
                assert yard.values() == [*numbered(3), *numbered(3)], when
                assert yard.values(1) == [*numbered(2, 3), *numbered(2, 3)], when
                assert await yard.dead() == [], when
        assert outcomes == {True, False}

    run_timed(go())


def test_a_message_of_a_clients_own_in_the_dead_letter_topic_is_left_alone(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a")
            yard.partition(0, DLQ).log.append(block(Record(value=b"odd"), Record(control=True)), now=T0)
            await yard.kill("b")
            assert counts(await yard.redrive()) == (RedriveState.DONE, 2, 2, 0)
            assert yard.values() == ["a", "b", "a", "b"]

    run_timed(go())
