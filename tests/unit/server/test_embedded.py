"""A broker inside a Python process: its life, and calls from any thread."""

import os
import threading
from pathlib import Path

import pytest

import goqueue
from goqueue.broker.broker import Broker
from goqueue.model.errors import (
    DirectoryLocked,
    Draining,
    InvalidRequest,
    InvalidSetting,
    LogClosed,
    StorageFailed,
    TopicExists,
    Unavailable,
    UnknownOperation,
    UnknownTopic,
)
from goqueue.server.embedded import EmbeddedBroker
from tests.support.patience import PATIENCE_S


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("goqueue")}


def fail(broker: EmbeddedBroker) -> StorageFailed:
    """Its disk fails; returns when it has closed by itself."""
    failure = StorageFailed("the disk is gone")
    thread, loop, server = broker._thread, broker._loop, broker._server
    assert thread is not None
    assert loop is not None
    assert server is not None
    loop.call_soon_threadsafe(server.broker.report_failure, failure)
    thread.join(PATIENCE_S)
    return failure


def test_operations_are_called_by_name(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker.call("create_topic", name="orders", num_partitions=1)["created"]
        assert broker.call("publish", topic="orders", value="x")["offset"] == 0
        assert broker.call("read_topic", topic="orders")["messages"][0]["value"] == "x"
        assert set(broker.endpoints) == {"http", "wire"}


def test_errors_are_those_of_the_product(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders")
        with pytest.raises(TopicExists):
            broker.call("create_topic", name="orders")
        with pytest.raises(UnknownTopic):
            broker.call("describe_topic", topic="bills")
        with pytest.raises(InvalidRequest, match="there is no field 'colour'"):
            broker.call("list_topics", colour="red")
        with pytest.raises(UnknownOperation, match="there is no operation 'dance'; there are publish, "):
            broker.call("dance")


def test_what_was_published_is_there_the_next_time(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=1, fsync="none")
        broker.call("publish_batch", topic="orders", messages=[{"value": str(number)} for number in range(100)])
    with goqueue.embedded(str(tmp_path)) as broker:
        found = broker.call("read_topic", topic="orders")["messages"]
        assert [message["value"] for message in found] == [str(number) for number in range(100)]


def test_nothing_stays_behind(tmp_path: Path) -> None:
    before = names_of_threads()
    for _ in range(3):
        with goqueue.embedded(str(tmp_path)) as broker:
            assert names_of_threads() > before
            endpoints = broker.endpoints
        assert names_of_threads() == before
        assert endpoints
    assert not (tmp_path / "endpoints.json").exists()


def test_a_broker_that_is_closed_or_was_never_opened_says_so(tmp_path: Path) -> None:
    broker = goqueue.embedded(str(tmp_path))
    with pytest.raises(LogClosed, match="is closed, or was never opened: use it in `with goqueue"):
        broker.call("list_topics")
    with broker:
        broker.call("list_topics")
    for _ in range(2):
        with pytest.raises(LogClosed):
            broker.call("list_topics")
        with pytest.raises(LogClosed):
            _ = broker.endpoints


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    broker = goqueue.embedded(str(tmp_path))
    broker.close()
    with broker:
        broker.close()
        broker.close()
    broker.close()


def test_an_error_inside_with_is_the_one_that_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), goqueue.embedded(str(tmp_path)):
        _ = 1 // 0
    with goqueue.embedded(str(tmp_path)):
        pass


def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        with pytest.raises(DirectoryLocked), goqueue.embedded(str(tmp_path)):
            pass
        broker.call("list_topics")


def test_settings_are_the_flags_of_serve(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path), wire="off", metrics="127.0.0.1:0") as broker:
        assert set(broker.endpoints) == {"http", "metrics"}


def test_grpc_is_there_for_who_asks_and_the_environment_is_left_alone(tmp_path: Path) -> None:
    before = dict(os.environ)
    with goqueue.embedded(str(tmp_path), grpc="127.0.0.1:0") as broker:
        assert "grpc" in broker.endpoints
    assert dict(os.environ) == before


@pytest.mark.parametrize("flags", [{"http": "nowhere"}, {"colour": "red"}])
def test_a_setting_that_is_wrong_is_refused_before_anything_starts(tmp_path: Path, flags: dict[str, str]) -> None:
    before = names_of_threads()
    with pytest.raises(InvalidSetting):
        goqueue.embedded(str(tmp_path / "data"), **flags)
    assert names_of_threads() == before
    assert not (tmp_path / "data").exists()


def test_a_start_that_is_refused_is_raised_and_the_directory_is_free(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path / "one")) as one:
        address = one.endpoints["http"]
        with pytest.raises(Unavailable, match="cannot listen"), goqueue.embedded(str(tmp_path / "two"), http=address):
            pass
    with goqueue.embedded(str(tmp_path / "two")):
        pass


def test_calls_come_from_any_thread(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=1)
        offsets: list[int] = []

        def publish() -> None:
            for _ in range(20):
                offsets.append(broker.call("publish", topic="orders", value="x")["offset"])

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(offsets) == list(range(80))


def test_calls_under_way_when_it_closes_end_in_a_reply_or_in_one_of_our_errors(tmp_path: Path) -> None:
    stored: list[int] = []
    endings: list[BaseException] = []
    busy = threading.Barrier(5)

    def publish() -> None:
        busy.wait(PATIENCE_S)
        try:
            while True:
                stored.append(broker.call("publish", topic="orders", value="x", acks="all")["offset"])
        except BaseException as error:
            endings.append(error)

    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=1)
        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        busy.wait(PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(endings) == 4
    assert {type(ending) for ending in endings} <= {LogClosed, Draining, Unavailable}
    with goqueue.embedded(str(tmp_path)) as broker:
        found = broker.call("describe_topic", topic="orders")["total_messages"]
        assert found >= len(stored) == len(set(stored))


def test_a_broker_that_stops_answers_only_how_it_is(tmp_path: Path) -> None:
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker._server is not None
        broker._server.broker.drain()
        with pytest.raises(Draining):
            broker.call("list_topics")
        assert broker.call("health") == {"status": "draining"}


def test_a_broker_whose_disk_failed_closes_and_every_call_raises(tmp_path: Path) -> None:
    before = names_of_threads()
    with goqueue.embedded(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders")
        failure = fail(broker)
        for _ in range(2):
            with pytest.raises(StorageFailed) as caught:
                broker.call("list_topics")
            assert caught.value is failure
        with pytest.raises(StorageFailed):
            _ = broker.endpoints
    assert names_of_threads() == before
    with goqueue.embedded(str(tmp_path)) as broker:
        assert broker.call("list_topics") == {"topics": ["orders"]}


def test_a_flush_that_fails_at_the_end_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = goqueue.embedded(str(tmp_path))
    close = Broker.close

    async def fail_at_the_end(self: Broker) -> None:
        await close(self)
        raise StorageFailed("the last sync failed")

    monkeypatch.setattr(Broker, "close", fail_at_the_end)
    with pytest.raises(StorageFailed, match="the last sync failed"), broker:
        pass
    broker.close()
