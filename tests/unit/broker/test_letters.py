"""Dead letters: which are listed, in pages, and that those redriven are not."""

from pathlib import Path

import pytest

from goqueue.broker.letters import REDRIVEN, Place
from goqueue.jobs.letters import LetterFilter
from goqueue.model import limits
from goqueue.model.errors import UnknownTopic
from goqueue.model.record import Record
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import T0, block
from tests.unit.broker.consumers import TOPIC, handles_of, numbered
from tests.unit.broker.graveyard import BEGINNING, DLQ, graveyard
from tests.unit.broker.images import PhotographedDisk


def test_a_letter_has_the_message_and_its_story(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path, partitions=2) as yard:
            message = Record(key=b"k", value=b"v", priority=1, headers=(("h", b"1"),))
            await yard.kill_records([message], partition=1, detail="cannot be parsed")
            (letter,) = await yard.dead()
            assert (letter.partition, letter.record.offset) == (1, 0)
            assert (letter.record.key, letter.record.value, letter.record.priority) == (b"k", b"v", 1)
            assert letter.record.headers == (("h", b"1"),)
            story = letter.story
            assert (story.topic, story.partition, story.offset) == (TOPIC, 1, 0)
            assert (story.group, story.reason, story.detail, story.deliveries) == (
                "billing",
                "rejected",
                "cannot be parsed",
                1,
            )
            assert story.published_at == story.died_at == T0

    run_timed(go())


def test_letters_are_found_by_the_name_of_their_topic_or_their_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            assert await yard.letters.topic_of(TOPIC) == (TOPIC, None)
            with pytest.raises(UnknownTopic, match="there is no topic 'nope'"):
                await yard.letters.topic_of("nope")
            with pytest.raises(UnknownTopic, match="there is no topic 'nope'"):
                await yard.letters.topic_of("nope.dlq")
            await yard.kill("a")
            dlq = yard.broker.topics.named(DLQ)
            assert await yard.letters.topic_of(TOPIC) == await yard.letters.topic_of(DLQ) == (TOPIC, dlq)
            await yard.to.delete()
            assert await yard.letters.topic_of(TOPIC) == (TOPIC, dlq), "they outlive their topic"

    run_timed(go())


def test_whoever_rejected_a_message_finds_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            yard.to.put("a", "b")
            member = (await yard.to.join()).member_id
            for value in ("a", "b"):
                polled = await yard.to.poll(member, max_messages=1)
                await yard.to.reject(*handles_of(polled))
                _, dlq = await yard.letters.topic_of(TOPIC)
                assert dlq is not None
                letters, _, _ = await yard.letters.page(dlq, LetterFilter(), BEGINNING, 10)
                assert letters[-1].record.value == value.encode()

    run_timed(go())


def test_letters_that_cannot_be_written_are_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            monkeypatch.setattr(yard.broker._undertaker, "notice", lambda _: None)
            yard.to.put("a")
            polled = await yard.to.poll((await yard.to.join()).member_id)
            await yard.to.reject(*handles_of(polled))
            assert await yard.letters.topic_of(TOPIC) == (TOPIC, None)

    run_timed(go())


def test_they_come_in_pages_by_partition_and_offset(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path, partitions=3) as yard:
            await yard.kill(*numbered(5), partition=0)
            await yard.kill(*numbered(3, 5), partition=2)
            dlq = yard.broker.topics.named(DLQ)
            first, at, _ = await yard.letters.page(dlq, LetterFilter(), Place(0, 0), 4)
            assert ([letter.record.offset for letter in first], at) == ([0, 1, 2, 3], Place(0, 4))
            assert await yard.dead_values(limit=4) == numbered(8)
            assert await yard.dead_values(limit=1) == numbered(8)
            assert await yard.dead_values(begin=Place(2, 1)) == ["m6", "m7"]
            assert await yard.dead_values(begin=Place(9, 1)) == []

    run_timed(go())


def test_a_page_has_only_so_many_bytes_and_looks_at_only_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with graveyard(tmp_path, partitions=2) as yard:
            await yard.kill(*("x" * 100 for _ in range(10)))
            await yard.kill("last", group="shipping")
            await yard.kill_records([Record(value=b"x", headers=(("h", b"1" * 99),))] * 4, partition=1)
            dlq = yard.broker.topics.named(DLQ)
            monkeypatch.setattr(limits, "MAX_JSON_READ_BYTES", 250)
            found, at, _ = await yard.letters.page(dlq, LetterFilter(), Place(1, 0), 1000)
            assert (len(found), at) == (2, Place(1, 2)), "headers are bytes too"
            found, at, _ = await yard.letters.page(dlq, LetterFilter(), Place(0, 0), 1000)
            assert (len(found), at) == (2, Place(0, 2))
            found, at, _ = await yard.letters.page(dlq, LetterFilter(group="shipping"), Place(0, 10), 1000)
            assert (len(found), at) == (2, Place(0, 12))
            monkeypatch.setattr(limits, "MAX_JSON_READ_BYTES", 50)
            found, at, _ = await yard.letters.page(dlq, LetterFilter(), Place(0, 0), 1000)
            assert (len(found), at) == (1, Place(0, 1)), "at least one, however large"
            monkeypatch.setattr(limits, "LETTERS_AT_ONCE", 4)
            monkeypatch.setattr(limits, "MAX_LETTERS_LOOKED_AT", 8)
            found, at, _ = await yard.letters.page(dlq, LetterFilter(group="shipping"), Place(0, 0), 1000)
            assert (found, at) == ([], Place(0, 8))
            found = await yard.dead(group="shipping")
            assert [letter.story.group for letter in found] == ["shipping"] * 11

    run_timed(go())


def test_a_filter_means_only_some(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path, partitions=2) as yard:
            await yard.kill("a", "b", key="k")
            yard.to.clock.now += 1000
            await yard.kill("c", partition=1, group="shipping")
            assert await yard.dead_values(key="k") == ["a", "b", "a", "b"]
            assert await yard.dead_values(key="k", group="billing") == ["a", "b"]
            assert await yard.dead_values(from_ms=T0 + 1000) == ["a", "b", "c"]
            assert await yard.dead_values(to_ms=T0 + 1000) == ["a", "b"]
            assert await yard.dead_values(offsets={0: (1, 3), 1: (0,)}) == ["b", "b", "c"]
            assert await yard.dead_values(reason="lapsed") == []

    run_timed(go())


def test_what_is_no_letter_is_passed_over(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill("a")
            log = yard.partition(0, DLQ).log
            log.append(block(Record(key=b"gone", control=True), Record(value=b"somebody's own")), now=T0)
            await yard.kill("b")
            assert await yard.dead_values() == ["a", "b"]

    run_timed(go())


def test_those_that_are_marked_are_not_listed_in_this_life_or_another(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(10))
            partition = yard.partition(0, DLQ)
            await yard.letters.mark(partition, [0, 1, 2, 5, 7])
            await yard.letters.mark(partition, [7, 8])
            left = ["m3", "m4", "m6", "m9"]
            assert await yard.dead_values() == await yard.dead_values(limit=1) == left
            await yard.to.join(group="reader")
        async with graveyard(tmp_path, partitions=None) as yard:
            assert await yard.dead_values() == left, (
                "groups that were deleted are forgotten at a start, this one is not"
            )
            assert yard.partition(0, DLQ).deliveries.low(REDRIVEN) == 3

    run_timed(go())


def test_marks_of_letters_that_the_cleaner_removed_are_forgotten(tmp_path: Path) -> None:
    async def go() -> None:
        async with graveyard(tmp_path) as yard:
            await yard.kill(*numbered(4))
            partition = yard.partition(0, DLQ)
            await yard.letters.mark(partition, [1])
            partition.log.roll()
            await yard.kill(*numbered(4, 4))
            partition.log.sync()
            partition.log.truncate_prefix(4)
            await yard.letters.mark(partition, [6])
            settled = partition.deliveries.delivery(REDRIVEN).settled
            assert (settled.low, list(settled.above)) == (4, [6])
            assert await yard.dead_values() == ["m4", "m5", "m7"]
            assert await yard.dead_values(begin=Place(0, 2)) == ["m4", "m5", "m7"]

    run_timed(go())


def test_a_mark_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def go() -> None:
        disk = PhotographedDisk()
        async with graveyard(tmp_path, disk=disk, fsync="none") as yard:
            await yard.kill(*numbered(4))
            await yard.letters.mark(yard.partition(0, DLQ), [1, 3])
            disk.begin(tmp_path)
            yard.to.put("a change of the disk")
            disk.recording = False
        for when, image in disk.crashed():
            async with graveyard(tmp_path, disk=image, partitions=None) as yard:
                assert await yard.dead_values() == ["m0", "m2"], when

    run_timed(go())
