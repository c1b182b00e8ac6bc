"""Publishing over gRPC: batches on one stream, and one message a call; `python -m bench.client_grpc` is the client.

It does one job per line it is given. Frames are serialised before the clock starts, so that the broker is what is
measured; single messages are not.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from itertools import islice
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from bench import blocks
from bench.callers import Refused
from bench.client_ground import LOAD, Round, Server, burden
from bench.client_load import JOB_TIMEOUT_S, Clock, Done, Ends, pairs
from bench.load import DISTINCT
from bench.processes import BrokerProcess, Child, scratch
from bench.report import Figure, Run
from bench.timing import median
from bench.wire import PARTITIONS

STREAM_RATE: Final = 200_000
FRAME_MESSAGES: Final = 500
IN_FLIGHT: Final = 8
"""Frames without an answer."""
UNARY_IN_FLIGHT: Final = 16


class Stream(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many frames over one stream: messages with keys, or blocks as they lie in the log."""

    address: str
    topic: str
    frames: int
    as_blocks: bool = False


class Single(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One message a call, some calls at a time."""

    address: str
    topic: str
    messages: int


Job = Stream | Single


class GrpcLoad(Child):
    """The process, seen from the bench."""

    def __init__(self, directory: str) -> None:
        super().__init__(["-m", "bench.client_grpc"], name="gRPC client", log=f"{directory}/grpc.log")

    def do(self, job: Job) -> Done:
        self.tell(msgspec.json.encode(job))
        return msgspec.json.decode(self.hear(JOB_TIMEOUT_S), type=Done)


def publish(run: Run) -> Iterator[Figure]:
    rounds, frames, singles = (1, 200, 1_500) if run.short else (3, 2000, 50_000)
    with (
        scratch() as directory,
        BrokerProcess(directory) as process,
        closing(Server(process, process.wire, f"{directory}/data/logs")) as broker,
        GrpcLoad(directory) as client,
    ):
        stream = f"gRPC PublishStream, {FRAME_MESSAGES} messages a frame"
        plans: tuple[tuple[str, bool, float | None], ...] = (
            (stream, False, STREAM_RATE),
            (f"{stream}, as blocks", True, None),
        )
        for name, as_blocks, target in plans:
            results = []
            for turn in range(rounds + 1):
                topic = f"stream-{as_blocks:d}-{turn}"
                count = frames if turn else frames // 4  # the first only warms up
                job = Stream(address=process.grpc, topic=topic, frames=count, as_blocks=as_blocks)
                results.append(_do(broker, client, job))
                run.say(f"{name}: {results[-1].done.rate:,.0f} msg/s")
            counted = results[1:]
            note = f"{LOAD}, {IN_FLIGHT} frames in flight, serialised before, no producer id; {burden(counted)}"
            yield Figure(name, median([one.done.rate for one in counted]), "msg/s", target, note=note)
        results = [
            _do(broker, client, Single(address=process.grpc, topic=topic, messages=singles))
            for topic in [f"single-{turn}" for turn in range(rounds)]
        ]
    name = f"gRPC Publish, one message a call, {UNARY_IN_FLIGHT} in flight"
    note = f"{LOAD}, {singles:,} messages; {burden(results)}"
    yield Figure(name, median([one.done.rate for one in results]), "msg/s", note=note)
    for share, value in (("p50", [one.done.p50_ms for one in results]), ("p99", [one.done.p99_ms for one in results])):
        yield Figure(f"{name}, {share}", median(value), "ms", note=LOAD)


def _do(broker: Server, client: GrpcLoad, job: Job) -> Round:
    with broker.topic(job.topic):
        return broker.measure(client, lambda: client.do(job))


# --- the client


_pb: Final[Any] = import_module("goqueue.api.grpc.generated.goqueue_pb2")
"""The classes of the messages. They have no types that are worth checking."""
_SERVICE: Final = _pb.DESCRIPTOR.services_by_name["GoQueue"].full_name


async def run_job(job: Job) -> Done:
    async with grpc.aio.insecure_channel(job.address) as channel:
        return await (_stream(channel, job) if isinstance(job, Stream) else _single(channel, job))


async def _stream(channel: grpc.aio.Channel, job: Stream) -> Done:
    frames, count = _block_frames(job.topic) if job.as_blocks else _message_frames(job.topic)
    ends = Ends()
    room = asyncio.Semaphore(IN_FLIGHT)
    method: Any = channel.stream_stream(
        f"/{_SERVICE}/PublishStream", response_deserializer=_pb.PublishFrameReply.FromString
    )
    call: Any = method(timeout=JOB_TIMEOUT_S)  # a serialised frame goes as it is

    async def receive() -> None:
        for number in range(job.frames):
            reply = await call.read()
            if reply is grpc.aio.EOF:
                raise Refused(f"the stream ended after {number} of {job.frames} frames: {await call.details()}")
            if reply.frame != number or reply.errors or sum(each.count for each in reply.ranges) != count:
                raise Refused(f"frame {number} was answered with {str(reply)[:500]}")
            for each in reply.ranges:
                if each.duplicate:
                    raise Refused(f"frame {number} is called a duplicate")
                ends.add(each.partition, each.first_offset + each.count, each.count)
            room.release()

    clock = Clock()
    async with asyncio.TaskGroup() as group:
        group.create_task(receive())
        for number in range(job.frames):
            await room.acquire()
            await call.write(frames[number % len(frames)])
        await call.done_writing()
    done = clock.done(job.frames * count)
    ends.check(job.frames * count)
    return done


def _message_frames(topic: str) -> tuple[list[bytes], int]:
    messages = [_pb.Message(key=key, value=value) for key, value in pairs(DISTINCT * FRAME_MESSAGES)]
    parts = [messages[at : at + FRAME_MESSAGES] for at in range(0, len(messages), FRAME_MESSAGES)]
    return [_pb.PublishFrame(topic=topic, messages=part).SerializeToString() for part in parts], FRAME_MESSAGES


def _block_frames(topic: str) -> tuple[list[bytes], int]:
    made, count = blocks.blocks(DISTINCT, size=(len(blocks.block(1)[0]) * FRAME_MESSAGES))
    return [
        _pb.PublishFrame(topic=topic, block=bytes(block), partition=at % PARTITIONS).SerializeToString()
        for at, block in enumerate(made)
    ], count


async def _single(channel: grpc.aio.Channel, job: Single) -> Done:
    ends = Ends()
    latencies: list[float] = []
    messages = islice(pairs(job.messages), job.messages)
    method: Any = channel.unary_unary(
        f"/{_SERVICE}/Publish", _pb.PublishRequest.SerializeToString, _pb.PublishResult.FromString
    )
    loop = asyncio.get_running_loop()

    async def work() -> None:
        for key, value in messages:  # all tasks take from one: each message once
            begun = loop.time()
            result = await method(_pb.PublishRequest(topic=job.topic, key=key, value=value), timeout=JOB_TIMEOUT_S)
            latencies.append((loop.time() - begun) * 1000)
            if result.error or result.duplicate:
                raise Refused(f"a message was answered with {str(result)[:500]}")
            ends.add(result.partition, result.offset + 1, 1)

    clock = Clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(UNARY_IN_FLIGHT):
            group.create_task(work())
    done = clock.done(job.messages, latencies)
    ends.check(job.messages)
    return done


def _jobs() -> Iterator[Job]:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Job)
    for line in sys.stdin:
        yield decoder.decode(line)


if __name__ == "__main__":
    for job in _jobs():
        print(json.dumps(msgspec.to_builtins(asyncio.run(run_job(job)))), flush=True)
