"""Fair shares against single messages: a batch is what as many batches of one would have been.

And for any lanes, budgets, weights and times: the numbers add up, nobody waits longer than is allowed, and full lanes
get their weights.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue.base.fair_shares import FairShares

LANES = 4
NEVER_MS = 10**12

weights_of_lanes = st.tuples(*[st.integers(1, 60)] * LANES)
ready_in_lanes = st.tuples(*[st.just(0) | st.integers(1, 5) | st.integers(0, 200)] * LANES)


class SingleMessages:
    """Deficit round robin as one would write it down: one message after another."""

    def __init__(self) -> None:
        self.credit = [0] * LANES
        self.fed = [False] * LANES

    def take(self, ready: list[int], weights: tuple[int, ...]) -> int:
        """The lane of the next message. There is one."""
        lanes = [lane for lane in range(LANES) if ready[lane]]
        for lane in range(LANES):
            if not ready[lane]:
                self.credit[lane] = 0
        self.feed(lanes, weights)
        if not any(self.credit[lane] for lane in lanes):
            self.credit = [0] * LANES
            self.fed = [False] * LANES
            self.feed(lanes, weights)
        lane = next(lane for lane in lanes if self.credit[lane])
        self.credit[lane] -= 1
        if ready[lane] == 1:
            self.credit[lane] = 0
        if sum(ready) == 1:
            self.fed = [False] * LANES
        return lane

    def feed(self, lanes: list[int], weights: tuple[int, ...]) -> None:
        for lane in lanes:
            if not self.fed[lane]:
                self.fed[lane] = True
                self.credit[lane] += weights[lane]


@settings(max_examples=200, deadline=None)
@given(
    weights=weights_of_lanes,
    steps=st.lists(st.tuples(st.integers(0, 150), ready_in_lanes), min_size=1, max_size=12),
)
def test_a_batch_is_what_single_messages_would_have_been(
    weights: tuple[int, ...], steps: list[tuple[int, tuple[int, ...]]]
) -> None:
    shares, singles = FairShares(LANES), SingleMessages()
    ready = [0] * LANES
    for budget, more in steps:
        ready = [before + count for before, count in zip(ready, more, strict=True)]
        taken = shares.share(budget, ready, weights, strict=False, now=0, starving_ms=NEVER_MS)
        shares.served(taken, 0)
        expected = [0] * LANES
        for _ in range(min(budget, sum(ready))):
            lane = singles.take(ready, weights)
            expected[lane] += 1
            ready[lane] -= 1
        assert taken == expected


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 300),
            ready_in_lanes,
            st.tuples(*[st.integers(0, 60)] * LANES),
            st.booleans(),
            st.integers(0, 400),
            st.tuples(*[st.floats(0, 1)] * LANES),
        ),
        max_size=20,
    )
)
def test_the_numbers_add_up_and_the_starving_come_first(
    steps: list[tuple[int, tuple[int, ...], tuple[int, ...], bool, int, tuple[float, ...]]],
) -> None:
    """Whatever part of each proposal is really taken."""
    starving_ms = 1000
    shares = FairShares(LANES)
    since: list[int | None] = [None] * LANES
    now = 0
    for budget, ready, weights, strict, later, parts in steps:
        now += later
        since = [
            None if not count else now if start is None else start for count, start in zip(ready, since, strict=True)
        ]
        proposed = shares.share(budget, ready, weights, strict=strict, now=now, starving_ms=starving_ms)
        assert proposed == shares.share(budget, ready, weights, strict=strict, now=now, starving_ms=starving_ms)
        assert sum(proposed) == min(budget, sum(ready))
        assert all(0 <= count <= most for count, most in zip(proposed, ready, strict=True))
        assert shares.waiting_since == since

        waits = sorted((start, lane) for lane, start in enumerate(since) if start is not None)
        starving = [lane for start, lane in waits if now - start >= starving_ms]
        assert all(proposed[lane] for lane in starving[:budget])
        if strict:
            rest = [count - (lane in starving[:budget]) for lane, count in enumerate(proposed)]
            last = max((lane for lane, count in enumerate(rest) if count), default=0)
            assert all(proposed[lane] == ready[lane] for lane in range(last)), "a lower lane was passed over"

        taken = [round(count * part) for count, part in zip(proposed, parts, strict=True)]
        shares.served(taken, now)
        for lane, count in enumerate(taken):
            if count:
                since[lane] = now if count < ready[lane] else None
        assert shares.waiting_since == since


@settings(max_examples=100, deadline=None)
@given(weights=weights_of_lanes, budgets=st.lists(st.integers(1, 500), min_size=1, max_size=30))
def test_full_lanes_are_never_more_than_a_round_away_from_their_weights(
    weights: tuple[int, ...], budgets: list[int]
) -> None:
    shares = FairShares(LANES)
    totals = [0] * LANES
    for budget in budgets:
        taken = shares.share(budget, (10**6,) * LANES, weights, strict=False, now=0, starving_ms=NEVER_MS)
        shares.served(taken, 0)
        totals = [before + count for before, count in zip(totals, taken, strict=True)]
        rounds = sum(totals) // sum(weights)
        for total, weight in zip(totals, weights, strict=True):
            assert rounds * weight <= total <= (rounds + 1) * weight


@settings(max_examples=100, deadline=None)
@given(
    weights=weights_of_lanes,
    parts=st.lists(st.tuples(*[st.floats(0, 1)] * LANES), min_size=1, max_size=40),
    budget=st.integers(1, 500),
)
def test_full_lanes_are_never_more_than_a_proposal_away_when_less_is_taken(
    weights: tuple[int, ...], parts: list[tuple[float, ...]], budget: int
) -> None:
    shares = FairShares(LANES)
    totals = [0] * LANES
    for part in parts:
        proposed = shares.share(budget, (10**6,) * LANES, weights, strict=False, now=0, starving_ms=NEVER_MS)
        taken = [round(count * some) for count, some in zip(proposed, part, strict=True)]
        shares.served(taken, 0)
        totals = [before + count for before, count in zip(totals, taken, strict=True)]
        for total, weight in zip(totals, weights, strict=True):
            assert abs(total - sum(totals) * weight / sum(weights)) <= budget + sum(weights)
