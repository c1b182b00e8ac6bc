"""kill -9 of a broker, again and again, under programs that use the public client and nothing else.

    python -m tests.chaos.client_kill --cycles 20 [--seed N]

A cycle is a kill at any moment under the load (see `client_load`) and a restart at the same address over the same data;
some kills come as soon as the broker is back, while clients still find their way, and before some the broker's answers
are lost for a moment, as they are when a kill comes between doing and answering. The programs expect no error. In the
end nothing more is published, everything is settled, and what the broker says of its groups must agree; after one more
kill nothing may come to new consumers either. What was written down must be right (`client_ledger`). Half of the cycles
are with fsync of every message.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple

from goqueue import AsyncClient, GoQueueError
from tests.chaos.broker_kill import free_doors
from tests.chaos.client_ledger import DeliveredAgain, Ledger, Stuck
from tests.chaos.client_load import GROUPS, TOPIC, Load, Muffler, create_topic, read_all
from tests.support.broker import RunningBroker, running_broker
from tests.support.group_publisher import LoopThread
from tests.support.patience import PATIENCE_S

CYCLES_PER_RUN: Final = 10
QUIET_S: Final = 0.3
"""How long a new consumer waits for what must not come."""
_WORK: Final = 40
"""Deliveries to each group between two kills, unless the kill comes at once."""
_AT_ONCE: Final = 0.2
"""How often it does."""
_LONGEST_DELAY_S: Final = 0.4
_MUTED: Final = 0.5
"""How often answers are lost for certain."""
_LONGEST_SILENCE_S: Final = 0.2
_FATE_S: Final = 0.5
"""How long a kill waits for something to hit."""
_GLANCE_S: Final = 0.01
_LAST_WORDS_S: Final = 5.0

Tell = Callable[[str], None]


class Kill(NamedTuple):
    """What it hit."""

    in_doubt: int
    """Messages that were given to the client and had no answer."""
    lost: int
    """Answers, or lots of them, that were certainly on their way."""
    held: int
    """Deliveries that are acked in a later life."""
    back_s: float
    """From the kill until the next broker takes requests."""


class Outcome(NamedTuple):
    """One run that held."""

    kills: list[Kill]
    ledger: Ledger
    fsync: str


class Scene:
    """A broker, and a load that goes on beside it."""

    def __init__(
        self,
        broker: RunningBroker,
        muffler: Muffler,
        load: Load,
        ledger: Ledger,
        dice: random.Random,
        patience_s: float,
    ) -> None:
        self._broker = broker
        self._muffler = muffler
        self._load = load
        self._ledger = ledger
        self._dice = dice
        self._patience_s = patience_s

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._patience_s
        while not is_so():
            self._ledger.check_so_far()
            if time.monotonic() > deadline:
                raise Stuck(f"{what}: not within {self._patience_s} s; {self._state()}")
            time.sleep(_GLANCE_S)

    def _state(self) -> str:
        settled = {name: group.settled for name, group in self._ledger.groups.items()}
        lags = asyncio.run(_lags(self._broker.wire, [*settled])) if self._broker.running else {}
        return (
            f"of {len(self._ledger.offered)} messages {len(self._ledger.promised)} are acknowledged, settled are "
            f"{settled}; the broker has of its groups {lags}"
        )

    def kill(self, *, certain: bool) -> Kill:
        """Under the load, or before it is quite back; then the broker is back. `certain`: it must hit something."""
        lost = self._muffler.lost
        if certain or self._dice.random() >= _AT_ONCE:
            self._wait_for_work()
        time.sleep(self._dice.uniform(0, _LONGEST_DELAY_S))
        if certain or self._dice.random() < _MUTED:
            self._muffler.muted = True
            time.sleep(_LONGEST_SILENCE_S if certain else self._dice.uniform(0, _LONGEST_SILENCE_S))
        deadline = time.monotonic() + _FATE_S
        while not self._ledger.in_doubt and time.monotonic() < deadline:
            time.sleep(0)  # a kill takes a fraction of a millisecond, as a request does
        in_doubt, held, began = self._ledger.in_doubt, self._load.held, time.monotonic()
        self._broker.kill()
        lost = self._muffler.lost - lost
        self._muffler.muted = False  # before somebody connects whose connection would stay, without an answer
        self._broker.start()
        self._load.life += 1
        return Kill(in_doubt, lost, held, time.monotonic() - began)

    def _wait_for_work(self) -> None:
        before = {name: self._ledger.deliveries(name) for name in GROUPS}
        promised = len(self._ledger.promised)
        self.until(
            "every group gets messages, and publishers receipts",
            lambda: (
                len(self._ledger.promised) >= promised + _WORK
                and all(self._ledger.deliveries(name) >= before[name] + _WORK for name in GROUPS)
            ),
        )

    def finish(self, beside: LoopThread, running: "Future[None]") -> None:
        """Until everything is settled; then the broker must say so as well, and after another kill still."""
        self._load.drain()
        self.until("everything published has its receipt", lambda: self._load.is_published)
        self._ledger.check_log(asyncio.run(read_all(self._broker.wire)))
        self.until("everything is delivered and settled", self._load.is_settled)
        beside.run(self._load.flush()).result(self._patience_s)
        self._load.join_threads(self._patience_s)
        self._ledger.check_so_far()
        self._check_settled("after everybody was told that it is settled")
        beside.run(self._load.stop()).result(self._patience_s)
        running.result(self._patience_s)
        self._broker.kill()
        self._broker.start()
        self._check_settled("after one more kill")
        asyncio.run(_check_quiet(self._broker.wire, self._ledger))

    def end_threads(self) -> None:
        """Those of a run that failed, if they can be ended: they use the broker, which ends next."""
        if self._broker.running and self._load.has_threads:
            with contextlib.suppress(GoQueueError, Stuck):
                asyncio.run(self._load.wake_thread())
                self._load.join_threads(_LAST_WORDS_S)

    def _check_settled(self, when: str) -> None:
        lags = asyncio.run(_lags(self._broker.wire, [*self._ledger.groups]))
        if any(lags.values()):
            raise Stuck(f"{when} groups have messages left: {lags}")


async def _lags(wire: str, groups: list[str]) -> dict[str, int]:
    """By group: how many messages are not settled."""
    async with AsyncClient(wire) as client:
        return {group: (await client.group_lag(group)).total_lag for group in groups}


async def _check_quiet(wire: str, ledger: Ledger) -> None:
    """New consumers get nothing."""
    async with AsyncClient(wire) as client:

        async def listen(group: str, mode: str) -> None:
            async with client.consumer(group, [TOPIC], mode=mode) as consumer:
                batch = await consumer.poll(timeout=QUIET_S)
                if batch:
                    raise DeliveredAgain(f"{group}: {len(batch)} settled messages came again, like {batch[0]}")

        await asyncio.gather(*(listen(group.name, group.mode.value) for group in ledger.groups.values()))


def kill_under_load(
    directory: Path,
    cycles: int,
    *,
    seed: int,
    fsync: str = "interval",
    certain: bool = False,
    patience_s: float = PATIENCE_S,
    tell: Tell = lambda _: None,
) -> Outcome:
    """One run; a Violation when something is wrong. `certain`: every kill comes when answers were lost."""
    dice = random.Random(f"{seed}/kills")
    ledger = Ledger()
    kills: list[Kill] = []
    try:
        with (
            running_broker(directory, *free_doors(random.Random())) as broker,
            LoopThread() as between,
            LoopThread() as beside,
        ):
            asyncio.run(create_topic(broker.wire, fsync=fsync))
            muffler = Muffler(broker.wire)
            load = Load(broker.wire, between.run(muffler.open()).result(), ledger, str(seed))
            scene = Scene(broker, muffler, load, ledger, dice, patience_s)
            running = beside.run(load.run())
            load.start_threads()
            try:
                for number in range(1, cycles + 1):
                    kills.append(scene.kill(certain=certain))
                    tell(_progress(number, cycles, kills[-1], ledger))
                scene.finish(beside, running)
            finally:
                muffler.muted = False
                beside.run(load.give_up()).result()
                scene.end_threads()
                between.run(muffler.close()).result()
            ledger.check(asyncio.run(read_all(broker.wire)))
    except BaseException as error:
        error.add_note(f"seed {seed}, fsync {fsync}, {len(kills)} of {cycles} kills; data and log lines: {directory}")
        raise
    return Outcome(kills, ledger, fsync)


def _progress(number: int, cycles: int, kill: Kill, ledger: Ledger) -> str:
    deliveries = sum(group.deliveries for group in ledger.groups.values())
    return (
        f"{number}/{cycles}: killed with {kill.in_doubt} messages in doubt, {kill.lost} answers lost and {kill.held} "
        f"deliveries held, back after {kill.back_s:.2f} s; {len(ledger.promised)} acknowledged, {deliveries} delivered"
    )


def runs(cycles: int) -> Iterator[tuple[int, str]]:
    """How many cycles each run has, and its fsync mode."""
    modes = itertools.cycle(("interval", "every"))
    each = min(CYCLES_PER_RUN, (cycles + 1) // 2)
    while cycles > 0:
        yield min(each, cycles), next(modes)
        cycles -= each


def table(outcomes: list[Outcome]) -> str:
    """What was done in all."""
    titles = "fsync", "group", "mode", "deliveries", "nacks", "awaited acks", "of a dead broker's"
    rows: list[tuple[Any, ...]] = [titles]
    for outcome in outcomes:
        for group in outcome.ledger.groups.values():
            counts = group.deliveries, group.nacks, group.awaited, group.late
            rows.append((outcome.fsync, group.name, group.mode.value, *counts))
    widths = [max(len(str(row[at])) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell!s:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    for number, (cycles, fsync) in enumerate(runs(arguments.cycles)):
        print(f"fsync {fsync}:", flush=True)
        directory = Path(tempfile.mkdtemp(prefix="goqueue-client-kill-"))
        tell: Tell = lambda line: print(line, flush=True)  # noqa: E731
        outcomes.append(kill_under_load(directory, cycles, seed=seed + number, fsync=fsync, tell=tell))
        shutil.rmtree(directory)
    print(table(outcomes))
    kills = sum(len(outcome.kills) for outcome in outcomes)
    published = sum(len(outcome.ledger.promised) for outcome in outcomes)
    repeated = sum(outcome.ledger.repeated for outcome in outcomes)
    late = sum(group.late for outcome in outcomes for group in outcome.ledger.groups.values())
    if arguments.cycles >= 10 and not (repeated and late):
        print("This run proves little: no answer was lost, or no handle outlived its broker.", file=sys.stderr)
        return 1
    print(
        f"ok: {kills} kills in {time.monotonic() - began:.0f} s; {published} messages, each in the log once and in "
        f"order, {repeated} of them by an attempt whose answer was lost; {late} deliveries of dead brokers acked "
        f"and gone; no program saw an error"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
