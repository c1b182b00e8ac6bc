"""Members come and go, nobody stops: a group that is rebalanced every second beside one that is left alone.

    python -m tests.chaos.group_rebalance --seconds 60 [--seed N]

One broker, six partitions, producers at a steady rate. Two runs of the same length with the same members: in the first
they stay, in the second every second some join and some leave: in order, or silently, so that their session has to
end; a static member is restarted. A partition that stays with its owner must not pause longer than in the first run,
one that moves only shortly; nothing is lost, doubled or refused; and those who come too late change nothing.
"""

import argparse
import asyncio
import gc
import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.chaos.group_late import show_late_commits
from tests.chaos.ledger import Violation
from tests.support.broker import running_broker
from tests.support.group_consumer import Consumer, now
from tests.support.group_ledger import DeliveredAgain, History, Refused
from tests.support.group_pauses import CLEAN, RESTARTED, SILENT, Pauses, measure, percentiles_ms
from tests.support.group_publisher import Publishers
from tests.support.group_stage import Actor, Stage, staged

EVERY_S: Final = 0.01
"""How often each partition gets a message."""
LONGEST_MORE_NS: Final = 50_000_000
"""What the longest gap of a partition that stays may be longer while others move."""
LONGEST_PAUSE_NS: Final = 200_000_000
"""Of a partition that moves."""
HANGS_NS: Final = 25_000_000_000
"""A gap that no machine is slow enough for."""
_LATE: Final = {SILENT: "unknown_member", RESTARTED: "member_fenced"}
"""How the commit of a member is refused that ended so."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    """Of each of the two runs."""
    change_s: float = 1.0
    """How often members join and leave."""
    seed: int = 1


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one run."""

    history: History
    pauses: Pauses
    oversleeps: list[int]
    changes: dict[str, int]
    published: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    calm: Run
    churned: Run
    late_commits: int

    @property
    def allowed_gap_ns(self) -> int:
        return max(gap.ns for gap in self.calm.pauses.stays) + LONGEST_MORE_NS

    def check_times(self) -> None:
        """The wall clock: only for a machine that has nothing else to do."""
        longest = max(self.churned.pauses.stays)
        if longest.ns > self.allowed_gap_ns:
            raise Violation(
                f"partition {longest.partition} stayed with its owner and paused for {longest.ns / 1e6:.1f} ms; "
                f"without rebalances the longest pause, and 50 ms, is {self.allowed_gap_ns / 1e6:.1f} ms"
            )
        slowest = max(self.churned.pauses.of(CLEAN), key=lambda move: move.pause_ns)
        if slowest.pause_ns >= LONGEST_PAUSE_NS:
            raise Violation(f"a partition that moved paused for {slowest.pause_ns / 1e6:.1f} ms: {slowest}")


# ---------------------------------------------------------------- the two runs


_CORE: Final[dict[str, dict[str, Any]]] = {
    "core-behind": {"behind": 2},
    "core-beats": {"beats": True},
    "core-http": {"door": "http"},
}
"""Those who stay. Who is here longest gets what others leave, and is asked for it when somebody joins."""


async def _run(stage: Stage, plan: Plan, *, churns: bool) -> Run:
    first, *others = _CORE
    random.Random(plan.seed).shuffle(others)
    for name in (first, *others):
        await stage.add(name, session_timeout="10s", **_CORE[name]).start()
    static = stage.add("static-0", session_timeout="10s", instance_id="static")
    await static.start()
    guests = [stage.add(f"guest-{number}", session_timeout="1s", beats=number % 2 == 1) for number in range(2)]
    for guest in guests:
        await guest.start()
    await stage.until("the group is even", stage.is_even)
    publishers = stage.publishers(every_s=EVERY_S)
    publishing = asyncio.create_task(publishers.run())
    sampling = asyncio.create_task(stage.sample())
    changes: dict[str, int] = {}
    try:
        await stage.until("messages in every partition", lambda: _are_all_above(publishers, 10))
        begin = now()
        if churns:
            changes = await Churn(stage, plan, guests, static).run(begin + int(plan.seconds * 1e9))
        else:
            await asyncio.sleep(plan.seconds)
        end = now()
        publishers.stop()
        await publishing
        await stage.until("everything is settled", lambda: _is_settled(stage, publishers))
    finally:
        sampling.cancel()
        publishing.cancel()
        await asyncio.gather(sampling, publishing, return_exceptions=True)
    there = [actor for actor in stage.actors if not actor.has_ended]
    await asyncio.gather(*(actor.halt() for actor in there))
    for actor in there:
        await actor.consumer.leave()
    history = stage.history()
    history.check(publishers.ends)
    _check_refusals(history)
    return Run(
        history=history,
        pauses=measure(history, stage.samples, begin, end),
        oversleeps=stage.oversleeps,
        changes=changes,
        published=sum(publishers.ends.values()),
    )


async def _are_all_above(publishers: Publishers, messages: int) -> bool:
    return min(publishers.ends.values()) > messages


async def _is_settled(stage: Stage, publishers: Publishers) -> bool:
    lag = await stage.lag()
    return {int(number): each for number, each in lag.items()} == {
        partition: (end, 0, 0) for partition, end in publishers.ends.items()
    }


def _check_refusals(history: History) -> None:
    """Nobody who does what it is told is refused; whoever comes too late is, in every partition."""
    for life in history.lives:
        codes = [answer.code for answer in life.refusals]
        expected = [] if life.end is None or life.left else [_LATE[life.end.how]]
        if codes != expected:
            raise Refused(f"commits of {life}, which ended {life.end}, were refused with {codes}, not with {expected}")


class Churn:
    """Whoever joins and leaves."""

    def __init__(self, stage: Stage, plan: Plan, guests: list[Actor], static: Actor) -> None:
        self._stage = stage
        self._plan = plan
        self._guests = guests
        self._static = static
        self._numbers = itertools.count(len(guests))
        self._dice = random.Random(plan.seed)
        self._late: list[asyncio.Task[None]] = []
        self.counts = {"joined": 0, "left": 0, SILENT: 0, RESTARTED: 0}

    async def run(self, until: int) -> dict[str, int]:
        turns = itertools.cycle(
            (self._replace_all, self._fall_silent, self._leave, self._restart, self._join_first, self._hang_up)
        )
        due = now()
        while (due := due + int(self._plan.change_s * 1e9)) < until:
            await asyncio.sleep(max(due - now(), 0) / 1e9)
            for actor in self._stage.actors:
                actor.check()
            await next(turns)()
        await asyncio.sleep(max(until - now(), 0) / 1e9)
        await asyncio.gather(*self._late)
        return self.counts

    async def _join(self) -> None:
        number = next(self._numbers)
        guest = self._stage.add(f"guest-{number}", session_timeout="1s", beats=number % 2 == 1)
        await guest.start()
        self._guests.append(guest)
        self.counts["joined"] += 1

    async def _leave(self) -> None:
        """One leaves in order, another one joins afterwards."""
        await self._guests.pop(0).leave()
        self.counts["left"] += 1
        await asyncio.sleep(self._dice.uniform(0, 0.3) * self._plan.change_s)
        await self._join()

    async def _join_first(self) -> None:
        await self._join()
        await asyncio.sleep(self._dice.uniform(0, 0.3) * self._plan.change_s)
        await self._guests.pop(0).leave()
        self.counts["left"] += 1

    async def _replace_all(self) -> None:
        """All guests leave at once; then as many join at once."""
        leaving, self._guests = self._guests, []
        await asyncio.gather(*(guest.leave() for guest in leaving))
        self.counts["left"] += len(leaving)
        await asyncio.sleep(self._dice.uniform(0.1, 0.4) * self._plan.change_s)
        await asyncio.gather(*(self._join() for _ in leaving))

    async def _fall_silent(self, *, hang_up: bool = False) -> None:
        """One stops with work that it does not commit; it tries when it is too late."""
        guest = self._guests.pop(0)
        await guest.halt()
        await guest.consumer.take()
        await guest.consumer.stop(SILENT, hang_up=hang_up)
        self._late.append(asyncio.create_task(self._come_late(guest.consumer, is_away=hang_up)))
        self.counts[SILENT] += 1
        await self._join()

    async def _hang_up(self) -> None:
        await self._fall_silent(hang_up=True)

    async def _restart(self) -> None:
        """The static member's next process; the one before it tries to commit."""
        old = self._static
        await old.halt()
        await old.consumer.take()
        await old.consumer.stop(RESTARTED, hang_up=False)
        self.counts[RESTARTED] += 1
        name = f"static-{self.counts[RESTARTED]}"
        self._static = self._stage.add(name, session_timeout="10s", instance_id="static")
        await asyncio.sleep(self._dice.uniform(0, 0.2))
        await self._static.start()
        await self._come_late(old.consumer)

    async def _come_late(self, consumer: Consumer, *, is_away: bool = False) -> None:
        member_id = consumer.member_id
        await self._stage.until("a session has ended", lambda: self._stage.is_gone(member_id))
        if is_away:
            await consumer.reconnect()
        if not consumer.held:  # it had nothing when it stopped: then it claims to have
            consumer.held[0] = 1
        await consumer.commit()


# ---------------------------------------------------------------- all of it


async def _play(wire: str, http: str, plan: Plan) -> Outcome:
    async with staged(wire, http, "calm") as stage:
        calm = await _run(stage, plan, churns=False)
    async with staged(wire, http, "churned") as stage:
        churned = await _run(stage, plan, churns=True)
    return Outcome(calm=calm, churned=churned, late_commits=await show_late_commits(wire, http))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Walking everything that members wrote down takes a tenth of a second, and would look like a pause of all."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def rebalance(directory: Path, plan: Plan) -> Outcome:
    """Both runs, and everything checked but the clock."""
    with running_broker(directory) as broker, _no_collection():
        outcome = asyncio.run(_play(broker.wire, broker.http, plan))
    if outcome.calm.pauses.moves or outcome.calm.history.repetitions:
        raise Violation(f"in the run without rebalances partitions moved: {outcome.calm.pauses.moves[:5]}")
    if any(each.received.deliveries > 1 for found in outcome.calm.history.deliveries.values() for each in found):
        raise DeliveredAgain("in the run without rebalances something was delivered twice")
    for run in (outcome.calm, outcome.churned):
        if max(run.pauses.stays).ns > HANGS_NS:
            raise Violation(f"something hung: {max(run.pauses.stays)}, in nanoseconds")
    return outcome


def report(outcome: Outcome) -> str:
    """A small table, in milliseconds."""
    calm, churned = outcome.calm, outcome.churned
    rows = [
        ("gaps, no rebalances", [gap.ns for gap in calm.pauses.stays]),
        ("gaps of partitions that stay", [gap.ns for gap in churned.pauses.stays]),
        ("  asked for and then kept", [gap.ns for gap in churned.pauses.taken_back]),
        ("pauses of moves", [move.pause_ns for move in churned.pauses.of(CLEAN)]),
        ("  from delivery to delivery", [move.silence_ns for move in churned.pauses.of(CLEAN)]),
        ("pauses, session of 1 s ended", [move.pause_ns for move in churned.pauses.of(SILENT)]),
        ("pauses, static member restarted", [move.pause_ns for move in churned.pauses.of(RESTARTED)]),
        ("this process overslept, first run", calm.oversleeps),
        ("this process overslept, second run", churned.oversleeps),
    ]
    lines = [f"{'ms':<36}{'count':>8}{'p50':>9}{'p99':>9}{'max':>9}"]
    for name, times in rows:
        lines.append(f"{name:<36}{len(times):>8}" + "".join(f"{value:>9.1f}" for value in percentiles_ms(times)))
    for name, run in (("no rebalances", calm), ("rebalances", churned)):
        lines.append(
            f"{name}: {run.published} messages published, {run.history.messages} delivered, of these "
            f"{run.history.repetitions} again; {len(run.pauses.moves)} moves; {len(run.history.lives)} members"
        )
    lines.append(f"changes: {churned.changes}; late commits refused in a quiet group: {outcome.late_commits}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of each of the two runs")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    parent = Path(tempfile.mkdtemp(prefix="goqueue-group-rebalance-"))
    try:
        outcome = rebalance(parent, Plan(seconds=arguments.seconds, seed=seed))
        print(report(outcome), flush=True)
        outcome.check_times()
    except BaseException as error:
        error.add_note(f"The data directory is kept: {parent}")
        raise
    shutil.rmtree(parent)
    print("ok: nothing lost, nothing twice, nobody refused who should not be, and no pause too long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
