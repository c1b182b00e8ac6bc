"""What the gRPC door takes for granted about the library, in servers of a few lines. A next version may change it."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.support.patience import PATIENCE_S

CRASHES_FROM = (1, 81)
MENDED_IN: tuple[int, ...] | None = None
"""The first version again that does not crash; 1.85.1 is the newest that was tried."""
MENDED = (
    "grpcio {} no longer ends a process that asks for the client of a call that is over. Say so in api/grpc/caller.py "
    "and in MENDED_IN here. The rule about contexts stays for as long as pyproject.toml allows the versions that crash."
)

LATE_QUESTION = """
import asyncio, resource, sys, grpc

async def ask_late(question):
    over = asyncio.Event()
    kept = []

    async def answer(request, context):
        kept.append(context)
        context.add_done_callback(lambda _: over.set())
        return b""

    server = grpc.aio.server()
    handlers = {"M": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.unary_unary("/s/M")(b"")
    await over.wait()
    await server.stop(None)  # which waits until the call is freed
    print("asks", flush=True)
    getattr(kept[0], question)()
    print("was answered", flush=True)

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
asyncio.run(ask_late(sys.argv[1]))
"""


def version() -> tuple[int, ...]:
    return tuple(int(part) for part in grpc.__version__.split(".") if part.isdigit())


@pytest.mark.parametrize("question", ["peer", "peer_identities", "auth_context"])
def test_who_asks_about_a_call_that_is_over_ends_the_process(question: str) -> None:
    """It fails when that is mended: then a sentence in our source is no longer true, and says what to do about it."""
    found = subprocess.run(
        [sys.executable, "-c", LATE_QUESTION, question], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert found.stdout.startswith("asks"), found
    if version() >= CRASHES_FROM and (MENDED_IN is None or version() < MENDED_IN):
        assert found.returncode == -signal.SIGSEGV, MENDED.format(grpc.__version__)
    else:
        assert found.returncode == 0, found


Handler = Callable[[Any, Any], Awaitable[Any]]


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    """Where it answers."""
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"M": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize("leaves", ["cancels", "closes", "is late"])
def test_a_client_that_leaves_is_heard_of_by_cancellation_alone(leaves: str) -> None:
    """Once its deadline is over a call has no connection any more; the door counts on an empty name for those only."""
    heard: list[tuple[str, bool]] = []

    async def body() -> None:
        begun = asyncio.Event()

        async def answer(request: bytes, context: Any) -> bytes:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                heard.append((context.peer(), context.cancelled()))
            return b""

        async with serving(answer) as address, grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.unary_unary("/s/M")
            if leaves == "is late":
                while not heard:  # a call may be late before it arrives
                    await method(b"", timeout=0.1).code()
                return
            call = method(b"", timeout=PATIENCE_S)
            code = asyncio.ensure_future(call.code())
            await begun.wait()
            if leaves == "cancels":
                call.cancel()
            else:
                await channel.close()
            while not heard:
                await asyncio.sleep(0.005)
            await asyncio.wait((code,))

    asyncio.run(body())
    peer, cancelled = heard[0]
    assert not cancelled
    assert bool(peer) == (leaves != "is late")
