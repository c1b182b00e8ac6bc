"""Publishing exactly once, against a broker that loses connections, refuses, forgets and is late."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from goqueue.client import block_producer as producer_module
from goqueue.client.block_producer import BlockProducer
from goqueue.client.line import NOTHING_CHANGED
from goqueue.model.errors import (
    Busy,
    Draining,
    GoQueueError,
    InvalidRecord,
    InvalidRequest,
    OutOfSequence,
    ProducerFenced,
    ProtocolError,
    RequestTimeout,
    StorageFailed,
    TooLarge,
    Unavailable,
    UnknownTopic,
)
from goqueue.wire.blocks import PublishReply, PublishRequest
from goqueue.wire.frames import Welcome
from tests.support.loop import turns
from tests.support.moved_time import MovedTime, run_timed, when_late
from tests.unit.client.fake_broker import HOST, ROOMY, Fault, Peer, SequenceBroker, block_name, make_block, serving

INVALID = InvalidRecord("its checksum does not match", index=0, position=0)
Use = Callable[[BlockProducer], Awaitable[None]]
LONG_S = 3600.0
DUE_S = 60.0
DUE_MS = 60_000


def produce(
    broker: SequenceBroker, use: Use, *, call_timeout_s: float = LONG_S, greeting: Welcome | None = ROOMY
) -> None:
    async def both() -> None:
        async with (
            serving(broker.talk, greeting=greeting) as port,
            BlockProducer(
                HOST, port, backoff_s=0.0001, call_timeout_s=call_timeout_s, delivery_timeout_s=2 * LONG_S
            ) as producer,
        ):
            await use(producer)

    run_timed(both())


async def publish(producer: BlockProducer, *names: str, records: int = 1) -> list[PublishReply | BaseException]:
    """Publish a block of each name to one partition, all at once, in this order."""
    blocks = [make_block(name, records) for name in names]
    return await asyncio.gather(*(producer.publish(1, 0, block) for block in blocks), return_exceptions=True)


async def settled(producer: BlockProducer) -> None:
    """No try is under way: what is sent now is not sent beside the last one of a block that was given up."""
    while producer._lines[1, 0].under_way:
        await asyncio.sleep(0.001)


def test_blocks_are_appended_in_order_under_one_id() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        names = [f"b{number}" for number in range(12)]
        replies = await publish(producer, *names, records=3)
        assert all(isinstance(reply, PublishReply) for reply in replies)
        assert broker.names() == names
        assert broker.seen == [(name, 1001, 3 * number) for number, name in enumerate(names)]
        assert (broker.connections, broker.producers) == (1, 1)

    produce(broker, use)


def test_partitions_are_numbered_each_for_itself() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        await asyncio.gather(
            producer.publish(1, 0, make_block("a")),
            producer.publish(1, 1, make_block("b")),
            producer.publish(2, 0, make_block("c")),
            producer.publish(1, 0, make_block("d")),
        )
        assert broker.logs == {(1, 0): ["a", "d"], (1, 1): ["b"], (2, 0): ["c"]}
        assert sorted(sequence for *_, sequence in broker.seen) == [0, 0, 0, 1]
        assert broker.producers == 1

    produce(broker, use)


@pytest.mark.parametrize(
    ("fault", "duplicate"), [(Fault.LOST_BEFORE, False), (Fault.LOST_AFTER, True), (Fault.LATE, False)]
)
def test_a_block_whose_connection_is_lost_is_sent_again_as_it_was(fault: Fault, duplicate: bool) -> None:
    broker = SequenceBroker()
    broker.faults.append(fault)

    async def use(producer: BlockProducer) -> None:
        reply = await producer.publish(1, 0, make_block("a", 2))
        assert [each.duplicate for each in reply.ranges] == [duplicate]
        assert broker.seen == [("a", 1001, 0), ("a", 1001, 0)]
        broker.deliver_late()
        assert broker.names() == ["a"]
        assert broker.connections == 2

    produce(broker, use)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
def test_all_that_is_under_way_when_a_connection_is_lost_is_sent_again_in_order(fault: Fault) -> None:
    broker = SequenceBroker()
    broker.faults.extend([Fault.NONE, Fault.NONE, fault, fault])

    async def use(producer: BlockProducer) -> None:
        names = [f"b{number}" for number in range(9)]
        replies = await publish(producer, *names, records=2)
        assert all(isinstance(reply, PublishReply) for reply in replies)
        assert broker.names() == names
        assert broker.producers == 1

    produce(broker, use)


def test_a_broker_that_cannot_be_reached_yet_is_tried_again() -> None:
    async def both() -> None:
        async with serving(SequenceBroker().talk) as port:
            pass
        producer = BlockProducer(HOST, port, backoff_s=0.0001, connect_timeout_s=LONG_S)
        publishing = producer.publish(1, 0, make_block("a"), timeout_s=DUE_S)
        with pytest.raises(RequestTimeout, match=r"it was not appended; the last trouble: cannot reach"):
            await when_late(publishing, lambda: producer.line(1, 0).last_trouble, DUE_MS)
        await producer.close()

    run_timed(both())


def test_a_block_that_gets_no_answer_is_sent_again_over_a_new_connection() -> None:
    broker = SequenceBroker()
    broker.faults.append(Fault.SILENT)

    async def use(producer: BlockProducer) -> None:
        reply = await when_late(producer.publish(1, 0, make_block("a")), broker.names, DUE_MS)
        assert reply.ranges[0].duplicate
        assert (broker.names(), broker.connections) == (["a"], 2)

    produce(broker, use, call_timeout_s=DUE_S)


def test_an_answered_block_does_not_end_its_connection_later() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        for _ in range(5):
            await publish(producer, "again")
            MovedTime().move(DUE_MS)
            await turns()
        assert broker.connections == 1

    produce(broker, use, call_timeout_s=DUE_S)


def test_a_block_without_an_answer_is_noticed_after_others_were_answered() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        for _ in range(3):
            await publish(producer, "answered")
            MovedTime().move(DUE_MS // 2)
        broker.faults.append(Fault.SILENT)
        reply = await when_late(
            producer.publish(1, 0, make_block("silent")), lambda: "silent" in broker.names(), DUE_MS
        )
        assert reply.ranges[0].duplicate
        assert broker.connections == 2

    produce(broker, use, call_timeout_s=DUE_S)


def test_a_block_published_while_answers_to_a_lost_connection_are_due_keeps_its_place() -> None:
    broker = SequenceBroker()
    broker.faults.append(Fault.SILENT)

    async def use(producer: BlockProducer) -> None:
        first = asyncio.ensure_future(producer.publish(1, 0, make_block("a")))
        while not broker.seen:
            await asyncio.sleep(0)
        assert producer._connection is not None
        second = asyncio.ensure_future(producer.publish(1, 0, make_block("b")))
        producer._connection.abort("by the test")
        await asyncio.sleep(0)
        recovering = [task for task in asyncio.all_tasks() if "_recover" in repr(task.get_coro())]
        assert len(recovering) == 1
        await asyncio.gather(first, second)
        assert broker.names() == ["a", "b"]
        assert not producer._recoveries

    produce(broker, use)


@pytest.mark.parametrize("fault", [Fault.GARBAGE, Fault.WRONG_COUNT])
def test_an_answer_that_makes_no_sense_is_not_believed(fault: Fault) -> None:
    broker = SequenceBroker()
    broker.faults.append(fault)

    async def use(producer: BlockProducer) -> None:
        reply = await producer.publish(1, 0, make_block("a"))
        assert reply.ranges[0].duplicate
        assert broker.connections == 2

    produce(broker, use)


@pytest.mark.parametrize("error", [Busy("later"), Draining("later")])
def test_a_retriable_error_is_tried_again_and_those_behind_wait(error: GoQueueError) -> None:
    broker = SequenceBroker()
    broker.faults.extend([error] * 2)

    async def use(producer: BlockProducer) -> None:
        replies = await publish(producer, "a", "b", "c")
        assert all(isinstance(reply, PublishReply) for reply in replies)
        assert broker.names() == ["a", "b", "c"]
        assert {(name, sequence) for name, _, sequence in broker.seen} == {("a", 0), ("b", 1), ("c", 2)}
        assert (broker.connections, broker.producers) == (1, 1)

    produce(broker, use)


def refusing(*names: str, error: GoQueueError = INVALID) -> Callable[[PublishRequest, bytes], Fault | GoQueueError]:
    return lambda _, block: error if block_name(block) in names else Fault.NONE


def test_a_refused_block_fails_alone_and_those_behind_it_get_its_sequences() -> None:
    broker = SequenceBroker()
    broker.fault_for = refusing("bad", "worse")

    async def use(producer: BlockProducer) -> None:
        await publish(producer, "zero")
        replies = await publish(producer, "a", "bad", "b", "worse", "c", "d", records=2)
        assert [isinstance(reply, InvalidRecord) for reply in replies] == [False, True, False, True, False, False]
        assert broker.names() == ["zero", "a", "b", "c", "d"]
        assert broker.producers == 1
        last = {name: sequence for name, _, sequence in broker.seen}
        assert [last[name] for name in ("zero", "a", "b", "c", "d")] == [0, 1, 3, 5, 7]

    produce(broker, use)


def test_a_first_block_refused_leaves_the_others_unharmed() -> None:
    broker = SequenceBroker()
    broker.fault_for = refusing("bad")

    async def use(producer: BlockProducer) -> None:
        replies = await publish(producer, "bad", "a", "b")
        assert isinstance(replies[0], InvalidRecord)
        assert (broker.names(), broker.producers) == (["a", "b"], 1)

    produce(broker, use)


@pytest.mark.parametrize("error", [UnknownTopic("gone"), GoQueueError("a bug")])
def test_after_an_error_that_leaves_things_open_the_next_go_under_a_new_id(error: GoQueueError) -> None:
    broker = SequenceBroker()
    broker.fault_for = refusing("odd", error=error)

    async def use(producer: BlockProducer) -> None:
        replies = await publish(producer, "a", "odd", "b")
        assert isinstance(replies[1], type(error))
        assert (broker.names(), broker.producers) == (["a", "b"], 2)
        assert broker.seen[-1] == ("b", 1002, 0)

    produce(broker, use)


def test_a_block_larger_than_the_broker_takes_fails_alone() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        replies = await publish(producer, "a", "x" * 2000, "b")
        assert isinstance(replies[1], TooLarge)
        assert broker.names() == ["a", "b"]

    produce(broker, use, greeting=Welcome(1, 1000, 1 << 20))


def test_a_forgotten_producer_gets_a_new_id_and_nothing_fails() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        await publish(producer, "a", "b")
        await producer.publish(1, 1, make_block("other"))
        broker.forget(0)
        broker.forget(1)
        replies = await publish(producer, "c", "d")
        assert all(isinstance(reply, PublishReply) for reply in replies)
        await producer.publish(1, 1, make_block("another"))
        assert broker.names() == ["a", "b", "c", "d"]
        assert broker.producers == 2, "the second partition takes the id that the first one got"

    produce(broker, use)


def test_a_gap_nobody_made_is_told_and_the_next_block_goes_on() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        await publish(producer, "a", "b")
        broker.faults.append(OutOfSequence("records were lost here", expected=1))
        (reply,) = await publish(producer, "c")
        assert isinstance(reply, OutOfSequence)
        assert reply.expected == 1
        await publish(producer, "d")
        assert (broker.names(), broker.producers) == (["a", "b", "d"], 2)

    produce(broker, use)


def test_a_fenced_producer_is_at_its_end() -> None:
    broker = SequenceBroker()
    broker.faults.append(ProducerFenced("another has taken over"))

    async def use(producer: BlockProducer) -> None:
        replies = await publish(producer, *(f"b{number}" for number in range(8)))
        assert [type(reply) for reply in replies] == [ProducerFenced, *[Unavailable] * 4, *[ProducerFenced] * 3]
        with pytest.raises(ProducerFenced, match="another has taken over"):
            await producer.publish(1, 1, make_block("other partition"))

    produce(broker, use)


# ---------------------------------------------------------------- deadlines


def test_a_deadline_ends_the_tries_and_says_that_nothing_was_appended() -> None:
    broker = SequenceBroker()
    broker.fault_for = refusing("never", error=Busy("no room here"))

    async def use(producer: BlockProducer) -> None:
        with pytest.raises(RequestTimeout, match=r"appended; the last trouble: no room here"):
            await when_late(
                producer.publish(1, 0, make_block("never"), timeout_s=DUE_S), lambda: len(broker.seen) > 1, DUE_MS
            )
        await settled(producer)
        attempts = len(broker.seen)
        assert attempts > 1
        await publish(producer, "next")
        assert len(broker.seen) == attempts + 1, "nothing is sent behind its deadline"
        assert broker.seen[-1] == ("next", 1001, 0)
        assert (broker.names(), broker.producers) == (["next"], 1)

    produce(broker, use)


def test_a_deadline_without_an_answer_leaves_doubt_and_the_next_goes_under_a_new_id() -> None:
    broker = SequenceBroker()
    broker.fault_for = lambda _, block: Fault.LOST_AFTER if block_name(block) == "doubt" else Fault.NONE

    async def use(producer: BlockProducer) -> None:
        await publish(producer, "a")
        with pytest.raises(RequestTimeout, match="it may have been appended"):
            await when_late(
                producer.publish(1, 0, make_block("doubt"), timeout_s=DUE_S), lambda: len(broker.seen) > 2, DUE_MS
            )
        await settled(producer)
        await publish(producer, "next")
        assert broker.names() == ["a", "doubt", "next"]
        assert broker.seen[-1] == ("next", 1002, 0)

    produce(broker, use)


def test_a_late_block_does_not_swallow_the_one_behind_it() -> None:
    """What was on its way when its deadline passed arrives between two tries of the next block."""
    broker = SequenceBroker()

    def choose(_: PublishRequest, block: bytes) -> Fault | GoQueueError:
        if block_name(block) == "late":
            return Fault.LATE if len(broker.seen) == 1 else Fault.LOST_BEFORE
        broker.deliver_late()
        return Fault.NONE

    broker.fault_for = choose

    async def use(producer: BlockProducer) -> None:
        with pytest.raises(RequestTimeout):
            await when_late(
                producer.publish(1, 0, make_block("late", 2), timeout_s=DUE_S), lambda: len(broker.seen) > 1, DUE_MS
            )
        await settled(producer)
        reply = await producer.publish(1, 0, make_block("next", 2))
        assert not reply.ranges[0].duplicate
        assert broker.names() == ["late", "next"]

    produce(broker, use)


def test_a_publish_that_is_cancelled_does_not_hold_up_the_next() -> None:
    broker = SequenceBroker()
    broker.fault_for = refusing("never", error=Busy("no room here"))

    async def use(producer: BlockProducer) -> None:
        never = asyncio.ensure_future(producer.publish(1, 0, make_block("never")))
        while not broker.seen:
            await asyncio.sleep(0)
        never.cancel()
        await publish(producer, "next")
        assert broker.names() == ["next"]

    produce(broker, use)


# ---------------------------------------------------------------- beginnings and ends


def test_what_is_no_block_is_refused_before_it_is_sent() -> None:
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        with pytest.raises(InvalidRecord, match="magic"):
            await producer.publish(1, 0, make_block("a") + b"and something else that is no record at all")
        with pytest.raises(InvalidRequest, match="without records"):
            await producer.publish(1, 0, b"")
        assert broker.connections == 0

    produce(broker, use)


def test_a_partition_no_field_can_carry_fails_its_block() -> None:
    async def use(producer: BlockProducer) -> None:
        with pytest.raises(ProtocolError, match="does not fit"):
            await producer.publish(1, -1, make_block("a"))

    produce(SequenceBroker(), use)


@pytest.mark.parametrize("payload", [b"{}", b'{"producer_id":-1,"epoch":0}', b'{"producer_id":"1","epoch":0}', b"[]"])
def test_an_answer_that_names_no_producer_fails_what_waits(payload: bytes) -> None:
    async def talk(peer: Peer) -> None:
        while True:
            peer.reply(await peer.read(), payload)

    async def both() -> None:
        async with serving(talk) as port, BlockProducer(HOST, port) as producer:
            replies = await publish(producer, "a", "b")
            assert all(isinstance(reply, ProtocolError) for reply in replies)

    asyncio.run(both())


def test_more_than_a_producer_holds_is_refused_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "MAX_WAITING_BYTES", 3 * len(make_block("b0")))
    broker = SequenceBroker()

    async def use(producer: BlockProducer) -> None:
        replies = await publish(producer, "b0", "b1", "b2", "b3")
        assert [isinstance(reply, Busy) for reply in replies] == [False, False, False, True]
        assert isinstance((await publish(producer, "x" * 1000))[0], PublishReply), "one is always taken"

    produce(broker, use)


def test_closing_fails_what_has_no_answer() -> None:
    broker = SequenceBroker()
    broker.fault_for = lambda *_: Fault.SILENT

    async def use(producer: BlockProducer) -> None:
        publishing = asyncio.ensure_future(publish(producer, *(f"b{number}" for number in range(8))))
        while not broker.seen:
            await asyncio.sleep(0)
        await producer.close()
        assert all(isinstance(reply, Unavailable) for reply in await publishing)
        with pytest.raises(Unavailable, match="was closed"):
            await producer.publish(1, 0, make_block("too late"))

    produce(broker, use)


def test_closing_while_there_is_no_connection_ends_the_tries() -> None:
    async def both() -> None:
        async with serving(SequenceBroker().talk) as port:
            pass
        producer = BlockProducer(HOST, port, backoff_s=0.0001, connect_timeout_s=LONG_S)
        publishing = asyncio.ensure_future(publish(producer, "a"))
        await asyncio.sleep(0)
        await producer.close()
        assert isinstance((await publishing)[0], Unavailable)

    asyncio.run(both())


# ---------------------------------------------------------------- everything at once


@pytest.mark.parametrize("seed", range(12))
def test_whatever_goes_wrong_no_block_is_appended_twice_or_acknowledged_without(seed: int) -> None:
    """Random faults over three partitions. What was acknowledged is in its log once and in order; what was refused
    is not there; what is in doubt is there at most once."""
    chance = random.Random(seed)
    broker = SequenceBroker()
    outcomes: dict[str, tuple[int, PublishReply | BaseException]] = {}
    faults: list[Fault | GoQueueError] = [
        *(Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LATE, Fault.LATE, Fault.GARBAGE),
        *(
            Busy("later"),
            Draining("later"),
            INVALID,
            UnknownTopic("gone"),
            StorageFailed("broken"),
            GoQueueError("a bug"),
        ),
    ]

    def choose(publish: PublishRequest, block: bytes) -> Fault | GoQueueError:
        if chance.random() < 0.3:
            broker.deliver_late()
        return chance.choice(faults) if chance.random() < 0.15 else Fault.NONE

    broker.fault_for = choose
    numbers = count()

    async def publish_some(producer: BlockProducer, partition: int) -> None:
        for _ in range(12):
            names = [f"p{partition}n{next(numbers)}" for _ in range(chance.randrange(1, 9))]
            blocks = [make_block(name, chance.randrange(1, 4)) for name in names]
            timeout_s = chance.choice((30.0, 30.0, 0.01))
            replies = await asyncio.gather(
                *(producer.publish(1, partition, block, timeout_s=timeout_s) for block in blocks),
                return_exceptions=True,
            )
            outcomes.update(zip(names, ((partition, reply) for reply in replies), strict=True))
            if chance.random() < 0.1:  # as a broker forgets the idle: not while something is on its way
                broker.deliver_late()
                broker.forget(partition)

    async def use(producer: BlockProducer) -> None:
        await asyncio.gather(*(publish_some(producer, partition) for partition in range(3)))
        broker.deliver_late()

    produce(broker, use)
    for partition in range(3):
        log = broker.names(1, partition)
        assert len(set(log)) == len(log), "a block is there twice"
        acknowledged = [
            name
            for name, (where, outcome) in outcomes.items()
            if where == partition and isinstance(outcome, PublishReply)
        ]
        assert [name for name in log if name in set(acknowledged)] == acknowledged
        refused = {name for name, (_, outcome) in outcomes.items() if isinstance(outcome, NOTHING_CHANGED)}
        assert not refused & set(log)
    assert sum(isinstance(outcome, PublishReply) for _, outcome in outcomes.values()) > len(outcomes) / 3
