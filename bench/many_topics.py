"""A broker with many topics, and one with none: how long starting takes, and how much memory it holds."""

from collections.abc import Iterator
from typing import Final

from bench.load import CreateTopics, Generator
from bench.processes import BrokerProcess, resident_mib, scratch
from bench.report import Figure, Run

TOPICS: Final = 1_000
PARTITIONS: Final = 3
CONNECTIONS: Final = 4
CREATE_S: Final = 60.0
START_S: Final = 10.0
IDLE_MIB: Final = 150.0


def topics(run: Run) -> Iterator[Figure]:
    """Created over HTTP, then found again after a stop and after a kill -9. The short form has as many."""
    how = f"{TOPICS:,} topics x {PARTITIONS} partitions"
    with scratch() as directory, Generator(directory) as generator:
        with BrokerProcess(directory) as broker:
            run.say(f"topics: creating {how}")
            job = CreateTopics(
                address=broker.http, prefix="bench", topics=TOPICS, partitions=PARTITIONS, connections=CONNECTIONS
            )
            created = generator.do(job)
            yield Figure(
                "topics, creating them", created.seconds, "s", CREATE_S, at_most=True,
                note=f"{how} over HTTP, {CONNECTIONS} connections",
            )  # fmt: skip
            yield Figure("topics, memory with them", resident_mib(broker.pid), "MiB", note=f"{how}, RSS")
            run.say("topics: stopping")
            yield Figure("topics, stopping", broker.stop(), "s", note=how)
        run.say("topics: starting")
        with BrokerProcess(directory) as broker:
            yield Figure("topics, start after a stop", broker.start_s, "s", START_S, at_most=True, note=how)
            broker.kill()
        run.say("topics: starting after kill -9")
        with BrokerProcess(directory) as broker:
            yield Figure("topics, start after kill -9", broker.start_s, "s", START_S, at_most=True, note=how)


def memory(run: Run) -> Iterator[Figure]:
    with scratch() as directory, BrokerProcess(directory) as broker:
        run.say("memory")
        yield Figure("start without topics", broker.start_s, "s", note="until its doors are open")
        resident = resident_mib(broker.pid)
    yield Figure("memory, idle", resident, "MiB", IDLE_MIB, at_most=True, note="RSS without topics")
