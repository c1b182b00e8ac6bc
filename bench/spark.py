"""Spark on two cores, reading topics, writing topics, and reading the files of a broker; all on one machine.

Everything is warm: the session, Spark's Python workers, the files. Rows go to Spark's `noop`, which takes every column
of every row and does nothing with it. The broker has to share the two cores with Spark.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.blocks import KEYS, VALUE_BYTES
from bench.client_ground import Ground, ground
from bench.client_load import Enqueue
from bench.processes import Failed, cpu_seconds
from bench.report import Figure, Part, Run
from bench.timing import median
from goqueue import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_RATE: Final = 300_000
WRITE_RATE: Final = 150_000
OFFLINE_RATE: Final = 400_000
ROWS: Final = 5_000_000
SHORT_ROWS: Final = 100_000
ROUNDS: Final = 3
TOPIC: Final = "rows"
OUTPUT: Final = "written"


class Stage(NamedTuple):
    """A broker with a full topic, and a session."""

    ground: Ground
    spark: "SparkSession"
    rows: int
    session_s: float
    """How long the session took to start."""

    def frame(self, kind: str = "goqueue", **options: str) -> "DataFrame":
        return self.spark.read.format(kind).options(**options).load()

    def read(self, columns: str | None = None) -> "DataFrame":
        reader = self.spark.read.format("goqueue").options(**{"bootstrap.servers": self.wire, "subscribe": TOPIC})
        return (reader if columns is None else reader.schema(columns)).load()

    @property
    def wire(self) -> str:
        return self.ground.broker.address


@contextmanager
def _stage(run: Run) -> Iterator[Stage]:
    from goqueue.spark.sessions import session

    rows = SHORT_ROWS if run.short else ROWS
    with ground() as found:
        run.say(f"{rows:,} messages are published")
        found.broker.create(TOPIC)
        found.do(Enqueue(address=found.broker.address, topic=TOPIC, messages=rows))
        begin = time.perf_counter()
        made = session(
            "bench", master="local[2]", spark__ui__enabled="false", spark__log__level="OFF", spark__driver__memory="4g"
        )
        session_s = time.perf_counter() - begin
        try:
            yield Stage(found, made, rows, session_s)
        finally:
            made.stop()


class Burden(NamedTuple):
    """Seconds of the cores, by who had them."""

    seconds: float
    java: float
    python: float
    broker: float

    def note(self, rows: int) -> str:
        parts = {"Java": self.java, "Python workers": self.python, "broker": self.broker}
        most = max(parts, key=lambda name: parts[name])
        shares = ", ".join(f"{name} {cpu / rows * 1e6:.2f} us/row" for name, cpu in parts.items())
        busy = sum(parts.values()) / self.seconds
        return f"{shares}; {busy:.1f} of 2 cores busy, most of it {most}"


def _descendants() -> Iterator[tuple[int, str]]:
    """Of this process: their ids, and what they run."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:  # it has just ended
                continue
            parents.setdefault(int(rest.split()[1]), []).append((int(entry.name), name))
    waiting = [os.getpid()]
    while waiting:
        for pid, name in parents.get(waiting.pop(), ()):
            waiting.append(pid)
            yield pid, name


def _measure(stage: Stage, work: Callable[[], object]) -> Burden:
    def spent() -> dict[str, float]:
        own = {stage.ground.broker.process.pid, stage.ground.client.pid}
        found = {"java": 0.0, "python": 0.0}
        for pid, name in _descendants():
            if pid not in own:
                found["java" if name == "java" else "python"] += cpu_seconds(pid)
        return found

    broker = stage.ground.broker.process
    before, broker_s, begin = spent(), broker.cpu_s, time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    after = spent()
    return Burden(seconds, after["java"] - before["java"], after["python"] - before["python"], broker.cpu_s - broker_s)


def _rate(
    run: Run,
    stage: Stage,
    name: str,
    target: float | None,
    how: str,
    work: Callable[[], object],
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Figure:
    """`around` is entered for every round, and is not measured."""
    rounds = []
    for turn in range(1 if run.short else ROUNDS):
        with around():
            rounds.append(_measure(stage, work))
        run.say(f"{name}, {turn + 1} of {ROUNDS}: {stage.rows / rounds[-1].seconds:,.0f} rows/s")
    middle = sorted(rounds, key=lambda one: one.seconds)[len(rounds) // 2]
    rate = median([stage.rows / one.seconds for one in rounds])
    note = f"{how}; median of {len(rounds)} x {stage.rows:,} rows of {VALUE_BYTES} B; {middle.note(stage.rows)}"
    return Figure(name, rate, "rows/s", target, note=note)


def _noop(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("append").save()


def everything(run: Run) -> Iterator[Figure]:
    """Through the broker and past it, and how soon a stream has its first batch."""
    if find_spec("pyspark") is None:
        yield Figure("Spark", None, "rows/s", note="not measured: pip install 'goqueue[spark]', or make test once")
        return
    with _stage(run) as stage:
        yield Figure("a session is there", stage.session_s, "s", note="local[2], this process had none before")
        yield _first_batch(stage, "first batch of a stream, cold")
        all_of_it = stage.read()
        run.say("warming up")
        _noop(all_of_it)
        how = "into noop, all 15 columns but headers"
        yield _rate(run, stage, "read a topic", READ_RATE, how, lambda: _noop(all_of_it))
        two = stage.read("key binary, value binary")
        yield _rate(run, stage, "read key and value", None, "into noop", lambda: _noop(two))
        yield _first_batch(stage, "first batch of a stream, warm")
        yield from _offline(run, stage)
        yield _written(run, stage)


def _first_batch(stage: Stage, name: str) -> Figure:
    begin = time.perf_counter()
    reader = stage.spark.readStream.format("goqueue").options(**{"bootstrap.servers": stage.wire, "subscribe": TOPIC})
    query = reader.option("maxOffsetsPerTrigger", "1000").load().writeStream.format("noop").start()
    while not query.recentProgress:
        time.sleep(0.005)
    seconds = time.perf_counter() - begin
    query.stop()
    return Figure(name, seconds, "s", note="1,000 rows into noop, from start() to its first progress")


def _offline(run: Run, stage: Stage) -> Iterator[Figure]:
    path = f"{stage.ground.directory}/data"
    frame = stage.frame("goqueue-log", path=path, subscribe=TOPIC)
    _noop(frame)
    how = "goqueue-log into noop, all columns but headers, every record's checksum verified"
    yield _rate(run, stage, "read the files of a topic", OFFLINE_RATE, how, lambda: _noop(frame))


def _written(run: Run, stage: Stage) -> Figure:
    source = stage.spark.range(0, stage.rows, 1, 2).selectExpr(
        f"cast(concat('key-', id % {KEYS}) as binary) as key", f"cast(repeat('x', {VALUE_BYTES}) as binary) as value"
    )

    def write() -> None:
        options = {"bootstrap.servers": stage.wire, "topic": OUTPUT}
        source.write.format("goqueue").options(**options).mode("append").save()

    @contextmanager
    def topic() -> Iterator[None]:
        with stage.ground.broker.topic(OUTPUT), Client(stage.wire) as client:
            yield
            found = client.call("describe_topic", topic=OUTPUT)["total_messages"]
            if found < stage.rows:
                raise Failed(f"{found} of {stage.rows} rows arrived")

    with topic():
        write()
    how = "rows made by Spark, written by two tasks in a transaction each, committed as one"
    return _rate(run, stage, "write a topic", WRITE_RATE, how, write, topic)


PARTS: Final[dict[str, Part]] = {"all": everything}
