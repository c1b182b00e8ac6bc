"""Who hears what of published messages, and when."""

import asyncio
from concurrent.futures import Future

import pytest

from goqueue.client.receipts import Outcome, Receipt, Receipts, Receiver, refuse
from goqueue.model.errors import Busy, DiskFull
from goqueue.model.publishing import Durability
from goqueue.wire.blocks import PublishReply, Range
from tests.support.loop import run

Waiting = Future[Receipt]


def waiting(count: int) -> list[Waiting]:
    return [Waiting() for _ in range(count)]


def numbered(*indexes: int) -> tuple[list[Waiting], list[tuple[int, Receiver]]]:
    futures = waiting(len(indexes))
    return futures, [*zip(indexes, futures, strict=True)]


def test_receivers_get_the_offsets_of_their_own_messages_across_ranges() -> None:
    async def go() -> None:
        receipts = Receipts(asyncio.get_running_loop(), None)
        futures, receivers = numbered(0, 1, 2, 5)
        reply = PublishReply(
            Durability.DURABLE, (Range(2, 10, 77, True), Range(1, 90, 78, False), Range(3, 95, 79, False))
        )
        receipts.succeed("orders", 4, 6, receivers, reply)
        assert [future.result() for future in futures] == [
            Receipt("orders", 4, 10, 77, "durable", True),
            Receipt("orders", 4, 11, 77, "durable", True),
            Receipt("orders", 4, 90, 78, "durable", False),
            Receipt("orders", 4, 97, 79, "durable", False),
        ]

    run(go())


def test_without_ranges_nobody_knows_where_messages_are() -> None:
    async def go() -> None:
        outcomes: list[Outcome] = []
        receipts = Receipts(asyncio.get_running_loop(), outcomes.append)
        (future,), receivers = numbered(0)
        receipts.succeed("orders", 0, 1, receivers, PublishReply(Durability.NONE, ()))
        assert future.result() == Receipt("orders", 0, None, None, "none")
        assert future.result().message_id is None
        await asyncio.sleep(0)
        assert outcomes == [Outcome("orders", 0, 1, None, None)]

    run(go())


def test_who_no_longer_waits_is_not_told() -> None:
    async def go() -> None:
        receipts = Receipts(asyncio.get_running_loop(), None)
        (gone, left), receivers = numbered(0, 1)
        gone.cancel()
        receipts.succeed("orders", 0, 2, receivers, PublishReply(Durability.WRITTEN, (Range(2, 5, 1, False),)))
        assert gone.cancelled()
        assert left.result().offset == 6
        refuse([gone, left], Busy("later"))
        assert left.result().offset == 6

    run(go())


def test_each_receiver_has_an_error_of_its_own() -> None:
    async def go() -> None:
        receipts = Receipts(asyncio.get_running_loop(), None)
        futures = waiting(2)
        error = DiskFull("no room")
        receipts.fail("orders", 0, 2, futures, error)
        first, second = (future.exception() for future in futures)
        assert isinstance(first, DiskFull)
        assert isinstance(second, DiskFull)
        assert len({id(error), id(first), id(second)}) == 3
        assert receipts.take_failure() is None, "those who waited have been told"

    run(go())


def test_failures_nobody_waited_for_are_counted_until_they_are_taken() -> None:
    async def go() -> None:
        receipts = Receipts(asyncio.get_running_loop(), None)
        receipts.fail("orders", 0, 3, waiting(1), DiskFull("the first"))
        receipts.fail("orders", 1, 4, (), Busy("the second"))
        failure = receipts.take_failure()
        with pytest.raises(DiskFull, match="the first") as caught:
            raise failure or AssertionError("there was a failure")
        assert caught.value.__notes__[0].startswith("6 enqueued messages failed")
        assert receipts.take_failure() is None

    run(go())


def test_outcomes_are_told_in_a_turn_of_their_own() -> None:
    async def go() -> None:
        outcomes: list[Outcome] = []
        receipts = Receipts(asyncio.get_running_loop(), outcomes.append)
        error = Busy("later")
        receipts.succeed("orders", 0, 2, (), PublishReply(Durability.WRITTEN, (Range(2, 5, 1, False),)))
        receipts.fail("orders", 1, 3, (), error)
        assert outcomes == []
        await asyncio.sleep(0)
        assert outcomes == [Outcome("orders", 0, 2, 5, None), Outcome("orders", 1, 3, None, error)]

    run(go())
