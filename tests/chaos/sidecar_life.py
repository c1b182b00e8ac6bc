"""One life of a broker whose power is cut: it opens the data directory, lets a group catch up, works until it dies.

It runs in a process of its own (see `sidecar_powercut`) and tells its parent everything over a pipe, one line at a
time, with the numbers that messages carry as their values:
  V known settled             opened; how many offsets that the data lost the sidecars knew of, and had settled
  R partition ids             what is in a partition
  P partition ids             about to append these
  A ids                       promised: they are durable
  M member                    this member is in the group now
  D partition poll next ids   delivered, by this poll; where the partition goes on
  T ids                       about to commit what was delivered
  S ids ahead                 the commit was answered; 1 if large blocks of it are not known to be durable yet, else 0
  L ids                       about to commit late what an earlier life delivered
  N / Q                       a new member begins to poll / it was delivered everything there is
  G                           caught up: from here on the load
  F reason                    the storage failed; the process ends with 74
  W reason                    something that must not happen did; the process ends with 70
A line is written with one system call, so a process that dies has written it or not. In the load messages are polled
and committed as soon as they are written: the large blocks of one partition take long to reach the disk, a commit
does not.
"""

import asyncio
import logging
import os
import random
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn
from unittest.mock import patch

import msgspec
import uvloop

from goqueue import codec
from goqueue.broker.topic import OpenTopic
from goqueue.client.connection import Connection
from goqueue.client.member import Delivered, Member, News
from goqueue.delivery.sidecar import Sidecar
from goqueue.io.waiting import reached
from goqueue.model.errors import LogClosed, OffsetOutOfRange, StorageFailed, Unavailable, UnknownGroup
from goqueue.model.limits import APPENDED_AT_ONCE_BYTES, KIB, MIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from goqueue.model.settings import Fsync
from goqueue.model.topic import TopicSettings
from goqueue.server.server import Server
from goqueue.storage.log import Log
from goqueue.wire.codes import CODES
from tests.support.broker_server import settings_for
from tests.support.faulty_disk import FaultyDisk

STORAGE_FAILED: Final = 74
WRONG: Final = 70

TOPIC: Final = "load"
GROUP: Final = "workers"
LARGE, SMALL = PARTITIONS = (0, 1)
"""A partition of large blocks, and one of small ones."""
MESSAGE_BYTES: Final = 64 * KIB
MOST_BLOCK_BYTES: Final = APPENDED_AT_ONCE_BYTES
MOST_BEHIND_BYTES: Final = 24 * MIB
"""So much may wait for the disk before the publisher does."""
MOST_BYTES: Final = 40 * MIB
"""What one life writes: several of them share a small volume."""
POLL_BYTES: Final = 4 * MIB
MOST_COMMITS: Final = 4
"""Commits of the consumer that wait for their answers."""


class Late(msgspec.Struct, frozen=True):
    """What a consumer was delivered in an earlier life and has not committed: up to where, and by which poll."""

    partition: int
    next_offset: int
    poll: int
    ids: list[int]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one life is to do."""

    data_dir: str
    seed: str
    first_id: int
    load: bool = True
    """Otherwise it only catches up, stops in order, and ends with 0."""
    fenced: bool = True
    """Otherwise it does not write down where the data ended: it is broken on purpose."""
    slow_ms: int = 0
    """The most by which an fsync of the partition of large blocks is late."""
    member_id: str | None = None
    """Who was in the group when the power went."""
    received: int = 0
    """The last poll whose reply that member got."""
    late: list[Late] = []
    """What that member still commits, now that the broker is back; without it the member just leaves."""


class Life:
    """Everything one process does."""

    def __init__(self, job: Job, out: int) -> None:
        self._job = job
        self._out = out
        self._rng = random.Random(job.seed)
        self._next_id = job.first_id
        self._known = self._settled = 0
        self._written_bytes = 0

    def run(self) -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # threads that meet the dead disk; what matters is said
        code = 0
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._live())
        except* (StorageFailed, LogClosed, Unavailable, OSError) as errors:
            self._say("F", repr(errors.exceptions).replace("\n", " "))
            code = STORAGE_FAILED
        except* BaseException:
            self._say("W", traceback.format_exc().replace("\n", " | "))
            code = WRONG
        os._exit(code)

    def _say(self, kind: str, *words: object) -> None:
        os.write(self._out, (" ".join([kind, *map(str, words)]) + "\n").encode())

    # --- a life

    async def _live(self) -> None:
        logging.disable()
        disk = FaultyDisk()
        disk.before = self._hold
        with patch.object(Sidecar, "fence", self._watched(Sidecar.fence)):
            server = await Server.start(settings_for(Path(self._job.data_dir)), disk=disk)
        self._broker = server.broker
        self._say("V", self._known, self._settled)
        topic = await self._topic()
        for partition in topic.partitions:
            self._say("R", partition.number, _listed(_ids_in(partition.log)))
        host, _, port = server.endpoints["wire"].rpartition(":")
        async with await Connection.connect(host, int(port)) as connection:
            await self._publish_new(topic)
            await self._end_earlier(connection)
            member = await self._catch_up(connection, topic)
            if self._job.load:
                self._say("G")
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish_large(topic))
                    tasks.create_task(self._publish_small(topic))
                    tasks.create_task(self._consume(member))
        await server.stop()

    def _hold(self, operation: str, path: str) -> None:
        """A busy disk: the fsync of large blocks begins late. It is a real one, of everything written by then."""
        if self._job.slow_ms and operation == "sync" and f"/{LARGE}/" in path and path.endswith(".log"):
            if "sidecar" not in path:
                time.sleep(random.uniform(0.2, 1) * self._job.slow_ms / 1000)

    def _watched(self, fence: Callable[..., None]) -> Callable[..., None]:
        """Counts what each fence is about, before it is written; or instead of it."""

        def count(sidecar: Sidecar, wall: int) -> None:
            end = sidecar._data.end_offset
            for group in sidecar.deliveries.groups:
                known = max(sidecar.deliveries.delivery(group).end - end, 0)
                self._known += known
                self._settled += known - sidecar.deliveries.unsettled(group, end, end + known)
            if self._job.fenced:
                fence(sidecar, wall)

        return count

    async def _topic(self) -> OpenTopic:
        topics = self._broker.topics
        if TOPIC in topics.by_name:
            return topics.named(TOPIC)
        settings = TopicSettings(fsync=Fsync.EVERY)
        return await topics.create(TOPIC, len(PARTITIONS), settings, self._broker.clock())

    # --- publishing

    def _block(self, count: int, size: int) -> tuple[list[int], memoryview]:
        ids = list(range(self._next_id, self._next_id + count))
        self._next_id += count
        padding = bytes(size)
        return ids, memoryview(codec.encode([Record(value=b"%d " % number + padding) for number in ids]))

    async def _publish(self, topic: OpenTopic, partition: int, count: int, size: int, acks: Acks) -> None:
        ids, block = self._block(count, size)
        self._say("P", partition, _listed(ids))
        receipt = self._broker.publisher.publish(topic, partition, block, acks=acks)
        if receipt.durable_at is not None:
            await reached(receipt.log.durable, receipt.durable_at)
            self._say("A", _listed(ids))

    async def _publish_new(self, topic: OpenTopic) -> None:
        """Messages that take the place of what was lost: fewer, as many, or more."""
        for number in PARTITIONS:
            for _ in range(self._rng.randint(1, 3)):
                await self._publish(topic, number, self._rng.choice((1, 5, 30, 100)), 10, Acks.ALL)

    async def _publish_large(self, topic: OpenTopic) -> None:
        log = topic.partition(LARGE).log
        behind: list[tuple[int, int]] = []
        while self._written_bytes < MOST_BYTES:
            count = self._rng.randint(1, MOST_BLOCK_BYTES // MESSAGE_BYTES - 1)  # each has a header, too
            acks = self._rng.choice((Acks.NONE, Acks.NONE, Acks.ALL))
            await self._publish(topic, LARGE, count, MESSAGE_BYTES, acks)
            self._written_bytes += count * MESSAGE_BYTES
            behind.append((log.end_offset, count * MESSAGE_BYTES))
            while sum(each for _, each in behind) > MOST_BEHIND_BYTES:
                await reached(log.durable, behind.pop(0)[0])
            await asyncio.sleep(0)

    async def _publish_small(self, topic: OpenTopic) -> None:
        while True:
            acks = self._rng.choice((Acks.NONE, Acks.ALL))
            await self._publish(topic, SMALL, self._rng.randint(1, 20), 100, acks)
            await asyncio.sleep(self._rng.choice((0, 0.001, 0.005)))

    # --- the group

    async def _join(self, connection: Connection) -> Member:
        member = await Member.join(connection, GROUP, [TOPIC], session_timeout="10m")
        self._say("M", member.member_id)
        return member

    async def _end_earlier(self, connection: Connection) -> None:
        """The member of before: its consumer lost nothing, goes on, commits late, and leaves. Or it just leaves."""
        try:
            described = await connection.ask(CODES["describe_group"], {"group": GROUP})
        except UnknownGroup:
            return
        for each in described["members"]:
            member_id = each["member_id"]
            news = News(member_id=member_id, generation=0, state="", assigned_partitions=[], revoke=[])
            member = Member(connection, GROUP, news)
            if self._job.late and member_id == self._job.member_id:
                member._received = self._job.received
                await self._poll_all(member)
                for late in self._job.late:
                    await self._commit_late(member, late)
            await member.leave()

    async def _commit_late(self, member: Member, late: Late) -> None:
        self._say("L", _listed(late.ids))
        try:
            await member.commit_offsets({TOPIC: {str(late.partition): late.next_offset}}, received=late.poll)
        except OffsetOutOfRange:
            pass  # what it speaks of was lost, and the partition has not come as far again

    async def _catch_up(self, connection: Connection, topic: OpenTopic) -> Member:
        """A new member is delivered everything the group has not settled, and commits it."""
        member = await self._join(connection)
        self._say("N")
        delivered = await self._poll_all(member)
        self._say("Q")
        await self._commit(member, delivered)
        lag = await connection.ask(CODES["group_lag"], {"group": GROUP})
        if lag["total_lag"] or await self._poll_all(member):
            raise AssertionError(f"everything was committed, and yet: {lag}")
        return member

    async def _poll_all(self, member: Member) -> list[Delivered]:
        """Until two polls in a row have nothing: one may have come with news alone."""
        found: list[Delivered] = []
        empty = 0
        while empty < 2:
            rows = await self._poll(member)
            found += rows
            empty = 0 if rows else empty + 1
        return found

    async def _poll(self, member: Member, max_wait_ms: int = 0) -> list[Delivered]:
        rows = await member.poll(max_bytes=POLL_BYTES, max_wait_ms=max_wait_ms)
        for row in rows:
            self._say("D", row.partition, row.poll, row.next_offset, _listed(_ids_of(row.block)))
        return rows

    async def _commit(self, member: Member, rows: list[Delivered]) -> None:
        if not rows:
            return
        ids = [number for row in rows for number in _ids_of(row.block)]
        self._say("T", _listed(ids))
        await member.commit(rows)
        durable = self._broker.topics.named(TOPIC).partition(LARGE).log.durable.value
        ahead = any(row.partition == LARGE and row.next_offset > durable for row in rows)
        self._say("S", _listed(ids), int(ahead))

    async def _consume(self, member: Member) -> None:
        """Commit at once, mostly; what is left out goes with the next commit."""
        left: list[Delivered] = []
        async with asyncio.TaskGroup() as commits:
            under_way: set[asyncio.Task[None]] = set()
            while True:
                left += await self._poll(member, max_wait_ms=1000)
                if left and self._rng.random() < 0.8:
                    task = commits.create_task(self._commit(member, left))
                    left = []
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                while len(under_way) >= MOST_COMMITS:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)


def _listed(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "-"


def _ids_of(block: Any) -> list[int]:
    return [int((record.value or b"").partition(b" ")[0]) for record in codec.decode(bytes(block))]


def _ids_in(log: Log) -> list[int]:
    found: list[int] = []
    offset = log.start_offset
    while offset < log.end_offset:
        chunk = log.read(offset, max_bytes=16 * MIB)
        found += _ids_of(chunk.data)
        offset = chunk.next_offset
    return found
