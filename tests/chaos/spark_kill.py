"""Kill -9 the driver of a streaming query again and again, at the one moment that tells exactly once from twice.

Between the sink's commit and Spark's own note of it the batch is there and Spark does not know: it does it again, in
other tasks than before, because every run has another number of them. `python -m tests.chaos.spark_kill --kills 20`
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import goqueue
from goqueue.client.reader import Isolation
from tests.chaos.spark_driver import FAILPOINT, MARKS, WRITER, copy_query, link_spark
from tests.support.broker import DOORS, running_broker
from tests.support.patience import PATIENCE_S

_GRACE_S = 60
"""Until one that was told nothing, and has to end by itself, is killed."""


class Outcome(NamedTuple):
    hits: int
    """Runs that died where they should."""
    sent: int
    found: int
    distinct: int
    staged: int
    """With what was written again and did not count."""


class Driver:
    """A program that gets ready as soon as it is made, and runs the query when it is told to."""

    def __init__(self, marks: Path, home: str, settings: dict[str, Any]) -> None:
        self._marks = marks
        descriptor, name = tempfile.mkstemp(dir=marks.parent)
        self._errors = Path(name)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.spark_driver", json.dumps(settings)],
            env={**os.environ, MARKS: str(marks), "SPARK_HOME": home},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            start_new_session=True,
        )
        os.close(descriptor)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        """One that was not told to do anything ends as well; one that hangs is killed, and its Java with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def run(self, die_at: int | None = None) -> bool:
        """Whether it died where it was told to. AssertionError when it ended in any other way than it should."""
        failpoint = self._marks / FAILPOINT
        if die_at is None:
            failpoint.unlink(missing_ok=True)
        else:
            failpoint.write_text(str(die_at))
        before = {*self._marks.iterdir()}
        self._process.communicate(b"go\n", timeout=PATIENCE_S)  # does not mind one that is dead already
        has_hit = any(mark.name.startswith(f"{FAILPOINT}-") for mark in {*self._marks.iterdir()} - before)
        assert has_hit or self._process.returncode == 0, self._errors.read_text(errors="replace")[-3000:]
        return has_hit


class Copying:
    """One query, its checkpoint, and the broker it runs against."""

    def __init__(self, folder: Path, wire: str, master: str = "local[2]", *, batch: int = 100) -> None:
        self._marks = folder / "marks"
        self._marks.mkdir()
        self._home = link_spark(folder / "spark")
        self._settings = {
            "wire": wire,
            "master": master,
            "from": "copied-from",
            "to": "copied-to",
            "batch": batch,
            "checkpoint": str(folder / "checkpoint"),
        }
        self.wire = wire
        self.batch = batch

    def fill(self, count: int, *, size: int = 0) -> None:
        with goqueue.Client(self.wire) as client:
            for topic in ("copied-from", "copied-to"):
                client.call("create_topic", name=topic, num_partitions=3)
            with client.producer() as producer:
                for number in range(count):
                    producer.enqueue("copied-from", str(number).ljust(size), key=f"key-{number % 50}")

    def driver(self, *, partitions: int, pause_s: float = 0) -> Driver:
        return Driver(self._marks, self._home, {**self._settings, "partitions": partitions, "pause_s": pause_s})

    def run(self, *, partitions: int, pause_s: float = 0) -> None:
        """To the end, by a driver of its own."""
        with self.driver(partitions=partitions, pause_s=pause_s) as driver:
            assert not driver.run()

    def run_in(self, spark: SparkSession, *, partitions: int) -> None:
        """To the end, in a session that is there."""
        copy_query(spark, {**self._settings, "partitions": partitions}).start().awaitTermination()

    @property
    def executors(self) -> int:
        """How many of them have written something."""
        return sum(1 for _ in self._marks.glob(f"{WRITER}-*"))

    def outcome(self, hits: int) -> Outcome:
        with goqueue.Client(self.wire) as client:

            def values(topic: str, isolation: Isolation = "read_committed") -> Counter[bytes | None]:
                with client.reader(topic, isolation=isolation) as reader:
                    return Counter(message.value for message in reader)

            sent, found = values("copied-from"), values("copied-to")
            assert found.keys() <= sent.keys()
            return Outcome(
                hits, sent.total(), found.total(), len(found), values("copied-to", "read_uncommitted").total()
            )


def kill_drivers(copying: Copying, kills: int) -> Copying:
    """Until so many of them died where they should. While one is at work the next gets ready."""
    copying.fill((kills + 1) * copying.batch)
    with ExitStack() as drivers:
        ready: deque[Driver] = deque()
        for hit in range(kills):
            for number in range(hit + len(ready), min(hit + 2, kills)):
                ready.append(drivers.enter_context(copying.driver(partitions=1 + number % 3)))
            assert ready.popleft().run(die_at=hit), "it was done before it died: nothing is shown"
            print(f"killed {hit + 1} of {kills} times", flush=True)
    return copying


def kill(folder: Path, *, kills: int) -> Outcome:
    """So often; then one to the end."""
    with running_broker(folder, *DOORS) as broker:
        copying = kill_drivers(Copying(folder, broker.wire), kills)
        copying.run(partitions=2)
        return copying.outcome(kills)


def _longest_transaction(wire: str, running: "Future[None]") -> float:
    """How long one was seen open, in seconds, until the run is over."""
    seen: dict[str, float] = {}
    longest = 0.0
    with goqueue.Client(wire) as client:
        while not running.done():
            for each in client.transactions(state="ongoing").transactions:
                began = seen.setdefault(each.transaction_id, time.monotonic())
                longest = max(longest, time.monotonic() - began)
            time.sleep(0.5)
    running.result()
    return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=180, help="seconds of the long task at the end (180)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = kill(Path(folder), kills=arguments.kills)
        print(outcome)
        ok = outcome.sent == outcome.found == outcome.distinct
    with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder), *DOORS) as broker:
        print(f"a task that takes {arguments.pause:g} s, three times as long as transactions usually may", flush=True)
        copying = Copying(Path(folder), broker.wire)
        copying.fill(100, size=50_000)  # more than a pipe holds
        with ThreadPoolExecutor() as pool:
            running = pool.submit(copying.run, partitions=2, pause_s=arguments.pause)
            longest = _longest_transaction(broker.wire, running)
        outcome = copying.outcome(0)
        print(f"a transaction was open for {longest:.0f} s", flush=True)
        ok = ok and longest > arguments.pause * 0.9
        print(outcome)
        ok = ok and outcome.sent == outcome.found == outcome.distinct
    print("every message once" if ok else "NOT every message once")
    sys.exit(not ok)


if __name__ == "__main__":
    main()
