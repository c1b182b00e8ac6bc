"""Python calls per message: what the wire door does for a block must not grow with the messages in it.

The server runs in this process, on one loop, and every thread it has is watched with `sys.setprofile`; the load comes
from the generator's process, so nothing of a client is counted. Compiled code is seen as the one call it is.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any, Final, NamedTuple

import uvloop

from bench.blocks import producer_blocks
from bench.callers import WireCaller
from bench.load import DISTINCT, Fetch, Generator, Job, Publish
from bench.processes import scratch
from bench.report import Figure, Run
from goqueue.config.loading import load
from goqueue.model import limits
from goqueue.model.limits import KIB, MIB
from goqueue.server.server import Server

PARTITIONS: Final = 3
CALLS_PER_MESSAGE: Final = 0.1
_BLOCK_SIZES: Final = (256 * KIB, 1 * MIB)


class Calls(NamedTuple):
    """Of Python functions, and of C functions from Python."""

    python: int
    c: int


class Watch:
    """Counts the calls of every thread that starts while it is on, and of the one that started it."""

    def __init__(self) -> None:
        self._python, self._c = count(), count()

    def start(self) -> None:
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def stop(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def _see(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            next(self._python)  # one C call: no thread can come in between and lose one
        elif event == "c_call":
            next(self._c)

    def take(self) -> Calls:
        """What was counted since it was last asked."""
        taken = Calls(next(self._python), next(self._c))
        self._python, self._c = count(), count()
        return taken


def calls(run: Run) -> Iterator[Figure]:
    blocks = 60 if run.short else 300
    with scratch() as directory, Generator(directory) as generator:
        watch = Watch()
        watch.start()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(_measure(directory, generator, blocks, watch, run))
        finally:
            watch.stop()
    yield from figures


async def _measure(directory: str, generator: Generator, blocks: int, watch: Watch, run: Run) -> list[Figure]:
    flags = {
        "--http": "off",
        "--wire": "127.0.0.1:0",
        "--grpc": "off",
        "--metrics": "off",
        "--data-dir": f"{directory}/data",
    }
    server = await Server.start(load(file=None, environ={}, flags=flags, is_root=False))
    try:
        address = server.endpoints["wire"]
        figures = []
        for size in _BLOCK_SIZES:
            run.say(f"calls: {size // KIB} KiB blocks")
            per_block = producer_blocks(DISTINCT, size)[1]
            topic_id = await asyncio.to_thread(_create, address, f"calls-{size}")
            publish = Publish(
                address=address, topic_id=topic_id, partitions=PARTITIONS, block_bytes=size,
                blocks=blocks, connections=1, in_flight=4,
            )  # fmt: skip
            fetch = Fetch(
                address=address, topic_id=topic_id, partitions=PARTITIONS,
                to_offset=blocks // PARTITIONS * per_block, max_bytes=size, passes=1, connections=1,
            )  # fmt: skip
            for name, job in (("publish", publish), ("fetch", fetch)):
                counted, messages = await _count(generator, job, watch)
                python, c = (number * per_block / messages for number in counted)
                figures.append(
                    Figure(
                        f"Python calls per message, wire {name}, {size // KIB} KiB blocks",
                        counted.python / messages,
                        "calls",
                        CALLS_PER_MESSAGE if size == 1 * MIB else None,
                        at_most=True,
                        note=f"{python:.0f} Python and {c:.0f} C calls for a block of {per_block} messages; "
                        f"{blocks} blocks, all threads of the broker",
                    )
                )
        return figures
    finally:
        await server.stop()


async def _count(generator: Generator, job: Job, watch: Watch) -> tuple[Calls, int]:
    """The server's calls while a job is done, and how many messages that were."""
    watch.take()
    messages = await asyncio.to_thread(_unwatched, generator, job)
    return watch.take(), messages


def _unwatched(generator: Generator, job: Job) -> int:
    sys.setprofile(None)
    return generator.do(job).messages


def _create(address: str, name: str) -> int:
    sys.setprofile(None)
    caller = WireCaller(address)
    settings = {"num_partitions": PARTITIONS, "segment_bytes": limits.MAX_SEGMENT_BYTES}
    topic_id = int(caller.ask("create_topic", name=name, **settings)["topic_id"], 16)
    caller.close()
    return topic_id
