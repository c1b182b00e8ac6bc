"""A program that writes in transactions, behind a network that cuts connections, cancelled wherever it waits.

    python -m tests.chaos.lost_replies --seconds 1800 [--seed N]

The program has a transactional id and one producer. A round is a transaction that is committed, or whose body fails
with a message under way; half of them are cancelled at some wait, and some connections end instead of bringing an
answer. Now and then the broker is killed. None of this may fence the program. Now and then another program takes the
transactional id over, behind the same network: that one must fence the first, always, and goes on in its place. In the
end a read-committed reader must find every value once whose commit was answered, and none that was given up.
"""

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from goqueue import AsyncClient
from goqueue.client.producer import AsyncProducer
from goqueue.model.errors import ProducerFenced, RequestTimeout, TransactionAborted, Unavailable
from tests.chaos.broker_kill import free_doors
from tests.chaos.ledger import Lost, Phantom, Violation
from tests.chaos.transaction_kill import NotFenced, Twice
from tests.support.broker import RunningBroker, running_broker
from tests.support.cancelled_at import cancelled_at
from tests.support.lossy_proxy import LossyProxy

TOPIC: Final = "orders"
TRANSACTIONAL_ID: Final = "billing"
_LOSES_ONE_IN: Final = 12
_CANCELLED: Final = 0.5
_MOST_WAITS: Final = 10
"""At which wait it is cancelled; a transaction has fewer, unless it asks again."""
_FAILS: Final = 0.4
_TAKEN_OVER: Final = 0.04
_KILLED: Final = 0.01
_TELL_EVERY: Final = 500
_TRIES: Final = 4

Tell = Callable[[str], None]


class FencedItself(Violation):
    """A program was fenced, and there was no other."""


class Outcome(NamedTuple):
    rounds: int
    counts: Counter[str]
    lost: int
    """Answers, or lots of them, that never arrived."""


class GivenUp(Exception):
    """The body of a transaction fails."""


class Scene:
    """A broker, a network before it, and the program that has the transactional id now."""

    def __init__(self, broker: RunningBroker, proxy: LossyProxy, dice: random.Random) -> None:
        self._broker = broker
        self._proxy = proxy
        self._dice = dice
        self._program: tuple[AsyncProducer, AsyncExitStack] | None = None
        self.counts: Counter[str] = Counter()
        self.committed: set[str] = set()
        self.aborted: set[str] = set()

    async def _start(self) -> tuple[AsyncProducer, AsyncExitStack]:
        stack = AsyncExitStack()
        client = await stack.enter_async_context(AsyncClient(self._proxy.address))
        return await stack.enter_async_context(client.producer(transactional_id=TRANSACTIONAL_ID)), stack

    async def round(self, number: int) -> None:
        if self._program is None:
            self._program = await self._start()
        luck = self._dice.random()
        if luck < _KILLED:
            self._broker.kill()
            self._broker.start()  # in this thread: the broker dies with the one that started it
            self.counts["broker killed"] += 1
        elif luck < _KILLED + _TAKEN_OVER:
            await self._take_over(number)
        try:
            await self._transact(self._program[0], f"{number}")
        except ProducerFenced as error:
            raise FencedItself(f"round {number}: {error}") from error

    async def _take_over(self, number: int) -> None:
        assert self._program is not None
        first, left = self._program
        self._program = await self._start()
        self.counts["taken over"] += 1
        values = [f"{number}-zombie-{attempt}" for attempt in range(_TRIES)]
        self.aborted.update(values)
        try:
            for value in values:  # cancelled before it has asked, it cannot know yet
                await self._transact(first, value, undisturbed=value is values[-1])
        except ProducerFenced:
            pass
        else:
            raise NotFenced(f"round {number}: another program has the id, and the first goes on")
        await first.abort()
        await left.aclose()

    async def _transact(self, producer: AsyncProducer, value: str, *, undisturbed: bool = False) -> None:
        fails = not undisturbed and self._dice.random() < _FAILS
        at = self._dice.randint(1, _MOST_WAITS) if not undisturbed and self._dice.random() < _CANCELLED else 0

        async def work() -> None:
            async with producer.transaction():
                producer.enqueue(TOPIC, value)
                if fails:
                    raise GivenUp
                await producer.send(TOPIC, f"{value}+")

        try:
            if await cancelled_at(work(), at):
                self.counts["cancelled"] += 1
                if fails:
                    self.aborted.add(value)
                return
        except GivenUp:
            self.counts["given up"] += 1
            self.aborted.add(value)
        except (RequestTimeout, Unavailable, TransactionAborted) as error:
            self.counts[type(error).__name__] += 1
        else:
            self.counts["committed"] += 1
            self.committed.add(value)

    async def finish(self) -> None:
        """One last transaction, undisturbed, ends what is open; then the log must have what was answered."""
        self._program = self._program or await self._start()
        await self._transact(self._program[0], "last", undisturbed=True)
        await self._program[1].aclose()
        async with AsyncClient(self._broker.wire) as client, client.reader(TOPIC) as reader:
            found = Counter([message.text or "" async for message in reader])
        for value in sorted(self.committed):
            if value not in found or f"{value}+" not in found:
                raise Lost(f"the commit of {value!r} was answered, and it is not all there")
        for value, times in found.items():
            if value.removesuffix("+") in self.aborted:
                raise Phantom(f"{value!r} was given up, and is there")
            if times > 1:
                raise Twice(f"{value!r} is there {times} times")

    async def give_up(self) -> None:
        if self._program is not None:
            await self._program[0].abort()
            await self._program[1].aclose()


async def _run(broker: RunningBroker, goes_on: Callable[[int], bool], seed: int, tell: Tell) -> Outcome:
    proxy = await LossyProxy.open(broker.wire, loses_one_in=_LOSES_ONE_IN, dice=random.Random(f"{seed}/network"))
    scene = Scene(broker, proxy, random.Random(f"{seed}/program"))
    done = 0
    try:
        async with AsyncClient(broker.wire) as client:
            await client.create_topic(TOPIC, partitions=2, exist_ok=True)
        while goes_on(done):
            done += 1
            await scene.round(done)
            if done % _TELL_EVERY == 0:
                tell(f"{done}: {dict(scene.counts)}; {proxy.lost} answers lost")
        await scene.finish()
    except BaseException as error:
        error.add_note(f"seed {seed}, in round {done}; data and log lines: {broker.data_dir}")
        await scene.give_up()
        raise
    finally:
        await proxy.close()
    return Outcome(done, scene.counts, proxy.lost)


def lose_replies(directory: Path, goes_on: Callable[[int], bool], *, seed: int, tell: Tell = lambda _: None) -> Outcome:
    """One run, as long as it is to go on after so many rounds; a Violation when something is wrong."""
    with running_broker(directory, *free_doors(random.Random())) as broker:
        return asyncio.run(_run(broker, goes_on, seed, tell))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    logging.getLogger("goqueue.client").setLevel(logging.ERROR)  # each connection that is lost
    directory = Path(tempfile.mkdtemp(prefix="goqueue-lost-replies-"))
    end = time.monotonic() + arguments.seconds
    tell: Tell = lambda line: print(line, flush=True)  # noqa: E731
    outcome = lose_replies(directory, lambda _: time.monotonic() < end, seed=seed, tell=tell)
    shutil.rmtree(directory)
    print(f"ok: {outcome.rounds} rounds, nobody fenced itself: {dict(outcome.counts)}; {outcome.lost} answers lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
