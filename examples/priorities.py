"""Priorities: what is urgent overtakes what waits, and what is not is never starved.

    .venv/bin/python examples/priorities.py [ADDRESS]

A thousand newsletters are queued. A password reset comes last and is delivered first; the lanes share the rest, so that
even the lowest of them moves on.
"""

import os
import sys
from collections import Counter
from contextlib import suppress
from uuid import uuid4

import goqueue

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GOQUEUE_ADDRESS", "127.0.0.1:9001")
RUN = uuid4().hex[:6]
TOPIC, GROUP = f"mail-{RUN}", f"mailer-{RUN}"


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
                for number in range(1000):
                    producer.enqueue(TOPIC, f"newsletter {number}", priority="low")
                    producer.enqueue(TOPIC, f"archive {number}", priority="background")
                    producer.enqueue(TOPIC, f"receipt {number}")
                producer.flush()
                producer.send(TOPIC, "password reset", priority="critical")

            with client.consumer(GROUP, [TOPIC], prefetch=1) as consumer:
                first = consumer.poll(1)
                print("first:", (first[0].value or b"").decode())
                first.ack()
                served: Counter[str] = Counter()
                while served.total() < 500:
                    batch = consumer.poll(100)
                    served.update(message.priority.name.lower() for message in batch)
                    batch.ack()
            for lane, count in served.most_common():
                print(f"{lane:10} {count:4} of the next {served.total()}")
            assert served["background"] > 0, "nobody is starved"
        finally:
            clean_up(client)


if __name__ == "__main__":
    main()
