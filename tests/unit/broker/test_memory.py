"""That a broker which does the same again and again does not grow: also outside of what Python counts."""

import ctypes
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from goqueue.model.groups import Mode
from tests.support.moved_time import run_timed
from tests.unit.broker.consumers import Consumers, consuming, handles_of

pytestmark = pytest.mark.one_codec

ROUNDS = 300
BYTES = 100
"""A round may leave so much: the log grows, and so do its indexes."""


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in (*(f"_{number}" for number in range(7)), "used", "_8", "_9"))


def bytes_used() -> int:
    """What was allocated and not freed, small Python objects apart."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("this C library does not tell")
    libc.mallinfo2.restype = _Mallinfo
    return int(libc.mallinfo2().used)


async def ack(to: Consumers, member: str) -> None:
    await to.ack(*handles_of(await to.poll(member)))


async def nack_and_ack(to: Consumers, member: str) -> None:
    await to.nack(*handles_of(await to.poll(member)), delay_ms=1)
    await to.pass_by(2)
    await ack(to, member)


async def lapse_and_ack(to: Consumers, member: str) -> None:
    await to.poll(member, visibility_ms=1)
    await to.pass_by(2)
    await ack(to, member)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("consume", [ack, nack_and_ack, lapse_and_ack])
def test_memory_does_not_grow(tmp_path: Path, mode: Mode, consume: Callable[[Consumers, str], Awaitable[None]]) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(mode=mode)).member_id

            async def rounds() -> None:
                for _ in range(ROUNDS):
                    to.put("x")
                    await consume(to, member)

            await rounds()
            before = bytes_used()
            await rounds()
            assert bytes_used() - before < ROUNDS * BYTES

    run_timed(go())
