"""Reminders: messages that wait for their time, and can be cancelled or moved until then.

    .venv/bin/python examples/reminders.py [ADDRESS]

A cart that is left alone is to be followed up. Whoever buys cancels the reminder; whoever asks for more time moves it.
"""

import os
import sys
import time
from contextlib import suppress
from uuid import uuid4

import goqueue

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GOQUEUE_ADDRESS", "127.0.0.1:9001")
RUN = uuid4().hex[:6]
TOPIC, GROUP = f"reminders-{RUN}", f"reminders-{RUN}"


def clean_up(client: goqueue.Client) -> None:
    """Leave nothing behind, whatever went wrong."""
    with suppress(goqueue.errors.UnknownTopic):
        client.delete_topic(TOPIC)
    with suppress(goqueue.errors.UnknownGroup):
        client.delete_group(GROUP)


def main() -> None:
    with goqueue.Client(ADDRESS) as client:
        try:
            client.create_topic(TOPIC, partitions=1)
            with client.producer() as producer:
                placed = {
                    who: producer.send(TOPIC, f"{who}, you left something in your cart", key=who, delay=delay)
                    for who, delay in {"alice": 0.6, "bob": 0.6, "carol": 3600.0, "dave": 0.3}.items()
                }
            waiting = client.list_delayed(TOPIC)
            print(f"{waiting.count} reminders wait; the first is due at {waiting.messages[0].deliver_at}")

            bob, carol = placed["bob"], placed["carol"]
            assert bob.offset is not None
            assert carol.offset is not None
            client.cancel_delayed(TOPIC, partition=bob.partition, offset=bob.offset)
            print("bob has bought: his reminder is cancelled")
            moved = client.move_delayed(TOPIC, partition=carol.partition, offset=carol.offset, delay=0.9)
            print(f"carol's reminder is due at {moved.deliver_at} instead of in an hour")

            begun = time.monotonic()
            with client.consumer(GROUP, [TOPIC]) as consumer:
                for message in consumer:
                    print(f"{message.value.decode() if message.value else ''}")
                    message.ack()
                    if message.key == b"carol":
                        break
            late_ms = (time.monotonic() - begun) * 1000
            print(f"three reminders within {late_ms / 1000:.0f} s, none early, none for bob")
        finally:
            clean_up(client)


if __name__ == "__main__":
    main()
