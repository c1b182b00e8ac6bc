"""A member of a group over each of the two doors, with the same methods and the same errors.

Each keeps what a member must remember between polls; `open` gives it another connection and it goes on. Partitions are
those of one topic. Every message is compared with the one that belongs at its offset.
"""

import asyncio
from collections.abc import Callable, Iterable
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.client.member import Delivered, Member, News
from goqueue.model.errors import Unavailable
from goqueue.wire.failures import unpack_error
from tests.chaos.broker_load import split
from tests.chaos.ledger import Violation
from tests.support.broker import HttpClient
from tests.support.group_ledger import value_of

MAX_MESSAGES = 100
T = TypeVar("T")


class Standing(NamedTuple):
    """What a member was told about itself."""

    member_id: str
    generation: int
    assigned: tuple[int, ...]
    revoke: tuple[int, ...]


class Batch(NamedTuple):
    """Messages of one partition. Over HTTP nobody is told the assignment epoch. `poll` is the number of the reply."""

    partition: int
    epoch: int | None
    poll: int
    first: int
    end: int
    deliveries: int


class Door(Protocol):
    async def open(self) -> None: ...
    async def join(self, **fields: Any) -> Standing: ...
    async def poll(self, wait_ms: int) -> tuple[Standing, list[Batch]]: ...
    async def heartbeat(self) -> Standing: ...
    async def commit(self, offsets: dict[int, int], *, generation: int, received: int) -> None: ...
    async def leave(self) -> None: ...
    async def close(self) -> None: ...


class WireDoor:
    """Over the client's own member."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self._address = address
        self._group = group
        self._topic = topic
        self._connection: Connection | None = None
        self._member: Member | None = None

    async def open(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        self._connection = await Connection.connect(*split(self._address))
        if self._member is not None:
            self._member.connection = self._connection

    async def join(self, **fields: Any) -> Standing:
        assert self._connection is not None
        self._member = await Member.join(self._connection, self._group, [self._topic], **fields)
        return _standing(self._member.news)

    async def poll(self, wait_ms: int) -> tuple[Standing, list[Batch]]:
        member = self._joined
        rows = await member.poll(max_messages=MAX_MESSAGES, max_wait_ms=wait_ms)
        return _standing(member.news), [self._check(row) for row in rows]

    def _check(self, row: Delivered) -> Batch:
        if row.topic != self._topic:
            raise Violation(f"{row} is not of the topic that was joined")
        records = codec.decode(row.block)
        check_messages(row.partition, ((record.offset, record.value) for record in records))
        first, end = row.next_offset - row.records, row.next_offset
        if [record.offset for record in records] != list(range(first, end)):
            raise Violation(f"{row} says it ends at {end} and holds {[record.offset for record in records]}")
        return Batch(row.partition, row.epoch, row.poll, first, end, row.deliveries)

    async def heartbeat(self) -> Standing:
        await self._joined.heartbeat()
        return _standing(self._joined.news)

    async def commit(self, offsets: dict[int, int], *, generation: int, received: int) -> None:
        by_topic = {self._topic: {str(partition): offset for partition, offset in offsets.items()}}
        await self._joined.commit_offsets(by_topic, generation=generation, received=received)

    async def leave(self) -> None:
        await self._joined.leave()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    @property
    def _joined(self) -> Member:
        assert self._member is not None
        return self._member


class HttpDoor:
    """One connection in a thread of its own."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self._client = HttpClient(address)
        self._path = f"/groups/{group}"
        self._topic = topic
        self._member_id = ""
        self._received = 0

    async def open(self) -> None:
        self._client.close()  # it connects by itself

    async def join(self, **fields: Any) -> Standing:
        self._received = 0
        body = await self._ask("POST", "/join", {"client_id": "http", "topics": [self._topic], **fields})
        self._member_id = body["member_id"]
        return _standing(msgspec.convert(body, News))

    async def poll(self, wait_ms: int) -> tuple[Standing, list[Batch]]:
        asked = {
            "member_id": self._member_id,
            "timeout": f"{wait_ms}ms",
            "max_messages": MAX_MESSAGES,
            "received": self._received,
        }
        body = await self._ask("GET", f"/poll?{urlencode(asked)}")
        if body["messages"]:
            self._received = body["poll"]
        body["member_id"] = self._member_id
        return _standing(msgspec.convert(body, News)), self._check(body["messages"], body["poll"])

    def _check(self, messages: list[dict[str, Any]], poll: int) -> list[Batch]:
        batches: list[Batch] = []
        for message in messages:
            partition, offset, deliveries = message["partition"], message["offset"], message["delivery_count"]
            check_messages(partition, [(offset, message["value"].encode())])
            last = batches[-1] if batches else None
            if last is not None and (last.partition, last.end, last.deliveries) == (partition, offset, deliveries):
                batches[-1] = last._replace(end=offset + 1)
            else:
                batches.append(Batch(partition, None, poll, offset, offset + 1, deliveries))
        return batches

    async def heartbeat(self) -> Standing:
        body = await self._ask("POST", "/heartbeat", {"member_id": self._member_id})
        return _standing(msgspec.convert(body, News))

    async def commit(self, offsets: dict[int, int], *, generation: int, received: int) -> None:
        by_topic = {self._topic: {str(partition): offset for partition, offset in offsets.items()}}
        body = {"member_id": self._member_id, "generation": generation, "received": received, "offsets": by_topic}
        await self._ask("POST", "/commit", body)

    async def leave(self) -> None:
        await self._ask("POST", "/leave", {"member_id": self._member_id})

    async def close(self) -> None:
        self._client.close()

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        def ask() -> Any:
            try:
                answer = self._client.request(method, self._path + path, body)
            except (OSError, HTTPException) as error:
                raise Unavailable(f"no answer to {method} {path}: {error!r}") from error
            if answer.status != 200:
                raise unpack_error(msgspec.json.encode(answer.body))
            return answer.body

        return await asyncio.to_thread(ask)


def check_messages(partition: int, found: Iterable[tuple[int, bytes | None]]) -> None:
    for offset, value in found:
        if value != value_of(partition, offset):
            raise Violation(f"partition {partition}: at offset {offset} was received {value!r}")


def _standing(news: News) -> Standing:
    return Standing(news.member_id, news.generation, _numbers(news.assigned_partitions), _numbers(news.revoke))


def _numbers(names: Iterable[str]) -> tuple[int, ...]:
    return tuple(int(name.rpartition("-")[2]) for name in names)


DOORS: dict[str, Callable[[str, str, str], Door]] = {"wire": WireDoor, "http": HttpDoor}
