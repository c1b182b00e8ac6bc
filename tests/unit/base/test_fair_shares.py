"""Fair shares: by weight whatever the budgets, strictly when asked, and a lane that waits too long comes first."""

import pytest

from goqueue.base.fair_shares import FairShares

WEIGHTS = (50, 25, 15, 7, 3)
PLENTY = (10**9,) * 5
STARVING_MS = 30_000


def share(shares: FairShares, budget: int, *ready: int, strict: bool = False, now: int = 0) -> list[int]:
    """What is proposed; nothing counts yet."""
    return shares.share(budget, ready, WEIGHTS[: len(ready)], strict=strict, now=now, starving_ms=STARVING_MS)


def take(shares: FairShares, budget: int, *ready: int, strict: bool = False, now: int = 0) -> list[int]:
    """All that is proposed is taken."""
    taken = share(shares, budget, *ready, strict=strict, now=now)
    shares.served(taken, now)
    return taken


# --- by weight


@pytest.mark.parametrize("budgets", [(1,), (7,), (100,), (500,), (1, 7, 100, 500), (99, 101), (3, 1, 4, 1, 5, 9, 2, 6)])
def test_shares_of_full_lanes_are_their_weights_whatever_the_budgets(budgets: tuple[int, ...]) -> None:
    shares = FairShares(5)
    totals = [0] * 5
    for call in range(20_000):
        for lane, count in enumerate(take(shares, budgets[call % len(budgets)], *PLENTY)):
            totals[lane] += count
    for total, weight in zip(totals, WEIGHTS, strict=True):
        assert total / sum(totals) == pytest.approx(weight / 100, rel=0.01)


def test_a_round_is_served_lane_after_lane_also_over_many_calls() -> None:
    shares = FairShares(5)
    order = [take(shares, 1, *PLENTY).index(1) for _ in range(200)]
    one_round = [lane for lane, weight in enumerate(WEIGHTS) for _ in range(weight)]
    assert order == one_round * 2


def test_whole_rounds_are_shared_exactly() -> None:
    assert take(FairShares(5), 500, *PLENTY) == [250, 125, 75, 35, 15]


def test_a_budget_that_ends_within_a_round_is_made_up_for_in_the_next() -> None:
    shares = FairShares(5)
    assert take(shares, 60, *PLENTY) == [50, 10, 0, 0, 0]
    assert take(shares, 60, *PLENTY) == [20, 15, 15, 7, 3]
    assert take(shares, 80, *PLENTY) == [30, 25, 15, 7, 3]


def test_what_one_lane_does_not_need_goes_to_the_others_by_weight() -> None:
    # A round of lanes 1 and 3 is 32: 15 of them, and 10 of the next for lane 1.
    assert take(FairShares(5), 500, 10, 10**6, 0, 10**6, 0) == [10, 15 * 25 + 10, 0, 15 * 7, 0]


def test_all_there_is_is_shared_when_the_budget_is_larger() -> None:
    assert take(FairShares(5), 10**12, 3, 0, 1000, 1, 10**6) == [3, 0, 1000, 1, 10**6]


def test_nothing_is_shared_of_nothing() -> None:
    shares = FairShares(5)
    assert take(shares, 100, 0, 0, 0, 0, 0) == [0] * 5
    assert take(shares, 0, *PLENTY) == [0] * 5
    assert take(shares, -1, *PLENTY, now=10 * STARVING_MS) == [0] * 5


def test_credit_of_a_lane_that_runs_empty_is_dropped() -> None:
    shares = FairShares(2)
    assert take(shares, 1, 1, 100) == [1, 0]  # 49 of its 50 are dropped
    assert take(shares, 30, 100, 100) == [5, 25], "lane 1 has its round first; then a new one begins"


def test_a_lane_that_had_nothing_joins_the_round_under_way() -> None:
    shares = FairShares(2)
    assert take(shares, 5, 0, 100) == [0, 5]
    assert take(shares, 1, 1, 95) == [1, 0], "one critical message does not wait for what lane 1 has left of its round"


def test_a_lane_joins_a_round_only_once() -> None:
    """Else a lane that always has exactly one message would get everything."""
    shares = FairShares(2)
    totals = [0, 0]
    for _ in range(7500):
        for lane, count in enumerate(take(shares, 1, 1, 10**6)):
            totals[lane] += count
    assert totals[1] > 7000, "one message a round is what a lane gets that never has two"


def test_a_lane_that_refills_after_every_batch_does_not_get_more_than_its_share() -> None:
    shares = FairShares(2)
    totals = [0, 0]
    for _ in range(300):
        for lane, count in enumerate(take(shares, 50, 50, 10**6)):
            totals[lane] += count
    assert totals[0] / sum(totals) == pytest.approx(50 / 75, rel=0.01)


def test_a_huge_budget_takes_no_longer_than_a_small_one() -> None:
    shares = FairShares(3)
    taken = shares.share(10**15, [10**15] * 3, [2, 1, 1], strict=False, now=0, starving_ms=1)
    assert taken == [5 * 10**14, 25 * 10**13, 25 * 10**13]


def test_a_lane_of_no_weight_gets_what_the_others_leave() -> None:
    shares = FairShares(3)

    def of(budget: int, *ready: int) -> list[int]:
        return shares.share(budget, ready, (0, 2, 1), strict=False, now=0, starving_ms=STARVING_MS)

    assert of(9, 5, 100, 100) == [0, 6, 3]
    assert of(9, 5, 3, 3) == [3, 3, 3]
    assert of(9, 50, 0, 0) == [9, 0, 0]
    assert FairShares(2).share(3, (2, 5), (0, 0), strict=False, now=0, starving_ms=STARVING_MS) == [2, 1]


def test_weights_may_change_between_batches() -> None:
    shares = FairShares(2)
    totals = [0, 0]
    for weights in ((90, 10), (10, 90)):
        for _ in range(1000):
            taken = shares.share(10, (10**6, 10**6), weights, strict=False, now=0, starving_ms=STARVING_MS)
            shares.served(taken, 0)
            totals = [before + count for before, count in zip(totals, taken, strict=True)]
    assert totals[0] == pytest.approx(totals[1], rel=0.01)


# --- what was really taken


def test_a_proposal_costs_nothing() -> None:
    shares = FairShares(5)
    assert [share(shares, 7, *PLENTY) for _ in range(20)] == [[7, 0, 0, 0, 0]] * 20


def test_deficits_follow_what_was_really_taken() -> None:
    shares = FairShares(5)
    assert share(shares, 500, *PLENTY) == [250, 125, 75, 35, 15]
    shares.served([10, 0, 0, 0, 0], 0)
    assert take(shares, 90, *PLENTY) == [40, 25, 15, 7, 3], "the rest of the first round"


def test_a_lane_that_was_passed_over_gets_it_back() -> None:
    shares = FairShares(2)
    assert share(shares, 75, *PLENTY[:2]) == [50, 25]
    shares.served([50, 0], 0)
    assert take(shares, 26, *PLENTY[:2]) == [1, 25]


def test_no_lane_falls_behind_by_more_than_a_proposal_when_only_the_first_of_each_are_taken() -> None:
    """Bytes run out: of every proposal of 500 only the first 13 are taken, the lowest lanes first."""
    shares = FairShares(5)
    totals = [0] * 5
    for call in range(1, 5000):
        room, taken = 13, []
        for count in share(shares, 500, *PLENTY):
            taken.append(min(count, room))
            room -= taken[-1]
        shares.served(taken, 0)
        totals = [before + count for before, count in zip(totals, taken, strict=True)]
        for total, weight in zip(totals, WEIGHTS, strict=True):
            assert total == pytest.approx(13 * call * weight / 100, abs=500)


def test_taking_nothing_changes_nothing() -> None:
    shares = FairShares(5)
    take(shares, 60, *PLENTY)
    expected = share(shares, 60, *PLENTY)
    shares.served([0] * 5, 0)
    assert share(shares, 60, *PLENTY) == expected


def test_served_without_a_proposal_changes_no_share() -> None:
    shares = FairShares(2)
    shares.served([3, 0], 77)
    assert take(shares, 75, *PLENTY[:2]) == [50, 25]


# --- strictly


def test_strict_takes_the_lowest_lanes_first() -> None:
    shares = FairShares(5)
    assert take(shares, 10, 3, 4, 100, 5, 5, strict=True) == [3, 4, 3, 0, 0]
    assert take(shares, 10, 0, 0, 0, 5, 50, strict=True) == [0, 0, 0, 5, 5]
    assert take(shares, 10, *PLENTY, strict=True) == [10, 0, 0, 0, 0]


def test_credit_does_not_count_while_lanes_are_strict() -> None:
    shares = FairShares(2)
    take(shares, 60, *PLENTY[:2])  # lane 1 has 15 left of its round
    assert share(shares, 10, *PLENTY[:2]) == [0, 10]
    assert share(shares, 10, *PLENTY[:2], strict=True) == [10, 0]


def test_weights_count_anew_after_a_strict_time() -> None:
    shares = FairShares(5)
    take(shares, 10, *PLENTY)
    take(shares, 1000, *PLENTY, strict=True)
    assert take(shares, 500, *PLENTY) == [250, 125, 75, 35, 15]


# --- starving


@pytest.mark.parametrize("strict", [False, True])
def test_a_lane_that_waited_too_long_is_served_first(strict: bool) -> None:
    shares = FairShares(5)
    for now in range(0, STARVING_MS, 1000):
        assert take(shares, 1, *PLENTY, strict=strict, now=now) == [1, 0, 0, 0, 0]
    assert take(shares, 1, *PLENTY, strict=strict, now=STARVING_MS) == [0, 1, 0, 0, 0]
    assert take(shares, 2, *PLENTY, strict=strict, now=STARVING_MS) == [0, 0, 1, 1, 0]
    assert take(shares, 9, *PLENTY, strict=strict, now=STARVING_MS) == [8, 0, 0, 0, 1]


def test_the_lane_that_waited_longest_is_served_first() -> None:
    shares = FairShares(3)
    share(shares, 0, 0, 0, 5, now=10)
    share(shares, 0, 0, 5, 5, now=20)
    share(shares, 0, 5, 5, 5, now=30)
    late = 30 + STARVING_MS
    assert [take(shares, 1, 5, 5, 5, strict=True, now=late) for _ in range(3)] == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_a_lane_starves_from_when_it_has_something_not_from_when_it_was_last_served() -> None:
    shares = FairShares(2)
    take(shares, 2, 1, 1, now=0)
    for now in (100_000, 100_000 + STARVING_MS - 1):
        assert share(shares, 1, 9, 1, strict=True, now=now) == [1, 0]
        shares.served([1, 0], now)
    assert share(shares, 1, 9, 1, strict=True, now=100_000 + STARVING_MS) == [0, 1]


def test_a_lane_that_was_empty_in_between_begins_to_wait_anew() -> None:
    shares = FairShares(2)
    share(shares, 0, 9, 1, now=0)
    share(shares, 0, 9, 0, now=STARVING_MS - 1)
    shares.served([1, 0], STARVING_MS - 1)
    assert take(shares, 2, 9, 1, strict=True, now=STARVING_MS) == [2, 0]
    assert take(shares, 2, 9, 1, strict=True, now=2 * STARVING_MS - 1) == [2, 0]
    assert take(shares, 2, 9, 1, strict=True, now=2 * STARVING_MS) == [1, 1]


def test_a_starving_lane_stays_so_until_it_is_really_served() -> None:
    shares = FairShares(2)
    share(shares, 0, 9, 9, now=0)
    shares.served([1, 0], STARVING_MS)
    for _ in range(3):
        assert share(shares, 4, 9, 9, strict=True, now=STARVING_MS) == [3, 1]
        shares.served([0, 0], STARVING_MS)
    shares.served([0, 1], STARVING_MS)
    assert share(shares, 4, 9, 9, strict=True, now=STARVING_MS) == [4, 0]


def test_what_the_starving_get_is_not_charged() -> None:
    shares = FairShares(5)
    share(shares, 0, *PLENTY, now=0)
    assert take(shares, 5, *PLENTY, now=STARVING_MS) == [1, 1, 1, 1, 1]
    assert take(shares, 100, *PLENTY, now=STARVING_MS) == [50, 25, 15, 7, 3]


def test_a_slow_consumer_does_not_pile_up_credit() -> None:
    """Each poll comes so late that every lane starves: the weights count from the first quick poll on."""
    shares = FairShares(5)
    now = 0
    for _ in range(10_000):
        now += 2 * STARVING_MS
        take(shares, 1, *PLENTY, now=now)
    take(shares, 5, *PLENTY, now=now)
    assert take(shares, 500, *PLENTY, now=now) == [250, 125, 75, 35, 15]


# --- statistics and arguments


def test_it_says_since_when_lanes_wait() -> None:
    shares = FairShares(3)
    assert shares.waiting_since == [None] * 3
    share(shares, 10, 5, 5, 0, now=100)
    assert shares.waiting_since == [100, 100, None]
    shares.served([5, 2, 0], 150)
    assert shares.waiting_since == [None, 150, None]
    share(shares, 10, 0, 3, 7, now=200)
    assert shares.waiting_since == [None, 150, 200]


def test_what_it_says_is_a_copy() -> None:
    shares = FairShares(1)
    shares.waiting_since.append(1)
    assert shares.waiting_since == [None]


def test_a_wrong_number_of_lanes_is_refused() -> None:
    shares = FairShares(3)
    with pytest.raises(ValueError, match="3 lanes need as many numbers"):
        shares.share(1, [1, 1], [1, 1, 1], strict=False, now=0, starving_ms=1)
    with pytest.raises(ValueError, match="3 lanes need as many numbers"):
        shares.share(1, [1, 1, 1], [1], strict=False, now=0, starving_ms=1)
    with pytest.raises(ValueError, match="3 lanes need as many numbers"):
        shares.served([1], 0)
