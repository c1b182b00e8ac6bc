"""The machine that knows every topic: what it decides, what it refuses, and that only `apply` changes it."""

from typing import Any

import pytest

from goqueue.machine.shape import Machine
from goqueue.metadata import records
from goqueue.metadata.topics import (
    AddPartitions,
    ChangeTopic,
    CreateTopic,
    DeletedTopic,
    DeleteTopic,
    FinishRemoval,
    MakeHandleKey,
    NameCluster,
    Topics,
)
from goqueue.model import limits
from goqueue.model.errors import (
    Conflict,
    DamagedData,
    GoQueueError,
    InvalidRequest,
    InvalidSetting,
    TopicExists,
    UnknownTopic,
)
from goqueue.model.names import TopicId, dlq_name
from goqueue.model.settings import Fsync
from goqueue.model.topic import Backoff, LanePolicy, OnExpiry, Topic, TopicSettings

NOW = 1_700_000_000_000
SETTINGS = TopicSettings()


def create(name: str, topic_id: int, partitions: int = 3, settings: TopicSettings = SETTINGS) -> CreateTopic:
    return CreateTopic(name, TopicId(topic_id), partitions, settings)


def topic(name: str, topic_id: int, partitions: int = 3, settings: TopicSettings = SETTINGS) -> Topic:
    return Topic(name=name, topic_id=TopicId(topic_id), partitions=partitions, settings=settings, created_ms=NOW)


def do(machine: Topics, command: Any, now: int = NOW) -> Any:
    """Decide and apply, as a host does; deciding alone must change nothing."""
    before = list(machine.snapshot())
    try:
        decision = machine.decide(command, now)
    finally:
        assert list(machine.snapshot()) == before
    for record in decision.records:
        machine.apply(record, 0)
    return decision.reply


def restored(machine: Topics) -> Topics:
    """Another one, made from this one's snapshot."""
    other = Topics()
    for record in machine.snapshot():
        other.apply(record, 0)
    return other


def state(machine: Topics) -> tuple[object, ...]:
    return machine.cluster_id, machine.handle_key, machine.by_name, machine.by_id, machine.deleted, machine.partitions


@pytest.fixture
def machine() -> Topics:
    made = Topics()
    do(made, create("orders", 1, 3))
    return made


def test_it_has_the_shape_of_a_machine_and_a_name_that_never_changes(machine: Topics) -> None:
    held: Machine = machine
    assert held.name == "topics", "its records in every metadata log are found by it"


# --- the cluster's name


def test_the_first_name_of_a_cluster_is_the_one_it_keeps() -> None:
    machine = Topics()
    assert do(machine, NameCluster("first")) == "first"
    assert do(machine, NameCluster("second")) == "first"
    assert machine.cluster_id == "first"
    assert not machine.decide(NameCluster("third"), NOW).records


def test_the_first_key_for_handles_is_the_one_there_is_for_good() -> None:
    machine = Topics()
    assert do(machine, MakeHandleKey("00ff")) == "00ff"
    assert do(machine, MakeHandleKey("1111")) == "00ff"
    assert machine.handle_key == "00ff"
    assert not machine.decide(MakeHandleKey("2222"), NOW).records
    assert restored(machine).handle_key == "00ff"


# --- creating


def test_a_created_topic_is_there_under_its_name_and_its_id(machine: Topics) -> None:
    found = do(machine, create("bills", 2, 5, TopicSettings(fsync=Fsync.EVERY)), NOW + 1)
    assert found == Topic(
        name="bills",
        topic_id=TopicId(2),
        partitions=5,
        settings=TopicSettings(fsync=Fsync.EVERY),
        created_ms=NOW + 1,
    )
    assert machine.by_name["bills"] is machine.by_id[TopicId(2)]
    assert machine.by_name["bills"] == found
    assert machine.partitions == 8


def test_a_name_that_is_taken_is_refused(machine: Topics) -> None:
    with pytest.raises(TopicExists, match=r"there is a topic 'orders' already; delete it first"):
        do(machine, create("orders", 2))


def test_an_id_that_is_taken_is_refused(machine: Topics) -> None:
    with pytest.raises(Conflict, match="0000000000000001 is taken; try again"):
        do(machine, create("bills", 1))


def test_the_id_of_a_deleted_topic_is_refused_while_its_files_may_be_there(machine: Topics) -> None:
    do(machine, DeleteTopic("orders"))
    with pytest.raises(Conflict, match="taken"):
        do(machine, create("bills", 1))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "__internal", "ä", "a" * 242, "a\n", "a" * 242 + ".dlq"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a topic"):
        do(Topics(), create(name, 1))


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="segment_bytes is 1; it must be from"):
        do(Topics(), create("orders", 1, 1, TopicSettings(segment_bytes=1)))
    with pytest.raises(InvalidSetting, match="visibility_timeout is 0s; it must be from 1ms to 12h"):
        do(Topics(), create("orders", 1, 1, TopicSettings(visibility_ms=0)))


@pytest.mark.parametrize("partitions", [0, -1, limits.MAX_PARTITIONS_PER_TOPIC + 1])
def test_a_bad_count_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(InvalidRequest, match=f"from 1 to {limits.MAX_PARTITIONS_PER_TOPIC} partitions"):
        do(Topics(), create("orders", 1, partitions))


def test_the_largest_topic_is_allowed() -> None:
    machine = Topics()
    longest = "o" * limits.MAX_TOPIC_NAME
    assert do(machine, create(longest, 1, limits.MAX_PARTITIONS_PER_TOPIC)).partitions == 1000
    assert do(machine, create(dlq_name(longest), 2, limits.MAX_PARTITIONS_PER_TOPIC)).partitions == 1000


def test_there_are_only_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TOPICS", 2)
    machine = Topics()
    do(machine, create("a", 1))
    do(machine, create("b", 2))
    with pytest.raises(Conflict, match="there are 2 topics, which is the most; delete one first"):
        do(machine, create("c", 3))
    do(machine, DeleteTopic("a"))
    do(machine, create("c", 3))


def test_there_are_only_so_many_partitions_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PARTITIONS", 5)
    machine = Topics()
    do(machine, create("a", 1, 3))
    with pytest.raises(Conflict, match="3 more partitions would be more than 5 in all; delete a topic first"):
        do(machine, create("b", 2, 3))
    do(machine, create("b", 2, 1))
    with pytest.raises(Conflict, match="2 more partitions would be more than 5 in all"):
        do(machine, AddPartitions("a", 5))
    do(machine, AddPartitions("a", 4))
    do(machine, DeleteTopic("a"))
    assert machine.partitions == 1


# --- changing


def test_a_change_touches_only_what_it_names(machine: Topics) -> None:
    found = do(machine, ChangeTopic("orders", {"retention_hours": 1, "fsync": Fsync.NONE}), NOW + 5)
    assert found.settings == TopicSettings(retention_hours=1, fsync=Fsync.NONE)
    assert (found.created_ms, found.partitions, found.topic_id) == (NOW, 3, 1)
    assert machine.by_name["orders"] == machine.by_id[TopicId(1)] == found


def test_a_change_to_what_is_so_already_writes_nothing(machine: Topics) -> None:
    decision = machine.decide(ChangeTopic("orders", {"retention_hours": SETTINGS.retention_hours}), NOW)
    assert (decision.records, decision.reply) == ((), topic("orders", 1))


def test_a_change_out_of_range_is_refused(machine: Topics) -> None:
    with pytest.raises(InvalidSetting, match="max_message_bytes is 0"):
        do(machine, ChangeTopic("orders", {"max_message_bytes": 0}))
    with pytest.raises(InvalidSetting, match=r"backoff\.max is 1m; it must be at least backoff\.base"):
        do(machine, ChangeTopic("orders", {"backoff": Backoff(base_ms=60_001)}))


def test_the_delivery_of_a_topic_is_changed_like_the_rest(machine: Topics) -> None:
    changes: dict[str, Any] = {
        "visibility_ms": 1,
        "max_retries": 0,
        "backoff": Backoff(factor=1.5),
        "dlq_enabled": False,
        "message_ttl_ms": 1,
        "on_expiry": OnExpiry.DLQ,
        "lane_weights": (1, 2, 3, 4, 5),
        "lane_policy": LanePolicy.STRICT,
    }
    found = do(machine, ChangeTopic("orders", changes))
    assert found.settings == TopicSettings(**changes)
    assert restored(machine).by_name["orders"] == found
    assert not machine.decide(ChangeTopic("orders", changes), NOW).records


# --- more partitions


def test_partitions_only_grow(machine: Topics) -> None:
    for total in (3, 2, 0, -4):
        with pytest.raises(InvalidRequest, match="3 partitions and they cannot become fewer; ask for more than 3"):
            do(machine, AddPartitions("orders", total))
    assert do(machine, AddPartitions("orders", 4))[1].partitions == 4
    assert (machine.partitions, machine.by_id[TopicId(1)].partitions) == (4, 4)


def test_partitions_grow_up_to_the_limit(machine: Topics) -> None:
    with pytest.raises(InvalidRequest, match="not 1001"):
        do(machine, AddPartitions("orders", 1001))
    assert do(machine, AddPartitions("orders", 1000))[1].partitions == 1000


# --- deleting


def test_a_deleted_topic_is_gone_but_its_files_are_remembered(machine: Topics) -> None:
    do(machine, AddPartitions("orders", 4))
    do(machine, DeleteTopic("orders"))
    assert (machine.by_name, machine.by_id, machine.partitions) == ({}, {}, 0)
    assert machine.deleted == {1: DeletedTopic(TopicId(1), "orders", 4)}


def test_the_name_of_a_deleted_topic_is_free_at_once(machine: Topics) -> None:
    do(machine, DeleteTopic("orders"))
    do(machine, create("orders", 2, 7))
    assert machine.by_name["orders"].topic_id == 2
    assert list(machine.deleted) == [1]
    do(machine, FinishRemoval(TopicId(1)))
    assert machine.by_name["orders"].topic_id == 2
    assert machine.deleted == {}


def test_a_removal_is_finished_once(machine: Topics) -> None:
    do(machine, DeleteTopic("orders"))
    assert machine.decide(FinishRemoval(TopicId(1)), NOW).records
    do(machine, FinishRemoval(TopicId(1)))
    assert machine.decide(FinishRemoval(TopicId(1)), NOW) == ((), None)


def test_finishing_a_removal_that_was_not_asked_for_writes_nothing(machine: Topics) -> None:
    for topic_id in (1, 99):
        assert machine.decide(FinishRemoval(TopicId(topic_id)), NOW) == ((), None)
    assert "orders" in machine.by_name


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (ChangeTopic("nope", {}), "create it first"),
        (AddPartitions("nope", 9), "create it first"),
        (DeleteTopic("nope"), "list the topics to see which there are"),
    ],
)
def test_a_topic_that_is_not_there_is_refused(command: Any, advice: str, machine: Topics) -> None:
    with pytest.raises(UnknownTopic, match=f"there is no topic 'nope'; {advice}"):
        do(machine, command)


def test_a_long_name_that_is_not_there_is_not_repeated_at_length(machine: Topics) -> None:
    with pytest.raises(UnknownTopic) as caught:
        do(machine, DeleteTopic("x" * 1_000_000))
    assert len(str(caught.value)) < 400


def test_a_topic_deleted_twice_is_not_there_the_second_time(machine: Topics) -> None:
    do(machine, DeleteTopic("orders"))
    with pytest.raises(UnknownTopic):
        do(machine, DeleteTopic("orders"))


# --- records of other versions


@pytest.mark.parametrize(
    "record", [b'{"type":"topic_renamed","topic_id":1}', b'{"type":"topic_removed"}', b"", b"\xff{"]
)
def test_a_record_it_does_not_understand_is_refused_with_its_offset(machine: Topics, record: bytes) -> None:
    with pytest.raises(DamagedData, match=r"offset 77 of the metadata log is not understood .*start the version that"):
        machine.apply(record, 77)


# --- snapshots


def test_a_snapshot_makes_the_same_machine_again(machine: Topics) -> None:
    do(machine, NameCluster("c1"))
    do(machine, create("bills", 2, 1, TopicSettings(retention_hours=None)))
    do(machine, AddPartitions("bills", 9))
    do(machine, ChangeTopic("bills", {"retention_bytes": 5}))
    do(machine, DeleteTopic("orders"))
    do(machine, create("orders", 3, 2))
    other = restored(machine)
    assert state(other) == state(machine)
    assert list(other.snapshot()) == list(machine.snapshot())


def test_a_snapshot_of_nothing_is_empty() -> None:
    assert list(Topics().snapshot()) == []


def test_a_reset_forgets_everything(machine: Topics) -> None:
    do(machine, NameCluster("c1"))
    do(machine, create("bills", 2))
    do(machine, DeleteTopic("orders"))
    machine.reset()
    assert state(machine) == state(Topics())


def test_the_largest_snapshot_fits_into_a_block() -> None:
    """It is appended as one."""
    heaviest = limits.MAX_LANE_WEIGHT
    settings = TopicSettings(
        retention_hours=1234567.891,
        retention_bytes=limits.MAX_OFFSET,
        segment_bytes=limits.MAX_SEGMENT_BYTES,
        visibility_ms=limits.MAX_VISIBILITY_MS,
        max_retries=limits.MAX_RETRIES,
        backoff=Backoff(base_ms=limits.MAX_BACKOFF_MS, factor=1 + 2**-52, max_ms=limits.MAX_BACKOFF_MS),
        dlq_enabled=False,
        message_ttl_ms=limits.MAX_DURATION_MS,
        lane_weights=(heaviest, heaviest, heaviest, heaviest, heaviest),
    )
    longest = topic("t" * limits.MAX_DLQ_NAME, 2**64 - 1, limits.MAX_PARTITIONS_PER_TOPIC, settings)
    machine = Topics()
    machine.by_name[longest.name] = longest
    per_topic = max(len(record) for record in machine.snapshot()) + 100  # with its header and its key
    assert limits.MAX_TOPICS * per_topic < limits.MAX_BLOCK_BYTES / 2, "the other half is for tombstones"


def test_every_command_has_an_event_of_its_own_and_every_refusal_is_one_of_ours(machine: Topics) -> None:
    commands: list[Any] = [
        NameCluster("c"),
        MakeHandleKey("00ff"),
        create("bills", 2),
        ChangeTopic("bills", {"fsync": Fsync.NONE}),
        AddPartitions("bills", 9),
        DeleteTopic("bills"),
        FinishRemoval(TopicId(2)),
    ]
    found = []
    for command in commands:
        (record,) = machine.decide(command, NOW).records
        found.append(type(records.decode(record)))
        machine.apply(record, 0)
    assert set(found) == set(records.Event.__args__)
    with pytest.raises(GoQueueError):
        machine.decide(commands[5], NOW)
