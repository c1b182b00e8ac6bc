"""embedded close x calls under way: every call ends, with its answer or with an error that says why not."""

import threading
from pathlib import Path

import pytest

import goqueue
from goqueue.model.errors import Draining, GoQueueError, LogClosed
from goqueue.server.embedded import EmbeddedBroker
from tests.support.patience import PATIENCE_S


class Caller(threading.Thread):
    """Publishes until it is refused."""

    def __init__(self, broker: EmbeddedBroker, acks: str) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._acks = acks
        self.acknowledged: list[int] = []
        self.begun = threading.Event()
        self.refusal: GoQueueError | None = None

    def run(self) -> None:
        try:
            while True:
                placed = self._broker.call("publish", topic="orders", value="x", acks=self._acks)
                self.acknowledged.append(placed["offset"])
                self.begun.set()
        except GoQueueError as error:
            self.refusal = error


@pytest.mark.parametrize("acks", ["leader", "all"])
def test_embedded_close_x_calls_under_way(tmp_path: Path, acks: str) -> None:
    for number in range(5):
        path = str(tmp_path / str(number))
        with goqueue.embedded(path) as broker:
            broker.call("create_topic", name="orders", num_partitions=1)
            callers = [Caller(broker, acks) for _ in range(4)]
            for caller in callers:
                caller.start()
            for caller in callers:
                assert caller.begun.wait(timeout=PATIENCE_S)
        for caller in callers:
            caller.join(timeout=PATIENCE_S)
            assert not caller.is_alive(), "a call hangs"
            assert isinstance(caller.refusal, LogClosed | Draining)
        acknowledged = sorted(offset for caller in callers for offset in caller.acknowledged)
        with goqueue.embedded(path) as again:
            latest = again.call("describe_topic", topic="orders")["partition_offsets"]["0"]["latest"]
            assert acknowledged == list(range(latest)), "what was done was answered"
