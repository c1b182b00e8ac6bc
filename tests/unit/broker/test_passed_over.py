"""Damage that a group passes over: one of its members hears of it, also when another one did not."""

from pathlib import Path

import pytest

from goqueue.broker.poll import Polled
from tests.support.moved_time import run_timed
from tests.unit.broker.consumers import consuming, numbered, texts


async def damaged(path: Path) -> None:
    """Three messages; the one in the middle is damaged."""
    async with consuming(path) as to:
        await to.create(fsync="every")
        to.put(*numbered(3))
        to.partition().log.sync()
        (file,) = path.glob("logs/orders/*/0/*.log")
    data = bytearray(file.read_bytes())
    data[data.index(b"m1")] ^= 0xFF
    file.write_bytes(data)


def damage_of(polled: Polled) -> list[tuple[int, int]]:
    return [(each.first, each.next_offset) for each in polled.damage]


@pytest.mark.parametrize("instance", [None, "one"], ids=["leaves", "is replaced"])
def test_what_a_member_did_not_hear_before_it_went_the_next_one_is_told(tmp_path: Path, instance: str | None) -> None:
    async def go() -> None:
        await damaged(tmp_path)
        async with consuming(tmp_path) as to:
            first = (await to.join(instance_id=instance)).member_id
            assert texts(await to.poll(first)) == ["m0", "m2"]
            await to.commit(first, 3)
            assert damage_of(await to.poll(first)) == [(1, 2)]
            if instance is None:
                await to.leave(first)
            second = (await to.join(instance_id=instance)).member_id
            assert second != first
            polled = await to.poll(second)
            assert damage_of(polled) == [(1, 2)]
            polled = await to.poll(second, received=polled.number)
            assert damage_of(polled) == [], "it has heard"
            await to.leave(second)
            assert damage_of(await to.poll((await to.join()).member_id)) == []

    run_timed(go())
