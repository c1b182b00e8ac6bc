"""settle_block: whose rows are good, what is refused of them, when it is answered, and what it holds until then."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pytest

from goqueue import codec
from goqueue.api.listening import T, Undo
from goqueue.api.service import Service
from goqueue.api.wire import polling
from goqueue.api.wire.connection import wire_meters
from goqueue.api.wire.requests import Requests
from goqueue.broker.admission import NOTHING, Admission, Ticket
from goqueue.broker.poll import Polled
from goqueue.model import limits
from goqueue.model.errors import DiskFull
from goqueue.model.groups import Mode
from goqueue.model.settings import Fsync
from goqueue.telemetry.meters import Consumption, RequestMeterSet
from goqueue.wire import frames, settles
from goqueue.wire.codes import CODES, SETTLE_BLOCK
from goqueue.wire.failures import unpack_error
from goqueue.wire.frames import Bytes
from goqueue.wire.polls import PollRequest, unpack_poll_reply
from goqueue.wire.settles import NO_ARGUMENT, Action, Claim, OffsetRange, SettleRequest
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_syncs import syncs_held
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.consumers import GROUP, TOPIC, Consumers, consuming, deliveries_of, numbered, texts
from tests.unit.broker.test_poll import consume
from tests.unit.broker.writers import Writer

Ranges = tuple[OffsetRange, ...]


class Sent(NamedTuple):
    correlation: int
    payload: bytes
    status: int
    reserved: int


class StandIn:
    """A connection that keeps what it is told to send."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.drained = asyncio.Event()
        self.sent: list[Sent] = []
        self.spawned: list[asyncio.Task[None]] = []
        self.pending = 0
        self.requests = Admission(limits.MAX_CONNECTION_BYTES)
        self.replies = Admission(limits.MAX_CONNECTION_BYTES)
        self.has_room = True

    @property
    def held(self) -> int:
        return self.requests.held

    @property
    def reserved(self) -> int:
        return self.replies.held

    def begin(self, size: int = 0) -> Ticket:
        self.pending += 1
        return self.requests.take_anyway(size)

    def end(self, held: Ticket = NOTHING) -> None:
        self.pending -= 1
        held.give()

    def try_reserve(self, size: int) -> Ticket | None:
        return self.replies.try_take(size) if self.has_room else None

    async def reserve(self, size: int) -> Ticket:
        raise NotImplementedError

    def send(
        self,
        operation: int,
        correlation: int,
        *parts: Bytes,
        room: Ticket = NOTHING,
        status: int = frames.OK,
        undo: Undo | None = None,
    ) -> None:
        assert (operation, undo) == (SETTLE_BLOCK, None)
        self.sent.append(Sent(correlation, b"".join(parts), status, room.size))
        room.give()

    def spawn(self, work: Coroutine[Any, Any, None], *, parked: bool = False) -> None:
        assert not parked, "it is finished for its own sake"
        self.spawned.append(self.loop.create_task(work))

    async def park(self, work: Awaitable[T]) -> T:
        raise NotImplementedError


class Settling:
    """A door to the broker that some members consume from."""

    def __init__(self, to: Consumers) -> None:
        self.to = to
        self.broker = to.broker
        self.connection = StandIn()
        meters = RequestMeterSet(doors=("wire",), operations=CODES)
        self.service = Service(to.broker, requests=meters, client_defaults={})
        self._requests = Requests(self.service, wire_meters(self.service), self.connection)

    def claims(self, polled: Polled, ranges: Ranges | None = None) -> list[Claim]:
        """Of what was polled, as the reply tells it; all of it unless told which."""
        packed = polling.pack(self.broker, PollRequest(GROUP, "", 1, 1), polled)
        reply, rows = unpack_poll_reply(b"".join(packed))
        assert (reply.number, reply.group) == (polled.number, polled.group.number)
        found = []
        for row in rows:
            offsets = codec.scan(row.block).offsets
            whole = tuple((offset, offset + 1) for offset in offsets)
            found.append(Claim(row.topic_id, row.partition, reply.number, row.token, ranges or whole))
        return found

    def send(
        self,
        action: Action,
        claims: list[Claim],
        *,
        argument: int = NO_ARGUMENT,
        reason: str = "",
        group: int = 1,
        writer: settles.Writer | None = None,
    ) -> None:
        payload = bytearray(SettleRequest(action, group, claims, argument, reason, writer).pack())
        self._requests.handle(SETTLE_BLOCK, len(self.connection.sent), memoryview(payload), perf_counter())
        payload[:] = bytes(len(payload))  # the memory is the door's again

    def settle(self, action: Action, claims: list[Claim], **more: Any) -> list[Ranges]:
        """What was refused; the answer has to be there at once."""
        self.send(action, claims, **more)
        assert not self.connection.spawned
        return self.answer(claims)

    def answer(self, claims: list[Claim]) -> list[Ranges]:
        """What was refused, as the last answer says."""
        sent = self.connection.sent.pop()
        assert sent.status == frames.OK, sent.payload
        assert (sent.correlation, self.connection.pending, self.connection.held) == (len(self.connection.sent), 0, 0)
        assert self.connection.reserved == 0
        return settles.unpack_settle_reply(sent.payload, len(claims))

    @property
    def refusal(self) -> str:
        """The code of the error that was answered last."""
        sent = self.connection.sent.pop()
        assert sent.status == frames.ERROR
        assert (self.connection.pending, self.connection.held, self.connection.reserved) == (0, 0, 0)
        return unpack_error(sent.payload).code

    @property
    def counted(self) -> Consumption:
        return self.broker.group_meters.of(GROUP).consumption(TOPIC)


def settle(
    tmp_path: Path, scenario: Callable[[Settling, Polled, str], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    """A member that was delivered five messages."""

    async def consumed(to: Consumers, member: str) -> None:
        to.put(*numbered(5))
        polled = await to.poll(member)
        assert len(texts(polled)) == 5
        await scenario(Settling(to), polled, member)

    consume(tmp_path, consumed, **settings)


# ---------------------------------------------------------------- what is settled


def test_ranges_are_acked_and_the_rest_is_not(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        assert door.settle(Action.ACK, door.claims(polled, ((0, 1), (2, 4)))) == [()]
        assert (await door.to.lag())[0].lag == 2
        assert door.settle(Action.ACK, door.claims(polled)) == [((0, 1), (2, 4))], "those were settled before"
        assert await door.to.offsets() == {TOPIC: {0: 5}}
        assert door.counted.acked == 5

    settle(tmp_path, scenario)


def test_what_is_nacked_comes_again_when_it_is_told_to_or_the_topic_says(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        assert door.settle(Action.NACK, door.claims(polled, ((0, 2),)), argument=5000) == [()]
        assert door.settle(Action.NACK, door.claims(polled, ((4, 5),))) == [()]
        assert door.settle(Action.NACK, door.claims(polled, ((3, 5),)), argument=0) == [((4, 5),)]
        await door.to.pass_by(0)
        assert await door.to.texts(member) == ["m3"]
        await door.to.pass_by(1000)
        assert await door.to.texts(member) == ["m4"]
        await door.to.pass_by(4000)
        again = await door.to.poll(member)
        assert (texts(again), deliveries_of(again)) == (["m0", "m1"], [2, 2])
        assert (door.counted.nacked, door.counted.acked) == (4, 0)

    settle(tmp_path, scenario)


def test_what_is_rejected_goes_to_the_dead_letters_with_the_reason(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        assert door.settle(Action.REJECT, door.claims(polled, ((1, 3),)), reason="no such customer") == [()]
        letters = await door.to.letters()
        assert [(record.value, story.detail) for record, story in letters] == [
            (b"m1", "no such customer"),
            (b"m2", "no such customer"),
        ]
        assert door.counted.rejected == 2

    settle(tmp_path, scenario)


def test_what_is_extended_is_held_longer(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        assert door.settle(Action.EXTEND, door.claims(polled, ((0, 2),)), argument=20_000) == [()]
        await door.to.pass_by(10_000)
        assert await door.to.texts(member) == ["m2", "m3", "m4"]
        assert door.settle(Action.EXTEND, door.claims(polled), argument=20_000) == [((2, 5),)]
        await door.to.pass_by(19_999)
        assert "m0" not in await door.to.texts(member)
        await door.to.pass_by(1)
        assert await door.to.texts(member) == ["m0", "m1"]

    settle(tmp_path, scenario, visibility_ms=10_000)


@pytest.mark.parametrize("commits", [True, False])
def test_what_is_pledged_is_settled_if_the_transaction_is_committed(tmp_path: Path, commits: bool) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        writer = await (await Writer.make(door.to)).begin()
        pledge: dict[str, Any] = {
            "argument": writer.number,
            "writer": settles.Writer(writer.producer_id, writer.epoch),
        }
        assert door.settle(Action.PLEDGE, door.claims(polled, ((0, 3),)), **pledge) == [()]
        assert door.settle(Action.ACK, door.claims(polled, ((2, 4),))) == [((2, 3),)], "it is the transaction's"
        assert door.settle(Action.EXTEND, door.claims(polled, ((0, 3),)), argument=1000) == [((0, 3),)]
        assert door.settle(Action.PLEDGE, door.claims(polled, ((0, 5),)), **pledge) == [((0, 4),)]
        assert door.settle(Action.PLEDGE_AGAIN, door.claims(polled, ((0, 5),)), **pledge) == [((3, 4),)]
        assert [part.acks for part in door.broker.transactions.parts(writer.transaction)] == [4]
        if commits:
            await writer.commit(messages=0, acks=4)
            assert (await door.to.lag())[0].lag == 0
        else:
            await writer.abort()
            assert door.to.deliveries().waiting(door.to.group().number) == 4, "as after a nack"
            assert (await door.to.lag())[0].lag == 4

    settle(tmp_path, scenario)


def test_a_pledge_to_what_is_not_open_or_somebody_elses_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        writer = await (await Writer.make(door.to, "t")).begin()
        other = await (await Writer.make(door.to)).begin()

        def refusal(number: int, who: Writer) -> str:
            name = settles.Writer(who.producer_id, who.epoch)
            door.send(Action.PLEDGE, door.claims(polled), argument=number, writer=name)
            return door.refusal

        assert refusal(writer.number, other) == "conflict"
        assert refusal(999, writer) == "unknown_transaction"
        await other.abort()
        assert refusal(other.number, other) == "transaction_aborted"
        await Writer.make(door.to, "t")
        assert refusal(writer.number, writer) == "producer_fenced"
        assert door.settle(Action.ACK, door.claims(polled)) == [()], "nothing was taken"

    settle(tmp_path, scenario)


def test_rows_of_one_partition_and_of_several_go_together(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.put(*numbered(4), partition=partition)
            member = (await to.join()).member_id
            door = Settling(to)
            first, second = await to.poll(member, max_messages=3), await to.poll(member)
            claims = [*door.claims(first), *door.claims(second)]
            assert len(claims) == 3
            twice = [*claims, claims[0]]
            assert door.settle(Action.ACK, twice) == [(), (), (), ()], "a row that comes twice is settled once"
            assert await to.offsets() == {TOPIC: {0: 4, 1: 4}}
            assert door.counted.acked == 8

    run_timed(go())


# ---------------------------------------------------------------- what is refused


def test_a_row_is_good_with_its_own_token_only_and_does_not_spoil_the_others(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        (good,) = door.claims(polled, ((0, 2),))
        wrong = good._replace(ranges=((2, 3), (4, 5)))
        bad = [
            wrong._replace(token=wrong.token ^ 1),
            wrong._replace(token=0),
            wrong._replace(token=2**64 - 1),
            wrong._replace(poll=wrong.poll + 1),
            wrong._replace(partition=1),
            wrong._replace(topic_id=wrong.topic_id ^ 1),
        ]
        assert door.settle(Action.ACK, [*bad, good]) == [wrong.ranges] * len(bad) + [()]
        assert door.settle(Action.ACK, [wrong], group=2) == [wrong.ranges], "the token is of another group"
        assert (await door.to.lag())[0].lag == 3

    settle(tmp_path, scenario)


def test_a_row_with_a_good_token_for_what_is_not_there_is_refused_whole(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        topic_id = polled.rows[0].topic.meta.topic_id

        def claim(topic_id: Any, partition: int, group: Any) -> Claim:
            token = door.broker.handles.token(topic_id, partition, group, polled.number)
            return Claim(topic_id, partition, polled.number, token, ((0, 2),))

        number = door.to.group().number
        for row, group in (
            (claim(topic_id ^ 1, 0, number), number),
            (claim(topic_id, 7, number), number),
            (claim(topic_id, 2**32 - 1, number), number),
            (claim(topic_id, 0, 99), 99),
        ):
            assert door.settle(Action.ACK, [row], group=group) == [((0, 2),)]
        assert door.settle(Action.ACK, [claim(topic_id, 0, number)], group=number) == [()]

    settle(tmp_path, scenario)


def test_what_was_deleted_is_refused(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        claims = door.claims(polled)
        await door.to.leave(member)
        await door.broker.groups.delete(GROUP)
        assert door.settle(Action.ACK, claims) == [claims[0].ranges]
        member = (await door.to.join()).member_id
        again = await door.to.poll(member)
        assert door.settle(Action.ACK, claims, group=again.group.number) == [claims[0].ranges]
        claims = door.claims(again)
        await door.to.delete()
        assert door.settle(Action.ACK, claims, group=again.group.number) == [claims[0].ranges]

    settle(tmp_path, scenario)


def test_what_went_to_another_member_is_refused(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        claims = door.claims(polled)
        await door.to.leave(member)
        other = (await door.to.join()).member_id
        assert len(texts(await door.to.poll(other))) == 5
        for action, argument in ((Action.ACK, NO_ARGUMENT), (Action.EXTEND, 1000)):
            assert door.settle(action, claims, argument=argument) == [((0, 5),)]

    settle(tmp_path, scenario)


def test_a_row_settles_as_long_as_its_poll_is_the_last_that_was_delivered_the_message(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        await door.to.pass_by(10_000)
        assert door.settle(Action.NACK, door.claims(polled, ((0, 1),)), argument=0) == [((0, 1),)], "too late"
        assert door.settle(Action.ACK, door.claims(polled, ((0, 2),))) == [()]
        again = await door.to.poll(member)
        assert door.settle(Action.ACK, door.claims(polled)) == [((0, 5),)]
        assert door.settle(Action.ACK, door.claims(again)) == [()]

    settle(tmp_path, scenario, visibility_ms=10_000)


def test_bytes_that_are_no_settle_request_are_refused_and_settle_nothing(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        claims = door.claims(polled)
        door.send(Action.EXTEND, claims)
        assert door.refusal == "protocol_error"
        door.send(Action.ACK, [claims[0], claims[0]._replace(ranges=((3, 3),))])
        assert door.refusal == "protocol_error"
        assert (await door.to.lag())[0].lag == 5
        (meters,) = (each for each in door.service.requests if each.operation == "settle_block")
        assert meters.codes.counts == {"protocol_error": 2}

    settle(tmp_path, scenario)


def test_what_cannot_be_written_down_fails_the_request_and_may_be_sent_again(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        def fail(*_: object) -> None:
            raise DiskFull("no space")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(door.broker.sidecars, "write", fail)
            door.send(Action.ACK, door.claims(polled))
        assert door.refusal == "disk_full"
        assert door.settle(Action.ACK, door.claims(polled)) == [()]
        assert door.counted.acked == 5

    settle(tmp_path, scenario)


# ---------------------------------------------------------------- when it is answered, and what it holds


@pytest.mark.parametrize("fsync", [Fsync.NONE, Fsync.INTERVAL])
def test_the_answer_goes_out_in_the_same_turn_unless_something_has_to_be_waited_for(
    tmp_path: Path, fsync: Fsync
) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        sidecar = door.to.partition().sidecar
        assert sidecar is not None
        assert sidecar.log.settings.fsync is fsync
        assert door.settle(Action.ACK, door.claims(polled)) == [()]

    settle(tmp_path, scenario, fsync=fsync)


def test_under_fsync_every_the_answer_waits_for_the_disk_and_holds_only_itself(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(fsync=Fsync.EVERY)
            to.put(*numbered(5))
            member = (await to.join()).member_id
            claims = (door := Settling(to)).claims(await to.poll(member))
            with syncs_held(disk, "/sidecar/") as held:
                door.send(Action.ACK, claims)
                await held.reached()
                await turns()
                assert door.connection.sent == []
                assert (door.connection.pending, door.connection.held) == (1, settles.REFUSED.size)
                held.release()
            await asyncio.gather(*door.connection.spawned)
            assert door.answer(claims) == [()]

    run_timed(go())


def test_a_member_that_was_to_give_a_partition_up_has_finished_with_the_last_message(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.put("m", partition=partition)
            one = (await to.join()).member_id
            door = Settling(to)
            claims = door.claims(await to.poll(one))
            two = (await to.join()).member_id
            await to.heartbeat(one)
            await to.heartbeat(one)
            assert len(to.owned(one)) == 2
            door.send(Action.ACK, claims)
            assert door.connection.sent == [], "it is told when that is sure"
            await asyncio.gather(*door.connection.spawned)
            assert door.answer(claims) == [()] * len(claims)
            assert (len(to.owned(one)), len(to.owned(two))) == (1, 1)

    run_timed(go())


def test_settling_wakes_a_member_that_held_as_much_as_it_may(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put(*numbered(3))
            member = (await to.join(mode=Mode.SHARED, max_unacked=2)).member_id
            polled = await to.poll(member)
            assert texts(polled) == ["m0", "m1"]
            waiting = await to.parked(member)
            door = Settling(to)
            assert door.settle(Action.ACK, door.claims(polled, ((1, 2),))) == [()]
            assert texts(await waiting) == ["m2"]

    run_timed(go())


def test_a_reply_that_could_be_large_needs_room_before_anything_is_settled(tmp_path: Path) -> None:
    async def scenario(door: Settling, polled: Polled, member: str) -> None:
        (claim,) = door.claims(polled, ((0, limits.MAX_HANDLES),))
        door.connection.has_room = False
        door.send(Action.ACK, [claim])
        assert door.refusal == "busy"
        assert (await door.to.lag())[0].lag == 5
        assert door.settle(Action.ACK, [claim._replace(ranges=((0, 2),))]) == [()], "a small one needs none"
        door.connection.has_room = True
        assert door.settle(Action.ACK, [claim]) == [((0, 2), (5, limits.MAX_HANDLES))]

    settle(tmp_path, scenario)


def test_the_time_to_settle_is_the_polls_own_if_it_names_one(tmp_path: Path) -> None:
    async def scenario(to: Consumers, member: str) -> None:
        to.put("a")
        for asked_ms, lasts_ms in ((500, 500), (0, 10_000)):
            request = PollRequest(GROUP, member, 1000, 10, visibility_ms=asked_ms)
            turn = await polling.park(to.broker, request)
            assert texts(await polling.take(to.broker, request, turn)) == ["a"]
            await to.pass_by(lasts_ms - 1)
            assert await to.texts(member) == []
            await to.pass_by(1)

    consume(tmp_path, scenario, visibility_ms=10_000)
