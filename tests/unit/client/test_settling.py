"""Settling: what is decided is gathered, sent in order, sent again, and always answered. The broker is made up."""

import asyncio
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest

from goqueue import codec
from goqueue.client import settling
from goqueue.client.member import Delivered
from goqueue.client.messages import Row
from goqueue.client.settling import Refused, SettleQueue
from goqueue.model import limits
from goqueue.model.errors import (
    Busy,
    DiskFull,
    GoQueueError,
    InvalidRequest,
    RequestTimeout,
    StaleHandle,
    Unavailable,
)
from goqueue.model.record import Record
from goqueue.wire.settles import NO_ARGUMENT, Action, Writer
from tests.support.loop import run, turns

Sent = tuple[Action, dict[int, list[int]], int, str]


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "backoff_s", lambda _: 0.0)


class Broker:
    """A link and a member in one. It answers with what `answers` holds, then with nothing refused."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.answers: deque[GoQueueError | dict[int, list[int]]] = deque()
        self.connects: deque[GoQueueError | None] = deque()
        self.connection: Any = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self) -> None:
        failure = self.connects.popleft() if self.connects else None
        if failure is not None:
            raise failure

    async def settle(
        self,
        action: Action,
        what: Iterable[tuple[Delivered, Iterable[int]]],
        argument: int,
        reason: str,
        writer: Writer | None,
    ) -> list[tuple[Delivered, list[int]]]:
        asked = [(delivered, [*offsets]) for delivered, offsets in what]
        self.sent.append((action, {delivered.poll: offsets for delivered, offsets in asked}, argument, reason))
        await self.gate.wait()
        answer = self.answers.popleft() if self.answers else {}
        if isinstance(answer, GoQueueError):
            raise answer
        return [(delivered, answer[delivered.poll]) for delivered, _ in asked if delivered.poll in answer]


class Desk:
    """A queue and its broker; what was refused, and which rows were done with."""

    def __init__(self, *, enough: int = 1) -> None:
        self.broker = Broker()
        self.refused: list[Refused] = []
        self.done: list[Row] = []
        self.is_broken = False
        broker: Any = self.broker
        wake = asyncio.get_running_loop().call_soon
        self.queue = SettleQueue(broker, lambda: broker, wake, self.hear, self.done.append, enough=enough)

    def hear(self, refused: Refused) -> None:
        self.refused.append(refused)
        if self.is_broken:
            raise ValueError("broken")

    def row(self, poll: int, count: int = 10, *, epoch: int = 1) -> Row:
        block = codec.encode([Record(offset=offset, value=b"v") for offset in range(count)])
        delivered = Delivered("orders", 0, epoch, poll, count, 1, count, memoryview(block), 7, 1, 99)
        return Row(delivered, self.queue, 0.0)

    def decide(self, row: Row, *offsets: int, action: Action = Action.ACK, argument: int = NO_ARGUMENT) -> None:
        self.queue.add(row, offsets, action, argument, "", None)

    def ask(self, row: Row, *offsets: int, action: Action = Action.ACK) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue.add(row, offsets, action, NO_ARGUMENT, "", future)
        return future


def test_what_is_the_same_goes_together_and_what_differs_in_order() -> None:
    async def go() -> None:
        desk = Desk()
        row, other = desk.row(1), desk.row(2)
        desk.decide(row, 0)
        desk.decide(other, 0, 1)
        desk.decide(row, 3)
        desk.decide(row, 4, action=Action.NACK)
        desk.decide(row, 5, action=Action.NACK, argument=7)
        desk.decide(row, 1)
        await desk.queue.flush()
        assert desk.broker.sent == [
            (Action.ACK, {1: [0, 3], 2: [0, 1]}, NO_ARGUMENT, ""),
            (Action.NACK, {1: [4]}, NO_ARGUMENT, ""),
            (Action.NACK, {1: [5]}, 7, ""),
            (Action.ACK, {1: [1]}, NO_ARGUMENT, ""),
        ]
        assert desk.refused == []
        assert row.settled == {0, 1, 3, 4, 5}

    run(go())


def test_one_request_is_under_way_and_the_next_takes_all_that_came_meanwhile() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1, 1000)
        desk.broker.gate.clear()
        desk.decide(row, 0)
        await turns()
        for offset in range(1, 1000):
            desk.decide(row, offset)
        await turns()
        assert len(desk.broker.sent) == 1
        desk.broker.gate.set()
        await desk.queue.flush()
        assert [len(sent[1][1]) for sent in desk.broker.sent] == [1, 999]
        assert desk.done == [row, row]

    run(go())


@pytest.fixture
def _waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_GATHER_S", 3600.0)


@pytest.mark.usefixtures("_waits_for_ever")
def test_acks_wait_for_others_until_there_are_enough() -> None:
    async def go() -> None:
        desk = Desk(enough=4)
        row, other = desk.row(1), desk.row(2)
        for offset in (0, 1):
            desk.decide(row, offset)
            await turns()
            assert desk.broker.sent == []
        desk.decide(other, 0, 1)
        await turns()
        assert desk.broker.sent == [(Action.ACK, {1: [0, 1], 2: [0, 1]}, NO_ARGUMENT, "")]
        desk.decide(row, 2)
        await turns()
        assert len(desk.broker.sent) == 1, "those that come later wait anew"
        await desk.queue.close()
        assert [refused.offset for refused in desk.refused] == [2]

    run(go())


@pytest.mark.usefixtures("_waits_for_ever")
def test_acks_after_the_end_have_their_answer_too() -> None:
    async def go() -> None:
        desk = Desk(enough=10)
        row = desk.row(1)
        desk.decide(row, 0)
        await turns()
        await desk.queue.close()
        desk.decide(row, 1)
        await turns()
        assert [refused.offset for refused in desk.refused] == [0, 1]

    run(go())


@pytest.mark.usefixtures("_waits_for_ever")
@pytest.mark.parametrize("how", ["nack", "wait", "flush", "shared"])
def test_what_does_not_wait_takes_along_what_does(how: str) -> None:
    async def go() -> None:
        desk = Desk(enough=10)
        row = desk.row(1)
        desk.decide(row, 0)
        await turns()
        assert desk.broker.sent == []
        if how == "nack":
            desk.decide(row, 1, action=Action.NACK)
        elif how == "wait":
            await desk.ask(row, 1)
        elif how == "flush":
            await desk.queue.flush()
        else:
            desk.decide(desk.row(2, epoch=0), 0)
        await turns()
        assert desk.broker.sent[0][0] is Action.ACK
        assert 0 in desk.broker.sent[0][1][1]

    run(go())


@pytest.mark.usefixtures("_waits_for_ever")
def test_acks_that_come_while_others_are_under_way_wait_too() -> None:
    async def go() -> None:
        desk = Desk(enough=3)
        row = desk.row(1)
        desk.broker.gate.clear()
        desk.decide(row, 0, 1, 2)
        await turns()
        desk.decide(row, 3)
        desk.broker.gate.set()
        await turns()
        assert len(desk.broker.sent) == 1
        desk.decide(row, 4, 5)
        await turns()
        assert [sent[1] for sent in desk.broker.sent] == [{1: [0, 1, 2]}, {1: [3, 4, 5]}]

    run(go())


def test_acks_do_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_GATHER_S", 0.0)

    async def go() -> None:
        desk = Desk(enough=10)
        desk.decide(desk.row(1), 0)
        await turns()
        assert [sent[1] for sent in desk.broker.sent] == [{1: [0]}]

    run(go())


def test_a_request_has_at_most_so_many_messages() -> None:
    async def go() -> None:
        desk = Desk()
        rows = [desk.row(number, 1) for number in range(5)]
        many = array("q", range(limits.MAX_HANDLES // 2))
        for row in rows:
            desk.queue.add(row, many, Action.ACK, NO_ARGUMENT, "", None)
        await desk.queue.flush()
        assert [list(sent[1]) for sent in desk.broker.sent] == [[0, 1], [2, 3], [4]]

    run(go())


def test_what_is_refused_is_told_to_who_waits_or_else_to_the_callback() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.broker.answers.append({1: [1, 2]})
        good, bad = desk.ask(row, 0), desk.ask(row, 1)
        desk.decide(row, 2)
        desk.decide(row, 3)
        await desk.queue.flush()
        assert good.result() is None
        assert isinstance(bad.exception(), StaleHandle)
        (refused,) = desk.refused
        assert (refused.message_id, refused.action) == ("orders:0:2", "ack")
        assert isinstance(refused.error, StaleHandle)

    run(go())


def test_the_second_of_two_decisions_about_a_message_is_refused_also_within_one_request() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.decide(row, 0)
        first, again = desk.ask(row, 1), desk.ask(row, 1, 2)
        desk.decide(row, 0)
        await desk.queue.flush()
        assert len(desk.broker.sent) == 1
        assert first.exception() is None
        assert isinstance(again.exception(), StaleHandle)
        assert [each.offset for each in desk.refused] == [0]
        assert row.settled == {0, 1, 2}

    run(go())


@pytest.mark.parametrize("lost", [Unavailable("lost"), RequestTimeout("late"), DiskFull("some of it could be done")])
def test_an_ack_whose_answer_was_lost_is_sent_again_as_such(lost: GoQueueError) -> None:
    """The broker tells what is settled from what somebody else has; so a refusal is one."""

    async def go() -> None:
        desk = Desk()
        row = desk.row(2)
        desk.broker.answers.extend([lost, {2: [1]}])
        good, bad = desk.ask(row, 0), desk.ask(row, 1)
        await good
        with pytest.raises(StaleHandle):
            await bad
        assert [each[0] for each in desk.broker.sent] == [Action.ACK, Action.ACK_AGAIN]

    run(go())


def test_a_refusal_of_another_decision_whose_answer_was_lost_counts_as_done() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.broker.answers.extend([Unavailable("lost"), {1: [0]}])
        await desk.ask(row, 0, action=Action.NACK)
        assert len(desk.broker.sent) == 2
        assert desk.refused == []

    run(go())


@pytest.mark.parametrize("where", ["connects", "answers"])
def test_a_refusal_after_nothing_was_done_is_a_refusal(where: str) -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        if where == "connects":
            desk.broker.connects.extend([Unavailable("nobody there"), RequestTimeout("nobody there")])
        else:
            desk.broker.answers.append(Busy("not now"))
        desk.broker.answers.append({1: [0]})
        future = desk.ask(row, 0)
        with pytest.raises(StaleHandle):
            await future

    run(go())


def test_an_extension_that_is_refused_is_refused_whatever_was_before() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.broker.answers.extend([Unavailable("lost"), {1: [0]}])
        with pytest.raises(StaleHandle):
            await desk.ask(row, 0, action=Action.EXTEND)
        assert row.unsettled == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # nobody extends it again
        assert desk.done == [row]

    run(go())


def test_retriable_errors_are_waited_out_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def backoff_s(failures: int) -> float:
        waits.append(failures)
        return 0.0

    monkeypatch.setattr(settling, "backoff_s", backoff_s)

    async def go() -> None:
        desk = Desk()
        desk.broker.connects.extend([Unavailable("nobody there")] * 2)
        desk.broker.answers.extend([Busy("not now"), DiskFull("no space")])
        await desk.ask(desk.row(1), 0)
        assert waits == [1, 2, 3, 4]

    run(go())


def test_what_could_not_be_settled_may_be_decided_again() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.broker.answers.append(InvalidRequest("no"))
        with pytest.raises(InvalidRequest):
            await desk.ask(row, 0)
        assert 0 in row.unsettled
        assert desk.done == []
        await desk.ask(row, 0)
        assert 0 not in row.unsettled

    run(go())


def test_a_broken_callback_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.is_broken = True
        desk.broker.answers.append({1: [0, 1]})
        desk.decide(row, 0)
        desk.decide(row, 1)
        after = desk.ask(row, 2)
        await desk.queue.flush()
        assert [each.offset for each in desk.refused] == [0, 1]
        assert after.result() is None

    run(go())
    assert "broken" in caplog.text


def test_a_flush_waits_for_what_was_decided_before_it_and_for_nothing_else() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1, 1000)
        await desk.queue.flush()
        desk.broker.gate.clear()
        desk.decide(row, 0)
        await turns()
        desk.decide(row, 1)
        flush = asyncio.create_task(desk.queue.flush())
        await turns()
        assert not flush.done()

        answered = 0

        async def decide_on_and_on() -> None:
            nonlocal answered
            for offset in range(2, 500):
                await desk.ask(row, offset)
                answered += 1

        busy = asyncio.create_task(decide_on_and_on())
        desk.broker.gate.set()
        await flush
        assert not busy.done()
        assert answered < 10
        await busy

    run(go())


def test_a_flush_that_is_given_up_disturbs_nobody() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.broker.gate.clear()
        desk.decide(row, 0)
        first, second = asyncio.create_task(desk.queue.flush()), asyncio.create_task(desk.queue.flush())
        await turns()
        first.cancel()
        await turns()
        desk.broker.gate.set()
        await second
        assert first.cancelled()

    run(go())


def test_closing_answers_everybody() -> None:
    async def go() -> None:
        desk = Desk()
        row = desk.row(1)
        desk.broker.gate.clear()
        under_way = desk.ask(row, 0)
        await turns()
        waiting = desk.ask(row, 1)
        desk.decide(row, 2, action=Action.NACK)
        flush = asyncio.create_task(desk.queue.flush())
        await turns()
        await desk.queue.close()
        for future in (under_way, waiting):
            assert str(future.exception()) == "the consumer was closed before the broker answered"
            assert isinstance(future.exception(), Unavailable)
        assert [(each.offset, each.action) for each in desk.refused] == [(2, "nack")]
        await flush

        late = desk.ask(row, 3)
        with pytest.raises(Unavailable, match="closed before this was decided"):
            await late
        await desk.queue.flush()
        await desk.queue.close()
        assert len(desk.broker.sent) == 1

    run(go())
