"""What only many deliveries show: that lanes get their shares, that keys stay in order, that all consumers work.

A broker in this process, with real files, and time that the test moves.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from goqueue.broker.poll import Polled
from goqueue.model.groups import Mode
from goqueue.model.record import Lane, Record
from tests.support.moved_time import run_timed
from tests.unit.broker.consumers import Consumers, consuming, handles_of, refused, texts

DELIVERIES = 100_000
BATCH = 500
WEIGHTS = (50, 25, 15, 7, 3)
STARVING_MS = 30_000
MEMBERS = 8
KEYS = 1000
EACH = 100
BLOCK = 5000


def run(path: Path, work: Callable[[Consumers], Awaitable[None]]) -> None:
    async def go() -> None:
        async with consuming(path) as to:
            await work(to)

    run_timed(go())


# --- lanes


def test_lanes_that_are_full_get_their_shares(tmp_path: Path) -> None:
    async def work(to: Consumers) -> None:
        await to.create()
        for lane, weight in zip(Lane, WEIGHTS, strict=True):
            block = [Record(value=lane.name.encode(), priority=lane)] * BLOCK
            for _ in range(DELIVERIES * weight // 100 // BLOCK + 1):
                to.send(*block)
        member = (await to.join()).member_id
        served: Counter[str] = Counter()
        while sum(served.values()) < DELIVERIES:
            polled = await to.poll(member, max_messages=BATCH)
            served.update(texts(polled))
            await to.ack(*handles_of(polled))
        for lane, weight in zip(Lane, WEIGHTS, strict=True):
            share = DELIVERIES * weight / 100
            assert abs(served[lane.name] - share) <= 0.05 * share, served

    run(tmp_path, work)


def test_no_lane_starves_under_strict_priorities(tmp_path: Path) -> None:
    """The lanes above are always full: each lane is served once in its bound, and one poll."""

    async def work(to: Consumers) -> None:
        await to.create(lane_policy="strict")
        block = [Record(value=lane.name.encode(), priority=lane) for lane in Lane for _ in range(1000)]
        to.send(*block)
        more = [Record(value=Lane.CRITICAL.name.encode(), priority=Lane.CRITICAL)] * 10
        member = (await to.join(session_ms=3600 * 1000)).member_id
        last = dict.fromkeys((lane.name for lane in Lane), to.clock())
        step_ms = 1000
        for _ in range(300):
            to.send(*more)
            polled = await to.poll(member, max_messages=10)
            await to.ack(*handles_of(polled))
            last |= dict.fromkeys(texts(polled), to.clock())
            assert max(to.clock() - at for at in last.values()) <= STARVING_MS + step_ms, last
            await to.pass_by(step_ms)

    run(tmp_path, work)


# --- keys


def _never(_key: str, _number: int) -> bool:
    return False


class Workers:
    """Members of one group in key mode, and what they have done: of each key the numbers, in the order of acks."""

    def __init__(self, to: Consumers) -> None:
        self.to = to
        self.members: list[str] = []
        self.done: dict[str, list[int]] = defaultdict(list)
        self.acked_by: Counter[str] = Counter()

    async def prepare(self, mode: Mode = Mode.KEY, **settings: Any) -> None:
        await self.to.create(**settings)
        for number in range(EACH):
            self.to.send(*(Record(key=f"{key}".encode(), value=f"{key}:{number}".encode()) for key in range(KEYS)))
        for number in range(MEMBERS):
            joined = await self.to.join(f"w{number}", mode=mode, session_ms=3600 * 1000)
            self.members.append(joined.member_id)

    async def ack(self, member: str, polled: Polled, *, but: Callable[[str, int], bool] = _never) -> None:
        """All of a poll; those that are excepted are nacked."""
        good, left = [], []
        for handle, text in zip(handles_of(polled), texts(polled), strict=True):
            key, number = text.split(":")
            if but(key, int(number)):
                left.append(handle)
            else:
                good.append(handle)
                self.done[key].append(int(number))
                self.acked_by[member] += 1
        assert not any(refused(await self.to.ack(*good)))
        if left:
            assert not any(refused(await self.to.nack(*left, delay_ms=200)))

    @property
    def is_over(self) -> bool:
        return sum(map(len, self.done.values())) == KEYS * EACH

    def check(self) -> None:
        assert len(self.done) == KEYS
        for key, numbers in self.done.items():
            assert numbers == list(range(EACH)), key


def test_keys_that_fail_stay_in_order_and_the_others_go_on(tmp_path: Path) -> None:
    """One key in twenty is nacked, each message at most twice. The others take hardly more polls than without that."""
    polls: dict[bool, int] = {}

    async def work(to: Consumers, *, nacking: bool) -> None:
        workers = Workers(to)
        await workers.prepare(max_retries=10)
        failures: Counter[str] = Counter()

        def fails(key: str, number: int) -> bool:
            if not nacking or int(key) % 20:
                return False
            failures[f"{key}:{number}"] += 1
            return failures[f"{key}:{number}"] <= number % 3

        taken = 0
        while not workers.is_over:
            for member in workers.members:
                await workers.ack(member, await to.poll(member, max_messages=BATCH), but=fails)
                taken += 1
            await to.pass_by(10)
            others = sum(len(done) for key, done in workers.done.items() if int(key) % 20)
            if others == KEYS * EACH * 19 // 20:
                polls.setdefault(nacking, taken)
        workers.check()
        assert max(failures.values(), default=0) == (3 if nacking else 0)

    run(tmp_path / "calm", partial(work, nacking=False))
    run(tmp_path / "nacking", partial(work, nacking=True))
    assert polls[False] >= 0.9 * polls[True], polls


def test_keys_stay_in_order_when_consumers_die(tmp_path: Path) -> None:
    """Two of eight take messages and are never heard of again: those come to the others after a second."""

    async def work(to: Consumers) -> None:
        workers = Workers(to)
        await workers.prepare(visibility_ms=1000)
        for dying in (20, 40):
            while sum(map(len, workers.done.values())) < dying * KEYS:
                for member in workers.members:
                    await workers.ack(member, await to.poll(member, max_messages=BATCH))
            assert (await to.poll(workers.members.pop(), max_messages=BATCH)).rows, "it has something when it dies"
        while not workers.is_over:
            for member in workers.members:
                await workers.ack(member, await to.poll(member, max_messages=BATCH))
            await to.pass_by(50)
        workers.check()

    run(tmp_path, work)


def test_consumers_that_share_a_partition_all_work(tmp_path: Path) -> None:
    async def work(to: Consumers) -> None:
        workers = Workers(to)
        await workers.prepare(Mode.SHARED)
        while not workers.is_over:
            for member in workers.members:
                await workers.ack(member, await to.poll(member, max_messages=BATCH))
        assert {key: sorted(numbers) for key, numbers in workers.done.items()} == {
            str(key): list(range(EACH)) for key in range(KEYS)
        }
        assert len(workers.acked_by) == MEMBERS
        assert min(workers.acked_by.values()) > KEYS * EACH // MEMBERS * 0.9

    run(tmp_path, work)
