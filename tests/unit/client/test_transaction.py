"""Transactions of a producer, with a real broker: all of it counts or nothing, and nothing ends up elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue.client.client import AsyncClient
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.producer import AsyncProducer
from goqueue.model.errors import (
    BufferFull,
    Conflict,
    InvalidRequest,
    OutOfSequence,
    ProducerFenced,
    RequestTimeout,
    StaleHandle,
    StaleToken,
    TooLarge,
    TransactionAborted,
    Unavailable,
    UnknownTopic,
)
from goqueue.server.server import Server
from tests.support.broker_server import settings_for
from tests.support.loop import run
from tests.support.patience import PATIENCE_S


class Stage:
    """A broker that may be started again where it was, and a client of it."""

    def __init__(self, path: Path, server: Server) -> None:
        self._path = path
        self.server = server
        self.client = AsyncClient(server.endpoints["wire"])

    async def restart(self) -> None:
        address = self.server.endpoints["wire"]
        await self.server.stop()
        self.server = await Server.start(settings_for(self._path, wire=address))

    async def values(self, topic: str = "orders", **options: Any) -> list[str | None]:
        async with self.client.reader(topic, **options) as reader:
            return sorted([message.text async for message in reader], key=str)

    async def states(self) -> list[tuple[str, str]]:
        found = (await self.client.transactions()).transactions
        return [(each.transaction_id, each.state) for each in found]

    def cut(self, producer: AsyncProducer) -> None:
        """Its connection is lost."""
        connection = producer.sender._blocks._connection
        assert connection is not None
        connection.abort("a test")


@asynccontextmanager
async def staged(path: Path, *, partitions: int = 2, **settings: Any) -> AsyncIterator[Stage]:
    stage = Stage(path, await Server.start(settings_for(path)))
    try:
        async with stage.client:
            await stage.client.create_topic("orders", partitions=partitions, **settings)
            await stage.client.create_topic("bills", partitions=1)
            yield stage
    finally:
        await stage.server.stop()


@contextmanager
def fails(kind: type[Exception], match: str | None = None) -> Iterator[pytest.ExceptionInfo[Exception]]:
    with pytest.raises(kind, match=match) as caught:
        yield caught


def fail() -> None:
    raise ZeroDivisionError


def enqueue(producer: AsyncProducer, *values: str, topic: str = "orders") -> None:
    for value in values:
        producer.enqueue(topic, value, key=value)


# --- committing


def test_what_is_sent_and_enqueued_in_it_counts_when_it_is_committed(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            async with producer.transaction() as transaction:
                receipt = await producer.send("orders", "a")
                enqueue(producer, "b", "c", "d")
                enqueue(producer, "bill", topic="bills")
                await producer.flush()
                assert receipt.offset == 0
                assert await stage.values() == []
                assert await stage.values(isolation="read_uncommitted") == ["a", "b", "c", "d"]
                found = await stage.client.describe_transaction(transaction.transaction_id)
                assert found.state == "ongoing"
                assert sum(part.messages for part in found.partitions or ()) == 5
            assert await stage.values() == ["a", "b", "c", "d"]
            assert await stage.values("bills") == ["bill"]
            found = await stage.client.describe_transaction(transaction.transaction_id)
            assert found.state in ("committing", "committed")

    run(go())


def test_one_after_the_other_and_what_is_outside_of_them_is_outside(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer(transactional_id="t") as producer:
            identities = set()
            for number in range(3):
                enqueue(producer, f"out-{number}")
                async with producer.transaction():
                    enqueue(producer, *(f"in-{number}-{each}" for each in range(5)))
                identities.add(producer._stage.writer.identity)
            enqueue(producer, "out-3")
            await producer.flush()
            assert len(identities) == 1, "the next one is begun by the same producer"
            expected = [f"in-{number}-{each}" for number in range(3) for each in range(5)]
            assert await stage.values() == sorted([*expected, *(f"out-{number}" for number in range(4))])
            assert {state for _, state in await stage.states()} <= {"committing", "committed"}
            assert (await stage.client.transaction_stats()).committed == 3

    run(go())


def test_an_empty_one_and_an_explicit_end(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            async with producer.transaction():
                pass
            async with producer.transaction() as transaction:
                enqueue(producer, "a")
                await transaction.commit()
                await transaction.commit()
                enqueue(producer, "outside")
                with pytest.raises(Conflict, match="was committed"):
                    await transaction.abort()
            async with producer.transaction() as transaction:
                enqueue(producer, "b")
                await transaction.abort()
                await transaction.abort()
                with pytest.raises(Conflict, match="was aborted"):
                    await transaction.commit()
            await producer.flush()
            assert await stage.values() == ["a", "outside"]

    run(go())


def test_a_transaction_begins_once_and_has_an_id_then(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            transaction = producer.transaction()
            with pytest.raises(InvalidRequest, match="has not begun"):
                _ = transaction.transaction_id
            with pytest.raises(Conflict, match="has not begun"):
                await transaction.commit()
            async with transaction:
                assert transaction.transaction_id.startswith("txn-")
            with pytest.raises(Conflict, match="was committed"):
                await transaction.__aenter__()

    run(go())


# --- not committing


def test_after_an_error_nothing_of_it_counts(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            with fails(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send("orders", "sent")
                    enqueue(producer, "enqueued")
                    fail()
            async with producer.transaction():
                enqueue(producer, "again")
            assert await stage.values() == ["again"]
            assert (await stage.client.transaction_stats()).aborted["asked"] == 1

    run(go())


def test_what_was_not_answered_when_it_is_aborted_fails_and_is_nowhere(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer(linger=60) as producer:
            with fails(ZeroDivisionError):
                async with producer.transaction():
                    enqueue(producer, *map(str, range(100)))
                    early = asyncio.create_task(producer.send("bills", "early"))
                    await asyncio.sleep(0)
                    fail()
            with pytest.raises(TransactionAborted, match="was aborted"):
                await early
            async with producer.transaction():
                enqueue(producer, "again")
            assert await stage.values() == ["again"]
            assert await stage.values("bills") == []

    run(go())


def test_a_message_that_failed_fails_it_also_when_nobody_minded(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, max_message_bytes=100) as stage, stage.client.producer() as producer:
            for _ in range(2):
                with fails(TooLarge) as caught:
                    async with producer.transaction():
                        enqueue(producer, "a")
                        with pytest.raises(TooLarge):
                            await producer.send("orders", "x" * 200)
                        enqueue(producer, "b")
                assert "nothing of it counts" in str(caught.value.__notes__)
            with fails(UnknownTopic):
                async with producer.transaction():
                    enqueue(producer, "a")
                    enqueue(producer, "lost", topic="nowhere")
            async with producer.transaction():
                enqueue(producer, "c")
            assert await stage.values() == ["c"]
            assert (await stage.client.transaction_stats()).aborted["asked"] == 3

    run(go())


def test_one_the_broker_has_aborted_says_so(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            with fails(TransactionAborted, match="an abort was asked for"):
                async with producer.transaction() as transaction:
                    await producer.send("orders", "a")
                    await stage.client.abort_transaction(transaction.transaction_id)
            with fails(TransactionAborted, match="an abort was asked for"):
                async with producer.transaction() as transaction:
                    await stage.client.abort_transaction(transaction.transaction_id)
                    enqueue(producer, "b")
            async with producer.transaction():
                enqueue(producer, "c")
            assert await stage.values() == ["c"]

    run(go())


def test_who_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            begun = asyncio.Event()

            async def work() -> None:
                async with producer.transaction():
                    await producer.send("orders", "a")
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await stage.client.transaction_stats()).ongoing == 0
            async with producer.transaction():
                enqueue(producer, "b")
            assert await stage.values() == ["b"]

    run(go())


def test_closing_a_producer_aborts_what_is_open(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            producer = stage.client.producer()
            transaction = await producer.transaction().__aenter__()
            await producer.send("orders", "a")
            await producer.close()
            assert (await stage.client.describe_transaction(transaction.transaction_id)).state in (
                "aborting",
                "aborted",
            )
            with pytest.raises(Unavailable, match="closed"):
                producer.enqueue("orders", "b")

    run(go())


def test_a_begin_that_is_given_up_leaves_the_producer_free(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer(transactional_id="t") as producer:
            runner = stage.server.broker.transactions
            begin, asked = runner.begin, asyncio.Event()

            async def hang(command: Any) -> Any:
                await begin(command)
                asked.set()
                await asyncio.Event().wait()

            runner.begin = hang  # type: ignore[method-assign]
            beginning = asyncio.create_task(producer.transaction().__aenter__())
            await asked.wait()
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            runner.begin = begin  # type: ignore[method-assign]
            async with producer.transaction():
                enqueue(producer, "a")
            assert await stage.values() == ["a"]
            assert (await stage.client.transaction_stats()).aborted["reinitialised"] == 1

    run(go())


# --- one at a time, one producer per id


def test_a_second_one_is_refused_meanwhile(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            async with producer.transaction() as transaction:
                with fails(Conflict, match=f"has {transaction.transaction_id} open"):
                    async with producer.transaction():
                        pass
                enqueue(producer, "a")
            assert await stage.values() == ["a"]

    run(go())


def test_what_comes_while_it_is_committed_is_refused_not_published(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            async with producer.transaction() as transaction:
                enqueue(producer, "a")
                await producer.flush()
                enqueue(producer, "b")
                committing = asyncio.create_task(transaction.commit())
                await asyncio.sleep(0)
                for topic in ("orders", "bills"):
                    with pytest.raises(Conflict, match="is being committed"):
                        producer.enqueue(topic, "late")
                with pytest.raises(Conflict, match="is being committed"):
                    await producer.send("orders", "late")
                await committing
            assert await stage.values() == ["a", "b"]
            assert await stage.values("bills") == []

    run(go())


def test_who_has_the_transactional_id_fences_off_who_had_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            zombie = stage.client.producer(transactional_id="billing-1")
            with fails(ProducerFenced):
                async with zombie.transaction() as left:
                    await zombie.send("orders", "zombie")
                    async with stage.client.producer(transactional_id="billing-1") as producer:
                        found = await stage.client.describe_transaction(left.transaction_id)
                        assert found.reason == "reinitialised", "as soon as the other one is there"
                        async with producer.transaction():
                            enqueue(producer, "a")
                    enqueue(zombie, "zombie too")
            with pytest.raises(ProducerFenced):
                zombie.enqueue("orders", "outside")
            with fails(ProducerFenced):
                async with zombie.transaction():
                    pass
            await zombie.close()
            assert await stage.values() == ["a"]

    run(go())


def test_who_was_fenced_off_does_not_take_the_id_back(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, max_message_bytes=100) as stage:
            zombie = stage.client.producer(transactional_id="billing-1")
            with fails(TooLarge):
                async with zombie.transaction():
                    enqueue(zombie, "x" * 200)
            assert zombie._stage.writer.identity is None, "it needs another one for the next"
            async with stage.client.producer(transactional_id="billing-1") as producer:
                with pytest.raises(ProducerFenced):
                    await zombie.transaction().__aenter__()
                async with producer.transaction():
                    enqueue(producer, "a")
            await zombie.abort()
            assert await stage.values() == ["a"]

    run(go())


@pytest.mark.parametrize("begins", ["commit", "begin"])
def test_who_was_fenced_off_hears_it_wherever_it_asks(tmp_path: Path, begins: str) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            zombie = stage.client.producer(transactional_id="billing-1")
            transaction = zombie.transaction()
            async with transaction if begins == "begin" else zombie.transaction() as open_one:
                if begins == "begin":
                    await open_one.commit()
                async with stage.client.producer(transactional_id="billing-1"):
                    pass
                with pytest.raises(ProducerFenced):
                    await (zombie.transaction().__aenter__() if begins == "begin" else open_one.commit())
            with pytest.raises(ProducerFenced):
                zombie.enqueue("orders", "outside")
            await zombie.abort()

    run(go())


def test_arguments_that_cannot_be_right(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            client = stage.client
            with pytest.raises(InvalidRequest, match="acks none"):
                client.producer(acks="none", transactional_id="t")
            with pytest.raises(InvalidRequest, match="acks none"):
                client.producer(acks="none").transaction()
            with pytest.raises(InvalidRequest, match="transaction_timeout is '1ms'; it is from"):
                client.producer(transaction_timeout="1ms")
            with pytest.raises(InvalidRequest, match="timeout is 0; it is from"):
                client.producer().transaction(timeout=0)
            with pytest.raises(InvalidRequest, match="transactional_id is 5; it is text"):
                client.producer(transactional_id=5)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="name is 5; it is text"):
                client.producer().transaction(name=5)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="name is 'a b'"):
                await client.producer().transaction(name="a b").__aenter__()
            with pytest.raises(InvalidRequest, match="transactional_id"):
                await client.producer(transactional_id="").__aenter__()
            producer = client.producer(transactional_id="t", transaction_timeout="2m")
            async with producer.transaction() as first:
                pass
            async with producer.transaction(timeout=30) as second:
                shown = [await client.describe_transaction(each.transaction_id) for each in (first, second)]
                assert shown[0].transactional_id == shown[1].transactional_id == "t"
            runner = stage.server.broker.transactions.machine
            assert [each.timeout_ms for each in runner.by_number.values()] == [120_000, 30_000]

    run(go())


# --- trouble on the way


def test_blocks_sent_again_after_a_lost_connection_are_in_it_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer(batch_messages=3) as producer:
            async with producer.transaction():
                await producer.send("orders", "first")
                for number in range(60):
                    enqueue(producer, f"{number:02}")
                    if number % 7 == 0:
                        await asyncio.sleep(0)
                        stage.cut(producer)
                        await asyncio.sleep(0)
            assert await stage.values() == sorted(["first", *(f"{number:02}" for number in range(60))])

    run(go())


def test_it_goes_on_after_a_broker_was_started_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer(transactional_id="t") as producer:
            async with producer.transaction() as transaction:
                await producer.send("orders", "before")
                await stage.restart()
                enqueue(producer, "after")
                await producer.flush()
                assert await stage.states() == [(transaction.transaction_id, "ongoing")]
            assert await stage.values() == ["after", "before"]
            async with producer.transaction():
                enqueue(producer, "next")
            assert await stage.values() == ["after", "before", "next"]

    run(go())


def test_a_commit_whose_answer_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            machine = stage.server.broker.transactions
            commit, asked = machine.commit, 0

            async def lose(*arguments: Any, **named: Any) -> Any:
                nonlocal asked
                asked += 1
                done = await commit(*arguments, **named)
                if asked == 1:
                    connection = stage.client._link._connection
                    assert connection is not None
                    connection.abort("a test")
                return done

            machine.commit = lose  # type: ignore[method-assign]
            async with producer.transaction():
                enqueue(producer, "a")
            assert asked == 2
            assert await stage.values() == ["a"]

    run(go())


def test_a_commit_without_any_answer_is_in_doubt_and_the_next_is_begun_by_another(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer(delivery_timeout=PATIENCE_S) as producer:
            machine = stage.server.broker.transactions
            commit = machine.commit
            never = asyncio.Event()

            async def hang(*_: Any, **__: Any) -> Any:
                await never.wait()

            with fails(RequestTimeout, match="did not say whether txn-1 was committed"):
                async with producer.transaction() as transaction:
                    await producer.send("orders", "a")
                    machine.commit = hang  # type: ignore[method-assign]
                    producer._stage.writer._patience_s = 0.05
            machine.commit = commit  # type: ignore[method-assign]
            producer._stage.writer._patience_s = PATIENCE_S
            async with producer.transaction() as following:
                enqueue(producer, "b")
            assert transaction.transaction_id != following.transaction_id
            await transaction.abort()
            assert await stage.values() == ["b"]
            never.set()

    run(go())


def test_a_begin_whose_answer_was_lost_is_done_again_by_another(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer(transactional_id="t") as producer:
            runner = stage.server.broker.transactions
            begin, begun = runner.begin, []

            async def lose(command: Any) -> Any:
                begun.append(command.epoch)
                found = await begin(command)
                if len(begun) == 1:
                    connection = stage.client._link._connection
                    assert connection is not None
                    connection.abort("a test")
                return found

            runner.begin = lose  # type: ignore[method-assign]
            async with producer.transaction():
                enqueue(producer, "a")
            assert begun == [0, 1]
            assert await stage.values() == ["a"]
            assert (await stage.client.transaction_stats()).ongoing == 0

    run(go())


def test_a_producer_the_broker_does_not_agree_with_fails_the_transaction_and_begins_again_as_another(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=1) as stage, stage.client.producer() as producer:
            with fails(OutOfSequence):
                async with producer.transaction():
                    await producer.send("orders", "a")
                    before = producer._stage.writer.identity
                    line = producer.routes["orders"].places[0].line
                    line._next_sequence = 7
                    enqueue(producer, "b", "c")
                    await producer.outlet.flush()
                    with pytest.raises(TransactionAborted, match="do not agree about what was published"):
                        await producer.send("orders", "d")
            async with producer.transaction():
                enqueue(producer, "e")
            assert producer._stage.writer.identity != before
            assert await stage.values() == ["e"]

    run(go())


def test_sends_that_wait_for_room_are_in_the_transaction_they_were_sent_in(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            staged(tmp_path) as stage,
            stage.client.producer(buffer_bytes=2000, batch_bytes=500, linger=1) as producer,
        ):
            async with producer.transaction():
                sends = [asyncio.create_task(producer.send("orders", f"{number:02}" * 50)) for number in range(60)]
                await asyncio.sleep(0)
                with fails(BufferFull):
                    while True:
                        producer.enqueue("orders", "more" * 50)
                assert producer._queued
            assert len([*await asyncio.gather(*sends)]) == 60
            assert len(await stage.values()) >= 60
            found = (await stage.client.transaction_stats()).committed
            assert found == 1

    run(go())


# --- committed together


def test_prepared_ones_are_committed_together_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage:
            producers = [stage.client.producer() for _ in range(3)]
            prepared: dict[str, int] = {}
            for number, producer in enumerate(producers):
                async with producer.transaction(name="nightly") as transaction:
                    enqueue(producer, *(f"{number}-{each}" for each in range(number + 1)))
                    prepared.update([await transaction.prepare()])
                    assert await transaction.prepare() == (transaction.transaction_id, number + 1)
                    with pytest.raises(Conflict, match="takes nothing more"):
                        await transaction.ack([])
                    enqueue(producer, f"outside-{number}")
                    await producer.flush()
            assert [*prepared.values()] == [1, 2, 3]
            client = stage.client
            assert len((await client.transactions(name="nightly", state="ongoing")).transactions) == 3
            assert (await client.transaction_token("nightly")).number is None
            with pytest.raises(Conflict, match="open"):
                await producers[0].transaction().__aenter__()
            done = await client.commit_many("nightly", 7, prepared, messages=prepared)
            assert done.transactions == [*prepared]
            assert (await client.commit_many("nightly", 7, [])).duplicate
            with pytest.raises(StaleToken):
                await client.commit_many("nightly", 6, [])
            assert (await client.transaction_token("nightly")).number == 7
            assert len(await stage.values()) == 9
            async with producers[0].transaction(name="nightly"):
                enqueue(producers[0], "again")
            async with producers[1].transaction(name="nightly") as transaction:
                await transaction.prepare()
                await transaction.commit()
            async with producers[2].transaction(name="nightly") as transaction:
                await transaction.prepare()
            assert (await client.abort_transactions("nightly")).aborted == [transaction.transaction_id]
            assert len(await stage.values()) == 10

    run(go())


# --- acks inside


async def take(consumer: AsyncConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += await consumer.poll(count - len(found), timeout=PATIENCE_S)
    return found


@pytest.mark.parametrize("mode", ["partition", "shared", "key"])
def test_acks_count_if_it_is_committed(tmp_path: Path, mode: str) -> None:
    async def go() -> None:
        async with staged(tmp_path) as stage, stage.client.producer() as producer:
            enqueue(producer, *map(str, range(20)))
            await producer.flush()
            async with stage.client.consumer("g", ["orders"], mode=mode, auto_extend=True) as consumer:
                messages = await take(consumer, 20)
                async with producer.transaction() as transaction:
                    await transaction.ack(messages[0])
                    await transaction.ack(messages[1:15])
                    await transaction.ack([])
                    enqueue(producer, "bill", topic="bills")
                    found = await stage.client.describe_transaction(transaction.transaction_id)
                    assert sum(part.acks for part in found.partitions or ()) == 15
                    held = [offset for _, offsets in consumer.stock.held() for offset in offsets]
                    assert len(held) == 5, "nobody extends what is acked in it"
                with pytest.raises(StaleHandle):
                    await messages[0].ack(wait=True)
                for message in messages[15:]:
                    await message.ack(wait=True)
            assert (await stage.client.group_lag("g")).total_lag == 0
            assert await stage.values("bills") == ["bill"]

    run(go())


def test_acks_of_an_aborted_one_are_delivered_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=1) as stage, stage.client.producer() as producer:
            enqueue(producer, "a", "b")
            await producer.flush()
            async with stage.client.consumer("g", ["orders"]) as consumer:
                with fails(ZeroDivisionError):
                    async with producer.transaction() as transaction:
                        await transaction.ack(await consumer.poll(2, timeout=PATIENCE_S))
                        fail()
                again = await take(consumer, 2)
                assert [message.text for message in again] == ["a", "b"]
                async with producer.transaction() as transaction:
                    await transaction.ack(again)
            assert (await stage.client.group_lag("g")).total_lag == 0

    run(go())


def test_an_ack_of_what_is_somebody_elses_by_now_fails_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=1) as stage, stage.client.producer() as producer:
            enqueue(producer, "a", "b")
            await producer.flush()
            async with stage.client.consumer("g", ["orders"]) as consumer:
                messages = await take(consumer, 2)
                await messages[0].release(wait=True)
                with fails(StaleHandle, match="delivered again"):
                    async with producer.transaction() as transaction:
                        enqueue(producer, "bill", topic="bills")
                        with pytest.raises(StaleHandle):
                            await transaction.ack(messages)
                with fails(InvalidRequest, match="messages is 5; it is a message of a consumer"):
                    async with producer.transaction() as transaction:
                        await transaction.ack(5)  # type: ignore[arg-type]
            assert await stage.values("bills") == []
            assert (await stage.client.transaction_stats()).ongoing == 0

    run(go())


def test_an_ack_whose_answer_was_lost_counts_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=1) as stage, stage.client.producer() as producer:
            enqueue(producer, "a", "b", "c")
            await producer.flush()
            async with stage.client.consumer("g", ["orders"]) as consumer:
                batch = await consumer.poll(3, timeout=PATIENCE_S)
                member = consumer._membership.member
                assert member is not None
                settle, actions = member.settle, []

                async def lose(action: Any, *arguments: Any) -> Any:
                    actions.append(action.name)
                    done = await settle(action, *arguments)
                    if len(actions) == 1:
                        raise Unavailable("the answer was lost")
                    return done

                member.settle = lose  # type: ignore[method-assign, assignment]
                async with producer.transaction() as transaction:
                    await transaction.ack(batch)
                assert actions == ["PLEDGE", "PLEDGE_AGAIN"]
            assert (await stage.client.group_lag("g")).total_lag == 0

    run(go())


def test_acks_of_a_producer_that_was_fenced_off_are_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=1) as stage, stage.client.producer() as producer:
            await producer.send("orders", "a")
            async with stage.client.consumer("g", ["orders"]) as consumer:
                batch = await consumer.poll(1, timeout=PATIENCE_S)
                zombie = stage.client.producer(transactional_id="t")
                with fails(ProducerFenced):
                    async with zombie.transaction() as transaction, stage.client.producer(transactional_id="t"):
                        await transaction.ack(batch)
                await batch.ack(wait=True)
                await zombie.abort()

    run(go())


# --- beside others


def test_a_reader_ends_in_front_of_an_open_one_and_one_that_follows_goes_on(tmp_path: Path) -> None:
    async def go() -> None:
        async with staged(tmp_path, partitions=1) as stage, stage.client.producer() as producer:
            await producer.send("orders", "a")
            other = stage.client.producer()
            async with stage.client.reader("orders", follow=True) as following:
                async with producer.transaction():
                    await producer.send("orders", "b")
                    await other.send("orders", "c")
                    assert await stage.values() == ["a"]
                    assert await stage.values(isolation="read_uncommitted") == ["a", "b", "c"]
                found = [(await anext(following)).text for _ in range(3)]
                assert found == ["a", "b", "c"]
            with fails(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send("orders", "d")
                    fail()
            assert await stage.values() == ["a", "b", "c"], "it steps over what was aborted, and over markers"
            assert await stage.values(from_offset=4) == []
            assert await stage.values(isolation="read_uncommitted") == ["a", "b", "c", "d"]
            with pytest.raises(InvalidRequest, match="isolation is 'dirty'"):
                stage.client.reader("orders", isolation="dirty")  # type: ignore[arg-type]

    run(go())
