"""The load generator: `python -m bench.load`, a process of its own that does one job per line it is given.

Blocks and bodies are built before the clock starts, and one thread per connection does little but wait in the kernel
for its window to open, so that the server is what is measured. Servers are told apart by their address alone.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cache
from threading import Barrier
from typing import Any, Final

import msgspec

from bench.blocks import producer_blocks, texts
from bench.callers import HttpCaller, Refused, WireCaller, http_request
from bench.processes import Child
from goqueue.model.publishing import Acks
from goqueue.model.record import Producer
from goqueue.wire.blocks import FETCH_REPLY, ONE_RANGE_REPLY, FetchRequest, PublishRequest
from goqueue.wire.codes import FETCH_BLOCK, PUBLISH_BLOCK

DISTINCT: Final = 12
"""Different blocks, or bodies, that are sent over and over."""
JOB_TIMEOUT_S: Final = 300.0
_SEQUENCES: Final = 2**31
_ALL: Final = 1_000_000
_REPLY_BYTES: Final = 64 * 1024


class Publish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`blocks` of them per connection, over the partitions in turn, as an idempotent producer with acks leader."""

    address: str
    topic_id: int
    partitions: int
    block_bytes: int
    blocks: int
    connections: int
    in_flight: int


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every connection reads each partition from 0 to `to_offset`, `passes` times, a request in flight for each."""

    address: str
    topic_id: int
    partitions: int
    to_offset: int
    max_bytes: int
    passes: int
    connections: int


class Batch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`requests` per connection, of `messages` each with keys, over HTTP."""

    address: str
    topic: str
    messages: int
    requests: int
    connections: int


class CreateTopics(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Topics `PREFIX-0` and so on, over HTTP, shared out to the connections."""

    address: str
    prefix: str
    topics: int
    partitions: int
    connections: int


Job = Publish | Fetch | Batch | CreateTopics


class Done(msgspec.Struct, frozen=True):
    """`cpu_s` is what the generator itself used meanwhile."""

    seconds: float
    cpu_s: float
    messages: int

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Generator(Child):
    """The process, seen from the bench."""

    def __init__(self, directory: str) -> None:
        super().__init__(["-m", "bench.load"], name="load generator", log=f"{directory}/load.log")

    def do(self, job: Job) -> Done:
        self.tell(msgspec.json.encode(job))
        return msgspec.json.decode(self.hear(JOB_TIMEOUT_S), type=Done)


def run(job: Job) -> Done:
    """Do a job with a thread per connection; the clock runs from the first request to the last answer."""
    with ExitStack() as stack:
        works = [_prepare(job, number, stack) for number in range(job.connections)]
        together = Barrier(len(works) + 1)

        def work(one: Callable[[], int]) -> int:
            together.wait()
            return one()

        pool = stack.enter_context(ThreadPoolExecutor(len(works)))
        futures = [pool.submit(work, one) for one in works]
        together.wait()
        begin, cpu = time.perf_counter(), time.process_time()
        messages = sum(future.result() for future in futures)
        return Done(time.perf_counter() - begin, time.process_time() - cpu, messages)


def _prepare(job: Job, number: int, stack: ExitStack) -> Callable[[], int]:
    """What connection `number` does, with everything built and connected."""
    if isinstance(job, Publish | Fetch):
        wire = stack.enter_context(closing(WireCaller(job.address)))
        if isinstance(job, Fetch):
            return lambda: _fetch(wire, job)
        built = producer_blocks(DISTINCT, job.block_bytes)
        identity = wire.ask("init_producer")
        producer = Producer(identity["producer_id"], identity["epoch"], 0)
        return lambda: _publish(wire, job, built, producer)
    http = stack.enter_context(closing(HttpCaller(job.address)))
    requests: Sequence[bytes]
    if isinstance(job, Batch):
        bodies = _bodies(job.topic, job.messages)
        requests = [bodies[at % len(bodies)] for at in range(job.requests)]
        per_request = job.messages
    else:
        requests = [
            http_request("POST", "/topics", {"name": f"{job.prefix}-{at}", "num_partitions": job.partitions})
            for at in range(number, job.topics, job.connections)
        ]
        per_request = 1
    return lambda: _call(http, requests, per_request)


# --- what a connection does


def _publish(wire: WireCaller, job: Publish, built: tuple[list[bytearray], int], producer: Producer) -> int:
    blocks, count = built
    into = memoryview(bytearray(_REPLY_BYTES))
    waiting = 0
    for number in range(job.blocks):
        if waiting == job.in_flight:
            _acknowledged(wire, into, count)
            waiting -= 1
        turn, partition = divmod(number, job.partitions)
        stamped = Producer(producer.producer_id, producer.producer_epoch, turn * count % _SEQUENCES)
        request = PublishRequest(job.topic_id, partition, Acks.LEADER, stamped).pack()
        wire.request(PUBLISH_BLOCK, number, [request, blocks[number % len(blocks)]])
        waiting += 1
    for _ in range(waiting):
        _acknowledged(wire, into, count)
    return job.blocks * count


def _acknowledged(wire: WireCaller, into: memoryview, count: int) -> None:
    _, payload = wire.reply(into)
    _, _, ranges, records, _, _, duplicate = ONE_RANGE_REPLY.unpack(payload)
    if (ranges, records, duplicate) != (1, count, 0):
        raise Refused(f"{records} of {count} records in {ranges} ranges, duplicate {duplicate}")


def _fetch(wire: WireCaller, job: Fetch) -> int:
    into = memoryview(bytearray(job.max_bytes + _REPLY_BYTES))
    messages = 0
    passes = [job.passes] * job.partitions
    offsets = [0] * job.partitions
    waiting = job.partitions
    for partition in range(job.partitions):
        _ask(wire, job, partition, 0)
    while waiting:
        partition, payload = wire.reply(into)
        next_offset, _, _, records = FETCH_REPLY.unpack_from(payload)
        if not records or next_offset != offsets[partition] + records:
            raise Refused(f"{records} records from offset {offsets[partition]} of partition {partition}")
        messages += records
        if next_offset >= job.to_offset:
            next_offset = 0
            passes[partition] -= 1
        offsets[partition] = next_offset
        if passes[partition]:
            _ask(wire, job, partition, next_offset)
        else:
            waiting -= 1
    return messages


def _ask(wire: WireCaller, job: Fetch, partition: int, offset: int) -> None:
    request = FetchRequest(job.topic_id, partition, offset, job.max_bytes, _ALL).pack()
    wire.request(FETCH_BLOCK, partition, [request])


def _call(http: HttpCaller, requests: Sequence[bytes], per_request: int) -> int:
    for number, request in enumerate(requests):
        body = http.call(request)
        if not number and b'"error"' in bytes(body):  # of a batch that is answered, single messages may be refused
            raise Refused(bytes(body[:500]).decode(errors="replace"))
    return len(requests) * per_request


@cache
def _bodies(topic: str, messages: int) -> list[bytes]:
    return [
        http_request("POST", f"/topics/{topic}/messages", {"acks": "leader", "messages": texts(messages)})
        for _ in range(DISTINCT)
    ]


# --- the process


def _jobs() -> Iterator[Job]:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Job)
    for line in sys.stdin:
        yield decoder.decode(line)


if __name__ == "__main__":
    for job in _jobs():
        print(json.dumps(msgspec.to_builtins(run(job))), flush=True)
