"""A data directory without a broker: which topics it has, and what of their partitions counts."""

from pathlib import Path

import pytest

from goqueue.model.errors import DamagedData, InvalidRequest
from goqueue.server.embedded import EmbeddedBroker
from goqueue.spark.log_directory import DataDirectory, PartitionLog
from goqueue.storage.store import METADATA_LOG
from tests.support.planted_directory import HOUR_MS, T0, PlantedDirectory, messages, segment_files
from tests.unit.storage.logs import flip, positions


def looked(data: Path, topic: str = "orders", *, committed: bool = True) -> PartitionLog:
    directory = DataDirectory(str(data))
    return directory.partition(directory.topics[topic], 0, committed=committed)


def files(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_living_topics_are_those_of_the_metadata_log_and_nothing_is_changed(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders", 3)
        planted.topic("gone")
        planted.delete("gone")
        directory = DataDirectory(str(tmp_path))  # beside the process that holds the lock
        assert {name: topic.partitions for name, topic in directory.topics.items()} == {"orders": 3}
    before = files(tmp_path)
    assert DataDirectory(str(tmp_path)).topics.keys() == {"orders"}
    assert files(tmp_path) == before


def test_everything_a_broker_writes_into_its_metadata_log_is_known(tmp_path: Path) -> None:
    with EmbeddedBroker(str(tmp_path)) as broker:
        broker.call("create_topic", name="orders", num_partitions=3)
        broker.call("init_producer")
        broker.call("put_reader", name="stream", offsets={"orders": {"0": 0}})
        broker.call("create_topic", name="gone")
        broker.call("delete_topic", topic="gone")
    assert DataDirectory(str(tmp_path)).topics.keys() == {"orders"}


def test_a_directory_without_a_metadata_log_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no data directory: it has no meta/metadata"):
        DataDirectory(str(tmp_path))


def test_a_damaged_metadata_log_is_refused(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        planted.topic("events")
    flip(next((tmp_path / "meta" / METADATA_LOG).glob("*.log")), 40)
    with pytest.raises(DamagedData, match="is damaged, and nothing can be told without what it says"):
        DataDirectory(str(tmp_path))


def test_aborted_records_are_hidden_and_an_open_transaction_ends_what_is_stable(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        planted.append("orders", messages(range(10)))
        for commits in (True, False):
            number = planted.begin(7)
            planted.append("orders", messages(range(5), transaction=number))
            planted.decide(number, commits=commits)
            planted.mark(number, "orders")
        number = planted.begin(7)
        planted.append("orders", messages(range(3), transaction=number))
        planted.append("orders", messages(range(4)))
        found = looked(tmp_path)
        assert (found.start, found.stable, found.end) == (0, 22, 29)
        assert list(found.hidden) == [15, *range(16, 21), 21]
        uncommitted = looked(tmp_path, committed=False)
        assert (uncommitted.stable, uncommitted.end, len(uncommitted.hidden)) == (29, 29, 0)


@pytest.mark.parametrize("commits", [True, False])
def test_what_the_coordinator_decided_counts_though_the_partition_was_not_told(tmp_path: Path, commits: bool) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        number = planted.begin(7)
        planted.append("orders", messages(range(5), transaction=number))
        planted.append("orders", messages(range(5)))
        assert looked(tmp_path).stable == 0
        planted.decide(number, commits=commits)
        found = looked(tmp_path)
        assert (found.stable, list(found.hidden)) == (10, [] if commits else [0, 1, 2, 3, 4])


def test_transactions_are_found_in_sealed_segments_with_their_views_and_without(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        number = planted.begin(7)
        planted.append("orders", messages(range(300), transaction=number))
        planted.append("orders", messages(range(300)))
        planted.decide(number, commits=False)
        planted.mark(number, "orders")
    assert len(segment_files(tmp_path, "orders")) > 3
    with_views = looked(tmp_path)
    for path in tmp_path.rglob("*.view"):
        path.unlink()
    without = looked(tmp_path)
    assert with_views.hidden == without.hidden
    assert (with_views.stable, len(with_views.hidden)) == (601, 301)
    assert [part.end for part in with_views.segments] == [part.end for part in without.segments]


def test_times_are_found_in_sealed_segments_and_in_the_last_one(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path) as planted:
        planted.topic("orders")
        for hour in range(10):
            planted.append("orders", messages(range(100)), now=T0 + hour * HOUR_MS)
        found = looked(tmp_path)
        assert [found.offset_at(T0 + hour * HOUR_MS) for hour in range(11)] == [100 * hour for hour in range(11)]
        assert found.offset_at(T0 + 1) == 100


def test_a_log_ends_at_a_tear_above_the_synced_mark_as_it_would_for_a_broker(tmp_path: Path) -> None:
    with PlantedDirectory(tmp_path, segment_bytes=1 << 20) as planted:
        planted.topic("orders")
        planted.append("orders", messages(range(50)))
        planted.log("orders").sync()
        planted.append("orders", messages(range(50)))
        (path,) = segment_files(tmp_path, "orders")
        position, end = positions(path)[70]
        flip(path, end - 1)
        found = looked(tmp_path)
        assert found.end == 70
        assert found.torn is not None
        assert (found.torn.first, found.torn.position) == (70, position)
