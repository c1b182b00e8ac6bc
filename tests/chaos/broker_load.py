"""The load: producers that publish all at once to the three partitions of a topic, over both doors.

Each has a connection and a producer id of its own. Those on the wire publish ready-made blocks, several under way per
partition; those over HTTP one request at a time. Nobody gives up before the deadline: what has no answer, or one
that says to try again, is sent again as it was, under the same sequence. Everything sent and answered goes into a
`Ledger`.
"""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final

import msgspec

from goqueue import codec
from goqueue.client.block_producer import BlockProducer
from goqueue.client.connection import Connection
from goqueue.model.limits import KIB
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.times import parse_time
from goqueue.wire.blocks import Range
from goqueue.wire.codes import CODES
from tests.support.broker import HttpClient
from tests.support.broker_ledger import PARTITIONS, Identity, Ledger, Sent, make
from tests.support.patience import PATIENCE_S

TOPIC: Final = "load"
UNDER_WAY: Final = 4
"""Blocks per partition that a producer on the wire does not wait for."""
_BLOCKS: Final = (50, 200)
"""How many messages a block has, at least and at most."""
_RETRY_S: Final = 0.02
_RETRIED: Final = (408, 429, 503)
_NUMBERED_LATER: Final = Extension(producer=Producer(0, 0, 0))
"""Room for what the broker fills in."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends how much. Producers below `wire_producers` use the wire."""

    acks: Acks
    wire_producers: int = 6
    http_producers: int = 2
    wire_messages: int = 15_000
    http_messages: int = 5_100
    seed: int = 1

    @property
    def messages(self) -> int:
        """Of all producers together."""
        return self.wire_producers * self.wire_messages + self.http_producers * self.http_messages

    @property
    def producers(self) -> int:
        return self.wire_producers + self.http_producers

    def blocks(self, producer: int, partition: int) -> Iterator[int]:
        """How many messages each block has that a producer sends to a partition."""
        dice = random.Random(f"{self.seed}/{producer}/{partition}")
        each = self.wire_messages if producer < self.wire_producers else self.http_messages
        left = each // PARTITIONS + (partition < each % PARTITIONS)
        while left:
            count = min(left, dice.randint(*_BLOCKS))
            left -= count
            yield count

    def total(self, partition: int) -> int:
        """Messages of all producers for a partition."""
        return sum(sum(self.blocks(producer, partition)) for producer in range(self.producers))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def create_topic(wire: str, *, segment_bytes: int = 512 * KIB, **settings: Any) -> int:
    """The id of the topic the load goes to."""
    async with await Connection.connect(*split(wire)) as connection:
        request = {"name": TOPIC, "num_partitions": PARTITIONS, "segment_bytes": segment_bytes, **settings}
        reply = await connection.ask(CODES["create_topic"], request)
        return int(reply["topic_id"], 16)


def block_of(sent: Sent) -> bytearray:
    """The records of a block, as a producer sends them."""
    records = []
    for number in range(sent.first, sent.first + sent.messages):
        key, value = make(Identity(sent.producer, sent.partition, number))
        records.append(Record(key=key.encode(), value=value.encode(), extension=_NUMBERED_LATER))
    return codec.encode(records)


class Load:
    """One run of a plan against a broker that may die and come back at the same addresses."""

    def __init__(self, plan: Plan, ledger: Ledger, *, topic_id: int, wire: str, http: str | None = None) -> None:
        self._plan = plan
        self._ledger = ledger
        self._topic_id = topic_id
        self._wire = split(wire)
        self._http = http
        self._deadline = time.monotonic() + PATIENCE_S
        self._stopped = False

    async def run(self) -> None:
        """Returns when everything is acknowledged; raises what kept a producer from it."""
        plan = self._plan
        try:
            async with asyncio.TaskGroup() as group:
                for producer in range(plan.producers):
                    if producer < plan.wire_producers:
                        group.create_task(self._publish(producer))
                    else:
                        group.create_task(asyncio.to_thread(self._post, producer))
        finally:
            self._stopped = True
            self._ledger.finish()

    # --- on the wire

    async def _publish(self, producer: int) -> None:
        async with (
            BlockProducer(*self._wire, acks=self._plan.acks, delivery_timeout_s=PATIENCE_S) as client,
            asyncio.TaskGroup() as group,
        ):
            for partition in range(PARTITIONS):
                group.create_task(self._fill(client, producer, partition))

    async def _fill(self, client: BlockProducer, producer: int, partition: int) -> None:
        room = asyncio.Semaphore(UNDER_WAY)
        async with asyncio.TaskGroup() as group:
            for count in self._plan.blocks(producer, partition):
                await room.acquire()
                sent = self._ledger.send(producer, partition, count, now_ms=now_ms())
                group.create_task(self._publish_block(client, sent, room))

    async def _publish_block(self, client: BlockProducer, sent: Sent, room: asyncio.Semaphore) -> None:
        reply = await client.publish(self._topic_id, sent.partition, block_of(sent))
        self._ledger.answer(sent, reply.durability, reply.ranges, now_ms=now_ms())
        room.release()

    # --- over HTTP, in a thread

    def _post(self, producer: int) -> None:
        assert self._http is not None
        with HttpClient(self._http) as client:
            known = self._ask(client, "/producers/init", {})
            blocks = {partition: self._plan.blocks(producer, partition) for partition in range(PARTITIONS)}
            sequences = dict.fromkeys(blocks, 0)
            while blocks:
                for partition in list(blocks):
                    count = next(blocks[partition], None)
                    if count is None:
                        del blocks[partition]
                        continue
                    sent = self._ledger.send(producer, partition, count, now_ms=now_ms())
                    body = {
                        "messages": messages_of(sent),
                        "acks": self._plan.acks.name.lower(),
                        "producer_id": known["producer_id"],
                        "epoch": known["epoch"],
                        "sequence": sequences[partition],
                    }
                    reply = self._ask(client, f"/topics/{TOPIC}/messages", body)
                    self._ledger.answer(sent, *read_results(reply["results"]), now_ms=now_ms())
                    sequences[partition] += count

    def _ask(self, client: HttpClient, path: str, body: dict[str, Any]) -> Any:
        """Ask until there is an answer: the same request every time."""
        trouble: object = None
        while not self._stopped and time.monotonic() < self._deadline:
            try:
                answer = client.request("POST", path, body)
            except (OSError, HTTPException) as error:
                trouble = error
            else:
                if answer.status == 200:
                    return answer.body
                trouble = answer
                if answer.status not in _RETRIED:
                    break
            time.sleep(_RETRY_S)
        raise AssertionError(f"no answer to POST {path}; the last trouble: {trouble}")


def messages_of(sent: Sent) -> list[dict[str, Any]]:
    """The messages of a block as JSON has them."""
    made = (make(Identity(sent.producer, sent.partition, sent.first + at)) for at in range(sent.messages))
    return [{"key": key, "value": value, "partition": sent.partition} for key, value in made]


def read_results(results: list[dict[str, Any]]) -> tuple[Durability, list[Range]]:
    """What each message was answered, as ranges of one."""
    durabilities = {Durability[result["durability"].upper()] for result in results}
    assert len(durabilities) == 1, f"one request, several durabilities: {durabilities}"
    ranges = [
        Range(1, result["offset"], parse_time(result["timestamp"]), result.get("duplicate", False))
        for result in results
    ]
    return durabilities.pop(), ranges


class LoadThread:
    """A load beside whoever starts it, so that the broker can be dealt with meanwhile."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._task: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as failure:
            self._failure = failure

    async def _work(self) -> None:
        self._task = asyncio.create_task(self._load.run())
        self._begun.set()
        await self._task

    def __enter__(self) -> "LoadThread":
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Wait for the load's end; when all is lost already, only for it to give up."""
        if kind is not None and self._task is not None:
            with suppress(RuntimeError):  # it is over, and its loop closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        if kind is None and self._failure is not None:
            raise self._failure
