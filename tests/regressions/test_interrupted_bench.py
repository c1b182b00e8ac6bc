"""`goqueue-cli bench` left its topic behind, without a word, when Ctrl-C or a lost answer came while it was created.

Creating it stood in front of the `try` that removes it. The test of a bench that is interrupted waits for its first
message, which is too late for this: here a broker that is told what to do holds back the answer, or never gives it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from goqueue.model.errors import UnknownTopic
from goqueue.wire.codes import CODES
from tests.support.loop import run
from tests.unit.client.fake_broker import HOST, Peer, Request, serving

_GRACE_S: Final = 0.3
"""How long the answer is held back after Ctrl-C. A shorter one would find the mistake less often, and nothing else."""


class Topics:
    """A broker that knows topics and nothing else: one is there as soon as its creation is answered."""

    def __init__(self, on_create: Callable[[Peer, Request], Awaitable[None]]) -> None:
        self.names: set[str] = set()
        self.created = 0
        self.is_gone = False
        self._on_create = on_create

    async def talk(self, peer: Peer) -> None:
        while True:
            request = await peer.read()
            if self.is_gone:
                return
            name = msgspec.json.decode(request.payload or b"{}").get("name")
            if request.operation == CODES["create_topic"]:
                await self._on_create(peer, request)
                self.names.add(name)
                self.created += 1
                peer.reply(request, msgspec.json.encode({"name": name, "partitions": 1, "created": True}))
            elif request.operation == CODES["delete_topic"]:
                name = msgspec.json.decode(request.payload)["topic"]
                if name in self.names:
                    self.names.remove(name)
                    peer.reply(request, msgspec.json.encode({"deleted": True, "name": name}))
                else:
                    peer.refuse(request, UnknownTopic(f"there is no topic {name!r}"))
            else:
                return  # this broker is not here to be measured


async def begin(port: int) -> asyncio.subprocess.Process:
    program = "from goqueue.cli.remote.main import main; main()"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "--timeout", "60", "bench", "latency",
        env={**os.environ, "GOQUEUE_ADDRESS": f"{HOST}:{port}", "GOQUEUE_CLI_CONFIG": "/nonexistent"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


def test_ctrl_c_while_its_topic_is_created_leaves_nothing_behind() -> None:
    async def go() -> None:
        begun: list[asyncio.subprocess.Process] = []

        async def interrupt(peer: Peer, request: Request) -> None:
            begun[0].send_signal(signal.SIGINT)
            await asyncio.sleep(_GRACE_S)

        broker = Topics(interrupt)
        async with AsyncExitStack() as stack:
            begun.append(await begin(await stack.enter_async_context(serving(broker.talk))))
            output, errors = await begun[0].communicate()
            assert (begun[0].returncode, output) == (130, b"")
            assert errors == b"note: stopped after 0 of 5,000 messages\n"
            assert (broker.created, broker.names) == (1, set())

    run(go())


def test_a_lost_answer_to_creating_its_topic_leaves_nothing_behind() -> None:
    async def go() -> None:
        async def hang_up(peer: Peer, request: Request) -> None:
            broker.names.add(msgspec.json.decode(request.payload)["name"])
            broker.created += 1
            raise ConnectionError

        broker = Topics(hang_up)
        async with serving(broker.talk) as port:
            process = await begin(port)
            output, errors = await process.communicate()
            assert (process.returncode, output) == (1, b"")
            assert errors.startswith(b"error: ")
            assert (broker.created, broker.names) == (1, set())

    run(go())


def test_a_broker_that_ends_while_its_topic_is_created_is_told_of() -> None:
    async def go() -> None:
        gone = AsyncExitStack()

        async def end(peer: Peer, request: Request) -> None:
            broker.names.add(msgspec.json.decode(request.payload)["name"])
            broker.is_gone = True
            over.set()
            raise ConnectionError

        broker, over = Topics(end), asyncio.Event()
        process = await begin(await gone.enter_async_context(serving(broker.talk)))
        await over.wait()
        await gone.aclose()
        _, errors = await process.communicate()
        assert process.returncode == 1
        (name,) = broker.names
        assert f"note: topic {name} could not be removed: ".encode() in errors

    run(go())
