"""Through the public Python client: what users write, in a process of its own, against a broker process.

Everything is at its default (`FEATURES`) unless a figure says otherwise, with 1 KB messages, 10,000 keys, three
partitions and acks leader. Beside each rate stands what a message cost the client and the broker, and who was busy all
the time: that one limits the figure. Publishing is compared with the yardstick, which gets the same load, in turn.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

import msgspec

from bench import client_grpc, client_idle
from bench.client_ground import (
    FEATURES,
    LOAD,
    Ground,
    Round,
    Server,
    burden,
    ground,
    pacing,
    quantile_figures,
    rate_figure,
    run_paced,
)
from bench.client_load import BATCH, ClientLoad, Consume, Done, Enqueue, Follow, Job, Read, Send
from bench.processes import START_TIMEOUT_S, Child
from bench.report import Figure, Part, Run
from bench.timing import median
from bench.wire import SHARE
from goqueue.model.limits import KIB

PUBLISH_RATE: Final = 500_000
AWAITED_RATE: Final = 40_000
AWAITED_IN_FLIGHT: Final = 16
AWAITED_P99_MS: Final = 2.0
PACE: Final = 50_000
CONSUMER_PACE: Final = 20_000
LATENCY_P50_MS: Final = 1.0
LATENCY_P99_MS: Final = 5.0
READ_RATE: Final = 1_000_000
BATCH_ACK_RATE: Final = 250_000
EACH_ACK_RATE: Final = 50_000
PREFETCH: Final = 2000
MAX_UNACKED: Final = 5000
SHORT_MESSAGES: Final = 200_000


# --- publishing


def publish(run: Run) -> Iterator[Figure]:
    """`enqueue` with keys in batches as the client makes them, to yardstick and broker in turn; one pair to warm up."""
    rounds, messages = (1, SHORT_MESSAGES) if run.short else (3, 2_000_000)
    pairs = []
    with ground() as found, _yardstick(found.directory) as yardstick:
        for turn in range(rounds + 1):
            count = messages if turn else messages // 4
            pair = [_publish_to(found, each, f"publish-{turn}", count) for each in (yardstick, found.broker)]
            if turn:
                pairs.append(pair)
                rates = [one.done.rate for one in pair]
                run.say(f"publish, {turn} of {rounds}: {rates[1]:,.0f} msg/s, yardstick {rates[0]:,.0f}")
    name = "client publish, enqueue"
    yield rate_figure(name, [pair[1] for pair in pairs], PUBLISH_RATE, f"{LOAD}, default batches; on: {FEATURES}")
    share = median([broker.done.rate / bare.done.rate for bare, broker in pairs])
    by_cpu = median([bare.server_cpu_s / broker.server_cpu_s for bare, broker in pairs])
    how = f"the same load in turn, {messages:,} messages each; by the servers' CPU time {by_cpu:.2f}"
    yield Figure(f"{name}, share of the yardstick", share, "x", SHARE, note=how)
    bare = [pair[0] for pair in pairs]
    rate = median([one.done.rate for one in bare])
    yield Figure(f"{name}: yardstick", rate, "msg/s", note=burden(bare, "yardstick"))


@contextmanager
def _yardstick(directory: str) -> Iterator[Server]:
    with (
        Child(["-m", "bench.yardstick", directory], name="yardstick", log=f"{directory}/yardstick.log") as process,
        closing(Server(process, process.hear(START_TIMEOUT_S).decode(), directory)) as server,
    ):
        yield server


def _publish_to(found: Ground, server: Server, topic: str, messages: int) -> Round:
    with server.topic(topic):
        return found.do(Enqueue(address=server.address, topic=topic, messages=messages), server)


def batch_sizes(run: Run) -> Iterator[Figure]:
    """`enqueue` with batches of so many messages at most."""
    sizes = {1: 5_000, 10: 30_000, 100: 100_000, 1000: 100_000} if run.short else {
        1: 200_000, 10: 500_000, 100: 1_000_000, 1000: 2_000_000,
    }  # fmt: skip
    rounds = 1 if run.short else 3
    with ground() as found:
        for size, messages in sizes.items():
            batch_bytes = max(256 * KIB, size * 2 * KIB)
            results = []
            for turn in range(rounds):
                with found.broker.topic(f"batches-{size}-{turn}") as topic:
                    job = Enqueue(
                        address=found.broker.address, topic=topic, messages=messages, batch_messages=size,
                        batch_bytes=batch_bytes,
                    )  # fmt: skip
                    results.append(found.do(job))
            how = f"{LOAD}, batches of {size} messages at most, {batch_bytes // KIB} KiB"
            yield rate_figure(f"client publish, batches of {size}", results, None, how)


def awaited(run: Run) -> Iterator[Figure]:
    """`await send` one after the other, by sixteen tasks and by one."""
    rounds = 1 if run.short else 3
    plans = (
        (AWAITED_IN_FLIGHT, 20_000 if run.short else 400_000, AWAITED_RATE, AWAITED_P99_MS),
        (1, 3_000 if run.short else 50_000, None, None),
    )
    with ground() as found:
        for in_flight, messages, rate, limit_ms in plans:
            results = []
            for turn in range(rounds):
                with found.broker.topic(f"awaited-{in_flight}-{turn}") as topic:
                    job = Send(address=found.broker.address, topic=topic, messages=messages, in_flight=in_flight)
                    results.append(found.do(job))
            name = f"client publish, send awaited, {in_flight} in flight"
            yield rate_figure(name, results, rate, LOAD)
            yield from quantile_figures(name, results, limit_ms, limit_ms, f"{LOAD}, from the call to the receipt")


# --- latency


def latency(run: Run) -> Iterator[Figure]:
    """At a pace that is kept: from the moment a message was planned for, so waiting for a slow client counts."""
    seconds, warm_s, rounds = (1.0, 0.3, 1) if run.short else (15.0, 2.0, 3)
    with ground() as found, ClientLoad(found.directory, "consumer") as consumer:
        paced = [run_paced(found, f"paced-{turn}", PACE, seconds, warm_s) for turn in range(rounds)]
        how = f"{LOAD}, enqueued {PACE // 1000} a millisecond, no linger, until the batch's answer; {burden(paced)}"
        yield from quantile_figures(f"client publish latency at {PACE:,}/s", paced, LATENCY_P50_MS, LATENCY_P99_MS, how)
        for each, way in ((False, f"poll({BATCH}) + batch ack"), (True, "async for + ack each")):
            run.say(f"latency: publish to consumer, {way}")
            names = [f"followed-{'each' if each else 'batch'}-{turn}" for turn in range(rounds)]
            followed = [_follow(found, consumer, name, seconds, warm_s, each=each) for name in names]
            rounds_of = [one.round for one in followed]
            how = (
                f"{LOAD}, {CONSUMER_PACE // 1000} a millisecond, {way} in a process of its own, until it is handed "
                f"out; {burden(rounds_of)}; {_cost_of([one.consumed for one in followed])}"
            )
            name = f"publish to consumer at {CONSUMER_PACE:,}/s, {way}"
            p50_ms, p99_ms = (None, None) if each else (LATENCY_P50_MS, LATENCY_P99_MS)
            yield from quantile_figures(name, rounds_of, p50_ms, p99_ms, how)


class Followed(NamedTuple):
    """What a publisher at a pace used, and what its consumer saw."""

    published: Round
    consumed: Done

    @property
    def round(self) -> Round:
        """The publisher's, with the consumer's latencies."""
        seen = {name: getattr(self.consumed, name) for name in ("p50_ms", "p99_ms", "samples")}
        return self.published._replace(done=msgspec.structs.replace(self.published.done, **seen))


def _follow(found: Ground, consumer: ClientLoad, name: str, seconds: float, warm_s: float, *, each: bool) -> Followed:
    with found.broker.topic(name) as topic:
        pace = pacing(found, topic, CONSUMER_PACE, seconds, warm_s)
        follow = Follow(
            address=found.broker.address, topic=topic, group=name, messages=pace.messages, warm_s=warm_s, each=each
        )
        consumer.begin(follow)
        return Followed(found.do(pace), consumer.finish())


def _cost_of(consumed: Sequence[Done]) -> str:
    cpu_s, seconds = sum(one.cpu_s for one in consumed), sum(one.seconds for one in consumed)
    return f"consumer {cpu_s / sum(one.messages for one in consumed) * 1e6:.2f} us/msg, {cpu_s / seconds:.0%} busy"


# --- reading and consuming


def read(run: Run) -> Iterator[Figure]:
    """A topic from its beginning to its end, without a group."""
    rounds, messages = (1, SHORT_MESSAGES // 2) if run.short else (3, 2_000_000)
    with _filled(run, messages) as (found, topic):
        for objects, way, target in ((False, "values()", READ_RATE), (True, "messages as objects", None)):
            job = Read(address=found.broker.address, topic=topic, messages=messages, objects=objects)
            results = _warmed(found, job, rounds)
            yield rate_figure(f"client read, {way}", results, target, f"{LOAD}, 1 MiB a fetch")


def consume(run: Run) -> Iterator[Figure]:
    """A group with one member: deliveries and acks, message by message or by the batch."""
    rounds, messages = (1, SHORT_MESSAGES // 2) if run.short else (3, 2_000_000)
    batches, one_by_one = f"poll({BATCH}) + batch.ack()", "async for + ack()"
    plans = (
        # way, each, wait, share of the messages, prefetch, max_unacked, target
        (batches, False, False, 1.0, PREFETCH, MAX_UNACKED, BATCH_ACK_RATE),
        (f"{batches}, client's defaults", False, False, 1.0, 500, 1000, None),
        (f"{batches}, acks awaited", False, True, 1.0, PREFETCH, MAX_UNACKED, None),
        (one_by_one, True, False, 0.5, PREFETCH, MAX_UNACKED, EACH_ACK_RATE),
        (f"{one_by_one}, acks awaited", True, True, 0.005, PREFETCH, MAX_UNACKED, None),
    )
    with _filled(run, messages) as (found, topic):
        for number, (way, each, wait, share, prefetch, max_unacked, target) in enumerate(plans):

            def job(
                turn: int, number: int = number, each: bool = each, wait: bool = wait, share: float = share,
                prefetch: int = prefetch, max_unacked: int = max_unacked,
            ) -> Job:  # fmt: skip
                return Consume(
                    address=found.broker.address, topic=topic, group=f"group-{number}-{turn}",
                    messages=int(messages * share), total=messages, each=each, wait=wait, prefetch=prefetch,
                    max_unacked=max_unacked,
                )  # fmt: skip

            how = f"{LOAD}, 1 member, prefetch {prefetch}, max_unacked {max_unacked}"
            yield rate_figure(f"client {way}", [found.do(job(turn)) for turn in range(rounds)], target, how)


@contextmanager
def _filled(run: Run, messages: int) -> Iterator[tuple[Ground, str]]:
    """A topic with so many messages."""
    with ground() as found, found.broker.topic("filled") as topic:
        run.say(f"publishing {messages:,} messages")
        found.do(Enqueue(address=found.broker.address, topic=topic, messages=messages))
        yield found, topic


def _warmed(found: Ground, job: Job, rounds: int) -> list[Round]:
    """The first round is not counted."""
    return [found.do(job) for _ in range(rounds + 1)][1:]


# --- without a loop


def sync(run: Run) -> Iterator[Figure]:
    """The same things with `goqueue.Client`, which has its loop in a thread; no targets."""
    rounds, messages = (1, 100_000) if run.short else (3, 1_000_000)
    with ground() as found:
        address = found.broker.address

        def publishing(name: str, count: int, job: Callable[[str], Job]) -> list[Round]:
            results = []
            for turn in range(rounds):
                with found.broker.topic(f"{name}-{turn}") as topic:
                    results.append(found.do(job(topic)))
            run.say(f"sync: {name}, {count:,} messages")
            return results

        enqueued = publishing(
            "enqueue", messages, lambda topic: Enqueue(address=address, topic=topic, messages=messages, sync=True)
        )
        yield rate_figure("sync client publish, enqueue", enqueued, None, LOAD)
        for in_flight in (1, AWAITED_IN_FLIGHT):
            count = messages // 50

            def send(topic: str, count: int = count, in_flight: int = in_flight) -> Job:
                return Send(address=address, topic=topic, messages=count, in_flight=in_flight, sync=True)

            name = f"sync client publish, send, {in_flight} thread{'s' if in_flight > 1 else ''}"
            sent = publishing(f"send-{in_flight}", count, send)
            yield rate_figure(name, sent, None, LOAD)
            yield from quantile_figures(name, sent, None, None, f"{LOAD}, from the call to the receipt")
        with found.broker.topic("filled") as topic:
            found.do(Enqueue(address=address, topic=topic, messages=messages))
            for number, (way, each, share) in enumerate(
                ((f"poll({BATCH}) + batch.ack()", False, 1.0), ("for + ack()", True, 0.5))
            ):
                jobs = [
                    Consume(
                        address=address, topic=topic, group=f"sync-{number}-{turn}", messages=int(messages * share),
                        total=messages, each=each, prefetch=PREFETCH, max_unacked=MAX_UNACKED, sync=True,
                    )
                    for turn in range(rounds)
                ]  # fmt: skip
                how = f"{LOAD}, 1 member, prefetch {PREFETCH}, max_unacked {MAX_UNACKED}"
                yield rate_figure(f"sync client {way}", [found.do(job) for job in jobs], None, how)
            for objects, way in ((False, "values()"), (True, "messages as objects")):
                job = Read(address=address, topic=topic, messages=messages, objects=objects, sync=True)
                results = _warmed(found, job, rounds)
                yield rate_figure(f"sync client read, {way}", results, None, f"{LOAD}, 1 MiB a fetch")


PARTS: Final[dict[str, Part]] = {
    "publish": publish,
    "batch-sizes": batch_sizes,
    "awaited": awaited,
    "latency": latency,
    "read": read,
    "consume": consume,
    "sync": sync,
    "grpc": client_grpc.publish,
    "connections": client_idle.connections,
}
