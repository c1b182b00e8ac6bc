"""`goqueue-cli` over a broker that is killed: who follows waits and goes on, others end with an error. A bench
goes on, and leaves nothing behind.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import goqueue
from tests.chaos.broker_kill import free_doors
from tests.support.broker import running_broker
from tests.support.patience import PATIENCE_S, wait_until

COMMAND = [sys.executable, "-c", "from goqueue.cli.remote.main import main; main()"]
FIRST = ["0:0 a", "0:1 c", "1:0 b"]
SECOND = ["0:2 d", "0:3 f", "1:1 e"]


class Command:
    """A `goqueue-cli` whose output goes to files, so that it can be looked at while it runs."""

    def __init__(self, name: str, directory: Path, address: str, *words: str) -> None:
        env = {**os.environ, "GOQUEUE_ADDRESS": address, "GOQUEUE_CLI_CONFIG": "/nonexistent"}
        self._output, self._errors = directory / f"{name}.out", directory / f"{name}.err"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen([*COMMAND, *words], env=env, stdout=output, stderr=errors)

    @property
    def lines(self) -> list[str]:
        """What it printed: by partition and offset, because partitions take turns."""
        return sorted(self._output.read_text().splitlines())

    @property
    def complaints(self) -> list[str]:
        return self._errors.read_text().splitlines()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        return self._process.wait(timeout=PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def publish(client: goqueue.Client, *values: str) -> None:
    for number, value in enumerate(values):
        client.call("publish", topic="orders", value=value, partition=number % 2)


def test_followers_go_on_after_a_kill_and_wait_until_ctrl_c(tmp_path: Path, stack: ExitStack) -> None:
    broker = stack.enter_context(running_broker(tmp_path, *free_doors(random.Random())))
    client = stack.enter_context(goqueue.Client(broker.wire))
    away = f"note: the broker at {broker.wire} is away; waiting for it to come back"
    back = f"note: the broker at {broker.wire} is back"
    client.call("create_topic", name="orders", num_partitions=2)
    publish(client, "a", "b", "c")

    def consume(name: str, *words: str) -> Command:
        made = Command(name, tmp_path, broker.wire, "consume", "orders", "--format", "%p:%o %v", *words)
        stack.callback(made.kill)
        return made

    plain, member = consume("plain", "--follow"), consume("member", "--follow", "--group", "patient")
    hasty = consume("hasty", "--group", "hasty", "--wait", "1m")
    followers = plain, member
    wait_until(lambda: all(consumer.lines == FIRST for consumer in (*followers, hasty)))
    wait_until(lambda: not any(client.call("group_lag", group=name)["total_lag"] for name in ("patient", "hasty")))

    broker.kill()
    wait_until(lambda: all(consumer.complaints == [away] for consumer in followers))
    assert hasty.end() == 1
    assert [line.partition(": ")[0] for line in hasty.complaints] == ["note", "error"]

    broker.restart()
    publish(client, "d", "e", "f")
    wait_until(lambda: all(len(consumer.lines) >= len(FIRST + SECOND) for consumer in followers))
    wait_until(lambda: not client.call("group_lag", group="patient")["total_lag"])

    broker.kill()
    wait_until(lambda: all(consumer.complaints == [away, back, away] for consumer in followers))
    for consumer in followers:
        consumer.interrupt()
        assert consumer.end() == 130
        assert consumer.lines == sorted(FIRST + SECOND)
    assert plain.complaints == [away, back, away]
    assert member.complaints == [away, back, away, "note: 6 messages, acked"]


def published(client: goqueue.Client) -> int:
    return sum(client.describe_topic(topic).total_messages for topic in client.list_topics().topics)


def test_a_bench_goes_on_after_a_kill_and_leaves_nothing_behind_after_ctrl_c(tmp_path: Path, stack: ExitStack) -> None:
    broker = stack.enter_context(running_broker(tmp_path, *free_doors(random.Random())))
    client = stack.enter_context(goqueue.Client(broker.wire))
    bench = Command("bench", tmp_path, broker.wire, "bench", "latency", "--messages", "100000000")
    stack.callback(bench.kill)
    wait_until(lambda: published(client))
    broker.kill()
    wait_until(lambda: bench.complaints)
    broker.restart()
    before = published(client)
    wait_until(lambda: published(client) > before)
    bench.interrupt()
    assert bench.end() == 130
    assert client.list_topics().topics == []
    assert client.list_groups().groups == []
    *connections, stopped = bench.complaints  # of its connections one may be back before the other one is missed
    assert connections[0].startswith("note: a connection failed, and is made again when it is needed: ")
    assert f"note: the connection to {broker.wire} works again" in connections
    assert stopped.startswith("note: stopped after ")
    assert stopped.endswith(" of 100,000,000 messages")


def test_a_bench_says_what_it_could_not_remove(tmp_path: Path, stack: ExitStack) -> None:
    broker = stack.enter_context(running_broker(tmp_path, *free_doors(random.Random())))
    with goqueue.Client(broker.wire) as client:
        bench = Command("bench", tmp_path, broker.wire, "bench", "latency", "--messages", "100000000")
        stack.callback(bench.kill)
        wait_until(lambda: published(client))
        (topic,) = client.list_topics().topics
    broker.kill()
    wait_until(lambda: bench.complaints)
    bench.interrupt()
    assert bench.end() == 130
    assert any(line.startswith(f"note: topic {topic} could not be removed: ") for line in bench.complaints)
