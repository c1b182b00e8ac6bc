"""Dead letters: which messages become one, where it goes, what it says, and that it is written once."""

import asyncio
from pathlib import Path

import pytest

from goqueue.broker.settle import Fate
from goqueue.model import limits
from goqueue.model.dead_letters import DeadLetter
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.settings import Fsync
from goqueue.model.topic import Backoff, CleanupPolicy, OnExpiry
from goqueue.storage.cleaner import clean
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, Clock
from tests.unit.broker.consumers import (
    GROUP,
    SESSION_MS,
    Consumers,
    consuming,
    deliveries_of,
    handle_of,
    handles_of,
    message,
    numbered,
    records_of,
    refused,
    texts,
)
from tests.unit.broker.images import PhotographedDisk
from tests.unit.broker.test_poll import consume

AT_ONCE = Backoff(base_ms=0, max_ms=0)
HOUR_MS = 3600 * 1000
LONG_MS = 100 * SESSION_MS


def values(letters: list[tuple[Record, DeadLetter]]) -> list[str]:
    return [(record.value or b"").decode() for record, _ in letters]


async def fail(to: Consumers, member: str, times: int) -> None:
    """Nack all there is, that often."""
    for _ in range(times):
        await to.pass_by(0)
        fates = await to.nack(*handles_of(await to.poll(member)))
        assert fates, "there was nothing to give back"
        assert not any(refused(fates))


# --- how a message dies


def test_what_failed_too_often_is_written_to_the_dead_letter_topic_with_its_story(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.clock.now += 500
        headers = (("trace", b"1"), ("trace", b"2"))
        original = Record(
            value=b"a", key=b"k", priority=Lane.HIGH, headers=headers, extension=Extension(event_time=T0 - 7)
        )
        to.send(message("other"), original)
        polled = await to.poll(member)
        await to.ack(handle_of(polled, "other"))
        await to.nack(handle_of(polled, "a"))
        for backoff_ms in (1000, 2000):
            await to.pass_by(backoff_ms)
            assert (await to.nack(*handles_of(await to.poll(member))))[0].visible_at is not None
        await to.pass_by(4000)
        last = await to.poll(member)
        assert deliveries_of(last) == [4], "the first delivery and three retries"
        assert await to.nack(*handles_of(last)) == [Fate(None, None, "orders.dlq")]
        ((letter, story),) = await to.letters()
        assert story == DeadLetter(
            topic="orders",
            topic_id=to.partition().topic.topic_id,
            partition=0,
            offset=1,
            group=GROUP,
            group_number=to.group().number,
            reason="nacked",
            deliveries=4,
            published_at=T0 + 500,
            died_at=T0 + 7500,
        )
        assert (letter.value, letter.key, letter.priority, letter.headers) == (b"a", b"k", Lane.HIGH, headers)
        assert letter.extension is not None
        assert letter.extension.event_time == T0 - 7
        assert letter.timestamp == T0 + 7500
        await to.pass_by(SESSION_MS - 1)
        assert await to.texts(member) == [], "it is not delivered to this group any more"
        assert await to.offsets() == {"orders": {0: 2}}

    consume(tmp_path, scenario)


@pytest.mark.parametrize("max_retries", [0, 1, 5])
def test_it_is_tried_as_often_as_the_topic_says(tmp_path: Path, max_retries: int) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        await fail(to, member, max_retries + 1)
        ((_, story),) = await to.letters()
        assert story.deliveries == max_retries + 1

    consume(tmp_path, scenario, max_retries=max_retries, backoff=AT_ONCE)


def test_what_was_not_settled_in_time_too_often_dies_too(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        for count in (1, 2, 3):
            polled = await to.poll(member)
            assert deliveries_of(polled) == [count] * 2
            await to.pass_by(5000)
        assert await to.texts(member) == []
        letters = await to.letters()
        assert values(letters) == ["a", "b"]
        assert {(story.reason, story.deliveries) for _, story in letters} == {("lapsed", 3)}
        assert await to.offsets() == {"orders": {0: 2}}

    consume(tmp_path, scenario, max_retries=2, visibility_ms=5000)


def test_what_consumers_die_with_does_not_go_round_for_ever(tmp_path: Path) -> None:
    """A message that kills whoever has it: each time the partition goes to the next member."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(max_retries=2, visibility_ms=LONG_MS)
            to.put("poison", "good")
            seen = []
            for number in range(5):
                member = (await to.join(f"victim{number}")).member_id
                polled = await to.poll(member)
                polled = polled if polled.rows else await to.poll(member)
                seen += [deliveries_of(polled)] if polled.rows else []
                if "good" in texts(polled):
                    await to.ack(handle_of(polled, "good"))
                await to.pass_by(SESSION_MS)
                assert member not in to.group().members
            assert seen == [[1, 1], [2], [3]]
            ((letter, story),) = await to.letters()
            assert (letter.value, story.deliveries, story.reason) == (b"poison", 3, "lapsed")

    run_timed(go())


def test_what_is_rejected_dies_at_once_and_says_why(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b", "c")
        polled = await to.poll(member)
        fates = await to.reject(handle_of(polled, "b"), handle_of(polled, "a"), reason="no such customer")
        assert fates == [Fate(None, None, "orders.dlq")] * 2
        letters = await to.letters()
        assert values(letters) == ["a", "b"], "in the order of their offsets"
        assert {(story.reason, story.detail, story.deliveries) for _, story in letters} == {
            ("rejected", "no such customer", 1)
        }
        assert await to.offsets() == {"orders": {0: 2}}

    consume(tmp_path, scenario)


def test_of_a_long_reason_the_beginning_is_kept(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        reason = "\U0001f680" * limits.MAX_REJECT_CHARS
        await to.reject(*handles_of(await to.poll(member)), reason=reason)
        ((_, story),) = await to.letters()
        assert len(story.detail) > 100
        assert story.detail.endswith("...") or story.detail == reason

    consume(tmp_path, scenario)


# --- topics without dead letters


def test_without_dead_letters_it_is_dropped(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b", "c")
        polled = await to.poll(member)
        assert await to.reject(handle_of(polled, "a")) == [Fate()]
        assert await to.nack(handle_of(polled, "b")) == [Fate()], "it is not tried again"
        await to.pass_by(5000)
        assert await to.texts(member) == [], "c was not settled in time, and is not tried again either"
        assert await to.letters() == []
        assert await to.offsets() == {"orders": {0: 3}}
        assert to.broker.topics.shape_of("orders.dlq") is None

    consume(tmp_path, scenario, dlq_enabled=False, max_retries=0, visibility_ms=5000)


def test_a_dead_letter_topic_has_none_of_its_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create("orders.dlq", max_retries=0)
            to.put("a", "b", topic="orders.dlq")
            member = (await to.join("worker", "orders.dlq")).member_id
            polled = await to.poll(member)
            assert await to.reject(handle_of(polled, "a")) == [Fate()]
            assert await to.nack(handle_of(polled, "b")) == [Fate()]
            await to.buried()
            assert await to.broker.topics.names() == ["orders.dlq"]
            assert (await to.lag(topic="orders.dlq"))[0].lag == 0

    run_timed(go())


def test_whether_there_are_dead_letters_may_be_changed(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        polled = await to.poll(member)
        await to.change(dlq_enabled=False)
        assert await to.reject(handle_of(polled, "a")) == [Fate()]
        await to.change(dlq_enabled=True)
        assert await to.reject(handle_of(polled, "b")) == [Fate(None, None, "orders.dlq")]
        assert values(await to.letters()) == ["b"]

    consume(tmp_path, scenario)


# --- where they go


def test_the_topic_is_made_when_it_is_needed_with_as_many_partitions(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        for partition in range(3):
            to.put(f"m{partition}", partition=partition)
        polled = await to.poll(member)
        assert to.broker.topics.shape_of("orders.dlq") is None
        await to.reject(*handles_of(polled))
        for partition in range(3):
            ((letter, story),) = await to.letters(partition=partition)
            assert (letter.value, story.partition) == (f"m{partition}".encode(), partition), "each in its own"
        made = to.broker.topics.named("orders.dlq").meta
        assert made.partitions == 3
        assert made.settings.message_ttl_ms is None, "dead letters wait"
        assert made.settings.fsync is Fsync.EVERY

    consume(tmp_path, scenario, partitions=3, message_ttl_ms=HOUR_MS, fsync=Fsync.EVERY)


def test_a_topic_that_is_there_is_used_as_it_is(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        await to.create("orders.dlq", partitions=2, retention_hours=5)
        to.put("a")
        await to.reject(*handles_of(await to.poll(member)))
        assert values(await to.letters()) == ["a"]
        found = to.broker.topics.named("orders.dlq").meta
        assert (found.partitions, found.settings.retention_hours) == (2, 5)

    consume(tmp_path, scenario)


def test_a_topic_with_too_few_partitions_gets_more(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", partition=0)
        await to.reject(*handles_of(await to.poll(member)))
        await to.buried()
        await to.grow(4)
        to.put("d", partition=3)
        polled = await to.poll(member)
        polled = polled if polled.rows else await to.poll(member)
        await to.reject(*handles_of(polled))
        assert values(await to.letters(partition=3)) == ["d"]
        assert to.broker.topics.named("orders.dlq").meta.partitions == 4

    consume(tmp_path, scenario)


def test_if_the_dead_letter_topic_is_deleted_the_next_letters_make_it_anew(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(5))
        handles = handles_of(await to.poll(member))
        await to.reject(*handles[:3])
        assert values(await to.letters()) == ["m0", "m1", "m2"]
        await to.delete("orders.dlq")
        await to.reject(handles[3])
        assert values(await to.letters()) == ["m3"], "its number is not 0, and nothing was before it"
        await to.reject(handles[4])
        assert values(await to.letters()) == ["m3", "m4"]

    consume(tmp_path, scenario)


def test_dead_letters_of_a_compacted_topic_are_not_compacted(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("a", key="k"), message("b", key="k"), message("c", key="k"))
        await to.reject(*handles_of(await to.poll(member)))
        assert values(await to.letters()) == ["a", "b", "c"]
        log = to.partition(topic="orders.dlq").log
        log.roll()
        log.sync()
        clean(log, to.clock() + HOUR_MS)
        assert values(await to.letters()) == ["a", "b", "c"]

    consume(tmp_path, scenario, cleanup_policy=CleanupPolicy.COMPACT)


def test_dead_letters_are_messages_like_others_for_whoever_joins(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.send(message("a", lane=Lane.LOW), message("b", lane=Lane.CRITICAL))
        await to.reject(*handles_of(await to.poll(member)))
        await to.buried()
        reader = (await to.join("reader", "orders.dlq", group="autopsy")).member_id
        assert await to.texts(reader, group="autopsy") == ["b", "a"], "the lane stays"

    consume(tmp_path, scenario)


def test_each_group_has_dead_letters_of_its_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put("a")
            for group in ("one", "two"):
                member = (await to.join(group=group)).member_id
                await to.reject(*handles_of(await to.poll(member, group=group)))
            third = (await to.join(group="three")).member_id
            assert await to.texts(third, group="three") == ["a"]
            assert [story.group for _, story in await to.letters()] == ["one", "two"]

    run_timed(go())


def test_a_group_that_was_deleted_meanwhile_has_no_name_in_its_letters(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create()
            await to.create("orders.dlq")
            to.put("a")
            member = (await to.join()).member_id
            polled = await to.poll(member)
            await to.leave(member)
            await to.reject(*handles_of(polled))
            number = to.group().number
            await to.broker.groups.delete(GROUP)
            ((letter, story),) = await to.letters()
            assert (letter.value, story.group_number) == (b"a", number)
            assert story.group in ("", GROUP)

    run_timed(go())


def test_many_letters_are_written_in_turns(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put(*numbered(350))
        await to.reject(*handles_of(await to.poll(member, max_messages=350)))
        assert values(await to.letters()) == list(numbered(350))
        assert not to.deliveries().outbox
        assert await to.offsets() == {"orders": {0: 350}}

    consume(tmp_path, scenario)


# --- what is in the way


def test_until_it_is_written_a_dead_message_is_not_settled_and_not_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(visibility_ms=5000)
            to.put("a", "b")
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            disk.free = 0
            await to.reject(handle_of(polled, "a"))
            await turns()
            await to.ack(handle_of(polled, "b"))
            assert await to.texts(member) == []
            assert await to.offsets() == {"orders": {0: 0}}
            assert len(to.deliveries().outbox) == 1
            disk.free = None
            for _ in range(100):
                await to.broker._housekeeping.tick()  # takes the space back that was kept for acks
                to.time.move(1000)
                await to.followed()
                if not to.broker._undertaker._at_work:
                    break
                await asyncio.sleep(0.01)
            assert values(await to.letters()) == ["a"]
            assert await to.offsets() == {"orders": {0: 2}}

    run_timed(go())


def test_a_message_that_retention_took_before_its_letter_was_written_leaves_none(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(retention_hours=1)
            to.put("a", "b")
            member = (await to.join(session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            log = to.partition().log
            log.roll()
            log.sync()
            to.clock.now += 2 * HOUR_MS
            to.put("c")
            clean(log, to.clock())
            assert log.start_offset == 2
            await to.reject(handle_of(polled, "a"))
            assert await to.letters() == []
            assert not to.deliveries().outbox, "nobody waits for what is gone"
            (placeholder,) = records_of(to.partition(topic="orders.dlq"))
            assert placeholder.control, "its number is taken, so that the next one is in sequence"
            late = await to.poll(member)
            await to.reject(*handles_of(late))
            assert values(await to.letters()) == ["c"]
            reader = (await to.join("reader", "orders.dlq", group="autopsy")).member_id
            assert await to.drain(reader, group="autopsy") == ["c"]

    run_timed(go())


def test_closing_while_letters_wait_writes_them_after_the_next_start(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        clock = Clock()
        async with consuming(tmp_path, disk=disk, clock=clock) as to:
            await to.create()
            to.put(*numbered(3))
            member = (await to.join()).member_id
            polled = await to.poll(member)
            disk.free = 0
            await to.reject(*handles_of(polled))
            await turns()
            assert len(to.deliveries().outbox) == 3
            disk.free = None
        async with consuming(tmp_path, clock=clock) as to:
            assert values(await to.letters()) == list(numbered(3))
            assert await to.offsets() == {"orders": {0: 3}}

    run_timed(go())


# --- once


@pytest.mark.one_codec
@pytest.mark.parametrize("fsync", [Fsync.NONE, Fsync.EVERY])
def test_a_letter_is_written_once_wherever_the_broker_dies(tmp_path: Path, fsync: Fsync) -> None:
    """Between intent, the making of the topic, publishing, and burying; after a kill, and after a power cut."""

    async def go() -> None:
        disk = PhotographedDisk()
        answered = 0
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=fsync)
            to.put(*numbered(3))
            to.partition().log.sync()
            member = (await to.join()).member_id
            polled = await to.poll(member)
            sidecar = to.partition().sidecar
            assert sidecar is not None
            sidecar.log.sync()
            disk.begin(tmp_path)
            await to.reject(handle_of(polled, "m0"), reason="bad")
            answered = len(disk.images)
            await to.reject(handle_of(polled, "m2"))
            await to.buried()
            disk.recording = False
        written = set()
        for when, image in disk.crashed(range(1)):
            number = int(when.split("change ")[1].split(",")[0])
            async with consuming(tmp_path, disk=image) as to:
                letters = await to.letters()
                found = values(letters)
                written.add(tuple(found))
                assert sorted(set(found)) == sorted(found), (when, "twice")
                assert set(found) <= {"m0", "m2"}, when
                if number >= answered and (when.startswith("kill") or fsync is Fsync.EVERY):
                    assert "m0" in found, (when, "it was answered, and is gone")
                assert not to.deliveries().outbox, when
                await to.leave(member)
                other = (await to.join("other")).member_id
                rest = await to.drain(other)
                assert sorted(found + rest) == ["m0", "m1", "m2"], (when, "each is dead or alive")
            async with consuming(tmp_path, disk=image) as to:
                assert values(await to.letters()) == found, (when, "and stays what it is")
        assert {(), ("m0",), ("m0", "m2")} <= written, "no crash came in between: this shows nothing"

    run_timed(go())


# --- expiry


def test_what_expired_goes_to_the_dead_letters_if_the_topic_says_so(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a", "b")
        await to.pass_by(1001)
        to.put("c")
        assert await to.texts(member) == ["c"]
        letters = await to.letters()
        assert values(letters) == ["a", "b"]
        assert {(story.reason, story.deliveries, story.died_at) for _, story in letters} == {("expired", 0, T0 + 1001)}

    consume(tmp_path, scenario, message_ttl_ms=1000, on_expiry=OnExpiry.DLQ)
