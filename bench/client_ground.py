"""What the parts of the client's room share: a broker process, a client process, and what both used of the cores."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

from bench.blocks import KEYS, VALUE_BYTES
from bench.client_load import ClientLoad, Done, Job, Pace
from bench.processes import BrokerProcess, Child, scratch
from bench.report import Figure
from bench.timing import median
from bench.wire import PARTITIONS, Contender

FEATURES: Final = (
    "idempotent producer, order by key, five lanes, delays and expiry, time index, group with leases, retries and dead "
    "letters, fsync interval, counters, HTTP and gRPC doors open"
)
"""What is on, because it is by default."""
LOAD: Final = f"{VALUE_BYTES // 1024} KB, {KEYS:,} keys, {PARTITIONS} partitions, acks leader"
_BUSY: Final = 0.85
"""Of the time, from which on a process that ran or wanted to counts as what limits the run."""
_DISTURBED: Final = 0.2
"""Of the time without a core, from which on a figure says more about the machine than about the broker."""
_MICROSECONDS: Final = 1e6


class Round(NamedTuple):
    """One job against one server: what both used of the cores, and waited for one while others had them."""

    done: Done
    server_cpu_s: float
    server_waited_s: float
    client_waited_s: float


class Server(Contender):
    """The broker or the yardstick. Close it."""

    def measure(self, client: Child, work: Callable[[], Done]) -> Round:
        """What a client does, and what it cost both."""
        process = self.process
        cpu_s, waited_s, client_waited_s = process.cpu_s, process.kept_waiting_s, client.kept_waiting_s
        done = work()
        return Round(
            done,
            process.cpu_s - cpu_s,
            process.kept_waiting_s - waited_s,
            client.kept_waiting_s - client_waited_s,
        )

    @contextmanager
    def topic(self, name: str) -> Iterator[str]:
        """An empty one, which is gone afterwards with its files."""
        self.create(name)
        try:
            yield name
        finally:
            self.delete(name)

    def close(self) -> None:
        self._caller.close()


class Ground(NamedTuple):
    """A broker, and a client to drive it."""

    directory: str
    broker: Server
    client: ClientLoad

    def do(self, job: Job, server: Server | None = None) -> Round:
        return (server or self.broker).measure(self.client, lambda: self.client.do(job))


@contextmanager
def ground() -> Iterator[Ground]:
    with (
        scratch() as directory,
        BrokerProcess(directory) as process,
        closing(Server(process, process.wire, f"{directory}/data/logs")) as broker,
        ClientLoad(directory) as client,
    ):
        yield Ground(directory, broker, client)


def burden(rounds: Sequence[Round], server: str = "broker") -> str:
    """What a message costs on both sides, and which of them limits the rate."""
    seconds = sum(one.done.seconds for one in rounds)
    messages = sum(one.done.messages for one in rounds)
    client_s, server_s = sum(one.done.cpu_s for one in rounds), sum(one.server_cpu_s for one in rounds)
    client_waited_s = sum(one.client_waited_s for one in rounds)
    server_waited_s = sum(one.server_waited_s for one in rounds)
    wanted = {"client": (client_s + client_waited_s) / seconds, server: (server_s + server_waited_s) / seconds}
    busiest = max(wanted, key=lambda who: wanted[who])
    bound = f"bound by the {busiest}'s core" if wanted[busiest] >= _BUSY else "bound by no core"
    if max(client_waited_s, server_waited_s) > _DISTURBED * seconds:
        bound += " (others had the cores for much of the time)"
    return (
        f"{bound}: client {_cost(client_s, client_waited_s, seconds, messages)}; "
        f"{server} {_cost(server_s, server_waited_s, seconds, messages)}"
    )


def _cost(cpu_s: float, waited_s: float, seconds: float, messages: int) -> str:
    return f"{cpu_s / messages * _MICROSECONDS:.2f} us/msg, {cpu_s / seconds:.0%} busy, waited {waited_s / seconds:.0%}"


def rate_figure(name: str, rounds: Sequence[Round], target: float | None, how: str) -> Figure:
    times = f"median of {len(rounds)} x {rounds[0].done.messages:,} messages"
    return Figure(
        name, median([one.done.rate for one in rounds]), "msg/s", target, note=f"{how}; {times}; {burden(rounds)}"
    )


def quantile_figures(
    name: str, rounds: Sequence[Round], p50_ms: float | None, p99_ms: float | None, how: str
) -> Iterator[Figure]:
    first = f"{how}; {sum(one.done.samples for one in rounds):,} messages looked at"
    p50, p99 = median([one.done.p50_ms for one in rounds]), median([one.done.p99_ms for one in rounds])
    yield Figure(f"{name}, p50", p50, "ms", p50_ms, at_most=True, note=first)
    yield Figure(f"{name}, p99", p99, "ms", p99_ms, at_most=True, note="the same messages")


def run_paced(found: Ground, name: str, per_s: int, seconds: float, warm_s: float) -> Round:
    with found.broker.topic(name) as topic:
        return found.do(pacing(found, topic, per_s, seconds, warm_s))


def pacing(found: Ground, topic: str, per_s: int, seconds: float, warm_s: float, held: int = 0) -> Pace:
    return Pace(
        address=found.broker.address,
        topic=topic,
        partitions=PARTITIONS,
        per_s=per_s,
        seconds=seconds,
        warm_s=warm_s,
        held=held,
    )
