"""A program that takes inputs, and publishes a result for each, with the acks of the inputs in one transaction.

Run as a module with the broker's address, its transactional id, the mode of its group and a seed, until its standard
input ends. It says `C n` for every transaction of n messages it was told is committed, `A` for one that was aborted,
and `F` when another one has taken its place; then it ends.
"""

import asyncio
import random
import sys
from typing import Final

from goqueue import AsyncClient, GoQueueError
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.producer import AsyncProducer
from goqueue.model.errors import ProducerFenced

GROUP: Final = "transformers"
INPUTS: Final = "inputs"
OUTPUTS: Final = "outputs"
_MOST: Final = 20
"""Inputs of one transaction."""
_CHANGES_ITS_MIND: Final = 0.1
_LONGEST_S: Final = 0.05
_SESSION: Final = "2s"
_QUIET_S: Final = 0.5


class ChangedItsMind(Exception):
    """The program aborts, as programs do."""


def result_of(value: bytes) -> bytes:
    return b"result of " + value


async def work(wire: str, transactional_id: str, mode: str, dice: random.Random) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, done.set)  # nothing is ever said to it: the end is all that can come
    async with (
        AsyncClient(wire) as client,
        client.producer(transactional_id=transactional_id) as producer,
        client.consumer(GROUP, [INPUTS], mode=mode, session_timeout=_SESSION, prefetch=2 * _MOST) as consumer,
    ):
        while not done.is_set():
            try:
                count = await _transform(consumer, producer, dice)
                if count:
                    _say(f"C {count}")
            except ProducerFenced:
                _say("F")
                return
            except (GoQueueError, ChangedItsMind):
                _say("A")


async def _transform(consumer: AsyncConsumer, producer: AsyncProducer, dice: random.Random) -> int:
    batch = await consumer.poll(_MOST, timeout=_QUIET_S)
    if not batch:
        return 0
    async with producer.transaction() as transaction:
        for message in batch:
            producer.enqueue(OUTPUTS, result_of(message.value or b""), key=message.key)
        await transaction.ack(batch)
        await asyncio.sleep(dice.uniform(0, _LONGEST_S))
        if dice.random() < _CHANGES_ITS_MIND:
            raise ChangedItsMind
    return len(batch)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    address, own_id, group_mode, seed = sys.argv[1:]
    asyncio.run(work(address, own_id, group_mode, random.Random(seed)))
