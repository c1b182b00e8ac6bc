"""Order processing: retries with a backoff, dead letters, and sending them again once the bug is mended.

    .venv/bin/python examples/orders.py [ADDRESS]

A payment service fails now and then, and always for one customer. What fails is tried again later, by itself; what
fails too often is a dead letter, with its reason and history. When the service works again, they are redriven.
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
TOPIC, GROUP = f"orders-{RUN}", f"payments-{RUN}"
ORDERS = [
    {"order": number, "customer": customer, "pounds": 5 * number}
    for number, customer in enumerate(["alice", "bob", "carol", "dave", "erin", "frank"], start=1)
]


class PaymentService:
    """Somebody else's. It does not know erin, and is slow to get going."""

    def __init__(self) -> None:
        self.knows_erin = False
        self.calls = 0

    def charge(self, order: dict[str, object]) -> None:
        self.calls += 1
        if order["customer"] == "erin" and not self.knows_erin:
            raise LookupError("no such customer: erin")
        if self.calls % 3 == 1:
            raise TimeoutError("the payment service did not answer")


async def work(client: goqueue.AsyncClient, payments: PaymentService, until_paid: int, paid: list[str]) -> None:
    """One worker. Whatever happens to it, an order that was not acked comes again."""
    async with client.consumer(GROUP, [TOPIC], mode="key") as consumer:
        while len(paid) < until_paid:
            for message in await consumer.poll(10, timeout=0.2):
                order = json.loads(message.value or b"{}")
                try:
                    payments.charge(order)
                except LookupError as error:
                    print(f"  {order['customer']:6} rejected: {error}")
                    await message.reject(str(error))
                except TimeoutError:
                    print(f"  {order['customer']:6} try {message.delivery_count} failed, again in 0.1 s")
                    await message.nack(delay=0.1)
                else:
                    await message.ack(wait=True)
                    paid.append(order["customer"])
                    print(f"  {order['customer']:6} paid {order['pounds']} pounds")


async def clean_up(client: goqueue.AsyncClient) -> None:
    """Leave nothing behind, whatever went wrong."""
    for topic in (TOPIC, f"{TOPIC}.dlq"):
        with suppress(goqueue.errors.UnknownTopic):
            await client.delete_topic(topic)
    with suppress(goqueue.errors.UnknownGroup):
        await client.delete_group(GROUP)


async def main() -> None:
    async with goqueue.AsyncClient(ADDRESS) as client:
        try:
            await client.create_topic(TOPIC, partitions=2, max_retries=5)
            async with client.producer() as producer:
                for order in ORDERS:
                    receipt = await producer.send(TOPIC, json.dumps(order), key=str(order["customer"]))
                    print(f"published {receipt.message_id} for {order['customer']}")

            payments, paid = PaymentService(), list[str]()
            print("working:")
            await work(client, payments, len(ORDERS) - 1, paid)

            letters = await client.list_dead_letters(TOPIC)
            for letter in letters.messages:
                print(f"dead: {letter.key}, because {letter.detail!r}, after {letter.deliveries} deliveries")

            payments.knows_erin = True
            redrive = await client.start_redrive(TOPIC)
            print(f"erin is known by now; {redrive.matched} dead letters are sent again:")
            await work(client, payments, len(ORDERS), paid)
            print("all paid:", ", ".join(sorted(paid)))
        finally:
            await clean_up(client)


if __name__ == "__main__":
    asyncio.run(main())
