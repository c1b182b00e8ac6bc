"""Transactions: how many a second, and what open ones cost those who have nothing to do with them.

A broker process, and a client process that uses the public client. Rates are for information: a commit waits for two
fsyncs, of what it has and of the decision, so they say as much about the disk as about the broker.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from bench.callers import WireCaller
from bench.client_ground import LOAD, Ground, Round, burden, ground, pacing
from bench.client_load import ClientLoad, Follow, Transact
from bench.report import Figure, Part, Run
from bench.timing import median
from bench.wire import PARTITIONS
from goqueue import codec
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.transactions import transaction_number
from goqueue.wire.blocks import PublishRequest
from goqueue.wire.codes import PUBLISH_BLOCK

OPEN: Final = 100
HELD: Final = 10
"""Messages of each of them in every partition."""
COST: Final = 1.10
_PACE: Final = 20_000
_TIMEOUT: Final = "1h"


def beside(run: Run) -> Iterator[Figure]:
    """Messages at a pace from a publisher to a consumer, in partitions that have open transactions, and in others."""
    rounds, seconds = (1, 1.0) if run.short else (5, 10.0)
    pairs = []
    with ground() as found, ClientLoad(found.directory, "consumer") as consumer:
        _follow(found, consumer, "warm", 0, min(seconds, 2.0))
        for turn in range(rounds):
            order = (0, OPEN) if turn % 2 else (OPEN, 0)
            costs = {opened: _follow(found, consumer, f"beside-{turn}-{opened}", opened, seconds) for opened in order}
            pairs.append((costs[0], costs[OPEN]))
            run.say(
                f"beside, {turn + 1} of {rounds}: {_cost_us(costs[OPEN]):.2f} us/msg, {_cost_us(costs[0]):.2f} alone"
            )
    ratio = median([_cost_us(beside) / _cost_us(alone) for alone, beside in pairs])
    alone_us, beside_us = (median([_cost_us(pair[at]) for pair in pairs]) for at in (0, 1))
    note = (
        f"broker's CPU a message, {beside_us:.2f} us against {alone_us:.2f}; {LOAD}, {_PACE // 1000} a millisecond, "
        f"published and consumed with poll + batch ack; {OPEN} transactions with {HELD} messages in each partition; "
        f"median of {rounds} pairs, in turn; {burden([pair[1] for pair in pairs])}"
    )
    yield Figure(f"cost of a message beside {OPEN} open transactions", ratio, "x", COST, at_most=True, note=note)


def _cost_us(one: Round) -> float:
    return one.server_cpu_s / one.done.messages * 1e6


def _follow(found: Ground, consumer: ClientLoad, name: str, opened: int, seconds: float) -> Round:
    topic_id = found.broker.create(name)
    try:
        held = _hold(found.broker.address, topic_id, opened)
        pace = pacing(found, name, _PACE, seconds, warm_s=0.0, held=held)
        address = found.broker.address
        consumer.begin(Follow(address=address, topic=name, group=name, messages=pace.messages, warm_s=0.0))
        done = found.do(pace)
        consumer.finish()
        return done
    finally:
        found.broker.delete(name)


def _hold(address: str, topic_id: int, opened: int) -> int:
    """Begin so many transactions, and publish in them. How many messages that are."""
    with closing(WireCaller(address)) as caller:
        for _ in range(opened):
            producer_id = caller.ask("init_producer")["producer_id"]
            begun = caller.ask("begin_transaction", producer_id=producer_id, timeout=_TIMEOUT)
            producer = Producer(producer_id, 0, 0)
            extension = Extension(producer=producer, transaction=transaction_number(begun["transaction_id"]))
            block = codec.encode([Record(key=b"held", value=bytes(1024), extension=extension)] * HELD)
            for partition in range(PARTITIONS):
                head = PublishRequest(topic_id, partition, Acks.LEADER, producer).pack()
                caller.request(PUBLISH_BLOCK, 0, [head, block])
                caller.reply(memoryview(bytearray(1 << 16)))
    return opened * HELD * PARTITIONS


def rate(run: Run) -> Iterator[Figure]:
    """Begin, publish, commit: one producer after the other's end, and several at once."""
    plans = ((1, 16), (10, 16), (100, 16), (1, 1), (10, 1), (100, 1))
    share = 0.02 if run.short else 1.0
    with ground() as found:
        for messages, writers in plans:
            transactions = max(round((4000 if writers > 1 else 1000) * share), 2 * writers)
            name = f"rate-{messages}-{writers}"
            with found.broker.topic(name) as topic:
                job = Transact(
                    address=found.broker.address, topic=topic, transactions=transactions, messages_each=messages,
                    writers=writers,
                )  # fmt: skip
                done = found.do(job)
            run.say(f"rate: {messages} messages, {writers} writers: {transactions / done.done.seconds:,.0f} /s")
            who = "one producer" if writers == 1 else f"{writers} producers at once"
            yield Figure(
                f"transactions of {messages} message{'s' if messages > 1 else ''}, {who}",
                transactions / done.done.seconds, "txn/s",
                note=f"begin, enqueue, commit; {done.done.rate:,.0f} msg/s; {transactions:,} of them, "
                f"p50 {done.done.p50_ms:.2f} ms, p99 {done.done.p99_ms:.2f} ms; {burden([done])}",
            )  # fmt: skip


PARTS: Final[dict[str, Part]] = {"beside": beside, "rate": rate}
