"""kill -9 of a broker and of the members of a group, again and again, while they publish, poll and commit.

    python -m tests.chaos.group_kill --cycles 30 [--seed N]

Every member is a process that writes down what it receives, each commit before it goes out, and each answer. A cycle
kills the broker, a member, or both. Whoever survives goes on with its member id on a new connection; a static member
comes back under its instance id and gets what it had, without anything of others moving. A kill counts only if
somebody had work under way at that moment. Besides, one member loses answers all the time.

In the end everything is settled, and the members' files must say that it was settled by those who received it, that
nothing answered was delivered again, and that a partition had one owner per assignment epoch. Half of the cycles are
with fsync of every message.
"""

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from goqueue.client.connection import Connection
from goqueue.wire.codes import CODES
from tests.chaos.broker_kill import free_doors
from tests.chaos.broker_load import split
from tests.chaos.ledger import Violation
from tests.support.broker import HttpClient, RunningBroker, running_broker
from tests.support.group_consumer import now
from tests.support.group_ledger import AnyEvent, History, Joined, Life, Received, Refused, Tail, has_work, lives_of
from tests.support.group_nursery import Job, Nursery
from tests.support.group_publisher import LoopThread, Publishers
from tests.support.lossy_proxy import LossyProxy
from tests.support.patience import PATIENCE_S

TOPIC: Final = "load"
GROUP: Final = "workers"
PARTITIONS: Final = 6
EVERY_S: Final = 0.02
MESSAGES: Final = 2
"""So many messages in every partition, this often."""
LOSES_ONE_IN: Final = 10
"""Answers to one of the members. That to its join is not among them."""
KINDS: Final = (
    ("broker",),
    ("static",),
    ("broker", "guest"),
    ("broker", "static"),
    ("guest",),
    ("newcomer", "broker"),
)
"""Who is killed in a cycle; of a newcomer the broker dies while it is delivered its first messages."""
CYCLES_PER_RUN: Final = 10
MOST_TRIES: Final = 5
"""Kills in a row that hit nothing."""
_LONGEST_DELAY_S: Final = 0.01
_LONG_SESSION: Final = "60s"
_SHORT_SESSION: Final = "2s"
"""Of guests: when one was killed, its partitions wait for so long."""


class Kill(NamedTuple):
    """One cycle: who was killed, and whose work it hit."""

    killed: tuple[str, ...]
    at_work: int
    """Members that had received something and had no answer yet that it is settled."""
    publishing: int
    """Blocks without an answer."""

    @property
    def counts(self) -> bool:
        return self.at_work > 0


class Outcome(NamedTuple):
    """One run."""

    kills: list[Kill]
    published: int
    received: int
    repeated: int
    unanswered: int
    """Batches whose commit may have been done or not."""
    lost_answers: int
    """Of those to one member, without a kill."""


class Return(NamedTuple):
    """A static member that came back: the group's description before and after, and when that was."""

    member: str
    before: dict[str, Any]
    before_at: int
    after: dict[str, Any]
    after_at: int


# ---------------------------------------------------------------- members


class Process:
    """One member process after the other, under one name."""

    def __init__(self, name: str, directory: Path, nursery: Nursery, job: Job) -> None:
        self.name = name
        self.job = job
        self._directory = directory
        self._nursery = nursery
        self.tails: list[Tail] = []
        self.pid: int | None = None

    def start(self) -> None:
        path = self._directory / f"{self.name}-{len(self.tails)}.jsonl"
        self.tails.append(Tail(path))
        self.pid = self._nursery.start(msgspec.structs.replace(self.job, ledger=str(path)))

    def kill(self) -> None:
        assert self.pid is not None
        self._nursery.kill(self.pid)
        self.pid = None

    def end(self) -> None:
        assert self.pid is not None
        self._nursery.end(self.pid)

    def wait(self) -> None:
        """It must have left in order."""
        assert self.pid is not None
        code = self._nursery.wait(self.pid)
        self.pid = None
        list(self.lives)  # raises what it could not go on for
        assert code == 0, f"{self.name} ended with {code}"

    @property
    def events(self) -> list[AnyEvent]:
        """Of its last process, up to now."""
        return self.tails[-1].read()

    @property
    def lives(self) -> Iterator[Life]:
        for number, tail in enumerate(self.tails):
            yield from lives_of(f"{self.name}-{number}", tail.read())

    @property
    def has_joined(self) -> bool:
        return any(isinstance(event, Joined) for event in self.events)


# ---------------------------------------------------------------- one run


class Scene:
    """A broker, producers, and members in processes of their own."""

    def __init__(
        self, directory: Path, broker: RunningBroker, nursery: Nursery, dice: random.Random, *, lossy: str
    ) -> None:
        """One member that stays is behind `lossy`, which loses answers."""
        self._broker = broker
        self._dice = dice
        self._returns: list[Return] = []
        self.kills: list[Kill] = []
        self.members = {}
        for name in ("core-lossy", "core-http", "static-0", "static-1", "guest-0", "guest-1"):
            door = "http" if name == "core-http" else "wire"
            is_guest = name.startswith("guest")
            job = Job(
                door=door,
                address=lossy if name == "core-lossy" else broker.endpoints[door],
                group=GROUP,
                topic=TOPIC,
                ledger="",
                session_timeout=_SHORT_SESSION if is_guest else _LONG_SESSION,
                instance_id=name if name.startswith("static") else None,
                behind=2 if name == "core-lossy" else 0,
                may_expire=is_guest,
            )
            self.members[name] = Process(name, directory, nursery, job)

    def _named(self, kind: str) -> list[Process]:
        return [member for name, member in self.members.items() if name.startswith(kind)]

    # --- looking

    def get(self, path: str) -> Any:
        with HttpClient(self._broker.http) as client:
            answer = client.request("GET", path)
        assert answer.status == 200, answer
        return answer.body

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = self.get(f"/groups/{GROUP}")
        return described

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            for member in self.members.values():
                list(member.lives)  # raises what it could not go on for
            if time.monotonic() > deadline:
                raise Violation(
                    f"{what}: not within {PATIENCE_S} s; {self.describe()}; {self.get(f'/groups/{GROUP}/lag')}; "
                    f"{ {name: member.events[-2:] for name, member in self.members.items()} }"
                )
            time.sleep(0.02)

    def _is_stable(self) -> bool:
        """Everybody who lives is in the group, nobody else is, and nothing is on its way."""
        described = self.describe()
        alive = {life.member_id for member in self.members.values() for life in list(member.lives)[-1:]}
        return described["state"] == "stable" and {member["member_id"] for member in described["members"]} == alive

    def _goes_on(self, since: int, partitions: Sequence[int] = range(PARTITIONS)) -> bool:
        """Whether these partitions were delivered from since then."""
        found = {
            event.partition
            for member in self.members.values()
            for event in member.events
            if isinstance(event, Received) and event.at > since
        }
        return found.issuperset(partitions)

    # --- the cycles

    def begin(self) -> None:
        for member in self.members.values():
            member.start()
        self.until("all have joined", lambda: all(member.has_joined for member in self.members.values()))
        self.until("the group is stable", self._is_stable)
        self.until("messages of every partition are delivered", lambda: self._goes_on(0))

    def kill_until_it_counts(self, killed: tuple[str, ...], publishers: Publishers) -> None:
        """One cycle that hit somebody's work."""
        for _ in range(MOST_TRIES):
            self.kill(killed, publishers)
            if self.kills[-1].counts:
                return
        raise Violation(f"{MOST_TRIES} kills in a row hit nothing: {self.kills[-MOST_TRIES:]}")

    def kill(self, killed: tuple[str, ...], publishers: Publishers) -> None:
        """One cycle."""
        if "newcomer" in killed:
            guest = self._dice.choice(self._named("guest"))
            guest.end()
            guest.wait()
            guest.start()
            self.until("the newcomer has joined", lambda: guest.has_joined)
        is_static = "static" in killed
        if is_static:
            self.until("the group is stable", self._is_stable)
            since = now()
            self.until("messages of every partition are delivered", lambda: self._goes_on(since))
        members = [self._dice.choice(self._named(kind)) for kind in killed if kind in ("guest", "static")]
        before, before_at = (self.describe(), now()) if is_static else ({}, 0)
        hit = list(self.members.values()) if "broker" in killed else members
        if "newcomer" not in killed:
            time.sleep(self._dice.uniform(0, 0.3))
        self.until("somebody is at work", lambda: any(has_work(member.events, now()) for member in hit))
        time.sleep(self._dice.uniform(0, _LONGEST_DELAY_S))
        at, publishing = now(), publishers.in_flight
        victims: list[Callable[[], None]] = [member.kill for member in members]
        if "broker" in killed:
            victims.insert(self._dice.randrange(len(victims) + 1), self._broker.kill)
        for victim in victims:
            victim()
        self.kills.append(Kill(killed, sum(has_work(member.events, at) for member in hit), publishing))
        if "broker" in killed:
            self._broker.start()
        for member in members:
            member.start()
        again = now()
        self.until("whoever was killed has joined", lambda: all(member.has_joined for member in members))
        if is_static:
            after, after_at = self.describe(), now()
            self.until("messages of every partition are delivered", lambda: self._goes_on(after_at))
            self._returns.append(Return(members[0].name, before, before_at, after, after_at))
            _check_descriptions(self._returns[-1])
        else:
            self.until(
                "somebody is delivered something", lambda: any(self._goes_on(again, [p]) for p in range(PARTITIONS))
            )

    def finish(self, ends: dict[int, int]) -> History:
        """Everything is settled; everybody leaves; what they wrote down must be right."""
        expected = {str(partition): (end, end, 0, 0) for partition, end in ends.items()}
        self.until("everything is settled", lambda: self._standing() == expected)
        for member in self.members.values():
            member.end()
        for member in self.members.values():
            member.wait()
        if self._standing() != expected or self.describe()["members"]:
            raise Violation(f"when all have left: {self._standing()}, not {expected}; {self.describe()}")
        history = History([life for member in self.members.values() for life in member.lives])
        history.check(ends)
        for each in self._returns:
            _check_epochs(history, each)
        for life in history.lives:
            if life.strange_refusals and not life.name.startswith("guest"):
                raise Refused(f"{life}, which lives and does what it is told, was refused: {life.strange_refusals}")
        return history

    def _standing(self) -> dict[str, tuple[int, int, int, int]]:
        return {
            partition: (each["committed"], each["end"], each["lag"], each["in_flight"])
            for partition, each in self.get(f"/groups/{GROUP}/lag")["topics"].get(TOPIC, {}).items()
        }


def _owners(described: dict[str, Any]) -> dict[str, list[str]]:
    return {member["member_id"]: member["assigned_partitions"] for member in described["members"]}


def _check_descriptions(returned: Return) -> None:
    """It has what it had, under another member id; for others nothing has changed; it was one step."""
    before, after = returned.before, returned.after
    places = [(member["instance_id"], member["assigned_partitions"]) for member in before["members"]]
    if places != [(member["instance_id"], member["assigned_partitions"]) for member in after["members"]]:
        raise Violation(f"{returned.member} came back, and partitions moved: from {before} to {after}")
    changed = _owners(before).keys() ^ _owners(after).keys()
    if len(changed) != 2 or after["generation"] != before["generation"] + 1:
        raise Violation(f"{returned.member} came back: from {before} it became {after}")


def _check_epochs(history: History, returned: Return) -> None:
    """Others went on in the same assignment epoch; what came back has a new one, which is the generation."""
    kept = _owners(returned.before).keys() & _owners(returned.after).keys()
    for member_id, names in _owners(returned.after).items():
        for partition in (int(name.rpartition("-")[2]) for name in names):
            earlier = [each for each in history.deliveries[partition] if each.at <= returned.before_at][-1]
            later = next(each for each in history.deliveries[partition] if each.at >= returned.after_at)
            same = (earlier.life, earlier.received.high) == (later.life, later.received.high)
            if member_id in kept and not same:
                raise Violation(
                    f"{returned.member} came back; partition {partition} stayed, yet was with {earlier.life} in "
                    f"{earlier.received} and is with {later.life} in {later.received}"
                )
            if member_id not in kept and later.received.high != returned.after["generation"]:
                raise Violation(f"{returned.member} came back in {returned.after} and received {later.received}")


async def _create_topic(wire: str, fsync: str) -> int:
    async with await Connection.connect(*split(wire)) as connection:
        request = {"name": TOPIC, "num_partitions": PARTITIONS, "fsync": fsync}
        return int((await connection.ask(CODES["create_topic"], request))["topic_id"], 16)


def kill_members_and_broker(directory: Path, kinds: Sequence[tuple[str, ...]], *, fsync: str, seed: int) -> Outcome:
    """One run with these cycles; Violation, or an AssertionError, when something is wrong."""
    dice = random.Random(f"{seed}/{fsync}")
    with (
        running_broker(directory, *free_doors(random.Random())) as broker,
        Nursery() as nursery,
        LoopThread() as beside,
        ExitStack() as stack,
    ):
        topic_id = asyncio.run(_create_topic(broker.wire, fsync))
        publishers = Publishers(broker.wire, topic_id, partitions=PARTITIONS, every_s=EVERY_S, messages=MESSAGES)
        proxy = beside.run(LossyProxy.open(broker.wire, loses_one_in=LOSES_ONE_IN)).result()
        stack.callback(lambda: beside.run(proxy.close()).result())
        scene = Scene(directory, broker, nursery, dice, lossy=proxy.address)
        publishing = beside.run(publishers.run())
        scene.begin()
        for kind in kinds:
            scene.kill_until_it_counts(kind, publishers)
        publishers.stop()
        publishing.result(PATIENCE_S)
        history = scene.finish(publishers.ends)
    return Outcome(
        scene.kills,
        sum(publishers.ends.values()),
        history.messages,
        history.repetitions,
        len({each.received for each in history.doubtful}),
        proxy.lost,
    )


def runs(cycles: int) -> Iterator[tuple[list[tuple[str, ...]], str]]:
    """Who is killed in which run, and its fsync mode."""
    kinds = itertools.cycle(KINDS)
    modes = itertools.cycle(("interval", "every"))
    each = min(CYCLES_PER_RUN, (cycles + 1) // 2)
    while cycles > 0:
        yield list(itertools.islice(kinds, min(each, cycles))), next(modes)
        cycles -= each


def kill_again_and_again(parent: Path, cycles: int, *, seed: int, tell: Callable[[str], None] = print) -> list[Outcome]:
    """So many cycles that count. A directory of a run is kept if something is wrong."""
    outcomes: list[Outcome] = []
    for number, (kinds, fsync) in enumerate(runs(cycles)):
        directory = Path(tempfile.mkdtemp(prefix="goqueue-group-kill-", dir=parent))
        try:
            outcomes.append(kill_members_and_broker(directory, kinds, fsync=fsync, seed=seed + number))
        except BaseException as error:
            error.add_note(f"The data directory and what members wrote are kept: {directory}; fsync {fsync}, {kinds}")
            raise
        shutil.rmtree(directory)
        tell(report(outcomes[-1], fsync))
    return outcomes


def report(outcome: Outcome, fsync: str) -> str:
    counted = [kill for kill in outcome.kills if kill.counts]
    return (
        f"fsync {fsync}: {len(counted)} of {len(outcome.kills)} kills hit work under way "
        f"({sum('broker' in kill.killed for kill in counted)} of the broker, "
        f"{sum('static' in kill.killed for kill in counted)} of static members, "
        f"{sum('guest' in kill.killed for kill in counted)} of others), of {sum(kill.at_work for kill in counted)} "
        f"members; {outcome.published} messages, {outcome.received} deliveries, {outcome.repeated} again, "
        f"{outcome.unanswered} batches whose commit had no answer; "
        f"{outcome.lost_answers} other answers were lost on the way"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    parent = Path(tempfile.mkdtemp(prefix="goqueue-group-kill-"))
    outcomes = kill_again_and_again(parent, arguments.cycles, seed=seed, tell=lambda line: print(line, flush=True))
    shutil.rmtree(parent)
    kills = sum(kill.counts for outcome in outcomes for kill in outcome.kills)
    if arguments.cycles >= 20 and not all(
        sum(getattr(outcome, name) for outcome in outcomes) for name in ("repeated", "unanswered")
    ):
        print("This run proves little: no work had to be done again, or no commit lost its answer.", file=sys.stderr)
        return 1
    print(
        f"ok: {kills} kills in {time.monotonic() - began:.0f} s, nothing lost, nothing settled delivered again, "
        f"one owner per assignment epoch"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
