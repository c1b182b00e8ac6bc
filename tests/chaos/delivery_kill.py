"""kill -9 of a broker, again and again, while messages are published, delayed, delivered and settled in every way.

    python -m tests.chaos.delivery_kill --cycles 50 [--seed N]

A cycle is a kill at any moment under the load (see `delivery_load`) and a restart at the same addresses; a few cycles
share a topic. A kill counts only if requests were under way that never had an answer. In the end nothing more is
published and everything that comes is acked, until nothing is left; after one more kill, of an idle broker, nothing may
come at all. What everybody wrote down, and the dead letters that are there, must be right (`delivery_ledger`). Half of
the cycles are with fsync of every message.
"""

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from goqueue.client.connection import Connection
from goqueue.model.dead_letters import unpack_dead_letter
from goqueue.model.names import dlq_name
from goqueue.wire.codes import CODES
from tests.chaos.broker_kill import free_doors
from tests.chaos.broker_load import split
from tests.chaos.delivery_actor import PARTITIONS, SETTINGS, TOPIC, VISIBILITY_MS, Book, now_ms
from tests.chaos.delivery_consumers import RULES
from tests.chaos.delivery_load import Load
from tests.chaos.ledger import Lost, Violation
from tests.support.broker import HttpClient, RunningBroker, running_broker
from tests.support.broker_reading import fetch_records
from tests.support.delivery_ledger import Ended, History, Letter, Place, Verb
from tests.support.group_publisher import LoopThread
from tests.support.patience import PATIENCE_S

CYCLES_PER_RUN: Final = 10
MOST_TRIES: Final = 5
"""Kills in a row that hit nothing."""
_WORK: Final = 100
"""Deliveries between two kills, at least."""
_LONGEST_DELAY_S: Final = 0.4
_LAST_BYTES_S: Final = 0.05
"""What a dead broker has said is read within this time."""

End = Callable[[RunningBroker], None]
"""How a broker's life ends."""


class Stuck(Lost):
    """Something is left, and nobody is delivered it."""


class Kill(NamedTuple):
    """When it was, and how many requests never had an answer because of it."""

    at: int
    under_way: int
    unanswered: int

    @property
    def counts(self) -> bool:
        return self.under_way > 0 and self.unanswered > 0


class Outcome(NamedTuple):
    """One run."""

    kills: list[Kill]
    history: History


class Scene:
    """A broker and its load, which goes on beside whoever looks on."""

    def __init__(self, broker: RunningBroker, load: Load, dice: random.Random, *, end: End, forgets: bool) -> None:
        self._broker = broker
        self._load = load
        self._dice = dice
        self._end = end
        self._forgets = forgets
        self.kills: list[Kill] = []
        self.check_going: Callable[[], None] = lambda: None
        """Raises what the load could not go on for."""

    # --- looking

    def get(self, path: str) -> Any:
        with HttpClient(self._broker.http) as client:
            answer = client.request("GET", path)
        assert answer.status == 200, answer
        return answer.body

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            self.check_going()
            if time.monotonic() > deadline:
                raise Stuck(f"{what}: not within {PATIENCE_S} s; {self._left()}")
            time.sleep(0.01)

    def _left(self) -> dict[str, Any]:
        """What is not settled, by group, and what is delayed."""
        left = {group: self.get(f"/groups/{group}/lag")["topics"].get(TOPIC, {}) for group in RULES.groups}
        return {**left, "delayed": self.get(f"/topics/{TOPIC}/delayed?limit=1")["count"]}

    def _is_done(self) -> bool:
        left = self._left()
        return not left.pop("delayed") and not any(
            partition["lag"] or partition["in_flight"]
            for partitions in left.values()
            for partition in partitions.values()
        )

    def _redrive(self) -> bool:
        """Whether dead letters were left; then they are published again by now."""
        redrive: dict[str, Any] = {}

        def is_started() -> bool:
            with HttpClient(self._broker.http) as client:
                answer = client.request("POST", f"/topics/{TOPIC}/dlq/redrive", {})
            assert answer.status in (200, 202, 409), answer  # 409: another one is at work
            redrive.update(answer.body)
            return answer.status != 409

        self.until("dead letters can be redriven", is_started)
        if redrive["id"] is None:
            return False
        self.until("they are", lambda: self.get(f"/dlq/redrives/{redrive['id']}")["state"] == "done")
        return True

    # --- the cycles

    def kill_until_it_counts(self) -> None:
        for _ in range(MOST_TRIES):
            self._kill()
            if self.kills[-1].counts:
                return
        raise Violation(f"{MOST_TRIES} kills in a row hit nothing: {self.kills[-MOST_TRIES:]}")

    def _kill(self) -> None:
        book, before = self._load.book, self._load.received
        self.until("messages are delivered", lambda: self._load.received >= before + _WORK)
        time.sleep(self._dice.uniform(0, _LONGEST_DELAY_S))
        deadline = time.monotonic() + PATIENCE_S
        while not book.under_way and time.monotonic() < deadline:
            pass  # a kill takes a fraction of a millisecond, as a request does
        since, under_way = self.kills[-1].at if self.kills else 0, book.under_way
        at = self._die()
        unanswered = History(list(book.events), [], RULES).unanswered(since, at)
        self.kills.append(Kill(at, under_way, unanswered))
        self._broker.start()

    def _die(self) -> int:
        """When."""
        at = now_ms()
        self._end(self._broker)
        time.sleep(_LAST_BYTES_S)
        self._load.book.events.append(Ended(now_ms(), self._forgets))
        return at

    def finish(self) -> None:
        """Until nothing is left, no letter either that was not published again, and also nothing comes back."""
        self._load.drain()
        self.until("everything is settled", self._is_done)
        while self._redrive():
            self.until("everything is settled again", self._is_done)
        self._die()
        self._broker.start()
        self.until("everything is still settled", self._is_done)
        time.sleep(2 * VISIBILITY_MS / 1000)  # what a lease would hold back comes now
        self._load.stop()


async def _create_topic(wire: str, fsync: str) -> int:
    async with await Connection.connect(*split(wire)) as connection:
        request = {"name": TOPIC, "num_partitions": PARTITIONS, "fsync": fsync, **SETTINGS}
        return int((await connection.ask(CODES["create_topic"], request))["topic_id"], 16)


async def _letters(wire: str) -> list[Letter]:
    """The dead letters, as they lie in their topic."""
    async with await Connection.connect(*split(wire)) as connection:
        named = await connection.ask(CODES["metadata"], {"topics": [dlq_name(TOPIC)]})
        return [
            letter
            for topic in named["topics"]
            for partition in range(topic["partitions"])
            for record in await fetch_records(connection, int(topic["topic_id"], 16), partition)
            if (letter := _letter(record)) is not None
        ]


def _letter(record: Any) -> Letter | None:
    """None for a record that stands for a message that is gone, which nobody asked for."""
    if record.control:
        return None
    story = unpack_dead_letter(record.extension.blob)
    if story is None or story.topic != TOPIC:
        raise Violation(f"{record} does not say what died")
    number = int(record.value.partition(b"/")[0])
    return Letter(story.group, number, Place(story.partition, story.offset), story.deliveries, story.reason)


def kill_under_load(
    broker: RunningBroker,
    cycles: int,
    *,
    fsync: str,
    seed: int,
    end: End = RunningBroker.kill,
    forgets: bool = False,
) -> Outcome:
    """One run with so many cycles that count; a Violation when something is wrong."""
    book = Book()
    with LoopThread() as beside:
        topic_id = asyncio.run(_create_topic(broker.wire, fsync))
        load = Load(book, broker.endpoints, topic_id, f"{seed}/{fsync}")
        scene = Scene(broker, load, random.Random(f"{seed}/{fsync}/kills"), end=end, forgets=forgets)
        running = beside.run(load.run())
        scene.check_going = lambda: running.result() if running.done() else None
        for _ in range(cycles):
            scene.kill_until_it_counts()
        scene.finish()
        running.result(PATIENCE_S)
        letters = asyncio.run(_letters(broker.wire))
    history = History(book.events, letters, RULES)
    history.check()
    return Outcome(scene.kills, history)


def runs(cycles: int) -> Iterator[tuple[int, str]]:
    """How many cycles each run has, and its fsync mode."""
    modes = itertools.cycle(("interval", "every"))
    each = min(CYCLES_PER_RUN, (cycles + 1) // 2)
    while cycles > 0:
        yield min(each, cycles), next(modes)
        cycles -= each


def kill_again_and_again(parent: Path, cycles: int, *, seed: int, tell: Callable[[str], None] = print) -> list[Outcome]:
    """So many cycles that count. The directory of a run is kept if something is wrong."""
    outcomes: list[Outcome] = []
    for number, (count, fsync) in enumerate(runs(cycles)):
        directory = Path(tempfile.mkdtemp(prefix="goqueue-delivery-kill-", dir=parent))
        try:
            with running_broker(directory, *free_doors(random.Random())) as broker:
                outcomes.append(kill_under_load(broker, count, fsync=fsync, seed=seed + number))
        except BaseException as error:
            error.add_note(f"The data directory is kept: {directory}; seed {seed + number}, fsync {fsync}")
            raise
        shutil.rmtree(directory)
        tell(report(outcomes[-1], fsync))
    return outcomes


def report(outcome: Outcome, fsync: str) -> str:
    history = outcome.history
    counted = [kill for kill in outcome.kills if kill.counts]
    done = ", ".join(f"{history.done(verb)} {verb}" for verb in Verb)
    return (
        f"fsync {fsync}: {len(counted)} of {len(outcome.kills)} kills hit requests under way, of which "
        f"{sum(kill.unanswered for kill in counted)} messages and claims have no answer; {len(history.sent)} messages "
        f"acknowledged of {len(history.sending)}, {len(history.received)} deliveries to {len(RULES.groups)} groups; "
        f"done: {done}; {len(history.letters)} dead letters, {history.redriven} deliveries of redriven ones"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    parent = Path(tempfile.mkdtemp(prefix="goqueue-delivery-kill-"))
    outcomes = kill_again_and_again(parent, arguments.cycles, seed=seed, tell=lambda line: print(line, flush=True))
    shutil.rmtree(parent)
    kills = sum(kill.counts for outcome in outcomes for kill in outcome.kills)
    idle = [verb for verb in Verb if not any(outcome.history.done(verb) for outcome in outcomes)]
    if arguments.cycles >= 20 and idle:
        print(f"This run proves little: nobody's {', '.join(idle)} was done.", file=sys.stderr)
        return 1
    print(
        f"ok: {kills} kills in {time.monotonic() - began:.0f} s; nothing lost, nothing settled or cancelled delivered, "
        f"nothing early, every dead letter and every redrive once"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
