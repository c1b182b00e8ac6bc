"""idempotence x cleaner x crash: what a view carries is never lost, wherever sealing or cleaning is interrupted.

The simulated disk is copied before every change it makes; each copy is then killed or loses its power, is opened
again, and the producer sends its first message once more: it must be recognised.
"""

import copy
from collections.abc import Callable
from random import Random
from typing import Literal

import pytest

from goqueue import codec
from goqueue.broker.partition import Partition, _restore_producers
from goqueue.model.names import TopicId
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import Topic, TopicSettings
from goqueue.producers.views import ProducerViews
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from goqueue.telemetry.meters import Histogram
from sim.disk import SimDisk

T0 = 1_700_000_000_000
SETTINGS = LogSettings(fsync=Fsync.EVERY, retention_ms=1000, segment_bytes=4096)
Scenario = Callable[[Partition, Callable[[], None]], None]
TOPIC = Topic(name="l", topic_id=TopicId(1), partitions=1, settings=TopicSettings(), created_ms=T0)
EARLY, LATE = Producer(7, 0, 0), Producer(8, 0, 0)


def opened(disk: SimDisk) -> Partition:
    log = Log.open("/d/l", disk=disk, settings=SETTINGS, views=(ProducerViews(),))
    return Partition(TOPIC, 0, "l", log, _restore_producers(log), Histogram((1.0,)))


def send(partition: Partition, producer: Producer, now: int) -> bool:
    """Whether it was recognised as sent before."""
    block = memoryview(codec.encode([Record(value=b"x", extension=Extension(producer=producer))]))
    return partition.append(block, count=1, now=now, producer=producer)[0].duplicate


def seal_then_clean(partition: Partition, watch: Callable[[], None]) -> None:
    """Everything is old: the newest sealed segment is emptied, and only its view knows the producer."""
    partition.log.roll()
    partition.log.sync()
    watch()
    assert clean(partition.log, T0 + 5000).removed_records == 1


def seal_another_then_clean(partition: Partition, watch: Callable[[], None]) -> None:
    """A newer segment is sealed and inherits the producer, then the older one is removed."""
    partition.log.roll()
    partition.log.sync()
    assert not send(partition, LATE, T0 + 4500)
    partition.log.sync()
    partition.log.roll()
    watch()
    partition.log.sync()
    assert clean(partition.log, T0 + 5000).removed_records == 1


@pytest.mark.parametrize("crash", ["kill", "power"])
@pytest.mark.parametrize("scenario", [seal_then_clean, seal_another_then_clean])
def test_idempotence_x_cleaner_x_crash(scenario: Scenario, crash: Literal["kill", "power"]) -> None:
    disk = SimDisk(Random(1))
    disk.make_directory("/d/l")
    images: list[SimDisk] = []

    def watch() -> None:
        disk.between = photograph

    def photograph(kind: str) -> None:
        disk.between = None
        images.append(copy.deepcopy(disk))
        disk.between = photograph

    partition = opened(disk)
    assert not send(partition, EARLY, T0)
    partition.log.sync()
    scenario(partition, watch)
    photograph("the end")
    assert len(images) > 10
    for number, image in enumerate(images):
        for seed in range(3):
            left = copy.deepcopy(image)
            left.between = None
            left.crash(Random(1000 * seed + number), crash)
            assert send(opened(left), EARLY, T0 + 6000), f"appended twice after crash {number}, seed {seed}"
