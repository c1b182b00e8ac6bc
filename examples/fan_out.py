"""Fan-out and replay: every group gets every message, and the log can be read again from any point.

    .venv/bin/python examples/fan_out.py [ADDRESS]

Billing and a search index both follow the same topic at their own pace. A third, statistics, comes later and begins at
the beginning; and billing is set back to a moment in the past, because its invoices were wrong since then.
"""

import asyncio
import os
import sys
import time
from contextlib import suppress
from uuid import uuid4

import goqueue

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GOQUEUE_ADDRESS", "127.0.0.1:9001")
RUN = uuid4().hex[:6]
TOPIC = f"sales-{RUN}"


async def follow(client: goqueue.AsyncClient, name: str, count: int) -> list[str]:
    """What a group gets, in the order in which it gets it."""
    got: list[str] = []
    async with client.consumer(f"{name}-{RUN}", [TOPIC]) as consumer:
        async for message in consumer:
            got.append((message.value or b"").decode())
            await message.ack()
            if len(got) == count:
                break
    print(f"{name:10} {', '.join(got)}")
    return got


async def clean_up(client: goqueue.AsyncClient) -> None:
    """Leave nothing behind, whatever went wrong."""
    with suppress(goqueue.errors.UnknownTopic):
        await client.delete_topic(TOPIC)
    for name in ("billing", "search", "statistics"):
        with suppress(goqueue.errors.UnknownGroup):
            await client.delete_group(f"{name}-{RUN}")


async def main() -> None:
    async with goqueue.AsyncClient(ADDRESS) as client:
        try:
            await client.create_topic(TOPIC, partitions=1)
            async with client.producer() as producer:
                for item in ("apples", "pears"):
                    await producer.send(TOPIC, item)
                await asyncio.sleep(0.05)
                noon = int(time.time() * 1000)
                await asyncio.sleep(0.05)
                for item in ("plums", "figs"):
                    await producer.send(TOPIC, item)

            await asyncio.gather(follow(client, "billing", 4), follow(client, "search", 4))
            await follow(client, "statistics", 4)

            moved = await client.reset_offsets(f"billing-{RUN}", topic=TOPIC, time=noon)
            print(f"billing goes back to noon: {moved.offsets[TOPIC]}")
            again = await follow(client, "billing", 2)
            assert again == ["plums", "figs"]

            print("without any group, since noon:")
            async with client.reader(TOPIC, from_time=noon) as reader:
                async for message in reader:
                    print(f"  {message.message_id.rpartition(':')[2]} {(message.value or b'').decode()}")
        finally:
            await clean_up(client)


if __name__ == "__main__":
    asyncio.run(main())
