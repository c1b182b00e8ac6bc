"""What the parts share: a broker process that can be weighed, blocks that go out fast, files without a cache."""

import asyncio
import os
import signal
import time
from array import array
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from bench.processes import resident_mib, scratch
from goqueue.client.connection import Connection
from goqueue.client.member import Delivered
from goqueue.codec import scan
from goqueue.model.limits import MIB
from goqueue.model.publishing import Acks
from goqueue.wire.codes import CODES
from tests.chaos.broker_load import split
from tests.chaos.ledger import Violation
from tests.support.broker import RunningBroker, running_broker
from tests.support.delivery_planted import program

T = TypeVar("T")

PARTITIONS: Final = 3
BLOCK: Final = 10_000
"""Messages that are published at once."""
_UNDER_WAY: Final = 4
_SETTLING_S: Final = 0.5


class TooSlow(Violation):
    """Something was due before everything was prepared: this machine needs more time ahead."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def do(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextmanager
def staged(*flags: str) -> Iterator[RunningBroker]:
    """A broker with everything at its default, in a directory that is removed afterwards."""
    with scratch() as directory, running_broker(Path(directory), *flags, program=program("tidying")) as broker:
        yield broker


def weigh(broker: RunningBroker) -> float:
    """MiB it has resident once garbage is collected and what is free was given back to the system."""
    broker.signal(signal.SIGUSR2)
    time.sleep(_SETTLING_S)
    return resident_mib(broker.pid)


def start_again(broker: RunningBroker) -> float:
    """Seconds from nothing until its doors are open."""
    begun = time.perf_counter()
    broker.start()
    return time.perf_counter() - begun


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[Connection]:
    async with await Connection.connect(*split(broker.wire)) as connection:
        yield connection


async def create(connection: Connection, name: str, **settings: Any) -> int:
    request = {"name": name, "num_partitions": PARTITIONS, **settings}
    return int((await connection.ask(CODES["create_topic"], request))["topic_id"], 16)


async def publish_all(connection: Connection, topic_id: int, blocks: Sequence[tuple[int, bytes]]) -> float:
    """Partition and block each, a few under way at a time; seconds."""
    room = asyncio.Semaphore(_UNDER_WAY)

    async def publish(partition: int, block: bytes) -> None:
        try:
            await connection.publish_block(topic_id, partition, block, acks=Acks.LEADER)
        finally:
            room.release()

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for partition, block in blocks:
            await room.acquire()
            group.create_task(publish(partition, block))
    return time.perf_counter() - begun


async def delayed_in(connection: Connection, topic: str) -> int:
    """How many are pending."""
    return int((await connection.ask(CODES["list_delayed"], {"topic": topic, "limit": 1}))["count"])


def offsets_of(row: Delivered) -> "array[int]":
    found: array[int] = scan(row.block).offsets
    return found


def mib(blocks: Sequence[bytes]) -> float:
    return sum(map(len, blocks)) / MIB


def drop_cache(directory: Path) -> None:
    """What was written is on the disk, and not in memory: the next read has to wait for the device."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
