"""The wire door against the yardstick: blocks in, blocks out, through real processes, turn by turn in one run.

A share compares two rounds that followed each other, and the figure is the median of the shares. Beside it stand
both rates, what each server used of the cores for a MiB, and how busy server and generator were: where the server was
always running, or waiting for a core, it is what was measured. Where it had to wait much, others were at work on the
machine, and the share by CPU time says more.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from bench.blocks import producer_blocks
from bench.callers import WireCaller
from bench.load import DISTINCT, Done, Fetch, Generator, Job, Publish
from bench.processes import START_TIMEOUT_S, BrokerProcess, Child, Failed, scratch
from bench.report import Figure, Run
from bench.timing import median
from goqueue.model import limits
from goqueue.model.limits import KIB, MIB
from goqueue.model.topic import TopicSettings

PARTITIONS: Final = 3
CONNECTIONS: Final = 2
IN_FLIGHT: Final = 4
SHARE: Final = 0.6
"""Of the yardstick's rate."""
SEGMENT_BYTES: Final = TopicSettings().segment_bytes
_BUSY: Final = 0.85
"""Of the time, from which on a process that ran or wanted to counts as what limits the run."""
_GONE_TIMEOUT_S: Final = 30.0


class Round(NamedTuple):
    """One job against one server."""

    done: Done
    server_cpu_s: float
    server_waited_s: float
    """Without a core, because others had them."""

    @property
    def rate(self) -> float:
        return self.done.rate

    @property
    def server_busy(self) -> float:
        return self.server_cpu_s / self.done.seconds

    @property
    def server_waited(self) -> float:
        return self.server_waited_s / self.done.seconds

    @property
    def generator_busy(self) -> float:
        return self.done.cpu_s / self.done.seconds


class Contender:
    """A server that speaks frames, the broker or the yardstick."""

    def __init__(self, process: Child, address: str, directory: str) -> None:
        self.process = process
        self.address = address
        self._directory = directory
        self._caller = WireCaller(address)

    def create(self, name: str, **settings: int) -> int:
        """The id of a new topic."""
        reply = self._caller.ask("create_topic", name=name, num_partitions=PARTITIONS, **settings)
        return int(reply["topic_id"], 16)

    def delete(self, name: str) -> None:
        """Return when its files are gone: their memory must be free again before the next round needs it."""
        self._caller.ask("delete_topic", topic=name)
        deadline = time.monotonic() + _GONE_TIMEOUT_S
        while os.path.exists(f"{self._directory}/{name}"):
            if time.monotonic() > deadline:
                raise Failed(f"the files of {name} are still there after {_GONE_TIMEOUT_S:.0f} s")
            time.sleep(0.02)
        os.sync()

    def do(self, generator: Generator, job: Job) -> Round:
        cpu_s, waited_s = self.process.cpu_s, self.process.kept_waiting_s
        done = generator.do(job)
        return Round(done, self.process.cpu_s - cpu_s, self.process.kept_waiting_s - waited_s)


class Arena(NamedTuple):
    """Both servers, and what drives them."""

    yardstick: Contender
    broker: Contender
    generator: Generator

    @property
    def contenders(self) -> tuple[Contender, Contender]:
        return self.yardstick, self.broker


@contextmanager
def arena() -> Iterator[Arena]:
    with (
        scratch() as directory,
        Generator(directory) as generator,
        Child(["-m", "bench.yardstick", directory], name="yardstick", log=f"{directory}/yardstick.log") as yardstick,
        BrokerProcess(directory) as broker,
    ):
        address = yardstick.hear(START_TIMEOUT_S).decode()
        yield Arena(
            Contender(yardstick, address, directory),
            Contender(broker, broker.wire, f"{directory}/data/logs"),
            generator,
        )


def publish(run: Run) -> Iterator[Figure]:
    """Blocks built before, acks leader, idempotent producers.

    A round is long enough for the kernel to make the yardstick write to the disk too; in short ones it never does.
    """
    rounds, mebibytes = (3, 384) if run.short else (3, 6144)
    with arena() as found:
        for size in (256 * KIB, 1 * MIB):
            name = f"wire publish, {size // KIB} KiB blocks"
            blocks = mebibytes * MIB // size // CONNECTIONS

            def one(contender: Contender, topic: str, size: int = size, blocks: int = blocks) -> Round:
                result = contender.do(found.generator, _publishing(contender, contender.create(topic), size, blocks))
                contender.delete(topic)
                return result

            pairs = _turns(found, one, rounds, name, run)
            how = f"median of {rounds} pairs of {mebibytes} MiB, {CONNECTIONS} connections, {IN_FLIGHT} in flight each"
            yield from _compare(name, pairs, mebibytes, how)


def fetch(run: Run) -> Iterator[Figure]:
    """Whole blocks as they lie there, every checksum looked at by the server."""
    rounds, segments, passes = (3, 1, 1) if run.short else (7, 3, 2)
    blocks, count = producer_blocks(DISTINCT, 1 * MIB)
    full = segments * (SEGMENT_BYTES // len(blocks[0]))
    """Blocks of a partition, in segments that are full; a few more are written behind them."""
    mebibytes = CONNECTIONS * PARTITIONS * passes * full * len(blocks[0]) / MIB
    with arena() as found:
        for where, segment_bytes in (("active segment", limits.MAX_SEGMENT_BYTES), ("sealed segments", SEGMENT_BYTES)):
            name = f"wire fetch, {where}"
            ids = {}
            for contender in found.contenders:
                run.say(f"{name}: filling")
                ids[contender] = contender.create(where.replace(" ", "-"), segment_bytes=segment_bytes)
                per_connection = (full // CONNECTIONS + 1) * PARTITIONS
                contender.do(found.generator, _publishing(contender, ids[contender], 1 * MIB, per_connection))
            os.sync()

            def one(contender: Contender, _: str, ids: dict[Contender, int] = ids) -> Round:
                job = Fetch(
                    address=contender.address,
                    topic_id=ids[contender],
                    partitions=PARTITIONS,
                    to_offset=full * count,
                    max_bytes=1 * MIB,
                    passes=passes,
                    connections=CONNECTIONS,
                )
                return contender.do(found.generator, job)

            pairs = _turns(found, one, rounds, name, run)
            how = (
                f"median of {rounds} pairs of {mebibytes:,.0f} MiB, 1 MiB a fetch, {CONNECTIONS} connections, "
                f"{PARTITIONS} in flight each"
            )
            yield from _compare(name, pairs, mebibytes, how)


def _publishing(contender: Contender, topic_id: int, size: int, blocks: int) -> Publish:
    return Publish(
        address=contender.address,
        topic_id=topic_id,
        partitions=PARTITIONS,
        block_bytes=size,
        blocks=blocks,
        connections=CONNECTIONS,
        in_flight=IN_FLIGHT,
    )


def _turns(
    found: Arena, one: Callable[[Contender, str], Round], rounds: int, name: str, run: Run
) -> list[tuple[Round, Round]]:
    """Yardstick and broker in turn. The first pair only warms the machine's memory and is not counted."""
    pairs = []
    for turn in range(rounds + 1):
        yardstick, broker = (one(contender, f"bench-{turn}") for contender in found.contenders)
        if turn:
            pairs.append((yardstick, broker))
            run.say(f"{name}, {turn} of {rounds}: {broker.rate:,.0f} msg/s, yardstick {yardstick.rate:,.0f}")
    return pairs


def _compare(name: str, pairs: list[tuple[Round, Round]], mebibytes: float, how: str) -> Iterator[Figure]:
    share = median([broker.rate / yardstick.rate for yardstick, broker in pairs])
    by_cpu = median([yardstick.server_cpu_s / broker.server_cpu_s for yardstick, broker in pairs])
    note = f"{how}; by the servers' CPU time {by_cpu:.2f}"
    yield Figure(f"{name}, share of the yardstick", share, "x", SHARE, note=note)
    sides = (
        (name, "broker", [broker for _, broker in pairs]),
        (f"{name}: yardstick", "yardstick", [yardstick for yardstick, _ in pairs]),
    )
    for title, who, rounds in sides:
        yield Figure(title, median([one.rate for one in rounds]), "msg/s", note=_burden(who, rounds, mebibytes))


def _burden(who: str, rounds: list[Round], mebibytes: float) -> str:
    server = median([one.server_busy for one in rounds])
    waited = median([one.server_waited for one in rounds])
    generator = median([one.generator_busy for one in rounds])
    cost = median([one.server_cpu_s for one in rounds]) * 1000 / mebibytes
    if max(server + waited, generator) < _BUSY:
        bound = "nobody is CPU-bound"
    else:
        bound = f"the {who if server + waited >= generator else 'generator'} is CPU-bound"
    burden = f"{server:.0%} of a core, {cost:.2f} ms/MiB, kept waiting {waited:.0%}"
    return f"{bound}: {who} {burden}; generator {generator:.0%}"
