"""The jobs of `bench.client_load` for the client without a loop: `goqueue.Client`, and threads where several wait."""

import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from bench.callers import Refused
from bench.client_load import (
    BATCH,
    IDLE_TIMEOUT_S,
    Clock,
    Consume,
    Done,
    Ends,
    Enqueue,
    Follow,
    Places,
    Read,
    Send,
    check_settled,
    keys,
    pairs,
    values,
)
from goqueue import Client
from goqueue.client.sync.consumer import Consumer


def run_sync(job: Enqueue | Send | Read | Consume | Follow) -> Done:
    keys(), values()
    with Client(job.address) as client:
        match job:
            case Enqueue():
                return _enqueue(client, job)
            case Send():
                return _send(client, job)
            case Read():
                return _read(client, job)
            case Consume():
                return _consume(client, job)
            case Follow():
                raise Refused("latencies are measured with the client that has a loop")


def _enqueue(client: Client, job: Enqueue) -> Done:
    ends = Ends()
    topic = job.topic
    with client.producer(
        batch_messages=job.batch_messages, batch_bytes=job.batch_bytes, on_batch=ends.on_batch
    ) as producer:
        clock = Clock()
        for key, value in pairs(job.messages):
            producer.enqueue(topic, value, key=key)
        producer.flush()
        done = clock.done(job.messages)
    ends.check(job.messages)
    return done


def _send(client: Client, job: Send) -> Done:
    ends = Ends()
    latencies = array("d")
    messages, turn = pairs(job.messages), Lock()
    with client.producer() as producer, ThreadPoolExecutor(job.in_flight) as pool:

        def work() -> None:
            while (pair := _next(messages, turn)) is not None:
                key, value = pair
                begun = time.perf_counter()
                receipt = producer.send(job.topic, value, key=key)
                took_ms = (time.perf_counter() - begun) * 1000
                with turn:
                    latencies.append(took_ms)
                    ends.on_receipt(receipt)

        clock = Clock()
        for future in [pool.submit(work) for _ in range(job.in_flight)]:
            future.result()
        done = clock.done(job.messages, latencies)
    ends.check(job.messages)
    return done


def _next(messages: Iterator[tuple[bytes, bytes]], turn: Lock) -> tuple[bytes, bytes] | None:
    with turn:
        return next(messages, None)


def _read(client: Client, job: Read) -> Done:
    places = Places()
    with client.reader(job.topic) as reader:
        clock = Clock()
        while (batch := reader.read()) is not None:
            if job.objects:
                places.see(batch, sum([message.value is not None for message in batch]))
            else:
                places.see(batch, len(batch.values()))
        done = clock.done(places.messages)
    places.check(job.messages)
    return done


def _consume(client: Client, job: Consume) -> Done:
    refused: list[object] = []
    clock = Clock()
    with client.consumer(
        job.group, [job.topic], prefetch=job.prefetch, max_unacked=job.max_unacked, on_ack_error=refused.append
    ) as consumer:
        taken = _take_each(consumer, job) if job.each else _take_batches(consumer, job)
        consumer.flush()
        done = clock.done(taken)
    check_settled(client.group_lag(job.group).total_lag, taken, job, refused)
    return done


def _take_batches(consumer: Consumer, job: Consume) -> int:
    taken = 0
    while taken < job.messages:
        batch = consumer.poll(min(BATCH, job.messages - taken), timeout=IDLE_TIMEOUT_S)
        if not batch:
            raise Refused(f"only {taken} of {job.messages} came")
        taken += len(batch.values())
        batch.ack(wait=job.wait)
    return taken


def _take_each(consumer: Consumer, job: Consume) -> int:
    taken = 0
    wait = job.wait
    for message in consumer:
        if message.value is not None:
            taken += 1
        message.ack(wait=wait)
        if taken == job.messages:
            break
    return taken
