"""Consume, transform, produce: orders become bills, each of them once, whatever breaks in between.

    .venv/bin/python examples/transactions.py [ADDRESS]

A bill is published and its order acked in one transaction. A worker that breaks in the middle leaves nothing: neither a
bill, nor an order that is lost. A second worker takes over under the same transactional id.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from uuid import uuid4

import goqueue

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GOQUEUE_ADDRESS", "127.0.0.1:9001")
RUN = uuid4().hex[:6]
ORDERS, BILLS, GROUP, WORK = f"orders-{RUN}", f"bills-{RUN}", f"shop-{RUN}", f"billing-{RUN}"
PRICES = {"apples": 2, "pears": 3}


async def bill(client: goqueue.AsyncClient, breaks_at: int | None) -> None:
    """Until there are no orders. Order, bill and ack count together."""
    async with (
        client.producer(transactional_id=WORK, transaction_timeout="30s") as producer,
        client.consumer(GROUP, [ORDERS]) as consumer,
    ):
        while batch := await consumer.poll(2, timeout=0.5):
            async with producer.transaction() as transaction:
                for message in batch:
                    order = message.json()
                    pounds = order["count"] * PRICES[order["fruit"]]
                    producer.enqueue(BILLS, json.dumps({"order": order["order"], "pounds": pounds}), key=message.key)
                    if order["order"] == breaks_at:
                        raise RuntimeError(f"order {breaks_at} broke the worker, after its bill was written")
                await transaction.ack(batch)
            print(f"{transaction.transaction_id}: {len(batch)} orders are billed")


async def clean_up(client: goqueue.AsyncClient) -> None:
    """Leave nothing behind, whatever went wrong."""
    for topic in (ORDERS, f"{ORDERS}.dlq", BILLS):
        with suppress(goqueue.errors.UnknownTopic):
            await client.delete_topic(topic)
    with suppress(goqueue.errors.UnknownGroup):
        await client.delete_group(GROUP)


async def main() -> None:
    async with goqueue.AsyncClient(ADDRESS) as client:
        try:
            await client.create_topic(ORDERS, partitions=1, visibility_timeout="500ms")
            await client.create_topic(BILLS, partitions=2)
            async with client.producer() as producer:
                for number in range(1, 7):
                    order = {"order": number, "fruit": "apples" if number % 2 else "pears", "count": number}
                    producer.enqueue(ORDERS, json.dumps(order), key=f"customer {number}")

            try:
                await bill(client, breaks_at=3)
            except RuntimeError as error:
                print(error)
            print("another worker takes over")
            await bill(client, breaks_at=None)

            async with client.reader(BILLS) as reader:
                billed = [message.json()["order"] async for message in reader]
            left = (await client.group_lag(GROUP)).total_lag
            print(f"the shop has {len(billed)} bills and {left} orders left")
            if sorted(billed) == [1, 2, 3, 4, 5, 6]:
                print("each order was billed once")
            stats = await client.transaction_stats()
            print(f"the broker has committed {stats.committed} transactions, aborted {sum(stats.aborted.values())}")
        finally:
            await clean_up(client)


if __name__ == "__main__":
    asyncio.run(main())
