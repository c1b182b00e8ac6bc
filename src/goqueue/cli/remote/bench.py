"""`goqueue-cli bench`: produce, consume, latency, end-to-end, on a topic of its own that is gone afterwards."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from goqueue.cli.output import note, show_count
from goqueue.cli.remote.broker import Broker, run
from goqueue.cli.remote.chosen import OutputFormat, add, group, output, with_options
from goqueue.cli.remote.names import option, topics
from goqueue.cli.remote.showing import count, print_data
from goqueue.cli.remote.typed import check_number
from goqueue.model.errors import GoQueueError, NotFound
from goqueue.wire.shapes.messages import AcksName

if TYPE_CHECKING:
    from goqueue import AsyncClient
    from goqueue.cli.remote.bench_gauge import Gauge
    from goqueue.cli.remote.bench_loads import Load, NewGroup

app = group("bench", "Measure throughput and latency of a broker.")

OPTIONS: Final[dict[str, Any]] = {
    "messages": Annotated[int, option("--messages -n", "COUNT", "How many messages.")],
    "size": Annotated[int, option("--size -s", "BYTES", "How large each of them is.")],
    "batch": Annotated[int, option("--batch", "COUNT", "Messages in a batch, at most.")],
    "in_flight": Annotated[int, option("--in-flight", "COUNT", "Messages under way at a time, without an answer.")],
    "partitions": Annotated[int, option("--partitions -p", "COUNT", "Partitions of the topic that is made.")],
    "keys": Annotated[int, option("--keys", "COUNT", "Different keys; 0 for messages without one.")],
    "acks": Annotated[AcksName, typer.Option("--acks", help="What counts as an answer.")],
    "rate": Annotated[float, option("--rate", "NUMBER", "Messages a second; 0 for as many as it can be.")],
    "topic": Annotated[
        str | None, option("--topic", "TOPIC", "On this topic, which stays; without it on one of its own.", topics)
    ],
}
_LEAST: Final = {"messages": 1, "size": 8, "batch": 1, "in_flight": 1, "partitions": 1, "keys": 0, "rate": 0}
"""A message carries the time it was sent: 8 bytes."""
_USUAL: Final = {"size": 100, "keys": 0, "acks": "leader"}


class Bench(NamedTuple):
    help: str
    defaults: dict[str, Any]


BENCHES: Final = {
    "produce": Bench(
        "How many messages a second one producer publishes. The latency is that of some of them.",
        {"messages": 200_000, "batch": 10_000, "in_flight": 100_000, "partitions": 3},
    ),
    "consume": Bench(
        "How many messages a second one member of a group takes and acks. They are published first. The latency is "
        "that of a poll.",
        {"messages": 200_000, "batch": 1000, "in_flight": 20_000, "partitions": 3},
    ),
    "latency": Bench(
        "How long a message takes to be answered, with so many under way at a time.",
        {"messages": 5000, "batch": 10_000, "in_flight": 1, "partitions": 1},
    ),
    "end-to-end": Bench(
        "How long a message takes from a producer to a consumer of a group.",
        {"messages": 5000, "batch": 1000, "in_flight": 20_000, "partitions": 1, "rate": 1000.0},
    ),
}


def _command(name: str, bench: Bench) -> Callable[..., None]:
    def command(**given: Any) -> None:
        _bench(name, **given)

    command.__doc__ = bench.help
    defaults = {**_USUAL, **bench.defaults}
    return with_options(command, {one: OPTIONS[one] for one in OPTIONS if one in defaults or one == "topic"}, defaults)


def _bench(name: str, *, topic: str | None, rate: float = 0.0, **numbers: Any) -> None:
    from goqueue.cli.remote.bench_gauge import Gauge
    from goqueue.cli.remote.bench_loads import LOADS, Load

    load = Load(rate=rate, **numbers)
    for field, least in _LEAST.items():
        check_number(f"--{field.replace('_', '-')}", getattr(load, field), least=least)
    gauge = Gauge(name, load.messages, load.size)
    used = topic or f"bench-{secrets.token_hex(4)}"
    try:
        run(lambda broker: _measure(broker, LOADS[name], load, gauge, used, own=topic is None))
    except typer.Exit:  # by Ctrl-C
        if gauge.done < load.messages:
            note(f"stopped after {count(gauge.done)} of {show_count(load.messages, 'message')}")
            raise
        gauge.end()  # all there was to do was done: this is what came of it
    if output() is OutputFormat.TABLE:
        gauge.print()
    else:
        print_data({"benchmark": name, "topic": used, **load._asdict(), **gauge.numbers()})


async def _measure(
    broker: Broker,
    work: "Callable[[AsyncClient, str, NewGroup, Load, Gauge], Awaitable[None]]",
    load: "Load",
    gauge: "Gauge",
    topic: str,
    *,
    own: bool,
) -> None:
    """On a topic that is made for it, and gone afterwards, also after Ctrl-C, whenever that comes."""
    if not own:
        await broker.call("describe_topic", topic=topic)
        await _work(broker, work, load, gauge, topic)
        return
    try:
        await _to_its_end(broker.call("create_topic", name=topic, num_partitions=load.partitions))
        await _work(broker, work, load, gauge, topic)
    finally:  # also where the answer to creating it was lost: it may be there
        await _forget(broker, "delete_topic", topic=topic)


async def _work(
    broker: Broker,
    work: "Callable[[AsyncClient, str, NewGroup, Load, Gauge], Awaitable[None]]",
    load: "Load",
    gauge: "Gauge",
    topic: str,
) -> None:
    """With a group that is gone afterwards, if the load needs one."""
    used_groups: list[str] = []

    def new_group() -> str:
        used_groups.append(f"bench-{secrets.token_hex(4)}")
        return used_groups[-1]

    try:
        async with broker.client() as client:
            with gauge:
                await work(client, topic, new_group, load, gauge)
    finally:
        for group_name in used_groups:
            await _forget(broker, "delete_group", group=group_name)


async def _to_its_end(asked: Coroutine[Any, Any, object]) -> None:
    """Wait for the answer also when this is cancelled: what is removed before it is made would stay."""
    task = asyncio.ensure_future(asked)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def _forget(broker: Broker, operation: str, **named: str) -> None:
    try:
        await _to_its_end(broker.call_plainly(operation, named))
    except NotFound:
        pass  # it was never there
    except GoQueueError as error:
        note(f"{' '.join(*named.items())} could not be removed: {error}")


add(app, **{name.replace("-", "_"): _command(name, bench) for name, bench in BENCHES.items()})
