"""Bytes in flight: first come, first served, never more than the limit, and nothing lost on the way."""

import asyncio
import gc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.broker.admission import NOTHING, Admission, Ticket, take_both
from goqueue.model.errors import Busy
from tests.support.loop import run, turns

LONG_S = 3600.0
AT_ONCE_S = 0.0


def waiting(admission: Admission, size: int) -> "asyncio.Task[Ticket]":
    return asyncio.ensure_future(admission.take(size, timeout_s=LONG_S))


def taken(admission: Admission, *sizes: int) -> list[Ticket]:
    return [admission.take_anyway(size) for size in sizes]


def test_what_fits_is_taken_at_once() -> None:
    admission = Admission(10)
    first, second = admission.try_take(4), admission.try_take(6)
    assert first is not None
    assert second is not None
    assert (admission.held, first.size, second.size) == (10, 4, 6)
    assert admission.try_take(1) is None
    assert admission.held == 10
    second.give()
    assert admission.try_take(5) is not None


def test_nothing_fits_always() -> None:
    admission = Admission(1)
    full = admission.try_take(1)
    assert full is not None
    assert admission.try_take(0) is NOTHING


def test_nothing_passes_also_those_who_wait() -> None:
    async def go() -> None:
        admission = Admission(1)
        full = await admission.take(1, timeout_s=LONG_S)
        late = waiting(admission, 1)
        await turns()
        assert await admission.take(0, timeout_s=AT_ONCE_S) is NOTHING
        full.give()
        await late

    run(go())


def test_giving_back_again_gives_nothing() -> None:
    admission = Admission(10)
    ticket, other = taken(admission, 4, 3)
    for _ in range(3):
        ticket.give()
        assert (admission.held, ticket.size) == (3, 0)
    other.give()
    assert admission.held == 0


def test_what_is_handed_over_is_given_back_by_its_new_holder_alone() -> None:
    admission = Admission(10)
    (before,) = taken(admission, 4)
    after = before.hand_over()
    before.give()
    assert (before.size, after.size, admission.held) == (0, 4, 4)
    after.give()
    assert admission.held == 0


def test_one_ticket_for_two_budgets_is_given_back_to_both() -> None:
    async def go() -> None:
        own, shared = Admission(10), Admission(20)
        both = await take_both(own, shared, 6, own_timeout_s=LONG_S, shared_timeout_s=LONG_S)
        assert (own.held, shared.held) == (6, 6)
        both.give()
        assert (own.held, shared.held) == (0, 0)

    run(go())


def test_what_one_budget_refuses_is_not_taken_of_the_other() -> None:
    async def go() -> None:
        own, shared = Admission(10), Admission(20)
        full = taken(shared, 20)
        with pytest.raises(Busy, match="20 bytes are in flight already"):
            await take_both(own, shared, 6, own_timeout_s=LONG_S, shared_timeout_s=AT_ONCE_S)
        assert (own.held, shared.held, len(full)) == (0, 20, 1)

    run(go())


def test_a_ticket_that_nobody_has_any_more_is_found_and_told() -> None:
    admission = Admission(10)
    kept, dropped = taken(admission, 3, 7)
    assert admission.reclaim() == 0
    del dropped
    gc.collect()
    assert admission.held == 10, "not before somebody looks: a ticket may be dropped in any thread"
    assert admission.reclaim() == 7
    assert (admission.held, admission.lost, admission.reclaim()) == (3, 7, 0)
    kept.give()
    del kept
    assert (admission.reclaim(), admission.held) == (0, 0)


def test_who_waits_is_served_from_what_is_found() -> None:
    async def go() -> None:
        admission = Admission(10)
        taken(admission, 10)  # and dropped
        late = waiting(admission, 4)
        await turns()
        assert not late.done()
        assert admission.reclaim() == 10
        assert (await late).size == 4

    run(go())


def test_bytes_that_are_here_already_are_counted_and_others_wait_the_longer() -> None:
    async def go() -> None:
        admission = Admission(10)
        held = taken(admission, *[1] * 8)
        late = await waiting(admission, 2)
        held += taken(admission, *[1] * 5)
        assert admission.held == 15
        later = waiting(admission, 1)
        for ticket in held[:5]:
            await turns()
            assert not later.done()
            ticket.give()
        await turns()
        assert not later.done()
        held[5].give()
        await later
        assert (admission.held, late.size) == (10, 2)

    run(go())


def test_a_taker_waits_until_there_is_room() -> None:
    async def go() -> None:
        admission = Admission(10)
        _kept, two, one = taken(admission, 5, 2, 1)
        late = waiting(admission, 5)
        await turns()
        assert not late.done()
        two.give()
        await turns()
        assert not late.done(), "four are free, five are wanted"
        one.give()
        await late
        assert admission.held == 10

    run(go())


def test_first_come_first_served() -> None:
    async def go() -> None:
        admission = Admission(10)
        held = taken(admission, 5, 2, 3)
        served: list[tuple[int, Ticket]] = []

        async def take(number: int, size: int) -> None:
            served.append((number, await admission.take(size, timeout_s=LONG_S)))

        tasks = [asyncio.ensure_future(take(number, size)) for number, size in enumerate([7, 1, 2, 5, 1])]
        await turns()
        held[0].give()
        await turns()
        assert served == [], "small ones behind a large one wait for their turn"
        held[1].give()
        await turns()
        assert [number for number, _ in served] == [0]
        held[2].give()
        await turns()
        assert [number for number, _ in served] == [0, 1, 2]
        served[0][1].give()
        served[1][1].give()
        served[2][1].give()
        await asyncio.gather(*tasks)
        assert [number for number, _ in served] == [0, 1, 2, 3, 4]
        assert admission.held == 6

    run(go())


def test_who_comes_later_does_not_pass_who_waits() -> None:
    async def go() -> None:
        admission = Admission(10)
        (six,) = taken(admission, 6)
        first = waiting(admission, 8)
        await turns()
        assert admission.try_take(1) is None
        six.give()
        await first
        assert admission.try_take(1) is not None

    run(go())


def test_what_can_never_fit_is_refused_at_once() -> None:
    async def go() -> None:
        admission = Admission(10)
        with pytest.raises(Busy, match="11 bytes are more than the 10 that may be in flight; send less at a time"):
            await admission.take(11, timeout_s=LONG_S)
        assert admission.held == 0
        full = await admission.take(10, timeout_s=LONG_S)
        with pytest.raises(Busy, match="send less"):
            await admission.take(11, timeout_s=LONG_S)
        full.give()

    run(go())


def test_who_waited_too_long_is_told_so() -> None:
    async def go() -> None:
        admission = Admission(10)
        full = await admission.take(10, timeout_s=LONG_S)
        with pytest.raises(Busy, match="10 bytes are in flight already, the most there may be; try again"):
            await admission.take(1, timeout_s=AT_ONCE_S)
        assert admission.held == 10
        full.give()
        assert admission.try_take(10) is not None, "nobody waits any more"

    run(go())


def test_who_gave_up_does_not_keep_those_behind_from_being_served() -> None:
    async def go() -> None:
        admission = Admission(10)
        held = taken(admission, 5)
        large, small = waiting(admission, 9), waiting(admission, 2)
        await turns()
        large.cancel()
        held.append(await small)
        assert large.cancelled()
        assert admission.held == 7

    run(go())


def test_who_timed_out_does_not_keep_those_behind_from_being_served() -> None:
    async def go() -> None:
        admission = Admission(10)
        held = taken(admission, 5)
        large = asyncio.ensure_future(admission.take(9, timeout_s=AT_ONCE_S))
        held.append(await waiting(admission, 2))
        with pytest.raises(Busy):
            await large
        assert admission.held == 7

    run(go())


def test_who_is_cancelled_in_the_moment_of_being_served_gives_back_what_it_got() -> None:
    async def go() -> None:
        admission = Admission(10)
        full = await admission.take(10, timeout_s=LONG_S)
        served, behind = waiting(admission, 6), waiting(admission, 8)
        await turns()
        full.give()
        assert admission.held == 6, "it is served, but does not know it yet"
        served.cancel()
        held = await behind
        assert served.cancelled()
        assert admission.held == held.size == 8

    run(go())


def test_who_times_out_in_the_moment_of_being_served_gives_back_what_it_got() -> None:
    async def go() -> None:
        admission = Admission(10)
        full = await admission.take(10, timeout_s=LONG_S)
        loop = asyncio.get_running_loop()
        served = asyncio.ensure_future(admission.take(6, timeout_s=AT_ONCE_S))
        await asyncio.sleep(0)
        loop.call_soon(full.give)
        outcome = (await asyncio.gather(served, return_exceptions=True))[0]
        assert isinstance(outcome, Ticket | Busy)
        assert admission.held == (6 if isinstance(outcome, Ticket) else 0)

    run(go())


def test_bytes_come_back_to_several_at_a_time() -> None:
    async def go() -> None:
        admission = Admission(10)
        full = await admission.take(10, timeout_s=LONG_S)
        tasks = [waiting(admission, 2) for _ in range(5)]
        await turns()
        full.give()
        held = await asyncio.gather(*tasks)
        assert admission.held == sum(ticket.size for ticket in held) == 10

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
        ticket = await admission.take(size, timeout_s=LONG_S if in_time else AT_ONCE_S)
        try:
            assert 0 <= admission.held <= limit
            await turns(turns_held)
        finally:
            ticket.give()

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
        assert (admission.held, admission.reclaim()) == (0, 0)
        assert admission.try_take(limit) is not None, "nobody is left waiting"

    run(go())
