"""Somebody else's small load, in a process of its own: how long a message takes from its publisher to a waiting poll.

Run as a module with the address of the wire door it creates its topic, and then takes one command per line:
  begin         measure from now on; "begun"
  end           stop; what was measured since, in milliseconds, as a JSON list
"""

import asyncio
import sys
import time
from typing import Final

import msgspec
import uvloop

from bench.processes import Child
from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.client.member import Member
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from goqueue.wire.codes import CODES
from tests.chaos.broker_load import split
from tests.support.patience import PATIENCE_S

_TOPIC: Final = "elsewhere"
_EVERY_S: Final = 0.002


class Probe(Child):
    """That process. Use it in `with`."""

    def __init__(self, wire: str, log: str) -> None:
        super().__init__(["-m", "tests.scale.probe", wire], name="probe", log=log)
        self.hear(PATIENCE_S)

    def begin(self) -> None:
        self.tell(b"begin")
        self.hear(PATIENCE_S)

    def end(self) -> list[float]:
        """Milliseconds, sorted."""
        self.tell(b"end")
        return sorted(msgspec.json.decode(self.hear(PATIENCE_S), type=list[float]))


async def serve(wire: str) -> None:
    async with await Connection.connect(*split(wire)) as publisher, await Connection.connect(*split(wire)) as consumer:
        created = await publisher.ask(CODES["create_topic"], {"name": _TOPIC, "num_partitions": 1})
        topic_id = int(created["topic_id"], 16)
        member = await Member.join(consumer, _TOPIC, [_TOPIC])
        commands: asyncio.Queue[bytes] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(0, lambda: commands.put_nowait(sys.stdin.buffer.readline()))
        found: list[float] = []
        _say(b"ready")
        while True:
            found.append(await _measure(publisher, member, topic_id))
            while not commands.empty():
                match commands.get_nowait().strip():
                    case b"begin":
                        found.clear()
                        _say(b"begun")
                    case b"end":
                        _say(msgspec.json.encode(found))
                    case _:
                        return
            await asyncio.sleep(_EVERY_S)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


async def _measure(publisher: Connection, member: Member, topic_id: int) -> float:
    poll = asyncio.ensure_future(member.poll(max_wait_ms=30_000))
    await asyncio.sleep(0.002)  # until it waits
    begun = time.perf_counter()
    block = codec.encode([Record(value=b"ping")])
    publish = asyncio.ensure_future(publisher.publish_block(topic_id, 0, block, acks=Acks.LEADER))
    rows = await poll
    while not rows:  # it was only told that it has a partition
        rows = await member.poll(max_wait_ms=30_000)
    took_ms = (time.perf_counter() - begun) * 1000
    await publish
    await member.commit(rows)
    return took_ms


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))
