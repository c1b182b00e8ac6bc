"""Lost reply x transactional id: only a real second owner fences; a program never fences itself."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from goqueue.client.client import AsyncClient
from goqueue.client.producer import AsyncProducer
from goqueue.model.errors import Conflict, ProducerFenced, RequestTimeout, TransactionAborted
from goqueue.server.server import Server
from goqueue.transactions.commands import Former
from tests.support.broker_server import copy_as_killed, running_server
from tests.support.cancelled_at import cancelled_at
from tests.support.loop import run
from tests.support.lossy_proxy import LossyProxy
from tests.support.patience import PATIENCE_S

TOPIC = "orders"
_ROUNDS = 5
_MOST_WAITS = 200
"""A transaction waits a few dozen times; without an end something is wrong."""


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[Server]:
    async with running_server(path) as server:
        async with AsyncClient(server.endpoints["wire"]) as client:
            await client.create_topic(TOPIC, partitions=2)
        yield server


def client_of(server: Server) -> AsyncClient:
    return AsyncClient(server.endpoints["wire"])


def lose_answers(server: Server, client: AsyncClient, *, times: int = 1) -> None:
    """The broker identifies a producer, durably, and the connection ends before the answer."""
    runner = server.broker.transactions
    identify, left = runner.identify, times

    async def lose(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        identity = await identify(*arguments, **named)
        if left:
            left -= 1
            connection = client._link._connection
            assert connection is not None
            connection.abort("a test")
        return identity

    runner.identify = lose  # type: ignore[method-assign]


@contextmanager
def fails(kind: type[Exception]) -> Iterator[None]:
    with pytest.raises(kind):
        yield


async def works(producer: AsyncProducer, value: str) -> None:
    """In a transaction, and outside of one."""
    async with producer.transaction():
        await producer.send(TOPIC, value)
    await producer.send(TOPIC, f"outside of {value}")


async def need_another_epoch(producer: AsyncProducer) -> None:
    """A message is under way when the body of a transaction fails."""
    with fails(ZeroDivisionError):
        async with producer.transaction():
            producer.enqueue(TOPIC, "given up")
            raise ZeroDivisionError
    assert producer._stage.writer.identity is None


# --- lost by a connection


def test_lost_reply_x_transactional_id_a_program_that_asks_again_is_not_fenced_by_itself(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            served(tmp_path) as server,
            client_of(server) as client,
            client.producer(transactional_id="billing") as producer,
        ):
            await need_another_epoch(producer)
            before = producer._stage.writer._former
            lose_answers(server, client, times=2)
            await works(producer, "a")
            now = producer._stage.writer.identity
            assert before is not None
            assert now is not None
            assert (now.producer_id, now.epoch) == (before.producer_id, before.epoch + 1), "asked thrice, given once"

    run(go())


def test_the_first_init_of_a_program_is_given_once_however_often_it_asks(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as server, client_of(server) as client:
            lose_answers(server, client, times=3)
            async with client.producer(transactional_id="billing") as producer:
                assert producer._stage.writer.identity is not None
                assert producer._stage.writer.identity.epoch == 0
                await works(producer, "a")

    run(go())


def test_a_program_behind_a_network_that_cuts_connections_is_never_fenced(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as server:
            proxy = await LossyProxy.open(server.endpoints["wire"], loses_one_in=3, dice=random.Random(7))
            try:
                async with (
                    AsyncClient(proxy.address) as client,
                    client.producer(transactional_id="billing") as producer,
                ):
                    for number in range(_ROUNDS):
                        await need_another_epoch(producer)
                        await works(producer, str(number))
                assert proxy.lost >= _ROUNDS
            finally:
                await proxy.close()

    run(go())


# --- given up by a cancellation


async def every_wait(
    producer: AsyncProducer, work: Callable[[], Awaitable[None]], between: Callable[[int], Awaitable[None]]
) -> int:
    """Cancel it at its first wait, at its second, and so on until it ends before that; how many waits there are."""

    async def once() -> None:
        await work()

    for at in range(1, _MOST_WAITS):
        if not await cancelled_at(once(), at):
            return at - 1
        await between(at)
    raise AssertionError(f"it still waits after {_MOST_WAITS} times")


@pytest.mark.parametrize("ends", ["commits", "fails"])
def test_cancelled_at_any_wait_of_a_transaction_a_program_is_not_fenced_by_itself(tmp_path: Path, ends: str) -> None:
    async def go() -> None:
        async with (
            served(tmp_path) as server,
            client_of(server) as client,
            client.producer(transactional_id="billing") as producer,
        ):

            async def work() -> None:
                try:
                    async with producer.transaction():
                        await producer.send(TOPIC, "a")
                        producer.enqueue(TOPIC, "b")
                        if ends == "fails":
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass

            async def twice(at: int) -> None:
                await cancelled_at(work(), at % 5 + 1)  # the next try is given up as well
                await works(producer, str(at))

            assert await every_wait(producer, work, twice) > 3
            assert (await client.transaction_stats()).ongoing == 0

    run(go())


@pytest.mark.parametrize("held", ["the answer", "the request"])
def test_an_init_that_is_cancelled_while_the_broker_is_at_it_is_given_to_the_same_program_later(
    tmp_path: Path, held: str
) -> None:
    async def go() -> None:
        async with (
            served(tmp_path) as server,
            client_of(server) as client,
            client.producer(transactional_id="billing") as producer,
        ):
            runner = server.broker.transactions
            identify, asked, go_on = runner.identify, asyncio.Event(), asyncio.Event()
            late: list[asyncio.Task[Any]] = []

            async def hold(*arguments: Any, **named: Any) -> Any:
                late.append(asyncio.current_task())  # type: ignore[arg-type]
                if held == "the answer":
                    await identify(*arguments, **named)
                asked.set()
                await go_on.wait()
                return await identify(*arguments, **named)  # or for the second time: it arrives twice

            for round_ in range(3):
                await need_another_epoch(producer)
                asked.clear()
                go_on.clear()
                runner.identify = hold  # type: ignore[method-assign]
                task = asyncio.create_task(works(producer, "given up"))
                await asked.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                runner.identify = identify  # type: ignore[method-assign]
                async with producer.transaction():
                    await producer.send(TOPIC, f"a-{round_}")
                    go_on.set()  # what was asked first is done last, in the middle of what came of the second
                    await asyncio.wait(late)
                await works(producer, f"b-{round_}")
            async with client.reader(TOPIC) as reader:
                values = {message.text async for message in reader}
            assert values >= {f"{letter}-{round_}" for letter in "ab" for round_ in range(3)}

    run(go())


# --- what became of an earlier one


@pytest.mark.parametrize("became", ["committed", "aborted"])
def test_who_asks_about_a_transaction_of_its_earlier_epoch_is_told_what_became_of_it(
    tmp_path: Path, became: str
) -> None:
    async def go() -> None:
        async with (
            served(tmp_path) as server,
            client_of(server) as client,
            client.producer(transactional_id="billing") as producer,
        ):
            runner = server.broker.transactions
            commit, never = runner.commit, asyncio.Event()

            async def hang(*arguments: Any, **named: Any) -> Any:
                if became == "committed":
                    await commit(*arguments, **named)
                await never.wait()

            runner.commit = hang  # type: ignore[method-assign]
            with fails(RequestTimeout):
                async with producer.transaction() as doubtful:
                    await producer.send(TOPIC, "in doubt")
                    producer._stage.writer._patience_s = 0.05
            producer._stage.writer._patience_s = PATIENCE_S
            runner.commit = commit  # type: ignore[method-assign]
            async with producer.transaction():
                await producer.send(TOPIC, "a")
                if became == "committed":
                    with pytest.raises(Conflict, match="was committed"):
                        await doubtful.abort()
                else:
                    await doubtful.abort()
            await works(producer, "b")
            never.set()

    run(go())


def test_a_prepared_transaction_that_its_own_producer_ended_says_that_it_was_aborted(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            served(tmp_path) as server,
            client_of(server) as client,
            client.producer(transactional_id="billing") as producer,
        ):
            async with producer.transaction() as prepared:
                await producer.send(TOPIC, "prepared")
                await prepared.prepare()
                at = 0
                while producer._stage.writer.identity is not None:  # it has not asked yet
                    at += 1
                    assert await cancelled_at(producer.transaction().__aenter__(), at)
                await works(producer, "a")
                with pytest.raises(TransactionAborted, match="when this producer began another one"):
                    await prepared.commit()
            await works(producer, "b")

    run(go())


def test_an_abort_that_was_given_up_does_not_stand_in_the_way_of_the_next_transaction(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            served(tmp_path) as server,
            client_of(server) as client,
            client.producer(transactional_id="billing") as producer,
        ):
            runner = server.broker.transactions
            abort, never = runner.abort, asyncio.Event()

            async def hang(*_: Any, **__: Any) -> Any:
                await never.wait()

            transaction = await producer.transaction().__aenter__()
            await producer.send(TOPIC, "a")
            runner.abort = hang  # type: ignore[method-assign]
            assert await cancelled_at(transaction.abort(), 1)
            runner.abort = abort  # type: ignore[method-assign]
            await works(producer, "b")
            never.set()

    run(go())


# --- a real second owner


def test_a_real_second_owner_fences_the_first_also_when_its_own_answers_were_lost(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as server, client_of(server) as client, client_of(server) as other:
            first = client.producer(transactional_id="billing")
            await need_another_epoch(first)
            lose_answers(server, other, times=2)
            async with other.producer(transactional_id="billing") as second:
                await works(second, "a")
                with pytest.raises(ProducerFenced, match="initialised by another program"):
                    await works(first, "zombie")
                await works(second, "b")
            await first.abort()

    run(go())


def test_who_was_replaced_between_a_lost_answer_and_the_next_try_is_fenced(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as server, client_of(server) as client, client_of(server) as other:
            first = client.producer(transactional_id="billing")
            await need_another_epoch(first)
            for at in range(1, 4):  # the broker has given it another epoch, and it does not know
                await cancelled_at(works(first, "given up"), at)
            async with other.producer(transactional_id="billing") as second:
                with pytest.raises(ProducerFenced):
                    await works(first, "zombie")
                await works(second, "a")
            await first.abort()

    run(go())


def test_an_init_of_a_program_that_was_replaced_does_not_take_the_id_back_when_it_arrives_late(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as server:
            identify = server.broker.transactions.identify
            first = await identify("billing", 60_000, incarnation="first")
            second = await identify("billing", 60_000, incarnation="second")
            with pytest.raises(ProducerFenced):
                await identify("billing", 60_000, incarnation="first")
            with pytest.raises(ProducerFenced):
                await identify("billing", 60_000, incarnation="first", former=Former(*first[:2]))
            assert await identify("billing", 60_000, incarnation="second") == second

    run(go())


def test_over_a_kill_of_the_broker_the_same_program_goes_on_and_another_is_still_told_from_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as server:
            runner = server.broker.transactions
            first = await runner.identify("billing", 60_000, incarnation="mine")
            second = await runner.identify("billing", 60_000, incarnation="mine", former=Former(*first[:2]))
            copy_as_killed(server.broker, tmp_path.with_name("killed"))
        async with running_server(tmp_path.with_name("killed")) as server:
            runner = server.broker.transactions
            again = await runner.identify("billing", 60_000, incarnation="mine", former=Former(*first[:2]))
            assert again == second, "the answer of before the kill was lost"
            with pytest.raises(ProducerFenced):
                await runner.identify("billing", 60_000, incarnation="other", former=Former(*second[:2]))

    run(go())
