"""The load generator against the yardstick: both are measured with, so both must do what they say."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import yardstick
from bench.blocks import producer_blocks
from bench.callers import Refused, WireCaller
from bench.load import DISTINCT, Done, Fetch, Publish, run
from goqueue import codec
from tests.support.patience import PATIENCE_S

PARTITIONS = 3
CONNECTIONS = 2
BLOCK_BYTES = 8 * 1024


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a yardstick that keeps its files in `tmp_path`."""
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(yardstick.serve(str(tmp_path), addresses.put))

        def live() -> None:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(asyncio.wait([task]))

        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield addresses.get(timeout=PATIENCE_S)
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()


def create(address: str) -> int:
    caller = WireCaller(address)
    topic_id = int(caller.ask("create_topic", name="t", num_partitions=PARTITIONS)["topic_id"], 16)
    caller.close()
    return topic_id


def publish(address: str, topic_id: int, blocks: int) -> Done:
    return run(
        Publish(
            address=address,
            topic_id=topic_id,
            partitions=PARTITIONS,
            block_bytes=BLOCK_BYTES,
            blocks=blocks,
            connections=CONNECTIONS,
            in_flight=4,
        )
    )


def fetch(address: str, topic_id: int, to_offset: int) -> Done:
    return run(
        Fetch(
            address=address,
            topic_id=topic_id,
            partitions=PARTITIONS,
            to_offset=to_offset,
            max_bytes=BLOCK_BYTES,
            passes=2,
            connections=CONNECTIONS,
        )
    )


def test_every_message_of_a_run_is_in_the_yardsticks_files(address: str, tmp_path: Path) -> None:
    count = producer_blocks(DISTINCT, BLOCK_BYTES)[1]
    done = publish(address, create(address), 30)
    assert done.messages == CONNECTIONS * 30 * count
    for partition in range(PARTITIONS):
        scan = codec.scan((tmp_path / f"t-{partition}").read_bytes())
        assert not scan.problem
        assert list(scan.offsets) == list(range(CONNECTIONS * 10 * count))


def test_everything_is_fetched_by_everybody_as_often_as_asked(address: str) -> None:
    count = producer_blocks(DISTINCT, BLOCK_BYTES)[1]
    topic_id = create(address)
    publish(address, topic_id, 30)
    per_partition = CONNECTIONS * 10 * count
    assert fetch(address, topic_id, per_partition).messages == CONNECTIONS * PARTITIONS * 2 * per_partition


def test_a_fetch_that_gets_less_than_it_should_is_no_figure(address: str) -> None:
    topic_id = create(address)
    publish(address, topic_id, 3)
    with pytest.raises(Refused, match="0 records from offset"):
        fetch(address, topic_id, 1_000_000)


def test_the_blocks_that_are_sent_are_never_changed(address: str) -> None:
    blocks, _ = producer_blocks(DISTINCT, BLOCK_BYTES)
    before = [bytes(block) for block in blocks]
    publish(address, create(address), 12)
    assert before == blocks
