"""Requests that take long share the event loop: one works at a time, and everybody else between its turns."""

import asyncio
from collections.abc import Iterator

import pytest

from goqueue.api.turns import FEW, Turns, in_turns
from goqueue.model import limits
from tests.support.loop import run, turns

STEPS = 50


@pytest.fixture(autouse=True)
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes longer than a turn may."""
    monkeypatch.setattr(limits, "TURN_S", -1.0)


def steps(seen: list[str], name: str, count: int = STEPS) -> Iterator[None]:
    for _ in range(count):
        seen.append(name)
        yield


def test_others_come_between_two_steps() -> None:
    async def go() -> None:
        seen: list[str] = []

        async def other() -> None:
            while True:
                seen.append("other")
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        await Turns().take(steps(seen, "large"))
        task.cancel()
        assert ["large", "large"] not in [seen[at : at + 2] for at in range(1, len(seen))], "but for the first, at once"
        assert seen.count("large") == STEPS

    run(go())


def test_several_take_turns_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        found, seen = Turns(), list[str]()
        await asyncio.gather(*[found.take(steps(seen, name)) for name in "abc"])
        begun = seen.index("c")
        assert "".join(seen[begun:]).startswith("cabcabcabc") or "".join(seen[begun:]).startswith("cbacbacba"), seen

    run(go())


def test_few_steps_are_done_at_once_unless_somebody_has_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_S", 3600.0)

    async def go() -> None:
        found, seen = Turns(), list[str]()
        with pytest.raises(StopIteration):
            found.take(steps(seen, "a")).send(None)  # it ends without having waited
        assert len(seen) == STEPS
        async with found.turn():
            waiting = asyncio.ensure_future(found.take(steps(seen, "b")))
            await turns()
            assert len(seen) == STEPS
        await waiting
        assert len(seen) == 2 * STEPS

    run(go())


def test_what_fails_or_is_cancelled_leaves_its_turn_to_others() -> None:
    async def go() -> None:
        found, seen = Turns(), list[str]()

        def broken() -> Iterator[None]:
            yield
            yield
            raise ValueError("this one is broken")

        with pytest.raises(ValueError, match="broken"):
            await found.take(broken())
        cancelled = asyncio.ensure_future(found.take(steps(seen, "a", 10_000)))
        await turns()
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        await found.take(steps(seen, "b"))
        assert seen.count("b") == STEPS

    run(go())


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 500])
def test_each_entry_is_converted_once_and_in_its_place(count: int) -> None:
    async def go() -> None:
        assert await in_turns(Turns(), range(count), str) == [str(number) for number in range(count)]

    run(go())
