"""Eight producers at once, a hundred thousand messages: every acknowledged one is read back by every path, once.

The checkers are tested as well: against a broker that forgot what its producers sent they must raise.
"""

import asyncio
from pathlib import Path

import pytest

from goqueue.model.publishing import Acks, Durability
from goqueue.producers.sequences import ProducerTable, Verdict
from goqueue.wire.blocks import Range
from tests.chaos.broker_load import TOPIC, Load, Plan, create_topic
from tests.chaos.ledger import Lost, Phantom, Violation
from tests.support.broker import running_broker
from tests.support.broker_ledger import KEYS, PARTITIONS, Disordered, Duplicated, Identity, Ledger, Message, make
from tests.support.broker_reading import (
    Reading,
    cat_all,
    demand_same,
    fetch_all,
    follow,
    offline_all,
    read_by_every_path,
)
from tests.support.broker_server import running_server
from tests.support.lossy_proxy import LossyProxy


async def run_and_follow(load: Load, plan: Plan, wire: str, topic_id: int) -> Reading:
    """What readers found who read along."""
    async with asyncio.TaskGroup() as group:
        readers = [
            group.create_task(follow(wire, topic_id, partition, until=plan.total(partition)))
            for partition in range(PARTITIONS)
        ]
        group.create_task(load.run())
    return [reader.result() for reader in readers]


def test_every_acknowledged_message_is_read_back_by_every_path_once(tmp_path: Path) -> None:
    plan = Plan(acks=Acks.LEADER)
    ledger = Ledger()
    with running_broker(tmp_path) as broker:
        topic_id = asyncio.run(create_topic(broker.wire))
        load = Load(plan, ledger, topic_id=topic_id, wire=broker.wire, http=broker.http)
        followed = asyncio.run(run_and_follow(load, plan, broker.wire, topic_id))
        assert ledger.acknowledged == plan.messages >= 100_000
        assert {answered.durability for answered in ledger.answers} == {Durability.WRITTEN}
        found = read_by_every_path(
            wire=broker.wire, http=broker.http, topic=TOPIC, topic_id=topic_id, seed=1, check=ledger.check_all
        )
        assert sum(map(len, found)) == plan.messages
        demand_same("by those who read along", followed, found)
        broker.stop()
        demand_same("from the files", offline_all(broker.data_dir, TOPIC, topic_id), found)
        demand_same("by goqueue log cat", cat_all(broker.data_dir, TOPIC, topic_id), found)
        broker.start()
        read_by_every_path(
            wire=broker.wire,
            http=broker.http,
            topic=TOPIC,
            topic_id=topic_id,
            seed=2,
            check=lambda again: demand_same("after a restart", again, found),
        )


async def load_with_lost_answers(data_dir: Path, ledger: Ledger) -> tuple[int, int]:
    """A load of which many answers get lost; how many of them, and how many messages the broker took for repeated."""
    plan = Plan(acks=Acks.LEADER, http_producers=0, wire_producers=8, wire_messages=1500)
    async with running_server(data_dir) as server:
        topic_id = await create_topic(server.endpoints["wire"])
        proxy = await LossyProxy.open(server.endpoints["wire"], loses_one_in=7)
        await Load(plan, ledger, topic_id=topic_id, wire=proxy.address).run()
        await proxy.close()
        ledger.check_all(await fetch_all(server.endpoints["wire"], topic_id))
        return proxy.lost, sum(meters.duplicates for meters in server.broker.meters)


def test_lost_answers_make_neither_duplicates_nor_gaps(tmp_path: Path) -> None:
    ledger = Ledger()
    lost, repeated = asyncio.run(load_with_lost_answers(tmp_path, ledger))
    assert lost, "no answer was lost: nothing is shown"
    assert repeated, "nothing was sent again that was there already: nothing is shown"
    assert ledger.acknowledged == 8 * 1500


def test_a_broker_that_forgets_what_its_producers_sent_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProducerTable, "check", lambda *_: Verdict(()))
    with pytest.raises(Duplicated):
        asyncio.run(load_with_lost_answers(tmp_path, Ledger()))


# --- the checkers


def acknowledged(messages: int) -> tuple[Ledger, list[Message]]:
    """A ledger of one producer, and what a reader should find in partition 0."""
    ledger = Ledger()
    sent = ledger.send(0, 0, messages, now_ms=0)
    ledger.answer(sent, Durability.WRITTEN, [Range(messages, 0, 5)], now_ms=5)
    return ledger, [Message(number, 5, *make(Identity(0, 0, number))) for number in range(messages)]


def test_the_checker_is_content_with_what_was_acknowledged() -> None:
    ledger, messages = acknowledged(100)
    ledger.check(0, messages)


def test_the_checker_allows_what_is_in_doubt_once() -> None:
    ledger, messages = acknowledged(100)
    ledger.send(1, 0, 2, now_ms=0)
    doubtful = [Message(100 + number, 5, *make(Identity(1, 0, number))) for number in range(2)]
    for found in (doubtful, doubtful[:1], []):
        ledger.check(0, messages + found)
    with pytest.raises(Duplicated):
        ledger.check(0, [*messages, doubtful[0], doubtful[0]._replace(offset=101)])


def test_the_checker_notices_what_is_lost() -> None:
    ledger, messages = acknowledged(100)
    with pytest.raises(Lost):
        ledger.check(0, messages[:-1])


def test_the_checker_notices_a_gap() -> None:
    ledger, messages = acknowledged(100)
    with pytest.raises(Violation, match="offset 50"):
        ledger.check(0, messages[:50] + messages[51:])


def test_the_checker_notices_what_nobody_sent() -> None:
    ledger, messages = acknowledged(100)
    for stranger in (make(Identity(0, 0, 100)), make(Identity(1, 0, 0)), ("key-0", "else"), (None, messages[0].value)):
        with pytest.raises(Phantom):
            ledger.check(0, [*messages, Message(100, 5, *stranger)])


def test_the_checker_notices_what_is_there_twice() -> None:
    ledger, messages = acknowledged(100)
    with pytest.raises(Duplicated):
        ledger.check(0, [*messages, messages[7]._replace(offset=100)])


def test_the_checker_notices_two_messages_with_one_offset() -> None:
    ledger, _ = acknowledged(100)
    with pytest.raises(Phantom):
        ledger.answer(ledger.send(1, 0, 1, now_ms=0), Durability.WRITTEN, [Range(1, 99, 5)], now_ms=5)


def test_the_checker_notices_when_a_key_is_out_of_order() -> None:
    ledger = Ledger()
    again = len(KEYS[0])
    ledger.send(0, 0, again + 1, now_ms=0)
    made = [make(Identity(0, 0, number)) for number in (*range(1, again + 1), 0)]
    with pytest.raises(Disordered):
        ledger.check(0, [Message(offset, 5, *each) for offset, each in enumerate(made)])
