"""The yardstick: a broker with no features, `python -m bench.yardstick DIRECTORY`, as fast as Python makes it.

It speaks the same frames and does what no broker can leave out: check and stamp each block, write it to its
partition's file, answer; read, check, send. No index, no views, no producers, no limits, no meters, no fsync. It
knows where an offset lies because all records have one size: with others its answers would be wrong. A producer of the
public client can publish to it: it is told which partitions a topic has, and gets an id that nobody looks at.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
import uvloop

from goqueue import codec
from goqueue.codec.layout import Selection
from goqueue.model import limits
from goqueue.wire import frames
from goqueue.wire.blocks import FETCH_REPLY, FETCH_REQUEST, ONE_RANGE_REPLY, PUBLISH_REQUEST
from goqueue.wire.codes import CODES, FETCH_BLOCK, PUBLISH_BLOCK
from goqueue.wire.frames import HEADER, LENGTH_BYTES, PREFACE

_BUFFER_BYTES: Final = 2 * limits.MIB
"""Whole frames of the bench fit, with room for the next one's header."""
_WRITTEN: Final = 1
_PUBLISH_REPLY_BYTES: Final = frames.MIN_FRAME_BYTES + ONE_RANGE_REPLY.size
_FETCH_HEAD_BYTES: Final = frames.MIN_FRAME_BYTES + FETCH_REPLY.size


class Partition:
    """One file."""

    __slots__ = ("end", "fd", "path", "record_bytes", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self.size = 0
        self.end = 0
        self.record_bytes = 0

    def append(self, block: memoryview, timestamp: int) -> tuple[int, int]:
        """How many records it has, and the first one's offset."""
        first = self.end
        count = len(codec.stamp(block, offset=first, timestamp=timestamp))
        if os.pwrite(self.fd, block, self.size) != len(block):
            raise OSError("the disk took only a part of a block")
        self.size += len(block)
        self.end += count
        self.record_bytes = len(block) // count
        return count, first

    def read(self, offset: int, max_bytes: int, max_count: int) -> tuple[Selection, bytes]:
        data = os.pread(self.fd, max_bytes, offset * self.record_bytes)
        found = codec.select(
            data, from_offset=offset, to_offset=limits.MAX_OFFSET, max_count=max_count, max_bytes=max_bytes
        )
        return found, data

    def remove(self) -> None:
        os.close(self.fd)
        os.unlink(self.path)


class Yard:
    """All partitions, by topic id and number."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._topics: dict[str, int] = {}
        self._last_id = 0
        self.partitions: dict[tuple[int, int], Partition] = {}

    def answer(self, operation: int, request: dict[str, Any]) -> dict[str, Any]:
        if operation == CODES["init_producer"]:
            return {"producer_id": 1, "epoch": 0}
        if operation == CODES["create_topic"]:
            name = request["name"]
            self._last_id += 1
            self._topics[name] = self._last_id
            for number in range(request["num_partitions"]):
                self.partitions[self._last_id, number] = Partition(f"{self._directory}/{name}-{number}")
            return {"topic_id": f"{self._last_id:016x}"}
        if operation == CODES["metadata"]:
            topics = [self._describe(name) for name in request["topics"] if name in self._topics]
            return {"cluster_id": "", "node_id": "", "topics": topics, "producer": {}, "consumer": {}}
        if operation == CODES["delete_topic"]:
            topic_id = self._topics.pop(request["topic"])
            for key in [key for key in self.partitions if key[0] == topic_id]:
                self.partitions.pop(key).remove()
            return {}
        raise ValueError(f"the yardstick has no operation {operation}")

    def _describe(self, name: str) -> dict[str, Any]:
        topic_id = self._topics[name]
        partitions = sum(key[0] == topic_id for key in self.partitions)
        return {
            "name": name,
            "topic_id": f"{topic_id:016x}",
            "partitions": partitions,
            "max_message_bytes": limits.MAX_BLOCK_BYTES,
        }


class Connection(asyncio.BufferedProtocol):
    """A frame is parsed, stamped and written where it was received; a large one always begins at the front."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._end = 0
        self._wanted = PREFACE.size
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._end : max(self._wanted, HEADER.size)]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        if self._end < self._wanted:
            return
        buffer = self._buffer
        if not self._greeted:
            self._greeted = True
            self._transport.write(
                frames.pack_welcome(frames.Welcome(1, limits.MAX_FRAME_BYTES, limits.MAX_CONNECTION_BYTES))
            )
            self._end, self._wanted = 0, HEADER.size
            return
        length, operation, _, correlation = HEADER.unpack_from(buffer)
        size = LENGTH_BYTES + length
        if self._end < size:
            self._wanted = size
            return
        self._end, self._wanted = 0, HEADER.size
        if operation == PUBLISH_BLOCK:
            self._publish(correlation, buffer[HEADER.size : size])
        elif operation == FETCH_BLOCK:
            self._fetch(correlation, buffer[HEADER.size : size])
        else:
            reply = msgspec.json.encode(self._yard.answer(operation, msgspec.json.decode(buffer[HEADER.size : size])))
            self._transport.write(frames.pack_header(operation, frames.OK, correlation, len(reply)) + reply)

    def _publish(self, correlation: int, payload: memoryview) -> None:
        topic_id, number, _, _, _, _, _ = PUBLISH_REQUEST.unpack_from(payload)
        now = int(time.time() * 1000)
        count, first = self._yard.partitions[topic_id, number].append(payload[PUBLISH_REQUEST.size :], now)
        self._transport.write(
            HEADER.pack(_PUBLISH_REPLY_BYTES, PUBLISH_BLOCK, frames.OK, correlation)
            + ONE_RANGE_REPLY.pack(_WRITTEN, 0, 1, count, first, now, 0)
        )

    def _fetch(self, correlation: int, payload: memoryview) -> None:
        topic_id, number, offset, max_bytes, max_count, _ = FETCH_REQUEST.unpack(payload)
        partition = self._yard.partitions[topic_id, number]
        found, data = partition.read(offset, max_bytes, max_count)
        block = memoryview(data)[found.start : found.end]
        head = HEADER.pack(_FETCH_HEAD_BYTES + len(block), FETCH_BLOCK, frames.OK, correlation) + FETCH_REPLY.pack(
            found.last_offset + 1, 0, partition.end, found.count
        )
        self._transport.writelines((head, block))


async def serve(directory: str, announce: Callable[[str], None]) -> None:
    """Until it is cancelled. `announce` is told where it listens."""
    yard = Yard(directory)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(yard), "127.0.0.1", 0)
    announce(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], lambda address: print(address, flush=True)))
