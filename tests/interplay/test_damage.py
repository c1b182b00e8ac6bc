"""Where damage meets other features: a test per row of the interplay table, named after it.

A bit is flipped in records that were durable, while the broker is stopped; then it starts again.
"""

import os
from functools import partial
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.broker.partition import Placed
from goqueue.broker.schedules import ScheduledMessage
from goqueue.codec.layout import CRC_AT
from goqueue.delivery.commands import Bury
from goqueue.model import limits
from goqueue.model.errors import OutOfSequence, Quarantined
from goqueue.model.jobs import Missed, RedriveState
from goqueue.model.names import format_topic_id
from goqueue.model.publishing import Acks
from goqueue.model.record import Producer
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import Clock, messages
from tests.unit.broker.consumers import TOPIC, handles_of
from tests.unit.broker.graveyard import DLQ, Graveyard, graveyard
from tests.unit.broker.test_redrive import eventually, time_passed

MINUTE_MS = 60_000
EVERY_WAY = pytest.mark.parametrize("damaged", [{2}, {1}, {0}, {1, 2}, {0, 2}, {0, 1, 2}], ids=str)
"""The last of three records, one in the middle, the first, some, all."""


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"message {number}" for number in range(first, first + count)]


class Files:
    """Where a topic's partition 0 lies; found while the broker runs, used when it does not."""

    def __init__(self, yard: Graveyard, topic: str) -> None:
        meta = yard.broker.topics.named(topic).meta
        root = Path(yard.broker.settings.data_dir) / "logs" / topic / format_topic_id(meta.topic_id)
        (self._path,) = [found.parent for found in root.rglob("log.state") if found.parent.name == "0"]

    def damage(self, offsets: set[int]) -> None:
        """A bit in each of these records."""
        found = set()
        for name in sorted(os.listdir(self._path)):
            if not name.endswith(".log"):
                continue
            data = bytearray((self._path / name).read_bytes())
            scan = codec.scan(memoryview(data))
            for offset, position in zip(scan.offsets, scan.positions, strict=True):
                if offset in offsets:
                    data[position + CRC_AT] ^= 1
                    found.add(offset)
            (self._path / name).write_bytes(data)
        assert found == offsets


def readable(yard: Graveyard, topic: str) -> list[str]:
    """What can be read of partition 0, control records left out."""
    log = yard.partition(topic=topic).log
    found: list[str] = []
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            chunk = log.read(offset, max_bytes=limits.MIB)
        except Quarantined as damage:
            offset = damage.next_offset
            continue
        found += [(record.value or b"").decode() for record in codec.decode(chunk.data) if not record.control]
        offset = chunk.next_offset
    return found


def left(values: list[str], damaged: set[int]) -> list[str]:
    return [value for offset, value in enumerate(values) if offset not in damaged]


def send(yard: Graveyard, producer_id: int, sequence: int, *texts: str) -> tuple[Placed, ...]:
    """A client's block."""
    producer = Producer(producer_id, 0, sequence)
    block = messages(*texts, producer=producer)
    topic = yard.broker.topics.named(TOPIC)
    return yard.broker.publisher.publish(topic, 0, block, acks=Acks.LEADER, producer=producer).placed


def is_durable(yard: Graveyard, topic: str, count: int) -> bool:
    return yard.partition(topic=topic).log.durable.value == count


def redriven_of(yard: Graveyard) -> list[int]:
    """Offsets of the first letters that count as redriven."""
    settled = yard.letters._redriven(yard.partition(topic=DLQ))
    return [offset for offset in range(6) if offset in settled]


def forget_that_they_are_buried(yard: Graveyard, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a power cut does that takes the sidecar's last record: letters are there, and the outbox does not know."""
    write = yard.broker.sidecars.write
    monkeypatch.setattr(
        yard.broker._undertaker._sidecars,
        "write",
        lambda partition, command: None if isinstance(command, Bury) else write(partition, command),
    )


@EVERY_WAY
def test_damage_x_numbered_publishing_the_outbox_goes_on_behind_it(
    tmp_path: Path, damaged: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            for value in numbered(3):
                await yard.kill(value)
            letters = Files(yard, DLQ)
        letters.damage(damaged)
        for life in range(3):
            async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
                await yard.kill(f"later {life}")
                assert not yard.partition().deliveries.outbox, "a letter waits for ever"
                later = [f"later {number}" for number in range(life + 1)]
                assert readable(yard, DLQ) == [*left(numbered(3), damaged), *later]
        said = " ".join(str(vars(record)) for record in caplog.records)
        assert "quarantined offset" in said, "what was damaged is not said"

    run_timed(go())


@EVERY_WAY
def test_damage_x_numbered_publishing_letters_that_come_again_are_recognised_around_it(
    tmp_path: Path, damaged: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is damaged at the end is written again; nothing that can be read is there twice."""

    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            with monkeypatch.context() as patch:
                forget_that_they_are_buried(yard, patch)
                topic = yard.broker.topics.named(TOPIC)
                yard.broker.publisher.publish(topic, 0, messages(*numbered(3)), acks=Acks.LEADER)
                member = (await yard.to.join()).member_id
                polled = await yard.to.poll(member)
                await yard.broker.settlement.reject(handles_of(polled), "")
                await yard.to.leave(member)
                await eventually(
                    lambda: DLQ in yard.broker.topics.by_name and yard.partition(topic=DLQ).log.durable.value == 3
                )
                letters = Files(yard, DLQ)
                await yard.broker._undertaker.stop()
        letters.damage(damaged)
        async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
            assert len(yard.partition().deliveries.outbox) == 3
            await yard.kill("later")
            assert not yard.partition().deliveries.outbox, "a letter waits for ever"
            found = readable(yard, DLQ)
            assert sorted(set(found)) == sorted(found), "twice"
            at_the_end = {offset for offset in damaged if {*range(offset, 3)} <= damaged}
            assert found == [*left(numbered(3), damaged), *[numbered(3)[at] for at in sorted(at_the_end)], "later"]

    run_timed(go())


@EVERY_WAY
def test_damage_x_numbered_publishing_a_redrive_goes_on_behind_it(
    tmp_path: Path, damaged: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            await yard.to.create("again")
            await yard.kill(*numbered(6))
            redrive = await yard.begin(target="again", rate=0.001)
            for count in (1, 2, 3):
                await eventually(partial(is_durable, yard, "again", count))
                await eventually(lambda: yard.runner._workers[redrive.redrive_id].delivered is not None)
                if count < 3:
                    yard.to.time.move(1_000_000)
            await eventually(lambda: len(redriven_of(yard)) == 3)
            target = Files(yard, "again")
        target.damage(damaged)
        async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
            await eventually(lambda: time_passed(yard, 1_000_000))
            found = yard.look(redrive)
            assert (found.state, found.redriven, found.error) == (RedriveState.DONE, 6, None)
            values = readable(yard, "again")
            assert sorted(set(values)) == sorted(values), "twice"
            assert {*left(numbered(3), damaged), *numbered(3, 3)} <= set(values)

    run_timed(go())


@EVERY_WAY
def test_damage_x_numbered_publishing_a_schedule_goes_on_behind_it(tmp_path: Path, damaged: set[int]) -> None:
    async def go() -> None:
        clock = Clock()

        async def run(yard: Graveyard, times: int) -> None:
            runner = yard.broker.schedules
            for _ in range(times):
                clock.now += MINUTE_MS
                runner.look()
                await eventually(lambda: not runner._at_work)

        async with graveyard(tmp_path, clock=clock) as yard:
            schedule = await yard.broker.schedules.create(
                yard.broker.topics.named(TOPIC),
                ScheduledMessage(value="tick"),
                cron=None,
                time_zone=None,
                every_ms=MINUTE_MS,
                missed=Missed.SKIP,
                paused=False,
            )
            await run(yard, 3)
            files = Files(yard, TOPIC)
        files.damage(damaged)
        for life in range(2):
            async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
                await run(yard, 2)
                assert not yard.broker.schedules.machine.pending_of(schedule.schedule_id)
                assert readable(yard, TOPIC) == ["tick"] * (3 - len(damaged) + 2 * (life + 1))

    run_timed(go())


@EVERY_WAY
@pytest.mark.parametrize("sealed", [False, True])
def test_damage_x_numbered_publishing_a_client_goes_on_behind_it(
    tmp_path: Path, damaged: set[int], sealed: bool
) -> None:
    """With its next number, or the one that is damaged: both times it is stored, and nothing is stored twice."""

    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            known = await yard.broker.init_producer()
            other = await yard.broker.init_producer()
            send(yard, other, 0, "other")
            for sequence, value in enumerate(numbered(4)):
                send(yard, known, sequence, value)
            files = Files(yard, TOPIC)
        files.damage({offset + 2 for offset in damaged})
        async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
            if sealed:
                log = yard.partition().log
                log.roll()
                log.sync()
                assert log.sealed
        async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
            with pytest.raises(OutOfSequence):
                send(yard, known, 5, "a gap that no damage explains")
            with pytest.raises(OutOfSequence):
                send(yard, other, 5, "another")
            (placed,) = send(yard, known, 4, "next")
            assert not placed.duplicate
            (again,) = send(yard, known, 4, "next")
            assert (again.first_offset, again.duplicate) == (placed.first_offset, True)
        async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
            assert all(place.duplicate for place in send(yard, known, 0, *numbered(4), "next"))
            assert readable(yard, TOPIC) == ["other", *left(numbered(4), {at + 1 for at in damaged}), "next"]
            (placed,) = send(yard, known, 5, "last")
            assert not placed.duplicate

    run_timed(go())


def test_damage_x_numbered_publishing_a_client_that_was_never_answered_sends_again(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            producer = await yard.broker.init_producer()
            for sequence, value in enumerate(numbered(3)):
                send(yard, producer, sequence, value)
            files = Files(yard, TOPIC)
        files.damage({2})
        async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
            placed = send(yard, producer, 1, *numbered(3)[1:], "new")
            assert [(place.messages, place.duplicate) for place in placed] == [(1, True), (2, False)]
            assert readable(yard, TOPIC) == [*numbered(3), "new"]

    run_timed(go())
