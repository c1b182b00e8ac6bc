"""Plain reading of a topic: all its partitions at once, merged by time, to where they ended or on and on.

It changes nothing in the broker, and remembers nothing there: where it is in each partition it knows itself, so who
follows goes on there after the broker was away. Pages are fetched as they are needed. Where a transaction is open a
partition ends, unless what is not committed is wanted too.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from goqueue.cli.output import complain
from goqueue.cli.remote.broker import Broker
from goqueue.model import limits
from goqueue.model.errors import DamagedData, InvalidRequest, Quarantined, UnknownPartition
from goqueue.model.transactions import show_undecided

Message = dict[str, Any]
_LOOK_AGAIN_S: Final = 0.2
_PAGE: Final = 200
"""Messages that are handed on at once."""


class Range(NamedTuple):
    """What to read; times as the API takes them."""

    partition: int | None = None
    from_offset: int | None = None
    from_time: str | None = None
    to_time: str | None = None
    delayed: bool = False
    follow: bool = False
    uncommitted: bool = False
    """Also what was published in transactions that are open, or were aborted."""
    skip_damage: bool = False
    """Go on behind messages that are damaged on the broker's disk, and say so; else that is an error."""


class _Cursor:
    """Where reading is in one partition."""

    def __init__(self, broker: Broker, topic: str, partition: int, end: int, wanted: Range) -> None:
        self._broker = broker
        self._where = {"topic": topic, "partition": partition}
        self.end = end
        self._skips = wanted.skip_damage
        self._offset = wanted.from_offset
        self._first = {} if wanted.from_time is None else {"from_time": wanted.from_time}
        self._always = {} if wanted.to_time is None else {"to_time": wanted.to_time}
        if wanted.delayed:
            self._always["include"] = "delayed"
        if wanted.uncommitted:
            self._always["isolation"] = "read_uncommitted"
        self.buffer: deque[Message] = deque()

    @property
    def at_end(self) -> bool:
        return self._offset is not None and self._offset >= self.end

    def extend(self, end: int) -> None:
        """The partition ends there now. Where a power cut took its last messages, their offsets come again."""
        self.end = end
        if self._offset is not None:
            self._offset = min(self._offset, end)

    async def fill(self, limit: int) -> None:
        """More messages, if there are any before the end."""
        while not self.buffer and not self.at_end:
            start = self._first if self._offset is None else {"offset": self._offset}
            try:
                reply = await self._broker.call("read_partition", limit=limit, **self._where, **start, **self._always)
            except Quarantined as damage:
                if not self._skips:
                    raise DamagedData(f"{damage}; --skip-damage reads on behind it") from None
                complain(f"partition {self._where['partition']}: {damage}")
                self._offset = max(damage.next_offset, (self._offset or 0) + 1)
                continue
            self.buffer.extend(reply["messages"])
            stuck = self._offset == reply["next_offset"]
            self._offset = reply["next_offset"]
            if stuck and not self.buffer:
                self.end = min(self.end, self._offset)


async def read(broker: Broker, topic: str, wanted: Range) -> AsyncIterator[list[Message]]:
    """Messages of all partitions asked for, the oldest first, in pages."""
    described = await broker.call("describe_topic", topic=topic)
    offsets = {int(number): found for number, found in described["partition_offsets"].items()}
    ends = {number: found["latest"] for number, found in offsets.items()}
    if wanted.partition is not None:
        if wanted.partition not in ends:
            raise UnknownPartition(f"{topic} has no partition {wanted.partition}; it has 0 to {max(ends)}")
        ends = {wanted.partition: ends[wanted.partition]}
    elif wanted.from_offset is not None and len(ends) > 1:
        raise InvalidRequest(f"{topic} has {len(ends)} partitions: say with --partition in which one --from-offset is")
    if wanted.from_offset is not None and wanted.from_offset > (end := max(ends.values())):
        raise InvalidRequest(
            f"--from-offset {wanted.from_offset} is outside {topic}, where the next message gets {end}"
        )
    bound = "latest" if wanted.uncommitted else "stable"
    cursors = {number: _Cursor(broker, topic, number, offsets[number][bound], wanted) for number in sorted(ends)}
    while True:
        async for found in _merged([*cursors.values()]):
            yield found
        if not wanted.follow:
            return
        await asyncio.sleep(_LOOK_AGAIN_S)
        for name, end in (await broker.call("offsets", topic=topic))["offsets"].items():
            if int(name) in cursors:
                cursors[int(name)].extend(end)
            elif wanted.partition is None:  # it was added meanwhile, and is read from its beginning
                cursors[int(name)] = _Cursor(
                    broker, topic, int(name), end, wanted._replace(from_offset=None, from_time=None)
                )


async def find_undecided(broker: Broker, topic: str, partition: int | None) -> list[str]:
    """Where committed messages end before the log does."""
    described = await broker.call("describe_topic", topic=topic)
    return [
        show_undecided(topic, int(number), found["stable"], found["latest"])
        for number, found in sorted(described["partition_offsets"].items(), key=lambda item: int(item[0]))
        if found["stable"] < found["latest"] and partition in (None, int(number))
    ]


async def _merged(cursors: list[_Cursor]) -> AsyncIterator[list[Message]]:
    limit = max(10, limits.MAX_READ_MESSAGES // len(cursors))
    page: list[Message] = []
    while True:
        empty = [cursor for cursor in cursors if not cursor.buffer and not cursor.at_end]
        if empty:
            if page:
                yield page
                page = []
            await asyncio.gather(*(cursor.fill(limit) for cursor in empty))
        waiting = [cursor for cursor in cursors if cursor.buffer]
        if not waiting:
            break
        if len(waiting) == 1:
            page.extend(waiting[0].buffer)
            waiting[0].buffer.clear()
        else:
            page.append(min(waiting, key=lambda cursor: str(cursor.buffer[0]["timestamp"])).buffer.popleft())
        if len(page) >= _PAGE:
            yield page
            page = []
    if page:
        yield page
