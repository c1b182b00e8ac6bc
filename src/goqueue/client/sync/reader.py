"""Reading without a group, and without a loop of one's own: messages cross over by the batch."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from goqueue.client.arguments import Duration, to_timeout
from goqueue.client.messages import Message, ReadBatch
from goqueue.client.reader import AsyncReader
from goqueue.client.sync.loop import LoopThread


class Reader:
    """Made by `Client.reader`. Ends where the topic ended when it began, or never with `follow`."""

    def __init__(self, loop: LoopThread, inner: AsyncReader) -> None:
        self._loop = loop
        self._inner = inner
        self._batch: ReadBatch | None = None
        """The one that is being handed out message by message, and how far."""
        self._rest: list[Message] = []
        self._next = 0
        loop.ends[inner] = inner.close

    def read(self, timeout: Duration | None = None) -> ReadBatch | None:
        """The next messages of one partition; None at the end, or when none came within the timeout."""
        timeout_s = to_timeout(timeout)
        if self._batch is not None and self._next < len(self._rest):
            rest = self._batch.rest(self._rest[self._next].offset)
            self._drop()
            return rest
        return self._loop.run(self._inner.read(timeout_s))

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while self._next >= len(self._rest):
            batch = self._loop.run(self._inner.read())
            if batch is None:
                raise StopIteration
            self._batch, self._rest, self._next = batch, [*batch], 0
        message = self._rest[self._next]
        self._next += 1
        return message

    @property
    def skipped(self) -> int:
        """How many messages it passed over because they are damaged."""
        return self._inner.skipped

    def seek(self, partition: int, offset: int) -> None:
        """Go on at this offset of a partition; what was read ahead of it is dropped."""
        self._loop.run(self._inner.seek(partition, offset))
        if self._batch is not None and self._batch.partition == partition:
            self._drop()

    def positions(self) -> dict[int, int]:
        """By partition, the offset of the next message it will give."""
        found = self._loop.run(self._inner.positions())
        if self._next < len(self._rest):
            first = self._rest[self._next]
            found[first.partition] = first.offset
        return found

    def _drop(self) -> None:
        """What is left of the batch that is being handed out."""
        self._batch, self._rest, self._next = None, [], 0

    def close(self) -> None:
        self._drop()
        if not self._loop.closed:
            self._loop.run(self._inner.close())
            self._loop.ends.pop(self._inner, None)

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
