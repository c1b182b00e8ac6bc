"""kill -9 of a broker while eight producers publish, again and again.

    python -m tests.chaos.broker_kill --cycles 60 [--seed N] [--messages N]

A cycle is a kill in the middle of a load and a restart at the same addresses; a few of them share a load and a data
directory. Producers send again what had no answer. In the end everything is acknowledged and every read path has
every message once. A kill counts only if requests were in flight and an answer proves that one of them was sent
again; a load with a kill that does not count is repeated. After one more kill, of an idle broker, what it knows of its
producers must be what it knew: every last batch that comes again is answered as before.
"""

import argparse
import asyncio
import itertools
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.model.errors import OutOfSequence
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Record
from goqueue.wire.blocks import Range
from tests.chaos.broker_load import TOPIC, Load, LoadThread, Plan, create_topic, now_ms, split
from tests.chaos.ledger import Violation
from tests.support.broker import RunningBroker, running_broker
from tests.support.broker_ledger import PARTITIONS, Duplicated, Ledger
from tests.support.broker_reading import Reading, demand_same, fetch_records, offline_all, read_by_every_path

KILLS_PER_LOAD: Final = 3
MOST_TRIES: Final = 5
"""Loads in a row with a kill that does not count."""
_PROMISED: Final = {Acks.LEADER: Durability.WRITTEN, Acks.ALL: Durability.DURABLE}
_PORTS: Final = (20_000, 30_000)
"""Below those that connections get: a client that tries again must not take the broker's port for its own end."""
_LAST_BATCH: Final = 50
_LONGEST_DELAY_S: Final = 0.03


class Kill(NamedTuple):
    """One kill and what it hit."""

    in_flight: int
    """Blocks without an answer at that moment."""
    sent_again: int
    """Blocks whose answer proves that they were sent again."""
    repeated: int
    """Those of them that had been appended before: only their answer was lost."""

    @property
    def counts(self) -> bool:
        return self.in_flight > 0 and self.sent_again > 0


class Outcome(NamedTuple):
    """A load and its kills."""

    acknowledged: int
    kills: list[Kill]

    @property
    def counts(self) -> bool:
        return all(kill.counts for kill in self.kills)


class ToldAgain(NamedTuple):
    """How a broker answers a producer whose last batch comes again: where it is, and what it expects next."""

    producer_id: int
    partition: int
    ranges: tuple[Range, ...]
    expected: int


def free_doors(dice: random.Random) -> list[str]:
    """Flags for two ports that are free and stay so while the broker is away."""
    flags = []
    for door in ("--wire", "--http"):
        while True:
            address = ("127.0.0.1", dice.randrange(*_PORTS))
            with socket.socket() as attempt:
                attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    attempt.bind(address)
                except OSError:
                    continue
            flags += [door, f"{address[0]}:{address[1]}"]
            break
    return flags


def kill_under_load(
    directory: Path,
    plan: Plan,
    *,
    kills: int,
    fsync: str = "interval",
    every_path: bool = True,
    env: Mapping[str, str] | None = None,
    end: Callable[[RunningBroker], None] = RunningBroker.kill,
) -> Outcome:
    """A load with this many kills in it; Violation or AssertionError when something is wrong with what is left.

    `end` is how lives end, if not by kill -9.
    """
    directory.mkdir(exist_ok=True)
    dice = random.Random(f"{plan.seed}/kills")
    ledger = Ledger()
    moments: list[tuple[int, int, int]] = []
    with running_broker(directory, *free_doors(random.Random()), env=env) as broker:
        topic_id = asyncio.run(create_topic(broker.wire, fsync=fsync))
        load = Load(plan, ledger, topic_id=topic_id, wire=broker.wire, http=broker.http)
        with LoadThread(load):
            for number in range(1, kills + 1):
                if not ledger.wait_for(int(plan.messages * (number - dice.uniform(0.3, 1)) / kills)):
                    break
                time.sleep(dice.uniform(0, _LONGEST_DELAY_S))
                killed_ms, in_flight = now_ms(), ledger.in_doubt
                end(broker)
                moments.append((killed_ms, now_ms(), in_flight))
                broker.start()
        _check_promises(plan, ledger, fsync)
        found = _check_contents(broker, ledger, topic_id, plan.seed, every_path=every_path)
        _check_producers(broker, topic_id)
        broker.stop()
        demand_same("from the files", offline_all(broker.data_dir, TOPIC, topic_id), found)
    missed = [Kill(0, 0, 0)] * (kills - len(moments))
    return Outcome(ledger.acknowledged, [_weigh(ledger, *moment) for moment in moments] + missed)


def _weigh(ledger: Ledger, killed_ms: int, dead_ms: int, in_flight: int) -> Kill:
    again = [
        answered for answered in ledger.answers if answered.needed_another_try(killed_ms=killed_ms, dead_ms=dead_ms)
    ]
    repeated = sum(any(each.duplicate for each in answered.ranges) for answered in again)
    return Kill(in_flight, len(again), repeated)


def _check_promises(plan: Plan, ledger: Ledger, fsync: str) -> None:
    """Every message has its answer, which promised what was asked for."""
    if ledger.acknowledged != plan.messages or ledger.in_doubt:
        raise Violation(f"{ledger.acknowledged} of {plan.messages} messages are acknowledged at the end")
    promised = {answered.durability for answered in ledger.answers}
    wanted = Durability.DURABLE if fsync == "every" else _PROMISED[plan.acks]
    if promised != {wanted}:
        raise Violation(f"acks {plan.acks.name}, fsync {fsync}: answers promised {promised}")


def _check_contents(broker: RunningBroker, ledger: Ledger, topic_id: int, seed: int, *, every_path: bool) -> Reading:
    found = read_by_every_path(
        wire=broker.wire,
        http=broker.http if every_path else None,
        topic=TOPIC,
        topic_id=topic_id,
        seed=seed,
        check=ledger.check_all,
    )
    assert sum(map(len, found)) == ledger.acknowledged, "there is more than was acknowledged"
    return found


def _check_producers(broker: RunningBroker, topic_id: int) -> None:
    """The state of every producer, as it was learned live and as the next life finds it in the log."""
    records = asyncio.run(_fetch(broker.wire, topic_id))
    live = asyncio.run(_tell_all_again(broker.wire, topic_id, records))
    broker.kill()
    broker.start()
    rebuilt = asyncio.run(_tell_all_again(broker.wire, topic_id, records))
    if live != rebuilt:
        raise Violation(f"producers before a kill: {live}; after it: {rebuilt}")
    wrong = [told for told in live if not all(each.duplicate for each in told.ranges)]
    if wrong or not live:
        raise Violation(f"a last batch that came again was not recognised: {wrong}")


async def _fetch(wire: str, topic_id: int) -> list[list[Record]]:
    async with await Connection.connect(*split(wire)) as connection:
        return [await fetch_records(connection, topic_id, partition) for partition in range(PARTITIONS)]


async def _tell_all_again(wire: str, topic_id: int, records: list[list[Record]]) -> list[ToldAgain]:
    """Send the last batch of every producer once more, and a batch with a gap; both change nothing."""
    told = []
    async with await Connection.connect(*split(wire)) as connection:
        for partition, found in enumerate(records):
            for last in _last_batches(found):
                told.append(await _tell_again(connection, topic_id, partition, last))
            end = await connection.fetch_block(topic_id, partition, len(found))
            assert end.latest == len(found), "a batch that came again, or was refused, was appended"
    return told


def _last_batches(records: list[Record]) -> list[list[Record]]:
    """Of every producer, by id."""
    batches: dict[int, list[Record]] = {}
    for record in records:
        assert record.extension is not None
        assert record.extension.producer is not None
        batches.setdefault(record.extension.producer.producer_id, []).append(record)
    return [batches[producer_id][-_LAST_BATCH:] for producer_id in sorted(batches)]


async def _tell_again(connection: Connection, topic_id: int, partition: int, last: list[Record]) -> ToldAgain:
    first, newest = (record.extension.producer for record in (last[0], last[-1]) if record.extension is not None)
    assert first is not None
    assert newest is not None
    reply = await connection.publish_block(topic_id, partition, codec.encode(last), acks=Acks.LEADER, producer=first)
    offsets = [offset for each in reply.ranges for offset in range(each.first_offset, each.first_offset + each.records)]
    if offsets != [record.offset for record in last]:
        raise Duplicated(f"{first} was appended at {last[0].offset} and, when it came again, at {offsets[0]}")
    gap = msgspec.structs.replace(newest, sequence=newest.sequence + 2)
    try:
        await connection.publish_block(topic_id, partition, codec.encode(last[:1]), acks=Acks.LEADER, producer=gap)
    except OutOfSequence as refusal:
        if refusal.expected != newest.sequence + 1:
            raise Violation(f"after {newest} the broker expects {refusal.expected}") from None
        return ToldAgain(first.producer_id, partition, reply.ranges, refusal.expected)
    raise Violation(f"{gap} was accepted after {newest}")


def kill_until_it_counts(
    parent: Path,
    plan: Plan,
    *,
    kills: int,
    fsync: str = "interval",
    every_path: bool = True,
    end: Callable[[RunningBroker], None] = RunningBroker.kill,
) -> Outcome:
    """The first load of which every kill has hit; each in a directory of its own, kept if something is wrong."""
    for attempt in range(MOST_TRIES):
        directory = Path(tempfile.mkdtemp(prefix="goqueue-broker-kill-", dir=parent))
        tried = msgspec.structs.replace(plan, seed=plan.seed * MOST_TRIES + attempt)
        outcome = kill_under_load(directory, tried, kills=kills, fsync=fsync, every_path=every_path, end=end)
        shutil.rmtree(directory)
        if outcome.counts:
            return outcome
    raise Violation(f"in {MOST_TRIES} loads a kill hit nothing; the last: {outcome.kills}")


def plans(seed: int, messages: int) -> Iterator[tuple[Plan, str]]:
    """What loads there are, in turn: plan and fsync mode."""
    each = messages // 8
    for number in itertools.count(seed):
        acks = (Acks.LEADER, Acks.ALL)[number % 2]
        fsync = ("interval", "interval", "every", "none")[number % 4]
        yield Plan(acks=acks, wire_messages=each, http_messages=each, seed=number), fsync


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--messages", type=int, default=40_000, help="of each load")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    kills: list[Kill] = []
    acknowledged = 0
    parent = Path(tempfile.mkdtemp(prefix="goqueue-broker-kill-"))
    for plan, fsync in plans(seed, arguments.messages):
        if len(kills) >= arguments.cycles:
            break
        try:
            outcome = kill_until_it_counts(
                parent, plan, kills=min(KILLS_PER_LOAD, arguments.cycles - len(kills)), fsync=fsync
            )
        except BaseException as error:
            error.add_note(
                f"The data directory is kept: {parent}. To run it again: python -m tests.chaos.broker_kill "
                f"--seed {plan.seed} --cycles {KILLS_PER_LOAD} --messages {arguments.messages}"
            )
            raise
        kills += outcome.kills
        acknowledged += outcome.acknowledged
        print(
            f"{len(kills)}/{arguments.cycles} kills, {acknowledged} messages acknowledged, all there, each once; "
            f"{sum(kill.sent_again for kill in kills)} blocks sent again, "
            f"{sum(kill.repeated for kill in kills)} of them were there already; {time.monotonic() - began:.0f} s",
            flush=True,
        )
    shutil.rmtree(parent)
    if arguments.cycles >= 20 and not any(kill.repeated for kill in kills):
        print("This run proves little: nothing that was sent again was there already.", file=sys.stderr)
        return 1
    print(f"ok: {len(kills)} kills, nothing acknowledged was lost, nothing is there twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
