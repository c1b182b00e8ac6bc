"""Frames nobody thought of, against a broker in this process: nothing goes wrong inside, and it answers on."""

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goqueue import codec
from goqueue.model.record import Extension, Producer, Record
from goqueue.wire import frames
from goqueue.wire.blocks import FETCH_REQUEST, PUBLISH_REQUEST
from goqueue.wire.codes import CODES, FETCH_BLOCK, POLL_BLOCK, PUBLISH_BLOCK, SETTLE_BLOCK
from goqueue.wire.polls import POLL_REQUEST, PollRequest, unpack_poll_reply
from goqueue.wire.settles import CLAIM, OFFSETS, SETTLE_REQUEST
from tests.support.hostile import until
from tests.support.patience import PATIENCE_S
from tests.support.raw_wire import Target, a_target, block, call, frame

SOMEBODY = Producer(1, 0, 0)
NUMBERS = st.sampled_from([0, 1, 2, 7, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1])
FIELD_NAMES = st.sampled_from(
    ["topic", "topics", "partition", "name", "num_partitions", "value", "messages", "producer_id", "epoch", "sequence",
     "offset", "limit", "max_bytes", "from_time", "timestamp", "acks", "key", "headers", "count", "verbose", "internal",
     "group", "member_id", "client_id", "received", "revoked", "offsets", "generation", "timeout", "to", "start"]
)  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.sampled_from(["junk", "", "all", "0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELD_NAMES | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
HARMLESS = sorted(
    code for name, code in CODES.items() if name not in ("create_topic", "delete_topic", "add_partitions")
)
"""Operations that may also succeed: what they do is small."""


GROUP = b"billing"
HELD = 100
"""Messages that may be settled."""


@st.composite
def poll_payloads(draw: st.DrawFn, member_id: bytes) -> bytes:
    """Mostly of the member there is, who says that it received anything."""
    names = [GROUP, member_id]
    if draw(st.integers(0, 9)) == 0:
        names[draw(st.integers(0, 1))] = draw(st.sampled_from([b"nobody", b"", b"\xff"]) | st.binary(max_size=255))
    group, member = names
    received, version = (draw(st.sampled_from([-1, -1, 0, 0, 0, 1, 2**62 - 1, 2**62, 2**63 - 1, -2])) for _ in range(2))
    size, count = (draw(st.sampled_from([1, 1, 100, 2**20, 2**32 - 1, 0])) for _ in range(2))
    wait_ms, visibility_ms = (draw(st.sampled_from([0, 0, 1, 2**32 - 1])) for _ in range(2))
    lengths = [len(group), len(member)]
    if draw(st.integers(0, 9)) == 0:
        lengths[draw(st.integers(0, 1))] = draw(st.integers(0, 255))
    return POLL_REQUEST.pack(received, version, size, count, wait_ms, visibility_ms, *lengths) + group + member


class Held(NamedTuple):
    """What a member of another group was delivered, and has not settled."""

    topic_id: int
    group: int
    poll: int
    token: int


@st.composite
def settle_payloads(draw: st.DrawFn, held: Held) -> bytes:
    """Of messages that are held, with a token that is good; or something of it is not so."""
    odd = draw(st.booleans())

    def either(good: int, *others: int) -> int:
        return draw(st.sampled_from([good, good, good, *others])) if odd else good

    action = draw(st.sampled_from([1, 2, 3, 4]))
    argument = draw(st.sampled_from({2: [-1, 0, 1000], 4: [1, 1000, 3600_000]}.get(action, [-1])))
    reason = draw(st.sampled_from([b"", b"no", b"\xff", b"x" * 4001])) if odd and action == 3 else b""
    count = draw(st.integers(1, 3))
    rows = b""
    for _ in range(count):
        position, ranges = draw(st.integers(0, HELD)), b""
        steps = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3))
        for gap, length in steps:
            end = position + gap + either(length, 0, 9000)
            ranges += OFFSETS.pack(position + gap, end)
            position = end
        rows += CLAIM.pack(
            either(held.topic_id, 0, 2**64 - 1),
            either(0, 1, 2**32 - 1),
            either(held.poll, 0, -1, 2**62, 2**63 - 1),
            either(held.token, 0, 2**64 - 1),
            either(len(steps), 0, 2**32 - 1),
        )
        rows += ranges
    head = SETTLE_REQUEST.pack(
        either(action, 0, 255),
        either(argument, -2, 0, 2**31, 2**63 - 1),
        len(reason),
        either(count, 0, 65535),
        either(held.group, 0, -1, 2**63 - 1),
    )
    return head + reason + rows


@st.composite
def payloads(draw: st.DrawFn, topic_id: int, member_id: bytes, held: Held) -> tuple[int, bytes]:
    """An operation and a payload that is right, nearly right, or nothing of the kind."""
    kind = draw(
        st.sampled_from(
            ["publish", "publish", "fetch", "poll", "poll", "poll", "settle", "settle", "settle", "json", "bytes"]
        )
    )
    if kind == "poll":
        return POLL_BLOCK, draw(poll_payloads(member_id))
    if kind == "settle":
        return SETTLE_BLOCK, draw(settle_payloads(held))
    if kind == "bytes":
        return draw(st.sampled_from([*CODES.values(), 0, 999])), draw(st.binary(max_size=200))
    if kind == "json":
        fields = draw(st.dictionaries(FIELD_NAMES, JSON_VALUES, max_size=5))
        return draw(st.sampled_from(HARMLESS)), json.dumps(fields).encode()
    topic = draw(st.sampled_from([topic_id, topic_id, topic_id, 0, 2**64 - 1]))
    partition = draw(st.sampled_from([0, 0, 0, 1, 2**32 - 1]))
    if kind == "fetch":
        offset = draw(NUMBERS) - draw(st.sampled_from([0, 0, 1]))
        size, count, wait_ms = (draw(NUMBERS) & 0xFFFF_FFFF for _ in range(3))
        return FETCH_BLOCK, FETCH_REQUEST.pack(topic, partition, offset, size, count, wait_ms)
    acks, flags = draw(st.sampled_from([0, 1, 2, 1, 2, 3])), draw(st.sampled_from([0, 0, 1, 255]))
    epoch, producer_id, sequence = (draw(st.sampled_from([0, 0, 1, -1])) for _ in range(3))
    records = draw(
        st.lists(
            st.builds(
                Record,
                key=st.none() | st.binary(max_size=10),
                value=st.none() | st.binary(max_size=30),
                priority=st.integers(0, 4),
                headers=st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
                extension=st.none()
                | st.builds(
                    Extension,
                    event_time=st.none() | NUMBERS,
                    deliver_at=st.none() | st.just(-5),
                    producer=st.none() | st.just(SOMEBODY),
                    blob=st.none() | st.binary(max_size=5),
                ),
            ),
            max_size=4,
        )
    )
    data = bytes(codec.encode(records)) if records else b""
    return PUBLISH_BLOCK, PUBLISH_REQUEST.pack(topic, partition, acks, flags, epoch, producer_id, sequence) + data


@st.composite
def attacks(draw: st.DrawFn, topic_id: int, member_id: bytes, held: Held) -> list[bytes]:
    """What one client sends, in pieces: frames, bent here and there, cut anywhere."""
    stream = bytearray()
    for _ in range(draw(st.integers(1, 4))):
        operation, payload = draw(payloads(topic_id, member_id, held))
        status = draw(st.sampled_from([0, 0, 0, 0, 0, 2, 2, 1]))
        made = bytearray(frame(operation, payload, correlation=draw(NUMBERS) & 0xFFFF_FFFF, status=status))
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2, 5]))):
            made[draw(st.integers(4, len(made) - 1))] ^= 1 << draw(st.integers(0, 7))
        if draw(st.integers(0, 9)) == 0:
            made[0:4] = (draw(NUMBERS) & 0xFFFF_FFFF).to_bytes(4)
        if draw(st.integers(0, 9)) == 0:
            del made[draw(st.integers(0, len(made))) :]
        stream += made
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    return [bytes(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


async def join(target: Target, group: str) -> bytes:
    """The id of a new member."""
    joined = await target.ask(call("join_group", group=group, client_id="w", topics=["orders"], session_timeout="1h"))
    return str(joined.fields["member_id"]).encode()


async def hold(target: Target, group: str) -> Held:
    """Have somebody be delivered messages that nobody else of the group asks for."""
    assert (await target.ask(target.publish(block() * (HELD - 1)))).status == frames.OK
    member_id = await join(target, group)
    request = PollRequest(group, member_id.decode(), 2**20, HELD, visibility_ms=3600_000)
    reply, (row, *_) = unpack_poll_reply((await target.ask(frame(POLL_BLOCK, request.pack()))).payload)
    assert row.records == HELD
    return Held(target.topic_id, reply.group, reply.number, row.token)


async def polls_all(target: Target, group: str, member_id: bytes) -> int:
    """How many messages somebody who behaves is delivered, until there are no more."""
    found = received = 0
    while True:
        request = PollRequest(group, member_id.decode(), 2**20, 10_000, 0, received)
        reply, rows = unpack_poll_reply((await target.ask(frame(POLL_BLOCK, request.pack()))).payload)
        if not rows:
            return found
        found += sum(row.records for row in rows)
        received = reply.number


def fuzz(tmp_path: Path, examples: int) -> None:
    """Attack one broker again and again. After each attack it answers, owes nothing, and nothing went wrong inside."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        opening = a_target(tmp_path)
        target = runner.run(opening.__aenter__())
        member_id = runner.run(join(target, GROUP.decode()))
        held = runner.run(hold(target, "holders"))
        slips: list[str] = []
        runner.get_loop().set_exception_handler(lambda _, context: slips.append(repr(context)))

        async def one(pieces: list[bytes], patience: int) -> None:
            async with asyncio.timeout(PATIENCE_S):
                async with target.client() as peer:
                    try:
                        for piece in pieces:
                            await peer.send(piece)
                            await asyncio.sleep(0)
                        for _ in range(patience):  # else whoever waits is sent home before it was delivered anything
                            await asyncio.sleep(0)
                        peer.finish()
                        await peer.read_to_the_end()
                    except OSError:
                        pass  # the broker has hung up
                assert (await target.ask(call("version"))).status == frames.OK
                await until(lambda: not target.connections())
                await until(lambda: (target.broker.requests.held, target.broker.replies.held) == (0, 0))
            assert slips == []

        @settings(
            max_examples=examples, derandomize=True, deadline=None, database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        )  # fmt: skip
        @given(attacks(target.topic_id, member_id, held), st.sampled_from([0, 10, 50]))
        def attack(pieces: list[bytes], patience: int) -> None:
            runner.run(one(pieces, patience))

        attack()
        assert "orders" in target.broker.topics.by_name
        assert member_id.decode() in target.broker.groups.machine.group(GROUP.decode()).members
        end = target.broker.topics.named("orders").partition(0).log.end_offset
        assert runner.run(polls_all(target, "another", runner.run(join(target, "another")))) == end
        settled = target.broker.group_meters.of("holders").consumption("orders")
        assert settled.acked + settled.nacked + settled.rejected > 0, "some of it was right"
        runner.run(opening.__aexit__(None, None, None))


def test_no_sequence_of_frames_breaks_a_broker(tmp_path: Path) -> None:
    fuzz(tmp_path, examples=400)


@pytest.mark.long
def test_no_sequence_of_frames_breaks_a_broker_in_the_long_run(tmp_path: Path) -> None:
    fuzz(tmp_path, examples=5000)
