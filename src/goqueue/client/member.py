"""A member of a group, over one connection at a time: join, poll, settle, leave.

Settle with a commit, everything up to an offset, or message by message: ack, nack, reject, extend, release.

It keeps what a member must remember between polls: its id, what it was last told, and the last reply that arrived, so
that a reply lost on the way comes again. A reply that is not understood counts as one that did not arrive. When the
connection is lost give it another one (`connection`); the broker still knows the member. It polls once at a time and
does nothing by itself.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

import msgspec
from pyroaring import BitMap64

from goqueue import codec
from goqueue.base.offset_sets import gathered, runs
from goqueue.client.connection import Connection
from goqueue.model import limits
from goqueue.model.errors import NotOwner, ProtocolError
from goqueue.wire.codes import CODES, POLL_BLOCK, SETTLE_BLOCK
from goqueue.wire.polls import UNKNOWN, PollReply, PollRequest, Row, unpack_poll_reply
from goqueue.wire.settles import NO_ARGUMENT, Action, Claim, OffsetRange, SettleRequest, Writer, unpack_settle_reply

_NOTHING_RECEIVED: Final = 0
"""Not UNKNOWN: also the very first reply comes again when it is lost."""


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that a group is not delivered, from offset `first` up to `next_offset`: they are damaged on the disk."""

    topic: str
    partition: int
    first: int
    next_offset: int
    reason: str


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that groups are delivered nothing from: what they did there is damaged."""

    topic: str
    partition: int
    reason: str


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What a member has, and what it is to give up: finish, commit, and poll."""

    member_id: str
    generation: int
    state: str
    assigned_partitions: list[str]
    revoke: list[str]
    topics: dict[str, str] = {}
    damage: list[Missed] = []
    """What the group passed over, and nobody was told of before."""
    incomplete: list[Closed] = []


_DECODER: Final = msgspec.json.Decoder(News)


class Delivered(NamedTuple):
    """Messages of one partition. `block` is valid as long as somebody holds it.

    `topic_id`, `group` and `token` are for the broker, which wants them back when single messages are settled.
    """

    topic: str
    partition: int
    epoch: int
    poll: int
    next_offset: int
    deliveries: int
    records: int
    block: memoryview
    topic_id: int
    group: int
    token: int

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The offsets of the messages."""
        offsets = codec.scan(self.block).offsets
        if len(offsets) and offsets[-1] - offsets[0] + 1 == len(offsets):
            return ((offsets[0], offsets[-1] + 1),)
        return tuple(runs(gathered(offsets)))


Some = tuple[Delivered, Iterable[int]]
"""Some of the messages that were delivered together: those with these offsets."""


class Member:
    """Made by `Member.join`."""

    def __init__(self, connection: Connection, group: str, news: News) -> None:
        self.connection = connection
        self.group = group
        self.news = news
        self._version = UNKNOWN
        self._received = _NOTHING_RECEIVED
        self._names: dict[int, str] = {}
        """Of all topics it was told of, by id: messages of one that was deleted may still come."""

    @classmethod
    async def join(
        cls, connection: Connection, group: str, topics: Iterable[str], *, client_id: str = "client", **fields: Any
    ) -> Self:
        """`fields` are those of the join operation."""
        request = {"group": group, "client_id": client_id, "topics": list(topics), **fields}
        return cls(connection, group, _understand(await connection.ask(CODES["join_group"], request)))

    async def join_again(self, topics: Iterable[str], *, client_id: str = "client", **fields: Any) -> None:
        """As the same member, with other topics."""
        request = {
            "group": self.group, "client_id": client_id, "topics": list(topics), "member_id": self.member_id, **fields,
        }  # fmt: skip
        self._hear_again(await self.connection.ask(CODES["join_group"], request))

    @property
    def member_id(self) -> str:
        return self.news.member_id

    @property
    def assigned(self) -> list[str]:
        return self.news.assigned_partitions

    async def poll(
        self, *, max_messages: int = 500, max_bytes: int = limits.MIB, max_wait_ms: int = 0, visibility_ms: int = 0
    ) -> list[Delivered]:
        """Messages, or none when the time is up or there is news. What was revoked before counts as heard of.

        `visibility_ms` is how long they are held for this member; 0 for what it said when it joined, or the topic says.
        """
        request = PollRequest(
            self.group, self.member_id, max_bytes, max_messages, max_wait_ms, self._received, self._version,
            visibility_ms,
        )  # fmt: skip
        payload = await self.connection.call(
            POLL_BLOCK, (request.pack(),), timeout_s=self.connection.call_timeout_s + max_wait_ms / 1000
        )
        reply, rows = unpack_poll_reply(payload)
        if reply.news:
            self._hear(reply.news)
            self._version = reply.version
        delivered = [self._show(row, reply) for row in rows]
        if rows:
            self._received = reply.number
        return delivered

    def _hear(self, told: bytes) -> None:
        try:
            news = _DECODER.decode(told)
            names = {int(topic_id, 16): name for name, topic_id in news.topics.items()}
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _not_understood(error) from error
        self.news = news
        self._names.update(names)

    def _hear_again(self, reply: dict[str, Any]) -> None:
        """What is not a poll's answer does not say the ids of topics."""
        self.news = msgspec.structs.replace(_understand(reply), topics=self.news.topics)

    def _show(self, row: Row, reply: PollReply) -> Delivered:
        topic = self._names.get(row.topic_id)
        if topic is None:
            self._version = UNKNOWN  # then the next reply tells the ids again
            raise ProtocolError(f"messages of a topic with id {row.topic_id:016x}, which this member did not join")
        return Delivered(
            topic, row.partition, row.epoch, reply.number, row.next_offset, row.deliveries, row.records,
            memoryview(row.block), row.topic_id, reply.group, row.token,
        )  # fmt: skip

    # --- settling message by message

    async def ack(self, what: Iterable[Delivered | Some]) -> list[Some]:
        """Done with these. What was refused: those were settled before, given back, or delivered again since."""
        return await self.settle(Action.ACK, what)

    async def nack(self, what: Iterable[Delivered | Some], *, delay_ms: int | None = None) -> list[Some]:
        """Deliver these again, after a delay or as their topic says. What was refused."""
        return await self.settle(Action.NACK, what, NO_ARGUMENT if delay_ms is None else delay_ms)

    async def reject(self, what: Iterable[Delivered | Some], reason: str = "") -> list[Some]:
        """Never deliver these again. What was refused."""
        return await self.settle(Action.REJECT, what, reason=reason)

    async def extend(self, what: Iterable[Delivered | Some], span_ms: int) -> list[Some]:
        """Hold these for so long from now. What was refused."""
        return await self.settle(Action.EXTEND, what, span_ms)

    async def release(self, what: Iterable[Delivered | Some]) -> list[Some]:
        """These were not tried: others may have them at once, and the delivery does not count. What was refused."""
        return await self.settle(Action.RELEASE, what)

    async def settle(
        self,
        action: Action,
        what: Iterable[Delivered | Some],
        argument: int = NO_ARGUMENT,
        reason: str = "",
        writer: Writer | None = None,
    ) -> list[Some]:
        """With one request, unless that would be too many messages."""
        refused: list[Some] = []
        for batch in _batches(what):
            claims = [claim for _, claim in batch]
            request = SettleRequest(action, batch[0][0].group, claims, argument, reason, writer)
            reply = unpack_settle_reply(await self.connection.call(SETTLE_BLOCK, (request.pack(),)), len(claims))
            refused += [
                (delivered, [offset for first, end in ranges for offset in range(first, end)])
                for (delivered, _), ranges in zip(batch, reply, strict=True)
                if ranges
            ]
        return refused

    # --- settling up to an offset

    async def commit(self, delivered: Iterable[Delivered], *, generation: int | None = None) -> None:
        """Settle these and what was delivered before them in the same partitions; nothing that came after them.

        A NotOwner names the partitions that are no longer this member's; the others are settled.
        """
        offsets: dict[tuple[str, int], int] = {}
        polls: dict[tuple[str, int], int] = {}
        for each in delivered:
            part = each.topic, each.partition
            offsets[part] = max(each.next_offset, offsets.get(part, 0))
            polls[part] = max(each.poll, polls.get(part, 0))
        by_poll: dict[int, dict[str, dict[str, int]]] = {}
        for (topic, partition), poll in polls.items():
            by_poll.setdefault(poll, {}).setdefault(topic, {})[str(partition)] = offsets[topic, partition]
        refusals = []
        for received, numbers in by_poll.items():
            try:
                await self.commit_offsets(numbers, generation=generation, received=received)
            except NotOwner as refusal:
                refusals.append(refusal)
        if refusals:
            raise NotOwner(str(refusals[0]), refused=[name for refusal in refusals for name in refusal.refused])

    async def commit_offsets(
        self, offsets: dict[str, dict[str, int]], *, generation: int | None = None, received: int | None = None
    ) -> None:
        request: dict[str, Any] = {"group": self.group, "member_id": self.member_id, "offsets": offsets}
        if generation is not None:
            request["generation"] = generation
        if received is not None:
            request["received"] = received
        await self.connection.ask(CODES["commit"], request)

    async def heartbeat(self, revoked: Iterable[str] = (), *, finishing: Iterable[str] = ()) -> None:
        """Say that it is there. What it was told to give up before counts as heard of, and `revoked` as given up.

        `finishing` it was told to give up, too, and is not done with.
        """
        request: dict[str, Any] = {
            "group": self.group,
            "member_id": self.member_id,
            "generation": self.news.generation,  # what answers on their way say has not been heard
        }
        for name, partitions in (("revoked", [*revoked]), ("finishing", [*finishing])):
            if partitions:
                request[name] = partitions
        self._hear_again(await self.connection.ask(CODES["heartbeat"], request))

    async def leave(self) -> None:
        await self.connection.ask(CODES["leave_group"], {"group": self.group, "member_id": self.member_id})


def _batches(what: Iterable[Delivered | Some]) -> Iterator[list[tuple[Delivered, Claim]]]:
    """What fits into one request: of one group, and not too many."""
    batch: list[tuple[Delivered, Claim]] = []
    left = limits.MAX_HANDLES
    for each in what:
        delivered, ranges = (each, each.ranges) if isinstance(each, Delivered) else _ranges_of(each)
        if not ranges:
            continue
        claim = Claim(delivered.topic_id, delivered.partition, delivered.poll, delivered.token, ranges)
        if batch and (claim.messages > left or batch[0][0].group != delivered.group):
            yield batch
            batch, left = [], limits.MAX_HANDLES
        batch.append((delivered, claim))
        left -= claim.messages
    if batch:
        yield batch


def _ranges_of(some: Some) -> tuple[Delivered, tuple[OffsetRange, ...]]:
    delivered, offsets = some
    return delivered, tuple(runs(BitMap64([*offsets])))


def _understand(reply: dict[str, Any]) -> News:
    try:
        return msgspec.convert(reply, News)
    except msgspec.ValidationError as error:
        raise _not_understood(error) from error


def _not_understood(error: Exception) -> ProtocolError:
    return ProtocolError(f"what the broker says about a member is not understood: {error}")
