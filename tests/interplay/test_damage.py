"""Where damage meets other features: a test per row of the interplay table, named after it.

A bit is flipped in records that were durable, while the broker is stopped; then it starts again.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goqueue import codec
from goqueue.broker.partition import Placed
from goqueue.broker.schedules import ScheduledMessage
from goqueue.codec.layout import CRC_AT
from goqueue.delivery.commands import Bury
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, OutOfSequence, Quarantined, UnknownDelay
from goqueue.model.jobs import Missed, RedriveState
from goqueue.model.names import format_topic_id
from goqueue.model.publishing import Acks
from goqueue.model.record import Producer
from goqueue.storage.cleaner import clean
from tests.support.loop import run
from tests.support.moved_time import run_timed
from tests.unit.api.services import served
from tests.unit.api.test_handlers_jobs import rigged
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
            with pytest.raises(OutOfSequence, match="nobody can tell any more whether it is stored"):
                send(yard, known, 0, *numbered(4), "next")
            (again,) = send(yard, known, 4, "next")
            assert (again.first_offset, again.duplicate) == (placed.first_offset, True)
            assert readable(yard, TOPIC) == ["other", *left(numbered(4), {at + 1 for at in damaged}), "next"]
            (placed,) = send(yard, known, 5, "last")
            assert not placed.duplicate

    run_timed(go())


def test_damage_x_numbered_publishing_damage_of_another_is_never_answered_as_stored(tmp_path: Path) -> None:
    """As much of another producer is damaged as this one's numbers lack; what is missing was never stored."""

    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            known = await yard.broker.init_producer()
            other = await yard.broker.init_producer()
            send(yard, known, 0, *numbered(2))
            for sequence in range(3):
                send(yard, other, sequence, f"other {sequence}")
            files = Files(yard, TOPIC)
        files.damage({2, 3})
        for _ in range(2):
            async with graveyard(tmp_path, clock=clock, partitions=None) as yard:
                send(yard, known, 4, *numbered(2, first=4))
                with pytest.raises(OutOfSequence, match="nobody can tell any more whether it is stored"):
                    send(yard, known, 2, *numbered(2, first=2))
                assert readable(yard, TOPIC) == [*numbered(2), "other 2", *numbered(2, first=4)]

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


# --- damage x lists: one that is not whole says so


def damage_sidecars(path: Path, topic: str) -> None:
    """A bit in the first record of each."""
    found = list((path / "logs" / topic).rglob("sidecar/*.log"))
    assert found
    for file in found:
        data = bytearray(file.read_bytes())
        data[CRC_AT] ^= 1
        file.write_bytes(data)


def test_damage_x_delays_where_cancels_are_not_known_nothing_delayed_is_shown_as_pending(tmp_path: Path) -> None:
    """A cancelled delay was pending again, counted in the lag, and was read when it was due."""

    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.call("publish", topic="orders", value="now")
            for value in ("kept", "cancelled"):
                await rig.call("publish", topic="orders", value=value, delay="1h")
            await rig.call("join_group", group="g", client_id="w", topics=["orders"])
            await rig.call("cancel_delayed", topic="orders", partition=0, offset=2)
        damage_sidecars(tmp_path, "orders")
        async with served(tmp_path) as broker:
            call = broker.call
            listed = await call("list_delayed", topic="orders")
            assert (listed["messages"], listed["count"]) == ([], 0)
            assert [one["partition"] for one in listed["incomplete"]] == [0]
            for offset in (1, 2):
                with pytest.raises(GoQueueError) as caught:
                    await call("get_delayed", topic="orders", partition=0, offset=offset)
                with pytest.raises(type(caught.value)):
                    await call("cancel_delayed", topic="orders", partition=0, offset=offset)
            with pytest.raises(UnknownDelay):
                await call("get_delayed", topic="orders", partition=0, offset=0)
            broker.clock.now += 2 * 3_600_000
            for found in (
                await call("read_partition", topic="orders", partition=0),
                await call("read_topic", topic="orders"),
            ):
                assert [message["value"] for message in found["messages"]] == ["now"]
                assert [one["partition"] for one in found["incomplete"]] == [0]
            raw = await call("read_partition", topic="orders", partition=0, include="delayed")
            assert [message["value"] for message in raw["messages"]] == ["now", "kept", "cancelled"]
            assert "incomplete" not in raw
            lag = await call("group_lag", group="g")
            assert lag["total_lag"] == 0
            assert [(one["topic"], one["partition"]) for one in lag["incomplete"]] == [("orders", 0)]
            assert (await call("group_offsets", group="g"))["incomplete"] == lag["incomplete"]
            await call("publish", topic="orders", value="later", delay="1h")
            assert (await call("list_delayed", topic="orders"))["messages"] == []

    run(go())


def test_damage_x_groups_a_sidecar_that_is_damaged_is_said_and_may_be_moved_away(tmp_path: Path) -> None:
    """The partition looked healthy, and polls were empty without a word."""

    async def go() -> None:
        async def polled(call: Any) -> Any:
            member = (await call("join_group", group="g", client_id="w", topics=["orders"]))["member_id"]
            found = await call("poll", group="g", member_id=member, timeout=0, max_messages=4)
            handles = [each["receipt_handle"] for each in found["messages"]]
            if handles:
                await call("ack", receipt_handles=handles)
            await call("leave_group", group="g", member_id=member)
            return found

        async with rigged(tmp_path) as rig:
            for value in numbered(10):
                await rig.call("publish", topic="orders", value=value)
            assert len((await polled(rig.call))["messages"]) == 4
        damage_sidecars(tmp_path, "orders")
        async with served(tmp_path) as broker:
            health = await broker.call("health", verbose=True)
            assert health["checks"]["partitions"] == "closed to groups: orders-0; describe their topics to see why"
            described = await broker.call("describe_topic", topic="orders")
            assert "its sidecar directory" in described["unavailable"]["0"]
            found = await polled(broker.call)
            assert found["messages"] == []
            assert [(each["topic"], each["partition"]) for each in found["incomplete"]] == [("orders", 0)]
            assert "damaged" in found["incomplete"][0]["reason"]
        (sidecar,) = (tmp_path / "logs" / "orders").rglob("sidecar")
        sidecar.rename(tmp_path / "moved away")
        async with served(tmp_path) as broker:
            assert (await broker.call("health", verbose=True))["checks"]["partitions"] == "ok"
            found = await polled(broker.call)
            assert [each["value"] for each in found["messages"]] == numbered(4)
            assert "incomplete" not in found

    run(go())


def test_damage_x_delays_the_cleaner_keeps_what_may_have_been_moved(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.call("publish", topic="orders", value="moved", delay="1h")
            await rig.call("move_delayed", topic="orders", partition=0, offset=0, delay="300d")
        damage_sidecars(tmp_path, "orders")
        async with served(tmp_path) as broker:
            partition = broker.broker.topics.named("orders").partition(0)
            later = broker.clock.now + 100 * 86_400_000
            partition.delays.fire(wall=later, now=later, limit=10)
            partition.log.roll()
            partition.log.sync()
            clean(partition.log, later, partition.due_times)
            assert [record.offset for record in partition.log.records(0, max_bytes=1)] == [0]

    run(go())


@EVERY_WAY
def test_damage_x_dead_letters_a_list_and_a_redrive_say_that_they_are_not_whole(
    tmp_path: Path, damaged: set[int]
) -> None:
    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            await yard.kill(*numbered(3))
            letters = Files(yard, DLQ)
        letters.damage(damaged)
        async with served(tmp_path) as broker:
            found = await broker.call("list_dead_letters", topic=TOPIC)
            assert [letter["value"] for letter in found["messages"]] == left(numbered(3), damaged)
            assert [one["partition"] for one in found["incomplete"]] == [0]
            assert "damaged" in found["incomplete"][0]["reason"]
            asked = await broker.call("start_redrive", topic=TOPIC, dry_run=True)
            assert asked["matched"] == 3 - len(damaged)
            assert [one["partition"] for one in asked["incomplete"]] == [0]
            started = await broker.call("start_redrive", topic=TOPIC)
            assert started["incomplete"] == asked["incomplete"]
            if started["id"] is None:
                return
            shown = await broker.call("describe_redrive", redrive=started["id"])
            assert shown["incomplete"] == asked["incomplete"]
        async with served(tmp_path) as broker:
            shown = await broker.call("describe_redrive", redrive=started["id"])
            assert shown["incomplete"] == asked["incomplete"], "also in another life"

    run_timed(go())


def test_damage_x_dead_letters_what_was_redriven_is_not_guessed(tmp_path: Path) -> None:
    """A redriven letter was listed again, and would have been redriven again."""

    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "a"})
            started = await rig.call("start_redrive", topic="orders")
            await rig.ended(started["id"])
        damage_sidecars(tmp_path, "orders.dlq")
        async with served(tmp_path) as broker:
            found = await broker.call("list_dead_letters", topic="orders")
            assert (found["messages"], [one["partition"] for one in found["incomplete"]]) == ([], [0])
            started = await broker.call("start_redrive", topic="orders")
            assert (started["id"], started["matched"]) == (None, 0)
            assert [one["partition"] for one in started["incomplete"]] == [0]

    run(go())


def test_damage_x_delays_a_list_says_which_partitions_it_lacks(tmp_path: Path) -> None:
    """The count was 0 where reads answered that the partition cannot be opened."""

    async def go() -> None:
        async with rigged(tmp_path, 2) as rig:
            for partition in range(2):
                await rig.call("publish", topic="orders", value="x", delay="1h", partition=partition)
        (state,) = [file for file in (tmp_path / "logs" / "orders").rglob("log.state") if file.parent.name == "1"]
        state.write_bytes(b"nothing")
        async with served(tmp_path) as broker:
            listed = await broker.call("list_delayed", topic="orders")
            assert [one["partition"] for one in listed["messages"]] == [0]
            assert [one["partition"] for one in listed["incomplete"]] == [1]
            with pytest.raises(GoQueueError):
                await broker.call("read_partition", topic="orders", partition=1)

    run(go())


def test_damage_x_delays_damaged_messages_may_be_delayed_ones(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            yard.to.delay(*numbered(2), by_ms=3_600_000)
            files = Files(yard, TOPIC)
        files.damage({1})
        async with served(tmp_path) as broker:
            listed = await broker.call("list_delayed", topic=TOPIC)
            assert (listed["count"], [one["partition"] for one in listed["incomplete"]]) == (1, [0])
            assert listed["incomplete"][0]["reason"] == "offset 1 is damaged"
            for operation, fields in (
                ("get_delayed", {}),
                ("cancel_delayed", {}),
                ("move_delayed", {"delay": "2h"}),
            ):
                with pytest.raises(Quarantined) as caught:
                    await broker.call(operation, topic=TOPIC, partition=0, offset=1, **fields)
                assert (caught.value.first, caught.value.next_offset) == (1, 2)
            cancelled = await broker.call("cancel_many_delayed", topic=TOPIC, ids=[[0, 0], [0, 1]])
            assert (cancelled["cancelled"], cancelled["failed"]) == (1, [[0, 1]])
            assert cancelled["incomplete"] == listed["incomplete"]

    run_timed(go())


def test_damage_x_delays_the_list_that_meets_the_damage_says_so(tmp_path: Path) -> None:
    """In a sealed segment nobody has looked into since the start: the first list said nothing."""

    async def go() -> None:
        clock = Clock()
        async with graveyard(tmp_path, clock=clock) as yard:
            yard.to.delay(*numbered(3), by_ms=3_600_000)
            log = yard.partition().log
            log.roll()
            log.sync()
            yard.to.delay("later", by_ms=3_600_000)
            files = Files(yard, TOPIC)
        async with graveyard(tmp_path, clock=clock, partitions=None):
            pass  # what is derived from the sealed segment is written down
        files.damage({1})
        async with served(tmp_path) as broker:
            for _ in range(2):
                listed = await broker.call("list_delayed", topic=TOPIC)
                assert [one["offset"] for one in listed["messages"]] == [0, 2, 3]
                assert [(one["partition"], one["reason"]) for one in listed["incomplete"]] == [
                    (0, "offset 1 is damaged")
                ]

    run_timed(go())


def test_damage_x_delays_many_are_cancelled_beside_a_partition_that_is_damaged(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path, 2) as rig:
            for partition in range(2):
                await rig.call("publish", topic="orders", value="x", delay="1h", partition=partition)
            await rig.call("publish", topic="orders", value="cancelled", delay="1h", partition=1)
            await rig.call("cancel_delayed", topic="orders", partition=1, offset=1)
        damage_sidecars(tmp_path, "orders")
        async with served(tmp_path) as broker:
            done = await broker.call("cancel_many_delayed", topic="orders", ids=[[0, 0], [1, 0], [7, 0]])
            assert (done["cancelled"], done["failed"]) == (1, [[1, 0], [7, 0]])
            assert [one["partition"] for one in done["incomplete"]] == [1]

    run(go())
