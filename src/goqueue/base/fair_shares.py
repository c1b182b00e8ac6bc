"""Fair shares: how many of each lane to take next, by weight or strictly, and no lane is forgotten.

Deficit round robin in batches. A round gives each lane that has anything its weight as credit; a message costs one;
the next round begins when no lane that has anything has credit left. Lane 0 is looked at first in every round, and a
round that a budget ends in goes on in the next batch: so shares follow the weights for budgets of any size. Credit of
a lane that runs empty is dropped. A lane that had nothing joins the round under way, once: its first message is not
behind what the others have left of theirs. When everything there was is taken, the next round begins afresh.

Invariants:
- `share` proposes exactly as many as there are and the budget allows; nothing is charged before `served`;
- credit is never negative, and a round begins only when no lane that has anything has any: credit cannot pile up;
- a message that a lane was given because it was starving is not charged: it is rare, and weights do not hold there.

All of it is soft state: forgetting it costs one round. It knows numbers, not messages; time comes in.
"""

from collections.abc import Sequence


class FairShares:
    """For a fixed number of lanes. `served` speaks of the latest `share`."""

    __slots__ = ("_credit", "_fed", "_free", "_ready", "_waiting_since", "_weights")

    def __init__(self, lanes: int) -> None:
        self._credit = [0] * lanes
        """What each lane may still take in this round."""
        self._fed = [False] * lanes
        """Whether it was given its weight in this round."""
        self._ready = [0] * lanes
        self._weights = [0] * lanes
        """As they were at the latest `share`; all 0 where weights did not matter."""
        self._free = [False] * lanes
        """Lanes that were starving at the latest `share`."""
        self._waiting_since: list[int | None] = [None] * lanes

    @property
    def waiting_since(self) -> list[int | None]:
        """Since when each lane has had something and was not served; None: it has nothing."""
        return list(self._waiting_since)

    def share(
        self, budget: int, ready: Sequence[int], weights: Sequence[int], *, strict: bool, now: int, starving_ms: int
    ) -> list[int]:
        """How many of each lane to take: `budget` in all, or all there is.

        A lane that has had something for `starving_ms` and was not served gets one before anything else. `strict`: the
        rest goes to the lowest lanes, else by weight; a lane of weight 0 then gets what the others leave.
        """
        lanes = range(len(self._credit))
        if len(ready) != len(lanes) or len(weights) != len(lanes):
            raise ValueError(
                f"{len(lanes)} lanes need as many numbers, not {len(ready)} ready and {len(weights)} weights"
            )
        self._look(ready, now)
        self._weights = [0] * len(lanes) if strict else list(weights)
        self._free = [False] * len(lanes)
        if sum(ready) <= budget:
            return list(ready)
        left = list(ready)
        taken = [0] * len(lanes)
        for lane in self._starving(now - starving_ms)[: max(budget, 0)]:
            self._free[lane] = True
            taken[lane] += 1
            left[lane] -= 1
            budget -= 1
        for lane, count in enumerate(self._rounds(budget, left)):
            taken[lane] += count
            left[lane] -= count
            budget -= count
        for lane in lanes:
            rest = max(min(left[lane], budget), 0)
            taken[lane] += rest
            budget -= rest
        return taken

    def served(self, taken: Sequence[int], now: int) -> None:
        """This was really taken: as proposed, or less."""
        if len(taken) != len(self._credit):
            raise ValueError(f"{len(self._credit)} lanes need as many numbers, not {len(taken)}")
        charged = [count - (free and count > 0) for count, free in zip(taken, self._free, strict=True)]
        for lane, count in enumerate(taken):
            if count > 0:
                self._ready[lane] = max(self._ready[lane] - count, 0)
                self._waiting_since[lane] = now if self._ready[lane] else None
        if any(self._ready):
            self._charge(charged)
        else:
            self.begin_afresh()

    def begin_afresh(self) -> None:
        """Everything there was is taken: nobody is kept waiting, and the next round is the first."""
        lanes = len(self._credit)
        self._credit = [0] * lanes
        self._fed = [False] * lanes
        self._waiting_since = [None] * lanes

    def _look(self, ready: Sequence[int], now: int) -> None:
        """Note who has anything, and since when."""
        self._ready = list(ready)
        for lane, count in enumerate(ready):
            if not count:
                self._waiting_since[lane] = None
            elif self._waiting_since[lane] is None:
                self._waiting_since[lane] = now

    def _starving(self, latest: int) -> list[int]:
        """Those that have waited since `latest` or longer, the longest first."""
        waiting = [(since, lane) for lane, since in enumerate(self._waiting_since) if since is not None]
        return [lane for since, lane in sorted(waiting) if since <= latest]

    def _in_hand(self, lane: int) -> int:
        """What it may take in the round under way, which it joins if it has not."""
        weight = self._weights[lane]
        if not weight:
            return 0  # what it has left may be of a time when it had one
        return self._credit[lane] if self._fed[lane] else self._credit[lane] + weight

    def _rounds(self, budget: int, ready: Sequence[int]) -> list[int]:
        """What the lanes take by weight from here on."""
        left = list(ready)
        weights = self._weights
        credit = [self._in_hand(lane) for lane in range(len(left))]
        while budget > 0:
            for lane, most in enumerate(credit):
                count = min(left[lane], most, budget)
                left[lane] -= count
                budget -= count
            hungry = [lane for lane, count in enumerate(left) if count and weights[lane]]
            if not hungry:
                break
            # Whole rounds at once, as many as the budget allows and no lane runs empty in. After them a single round
            # uses up the budget or a lane: the loop does not get longer with the budget.
            rounds = min(
                budget // sum(weights[lane] for lane in hungry), *(left[lane] // weights[lane] for lane in hungry)
            )
            credit = [weights[lane] * max(rounds, 1) if lane in hungry else 0 for lane in range(len(left))]
        return [before - count for before, count in zip(ready, left, strict=True)]

    def _charge(self, taken: Sequence[int]) -> None:
        """Begin as many rounds as it took to take these, and leave each lane what it did not use of them."""
        in_hand = [self._in_hand(lane) for lane in range(len(taken))]
        begun = [
            max(-((has - count) // weight), 0) if weight else 0
            for has, count, weight in zip(in_hand, taken, self._weights, strict=True)
        ]
        latest = max(begun, default=0)
        for lane, (count, weight) in enumerate(zip(taken, self._weights, strict=True)):
            if self._ready[lane]:
                self._credit[lane] = in_hand[lane] + latest * weight - count if weight else 0
                self._fed[lane] = True
            else:
                self._credit[lane] = 0
                self._fed[lane] = begun[lane] == latest and (count > 0 or self._fed[lane])
