"""Bytes in flight: first come, first served, never more than the limit, and nothing lost on the way."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.broker.admission import Admission
from goqueue.model.errors import Busy
from tests.support.loop import run, turns

LONG_S = 3600.0
AT_ONCE_S = 0.0


def waiting(admission: Admission, size: int) -> "asyncio.Task[None]":
    return asyncio.ensure_future(admission.take(size, timeout_s=LONG_S))


def test_what_fits_is_taken_at_once() -> None:
    admission = Admission(10)
    assert admission.try_take(4)
    assert admission.try_take(6)
    assert admission.held == 10
    assert not admission.try_take(1)
    assert admission.held == 10
    admission.give(6)
    assert admission.try_take(5)


def test_nothing_fits_always() -> None:
    admission = Admission(1)
    assert admission.try_take(1)
    assert admission.try_take(0)


def test_nothing_passes_also_those_who_wait() -> None:
    async def go() -> None:
        admission = Admission(1)
        await admission.take(1, timeout_s=LONG_S)
        late = waiting(admission, 1)
        await turns()
        await admission.take(0, timeout_s=AT_ONCE_S)
        admission.give(1)
        await late

    run(go())


def test_bytes_that_are_here_already_are_counted_and_others_wait_the_longer() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(8, timeout_s=LONG_S)
        late = waiting(admission, 2)
        await late
        admission.take_anyway(5)
        assert admission.held == 15
        later = waiting(admission, 1)
        for _ in range(5):
            await turns()
            assert not later.done()
            admission.give(1)
        await turns()
        assert not later.done()
        admission.give(1)
        await later
        assert admission.held == 10

    run(go())


def test_a_taker_waits_until_there_is_room() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(8, timeout_s=LONG_S)
        late = waiting(admission, 5)
        await turns()
        assert not late.done()
        admission.give(2)
        await turns()
        assert not late.done(), "four are free, five are wanted"
        admission.give(1)
        await late
        assert admission.held == 10

    run(go())


def test_first_come_first_served() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(10, timeout_s=LONG_S)
        served: list[int] = []

        async def take(number: int, size: int) -> None:
            await admission.take(size, timeout_s=LONG_S)
            served.append(number)

        tasks = [asyncio.ensure_future(take(number, size)) for number, size in enumerate([7, 1, 2, 5, 1])]
        await turns()
        admission.give(5)
        await turns()
        assert served == [], "small ones behind a large one wait for their turn"
        admission.give(2)
        await turns()
        assert served == [0]
        admission.give(3)
        await turns()
        assert served == [0, 1, 2]
        admission.give(10)
        await asyncio.gather(*tasks)
        assert served == [0, 1, 2, 3, 4]
        assert admission.held == 6

    run(go())


def test_who_comes_later_does_not_pass_who_waits() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(6, timeout_s=LONG_S)
        first = waiting(admission, 8)
        await turns()
        assert not admission.try_take(1)
        admission.give(6)
        await first
        assert admission.try_take(1)

    run(go())


def test_what_can_never_fit_is_refused_at_once() -> None:
    async def go() -> None:
        admission = Admission(10)
        with pytest.raises(Busy, match="11 bytes are more than the 10 that may be in flight; send less at a time"):
            await admission.take(11, timeout_s=LONG_S)
        assert admission.held == 0
        await admission.take(10, timeout_s=LONG_S)
        with pytest.raises(Busy, match="send less"):
            await admission.take(11, timeout_s=LONG_S)

    run(go())


def test_who_waited_too_long_is_told_so() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(10, timeout_s=LONG_S)
        with pytest.raises(Busy, match="10 bytes are in flight already, the most there may be; try again"):
            await admission.take(1, timeout_s=AT_ONCE_S)
        assert admission.held == 10
        admission.give(10)
        assert admission.try_take(10), "nobody waits any more"

    run(go())


def test_who_gave_up_does_not_keep_those_behind_from_being_served() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(5, timeout_s=LONG_S)
        large, small = waiting(admission, 9), waiting(admission, 2)
        await turns()
        large.cancel()
        await small
        assert large.cancelled()
        assert admission.held == 7

    run(go())


def test_who_timed_out_does_not_keep_those_behind_from_being_served() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(5, timeout_s=LONG_S)
        large = asyncio.ensure_future(admission.take(9, timeout_s=AT_ONCE_S))
        small = waiting(admission, 2)
        await small
        with pytest.raises(Busy):
            await large
        assert admission.held == 7

    run(go())


def test_who_is_cancelled_in_the_moment_of_being_served_gives_back_what_it_got() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(10, timeout_s=LONG_S)
        served, behind = waiting(admission, 6), waiting(admission, 8)
        await turns()
        admission.give(10)
        assert admission.held == 6, "it is served, but does not know it yet"
        served.cancel()
        await behind
        assert served.cancelled()
        assert admission.held == 8

    run(go())


def test_who_times_out_in_the_moment_of_being_served_gives_back_what_it_got() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(10, timeout_s=LONG_S)
        loop = asyncio.get_running_loop()
        served = asyncio.ensure_future(admission.take(6, timeout_s=AT_ONCE_S))
        await asyncio.sleep(0)
        loop.call_soon(admission.give, 10)
        outcome = (await asyncio.gather(served, return_exceptions=True))[0]
        assert outcome is None or isinstance(outcome, Busy)
        assert admission.held == (6 if outcome is None else 0)

    run(go())


def test_bytes_come_back_to_several_at_a_time() -> None:
    async def go() -> None:
        admission = Admission(10)
        await admission.take(10, timeout_s=LONG_S)
        tasks = [waiting(admission, 2) for _ in range(5)]
        await turns()
        admission.give(10)
        await asyncio.gather(*tasks)
        assert admission.held == 10

    run(go())


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 25), st.integers(0, 4), st.booleans()), max_size=40),
    st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_whatever_takers_do(limit: int, takers: list[tuple[int, int, bool]], seed: int) -> None:
    """Takers that hold for some turns, or are cancelled at any moment: in the end all of the room is free again."""
    rng = Random(seed)

    async def take(admission: Admission, size: int, turns_held: int, in_time: bool) -> None:
        await admission.take(size, timeout_s=LONG_S if in_time else AT_ONCE_S)
        try:
            assert 0 <= admission.held <= limit
            await turns(turns_held)
        finally:
            admission.give(size)

    async def go() -> None:
        admission = Admission(limit)
        tasks = []
        for size, turns_held, in_time in takers:
            tasks.append(asyncio.ensure_future(take(admission, size, turns_held, in_time)))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
                assert 0 <= admission.held <= limit
                if rng.random() < 0.3:
                    rng.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), Busy, asyncio.CancelledError}
        assert admission.held == 0
        assert admission.try_take(limit), "nobody is left waiting"

    run(go())
