"""A member of a group: what it remembers between polls. The brokers say what a test tells them to, or are real ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.client.member import Delivered, Member, News, Some
from goqueue.model.errors import NotOwner, ProtocolError, RequestTimeout, Unavailable, UnknownMember
from goqueue.model.limits import MAX_HANDLES, MIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from goqueue.server.server import Server
from goqueue.wire.codes import CODES, POLL_BLOCK, SETTLE_BLOCK
from goqueue.wire.polls import UNKNOWN, PollReply, PollRequest, Row, unpack_poll_request
from goqueue.wire.settles import (
    NO_ARGUMENT,
    Action,
    Claim,
    OffsetRange,
    SettleRequest,
    pack_settle_reply,
    unpack_settle_request,
)
from tests.support.broker_server import running_server
from tests.unit.client.fake_broker import HOST, Peer, serving

ORDERS, PAYMENTS = 0x0102030405060708, 0xFFFFFFFFFFFFFFFF
NUMBER, TOKEN = 5, 77
TOPICS = {"orders": f"{ORDERS:016x}", "payments": f"{PAYMENTS:016x}"}
MEMBER: dict[str, Any] = {
    "member_id": "w-1", "generation": 3, "state": "stable", "assigned_partitions": ["orders-0"], "revoke": [],
}  # fmt: skip
Use = Callable[[Member], Awaitable[None]]


def news(**fields: Any) -> bytes:
    return msgspec.json.encode({**MEMBER, "topics": TOPICS, "leader": "w-1", "of a later broker": [1], **fields})


def row(next_offset: int = 2, **fields: Any) -> Row:
    return Row(ORDERS, 0, TOKEN, 3, next_offset, 1, 2, b"records")._replace(**fields)


def reply(number: int, *rows: Row, version: int = 7, news: bytes = b"") -> bytes:
    head = PollReply(number, version, 3, NUMBER, news, len(rows)).pack()
    return head + b"".join(each.pack_head() + bytes(each.block) for each in rows)


class GroupBroker:
    """Lets everybody in, and answers polls with what it was given, one after the other."""

    def __init__(self, *answers: bytes | Callable[[Peer], Awaitable[None]], joined: dict[str, Any] | None = None):
        self.answers = list(answers)
        self.joined = MEMBER if joined is None else joined
        self.polls: list[PollRequest] = []
        self.settles: list[SettleRequest] = []
        self.refused: list[tuple[OffsetRange, ...]] = []
        """Of each row, if something is to be refused."""
        self.asked: list[tuple[str, Any]] = []

    async def talk(self, peer: Peer) -> None:
        while True:
            request = await peer.read()
            if request.operation == SETTLE_BLOCK:
                settle = unpack_settle_request(request.payload)
                self.settles.append(settle)
                peer.reply(request, pack_settle_reply(self.refused or [() for _ in settle.claims]))
                continue
            if request.operation != POLL_BLOCK:
                names = {code: name for name, code in CODES.items()}
                self.asked.append((names[request.operation], msgspec.json.decode(request.payload)))
                peer.reply(request, msgspec.json.encode(self.joined))
                continue
            self.polls.append(unpack_poll_request(request.payload))
            answer = self.answers.pop(0)
            if isinstance(answer, bytes):
                peer.reply(request, answer)
            else:
                await answer(peer)


def consume(broker: GroupBroker, use: Use, *, call_timeout_s: float = 30.0, **fields: Any) -> None:
    async def both() -> None:
        async with (
            serving(broker.talk) as port,
            await Connection.connect(HOST, port, call_timeout_s=call_timeout_s) as connection,
        ):
            await use(await Member.join(connection, "billing", ["orders", "payments"], **fields))

    asyncio.run(both())


# ---------------------------------------------------------------- joining


def test_joining_says_who_and_what_and_hears_what_it_has() -> None:
    broker = GroupBroker()

    async def use(member: Member) -> None:
        assert (member.member_id, member.assigned) == ("w-1", ["orders-0"])
        assert member.news == News(
            member_id="w-1", generation=3, state="stable", assigned_partitions=["orders-0"], revoke=[]
        )

    consume(broker, use, client_id="w", session_timeout="10s", start="latest")
    fields = {"group": "billing", "client_id": "w", "topics": ["orders", "payments"], "session_timeout": "10s"}
    assert broker.asked == [("join_group", {**fields, "start": "latest"})]


@pytest.mark.parametrize("joined", [{}, {**MEMBER, "generation": "3"}, {**MEMBER, "revoke": [1]}], ids=range(3))
def test_an_answer_about_a_member_that_makes_no_sense_is_refused(joined: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="not understood"):
        consume(GroupBroker(joined=joined), lambda _: asyncio.sleep(0))


# ---------------------------------------------------------------- polling


def test_a_poll_asks_for_what_it_was_told_to() -> None:
    broker = GroupBroker(reply(0))

    async def use(member: Member) -> None:
        assert await member.poll(max_messages=5, max_bytes=1000, max_wait_ms=200, visibility_ms=9000) == []

    consume(broker, use)
    assert broker.polls == [PollRequest("billing", "w-1", 1000, 5, 200, 0, UNKNOWN, 9000)]


def test_messages_come_with_the_name_of_their_topic() -> None:
    broker = GroupBroker(
        reply(
            41,
            row(),
            row(9, topic_id=PAYMENTS, partition=4, token=78, deliveries=2, records=1, block=b"x"),
            news=news(),
        )
    )

    async def use(member: Member) -> None:
        assert await member.poll() == [
            Delivered("orders", 0, 3, 41, 2, 1, 2, memoryview(b"records"), ORDERS, NUMBER, TOKEN),
            Delivered("payments", 4, 3, 41, 9, 2, 1, memoryview(b"x"), PAYMENTS, NUMBER, 78),
        ]

    consume(broker, use)


def test_each_poll_says_what_arrived_and_what_is_known() -> None:
    broker = GroupBroker(
        reply(40, news=news()),
        reply(41, row(2)),
        reply(42),
        reply(43, row(4), version=8, news=news(revoke=["orders-0"], assigned_partitions=[])),
        reply(44),
    )

    async def use(member: Member) -> None:
        for _ in range(4):
            await member.poll()
        assert (member.assigned, member.news.revoke) == ([], ["orders-0"])
        await member.poll()
        assert member.news.revoke == ["orders-0"], "no news changes nothing"

    consume(broker, use)
    told = [(poll.received, poll.version) for poll in broker.polls]
    assert told == [(0, UNKNOWN), (0, 7), (41, 7), (41, 7), (43, 8)], "a reply without messages need not arrive"


def test_a_member_that_received_nothing_yet_says_so_and_not_that_it_keeps_no_track() -> None:
    """Else the first reply, when it is lost, would not come again, and the next commit would settle it."""

    async def lose(peer: Peer) -> None:
        await peer.hang_up()

    broker = GroupBroker(lose, reply(42, row(), news=news()))

    async def both() -> None:
        async with serving(broker.talk) as port:
            async with await Connection.connect(HOST, port) as first:
                member = await Member.join(first, "billing", ["orders"])
                with pytest.raises(Unavailable):
                    await member.poll()
            async with await Connection.connect(HOST, port) as second:
                member.connection = second
                assert len(await member.poll()) == 1

    asyncio.run(both())
    assert [poll.received for poll in broker.polls] == [0, 0]


def test_a_reply_that_comes_too_late_counts_as_lost() -> None:
    async def wait(peer: Peer) -> None:
        pass

    broker = GroupBroker(reply(41, row(2), news=news()), wait, reply(43, row(2)))

    async def use(member: Member) -> None:
        await member.poll()
        member.connection.call_timeout_s = 0.01
        with pytest.raises(RequestTimeout):
            await member.poll()
        member.connection.call_timeout_s = 30
        await member.poll()

    consume(broker, use)
    assert [poll.received for poll in broker.polls] == [0, 41, 41]


def test_a_poll_may_take_its_wait_beside_the_time_for_an_answer() -> None:
    async def later(peer: Peer) -> None:
        await asyncio.sleep(0.1)
        await peer.hang_up()

    async def use(member: Member) -> None:
        with pytest.raises(Unavailable, match="was lost"):
            await member.poll(max_wait_ms=60_000)

    consume(GroupBroker(later), use, call_timeout_s=0.05)


NOT_UNDERSTOOD = {
    "no reply": b"",
    "a reply without its end": reply(50, row(4))[:-1],
    "no JSON": reply(50, row(4), version=8, news=b"{"),
    "an array": reply(50, row(4), version=8, news=b"[]"),
    "no UTF-8": reply(50, row(4), version=8, news=b'{"state":"\xff"}'),
    "a field of the wrong kind": reply(50, row(4), version=8, news=news(generation="3")),
    "a topic id that is none": reply(50, row(4), version=8, news=news(topics={"orders": "no id"})),
    "very deep JSON": reply(50, row(4), version=8, news=news()[:-1] + b',"x":' + b"[" * 100_000),
}


@pytest.mark.parametrize("what", NOT_UNDERSTOOD)
def test_a_reply_that_is_not_understood_counts_as_lost(what: str) -> None:
    broker = GroupBroker(reply(41, row(2), news=news()), NOT_UNDERSTOOD[what], reply(51))

    async def use(member: Member) -> None:
        await member.poll()
        with pytest.raises(ProtocolError):
            await member.poll()
        assert member.assigned == ["orders-0"]
        await member.poll()

    consume(broker, use)
    assert [(poll.received, poll.version) for poll in broker.polls][-1] == (41, 7)


def test_messages_of_a_topic_nobody_told_of_count_as_lost_and_the_ids_are_asked_for_again() -> None:
    broker = GroupBroker(reply(41, row(topic_id=99), news=news()), reply(42, row(), news=news()))

    async def use(member: Member) -> None:
        with pytest.raises(ProtocolError, match="0000000000000063"):
            await member.poll()
        assert len(await member.poll()) == 1

    consume(broker, use)
    assert [(poll.received, poll.version) for poll in broker.polls] == [(0, UNKNOWN), (0, UNKNOWN)]


def test_messages_of_a_topic_that_was_deleted_are_still_named() -> None:
    gone = news(topics={"payments": TOPICS["payments"]})
    broker = GroupBroker(reply(41, news=news()), reply(42, row(), version=8, news=gone))

    async def use(member: Member) -> None:
        await member.poll()
        assert [each.topic for each in await member.poll()] == ["orders"]

    consume(broker, use)


# ---------------------------------------------------------------- committing, being there, leaving


def delivered(topic: str, partition: int, next_offset: int, poll: int = 41) -> Delivered:
    return Delivered(topic, partition, 3, poll, next_offset, 1, 1, memoryview(b"x"), ORDERS, NUMBER, TOKEN)


def commit(broker: GroupBroker, *commits: list[Delivered], **fields: Any) -> list[dict[str, Any]]:
    """What a member that commits these, one after the other, asks for."""

    async def both() -> None:
        async with serving(broker.talk) as port, await Connection.connect(HOST, port) as connection:
            member = Member(connection, "billing", msgspec.convert(MEMBER, News))
            for each in commits:
                await member.commit(each, **fields)

    asyncio.run(both())
    assert {name for name, _ in broker.asked} <= {"commit"}
    return [request for _, request in broker.asked]


def test_a_commit_names_the_highest_offset_of_each_partition() -> None:
    rows = [delivered("orders", 0, 9), delivered("orders", 0, 4), delivered("orders", 1, 5), delivered("p", 0, 1)]
    who = {"group": "billing", "member_id": "w-1"}
    offsets = {"orders": {"0": 9, "1": 5}, "p": {"0": 1}}
    assert commit(GroupBroker(), rows, []) == [{**who, "offsets": offsets, "received": 41}]
    (asked,) = commit(GroupBroker(), rows, generation=2)
    assert asked == {**who, "offsets": offsets, "received": 41, "generation": 2}


def test_a_commit_speaks_of_the_last_poll_of_each_partition_so_that_what_came_later_stays() -> None:
    rows = [delivered("orders", 0, 9, 41), delivered("orders", 1, 5, 41), delivered("orders", 0, 4, 42)]
    asked = commit(GroupBroker(), rows)
    assert [(each["received"], each["offsets"]) for each in asked] == [
        (42, {"orders": {"0": 9}}),
        (41, {"orders": {"1": 5}}),
    ]


def test_a_heartbeat_hears_what_there_is_to_give_up_and_forgets_no_topic() -> None:
    broker = GroupBroker(reply(41, news=news()), reply(42, row()))

    async def use(member: Member) -> None:
        await member.poll()
        broker.joined = {**MEMBER, "revoke": ["orders-0"]}
        await member.heartbeat()
        assert (member.news.revoke, member.news.topics) == (["orders-0"], TOPICS)
        assert len(await member.poll()) == 1
        await member.leave()

    consume(broker, use)
    who = {"group": "billing", "member_id": "w-1"}
    assert broker.asked[1:] == [("heartbeat", {**who, "generation": 3}), ("leave_group", who)]


def test_a_partition_that_is_refused_does_not_keep_others_from_being_settled_and_all_refusals_are_told() -> None:
    async def talk(peer: Peer) -> None:
        for refused in (("orders-0",), (), ("orders-2", "p-0")):
            request = await peer.read()
            if refused:
                peer.refuse(request, NotOwner("not yours", refused=refused))
            else:
                peer.reply(request, b'{"committed":true}')

    async def both() -> None:
        async with serving(talk) as port, await Connection.connect(HOST, port) as connection:
            member = Member(connection, "billing", msgspec.convert(MEMBER, News))
            rows = [delivered("orders", number, 9, poll=number) for number in range(3)]
            with pytest.raises(NotOwner, match="not yours") as refusal:
                await member.commit(rows)
            assert refusal.value.refused == ["orders-0", "orders-2", "p-0"]

    asyncio.run(both())


# ---------------------------------------------------------------- settling message by message


def holding(*offsets: int, **fields: Any) -> Delivered:
    """Messages with these offsets."""
    block = bytes(codec.encode([Record(offset=offset, value=b"x") for offset in offsets]))
    return delivered("orders", 0, offsets[-1] + 1)._replace(block=memoryview(block), **fields)


def settle(broker: GroupBroker, work: Callable[[Member], Awaitable[list[Some]]]) -> list[Some]:
    """What was refused."""
    refused: list[Some] = []

    async def use(member: Member) -> None:
        refused.extend(await work(member))

    consume(broker, use)
    return refused


def test_what_was_delivered_is_settled_by_its_offsets_with_one_request() -> None:
    broker = GroupBroker()
    rows = [holding(4, 5, 6), holding(9, 11, 12, topic_id=PAYMENTS, partition=3, poll=42, token=78)]
    assert settle(broker, lambda member: member.ack(rows)) == []
    claims = [
        Claim(ORDERS, 0, 41, TOKEN, ((4, 7),)),
        Claim(PAYMENTS, 3, 42, 78, ((9, 10), (11, 13))),
    ]
    assert broker.settles == [SettleRequest(Action.ACK, NUMBER, claims)]


def test_some_of_what_was_delivered_is_named_by_its_offsets_in_any_order() -> None:
    broker = GroupBroker()
    row = holding(4, 5, 6, 7)
    assert settle(broker, lambda member: member.ack([(row, [7, 4, 5, 4])])) == []
    assert [claim.ranges for claim in broker.settles[0].claims] == [((4, 6), (7, 8))]


def test_each_way_of_settling_says_what_it_was_told() -> None:
    broker = GroupBroker()
    row = [holding(4)]

    async def work(member: Member) -> list[Some]:
        return [
            *await member.nack(row),
            *await member.nack(row, delay_ms=0),
            *await member.reject(row, "no such customer"),
            *await member.extend(row, 9000),
        ]

    assert settle(broker, work) == []
    assert [(each.action, each.argument, each.reason) for each in broker.settles] == [
        (Action.NACK, NO_ARGUMENT, ""),
        (Action.NACK, 0, ""),
        (Action.REJECT, NO_ARGUMENT, "no such customer"),
        (Action.EXTEND, 9000, ""),
    ]


def test_what_was_refused_is_told_message_by_message() -> None:
    broker = GroupBroker()
    broker.refused = [(), ((4, 5), (6, 8))]
    rows = [holding(1), holding(4, 5, 6, 7)]
    assert settle(broker, lambda member: member.ack(rows)) == [(rows[1], [4, 6, 7])]


def test_nothing_to_settle_asks_for_nothing() -> None:
    broker = GroupBroker()
    assert settle(broker, lambda member: member.ack([(holding(1), [])])) == []
    assert broker.settles == []


def test_more_than_a_request_may_name_takes_several() -> None:
    broker = GroupBroker()
    row, half = holding(1), MAX_HANDLES // 2
    rows = [(row, range(half)), (row, range(half, 2 * half)), (row, [2 * half])]
    assert settle(broker, lambda member: member.ack(rows)) == []
    ranges = [[claim.ranges for claim in each.claims] for each in broker.settles]
    assert ranges == [[((0, half),), ((half, 2 * half),)], [((2 * half, 2 * half + 1),)]]


def test_messages_of_a_group_that_was_made_again_are_settled_apart() -> None:
    broker = GroupBroker()
    assert settle(broker, lambda member: member.ack([holding(1), holding(2), holding(1, group=6)])) == []
    assert [(each.group, len(each.claims)) for each in broker.settles] == [(NUMBER, 2), (6, 1)]


def test_an_answer_about_other_rows_is_not_understood() -> None:
    broker = GroupBroker()
    broker.refused = [((1, 2),), ((1, 2),)]
    with pytest.raises(ProtocolError):
        settle(broker, lambda member: member.ack([holding(1)]))


# ---------------------------------------------------------------- a real broker


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Connection]:
    host, _, port = server.endpoints["wire"].rpartition(":")
    async with await Connection.connect(host, int(port)) as connection:
        yield connection


async def publish(connection: Connection, topic_id: int, *values: bytes, partition: int = 0) -> None:
    block = bytes(codec.encode([Record(value=value) for value in values]))
    await connection.publish_block(topic_id, partition, block, acks=Acks.LEADER)


async def create(connection: Connection, partitions: int = 1) -> int:
    request = {"name": "orders", "num_partitions": partitions}
    return int((await connection.ask(CODES["create_topic"], request))["topic_id"], 16)


async def poll_some(member: Member, **bounds: int) -> list[Delivered]:
    """Until there are messages."""
    while True:
        delivered = await member.poll(max_wait_ms=20_000, **bounds)
        if delivered:
            return delivered


def values(delivered: list[Delivered]) -> list[bytes | None]:
    return [record.value for each in delivered for record in codec.decode(bytes(each.block))]


def serve(tmp_path: Path, use: Callable[[Server, Connection], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with running_server(tmp_path) as server, connected(server) as connection:
            await use(server, connection)

    asyncio.run(scenario())


def test_what_is_committed_does_not_come_again_and_the_rest_does(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"a", b"b", b"c")
        member = await Member.join(connection, "billing", ["orders"])
        first = await poll_some(member, max_messages=2)
        assert values(first) == [b"a", b"b"]
        await member.commit(first)
        assert values(await poll_some(member)) == [b"c"]
        await member.leave()
        with pytest.raises(UnknownMember):
            await member.poll()
        again = await poll_some(await Member.join(connection, "billing", ["orders"]))
        assert (values(again), again[0].deliveries) == ([b"c"], 2)

    serve(tmp_path, use)


def test_a_poll_that_waits_is_woken_by_a_message(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        member = await Member.join(connection, "billing", ["orders"])
        waiting = asyncio.ensure_future(poll_some(member))
        await asyncio.sleep(0)
        async with connected(server) as another:
            await publish(another, topic_id, b"a")
        assert values(await waiting) == [b"a"]

    serve(tmp_path, use)


def test_a_reply_that_was_lost_comes_again_as_if_it_had_not_been_made(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"a")
        member = await Member.join(connection, "billing", ["orders"])
        for arrived, following in ((b"a", b"b"), (b"b", b"c")):
            received = member._received
            assert values(await poll_some(member)) == [arrived]
            member._received = received  # as if the connection had been lost on the way
            again = await poll_some(member)
            assert (values(again), again[0].deliveries) == ([arrived], 1)
            await publish(connection, topic_id, following)

    serve(tmp_path, use)


def test_a_member_goes_on_over_another_connection(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"a", b"b")
        async with connected(server) as first:
            member = await Member.join(first, "billing", ["orders"])
            delivered = await poll_some(member, max_messages=1)
        member.connection = connection
        assert values(await poll_some(member)) == [b"b"]
        await member.commit(delivered)
        await member.leave()

    serve(tmp_path, use)


def test_partitions_move_to_whoever_joins_and_a_late_commit_is_refused_for_them(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection, partitions=2)
        for partition in (0, 1):
            await publish(connection, topic_id, b"a", partition=partition)
        one = await Member.join(connection, "billing", ["orders"])
        had = [*await poll_some(one, max_messages=1), *await poll_some(one, max_messages=1)]
        assert one.assigned == ["orders-0", "orders-1"]
        async with connected(server) as another:
            two = await Member.join(another, "billing", ["orders"])
            assert two.assigned == []
            await one.heartbeat()
            (moving,) = one.news.revoke
            await one.commit(had)
            await one.heartbeat()
            assert one.news.revoke == []
            while not two.assigned:
                await two.poll(max_wait_ms=20_000)
            assert two.assigned == [moving]
            with pytest.raises(NotOwner, match=moving) as refusal:
                await one.commit(had)
            assert refusal.value.refused == [moving]

    serve(tmp_path, use)


def test_a_large_message_comes_also_to_who_asked_for_less(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"x" * (MIB // 2), b"y")
        member = await Member.join(connection, "billing", ["orders"])
        assert [len(value or b"") for value in values(await poll_some(member, max_bytes=1))] == [MIB // 2]
        assert values(await poll_some(member, max_bytes=1)) == [b"y"]

    serve(tmp_path, use)


def test_messages_are_settled_one_by_one_and_the_rest_comes_again(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"a", b"b", b"c", b"d", b"e")
        member = await Member.join(connection, "billing", ["orders"])
        (row,) = await poll_some(member)
        assert row.ranges == ((0, 5),)
        assert await member.ack([(row, [0, 2])]) == []
        assert await member.reject([(row, [4])], "no good") == []
        assert await member.extend([(row, [3])], 60_000) == []
        assert await member.nack([(row, [1, 3])], delay_ms=0) == []
        again = await poll_some(member)
        assert (values(again), again[0].ranges, again[0].deliveries) == ([b"b", b"d"], ((1, 2), (3, 4)), 2)
        assert await member.ack([row]) == [(row, [0, 1, 2, 3, 4])], "all of it is settled, or delivered again"
        assert await member.ack(again) == []
        group = server.broker.groups.machine.group("billing")
        assert server.broker.topics.named("orders").partition(0).deliveries.in_flight(group.number) == 0

    serve(tmp_path, use)


def test_what_is_held_for_a_time_of_its_own_comes_again_when_that_is_over(tmp_path: Path) -> None:
    async def use(server: Server, connection: Connection) -> None:
        topic_id = await create(connection)
        await publish(connection, topic_id, b"a")
        member = await Member.join(connection, "billing", ["orders"], visibility="1h")
        first = await poll_some(member, visibility_ms=1)
        again = await poll_some(member)
        assert (values(again), again[0].deliveries) == ([b"a"], 2)
        assert len(await member.ack(first)) == 1
        assert await member.ack(again) == []

    serve(tmp_path, use)
