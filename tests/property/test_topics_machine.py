"""Topics, producer ids and named readers over a host: any commands, any order, kills and power cuts at any point.

A model says what every command must lead to. The state at every end of the log is remembered; whatever a crash
leaves of the log, a start must find exactly the state that belongs to the end it found, and nothing that was
told to anybody may be missing.
"""

from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from goqueue.machine.host import Host, Outcome
from goqueue.metadata.readers import DeleteReader, PutReader, Readers, TopicGone
from goqueue.metadata.topics import (
    AddPartitions,
    ChangeTopic,
    CreateTopic,
    DeleteTopic,
    FinishRemoval,
    NameCluster,
    Topics,
)
from goqueue.model import limits
from goqueue.model.errors import (
    Conflict,
    DiskFull,
    GoQueueError,
    InvalidRequest,
    InvalidSetting,
    TopicExists,
    UnknownTopic,
)
from goqueue.model.names import TopicId
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import CleanupPolicy, Topic, TopicSettings
from goqueue.producers.registry import InitProducer, ProducerRegistry
from goqueue.storage.log import Log
from sim.disk import SimDisk

NOW = 1_700_000_000_000
DIRECTORY = "/meta/metadata"

names = st.sampled_from(["a", "b", "c", "a.dlq", "__x", "", "no/name"])
ids = st.integers(1, 12).map(TopicId)
counts = st.sampled_from([1, 2, 3, 7, 1000, 0, 1001])
retentions = st.none() | st.sampled_from([0, 1, 168.5, 10**9])
changes = st.fixed_dictionaries(
    {},
    optional={
        "retention_hours": retentions,
        "retention_bytes": st.none() | st.integers(0, 10**6),
        "cleanup_policy": st.sampled_from(CleanupPolicy),
        "fsync": st.sampled_from(Fsync),
        "segment_bytes": st.sampled_from([4096, 10**6, 1]),
        "max_message_bytes": st.sampled_from([1, 1000, 0]),
    },
)
places = st.dictionaries(
    ids, st.dictionaries(st.integers(0, 2), st.integers(0, 9), min_size=1, max_size=2), min_size=1, max_size=3
)
State = tuple[object, ...]


def state_of(topics: Topics, readers: Readers) -> State:
    return (
        dict(readers.by_name),
        readers.size,
        topics.cluster_id,
        dict(topics.by_name),
        dict(topics.by_id),
        dict(topics.deleted),
        topics.partitions,
    )


class MetadataMachine(RuleBasedStateMachine):
    """`topics` is under test; `used` are all ids that were ever created, so that the model never reuses one."""

    @initialize(seed=st.integers(0, 2**32))
    def create(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimDisk(Random(seed + 1))
        self.disk.make_directory("/meta")
        self.history: dict[int, State] = {}
        self.life = 0
        self.told_ids: set[int] = set()
        self.waiting: list[tuple[int, Outcome]] = []
        self.start()
        self.remember()

    def start(self) -> None:
        self.topics, self.registry, self.readers = Topics(), ProducerRegistry(), Readers()
        log = Log.open(DIRECTORY, disk=self.disk, settings=LogSettings(fsync=Fsync.EVERY, segment_bytes=4096))
        self.found_end = log.end_offset
        self.host = Host(log, [self.topics, self.registry, self.readers])
        self.registry.begin_life()

    def state(self) -> State:
        return state_of(self.topics, self.readers)

    def remember(self) -> None:
        self.history[self.host.log.end_offset] = self.state()

    # --- commands

    def submit(self, command: Any) -> Outcome:
        before, snapshot = self.state(), list(self.topics.snapshot())
        end = self.host.log.end_offset
        outcome = self.host.submit(self.topics, command, NOW)
        assert outcome.position == self.host.log.end_offset
        if outcome.refusal is not None or self.host.log.end_offset == end:
            assert self.state() == before, "a refusal or a look changes nothing"
            assert list(self.topics.snapshot()) == snapshot
        self.remember()
        return outcome

    def refused(self, outcome: Outcome, *kinds: type[GoQueueError]) -> None:
        assert isinstance(outcome.refusal, kinds), outcome

    @rule(name=names, topic_id=ids, partitions=counts, changed=changes)
    def create_topic(self, name: str, topic_id: TopicId, partitions: int, changed: dict[str, Any]) -> None:
        wanted = TopicSettings(**changed)
        known = set(self.topics.by_id) | set(self.topics.deleted)
        taken, total = name in self.topics.by_name, self.topics.partitions
        outcome = self.submit(CreateTopic(name, topic_id, partitions, wanted))
        if outcome.refusal is None:
            assert not taken
            assert topic_id not in known
            assert outcome.reply == Topic(
                name=name, topic_id=topic_id, partitions=partitions, settings=wanted, created_ms=NOW
            )
            assert self.topics.by_name[name] == outcome.reply
            assert self.topics.partitions == total + partitions
            return
        self.refused(outcome, TopicExists, Conflict, InvalidRequest)
        if isinstance(outcome.refusal, TopicExists):
            assert taken
        elif isinstance(outcome.refusal, Conflict):
            assert topic_id in known
        elif not isinstance(outcome.refusal, InvalidSetting):
            assert name in ("__x", "", "no/name") or not 1 <= partitions <= limits.MAX_PARTITIONS_PER_TOPIC

    @rule(name=names, changed=changes)
    def change_topic(self, name: str, changed: dict[str, Any]) -> None:
        before = self.topics.by_name.get(name)
        outcome = self.submit(ChangeTopic(name, changed))
        if before is None:
            self.refused(outcome, UnknownTopic)
        elif outcome.refusal is not None:
            self.refused(outcome, InvalidSetting)
        else:
            after = self.topics.by_name[name]
            assert after == outcome.reply
            for field in TopicSettings.__struct_fields__:
                assert getattr(after.settings, field) == changed.get(field, getattr(before.settings, field))
            assert (after.topic_id, after.partitions, after.created_ms) == (
                before.topic_id,
                before.partitions,
                before.created_ms,
            )

    @rule(name=names, total=counts)
    def add_partitions(self, name: str, total: int) -> None:
        before = self.topics.by_name.get(name)
        outcome = self.submit(AddPartitions(name, total))
        if before is None:
            self.refused(outcome, UnknownTopic)
        elif total <= before.partitions or total > limits.MAX_PARTITIONS_PER_TOPIC:
            self.refused(outcome, InvalidRequest)
        else:
            assert outcome.reply == (before, self.topics.by_name[name])
            assert self.topics.by_name[name].partitions == total

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        before = self.topics.by_name.get(name)
        outcome = self.submit(DeleteTopic(name))
        if before is None:
            self.refused(outcome, UnknownTopic)
        else:
            assert name not in self.topics.by_name
            assert before.topic_id not in self.topics.by_id
            gone = self.topics.deleted[before.topic_id]
            assert (gone.name, gone.partitions) == (name, before.partitions)

    @rule(topic_id=ids)
    def finish_removal(self, topic_id: TopicId) -> None:
        living = dict(self.topics.by_id)
        assert self.submit(FinishRemoval(topic_id)).refusal is None
        assert topic_id not in self.topics.deleted
        assert self.topics.by_id == living, "a removal never touches a living topic"

    @rule(name=st.sampled_from(["one", "two"]))
    def name_cluster(self, name: str) -> None:
        known = self.topics.cluster_id
        assert self.submit(NameCluster(name)).reply == (known or name)

    @rule()
    def init_producer(self) -> None:
        outcome = self.host.submit(self.registry, InitProducer(), NOW)
        self.waiting.append((outcome.reply, outcome))
        self.remember()
        self.tell()

    @rule(name=st.sampled_from(["nightly", "daily"]), offsets=places, if_absent=st.booleans())
    def put_reader(self, name: str, offsets: dict[TopicId, dict[int, int]], if_absent: bool) -> None:
        before = self.readers.by_name.get(name)
        kept = {} if before is None or not if_absent else before.offsets
        wanted = {
            (topic_id, number): at
            for found in (offsets, kept)
            for topic_id, numbers in found.items()
            for number, at in numbers.items()
        }
        outcome = self.host.submit(self.readers, PutReader(name=name, offsets=offsets, if_absent=if_absent), NOW)
        assert outcome.reply == (self.readers.by_name[name], before is None)
        found = self.readers.by_name[name].offsets
        assert {(topic_id, number): at for topic_id in found for number, at in found[topic_id].items()} == wanted
        self.remember()

    @rule(name=st.sampled_from(["nightly", "daily"]))
    def delete_reader(self, name: str) -> None:
        known = self.readers.by_name.get(name)
        outcome = self.host.submit(self.readers, DeleteReader(name), NOW)
        assert outcome.reply == known
        assert (outcome.refusal is None) == (known is not None)
        self.remember()

    @rule(topic_id=ids)
    def readers_leave_a_topic(self, topic_id: TopicId) -> None:
        names = set(self.readers.by_name)
        self.host.submit(self.readers, TopicGone(topic_id), NOW)
        assert topic_id not in self.readers.topic_ids
        assert set(self.readers.by_name) == names
        self.remember()

    def tell(self) -> None:
        for producer_id, outcome in self.waiting:
            if outcome.position <= self.host.log.durable.value:
                assert producer_id not in self.told_ids
                self.told_ids.add(producer_id)
        self.waiting = [entry for entry in self.waiting if entry[1].position > self.host.log.durable.value]

    # --- what happens around them

    @rule()
    def sync(self) -> None:
        self.host.log.sync()
        self.tell()

    @rule()
    def snapshot(self) -> None:
        before = self.state()
        end = self.host.snapshot(NOW)
        assert end == self.host.log.end_offset
        assert self.state() == before
        self.remember()

    @rule()
    def forget(self) -> None:
        self.sync()
        self.host.forget()
        assert self.state() == self.history[self.host.log.end_offset]

    @rule(name=names, topic_id=ids)
    def full_disk(self, name: str, topic_id: TopicId) -> None:
        before, end = self.state(), self.host.log.end_offset
        self.disk.capacity = 0
        try:
            outcome = self.host.submit(self.topics, CreateTopic(name, topic_id, 1, TopicSettings()), NOW)
            assert outcome.refusal is not None
        except DiskFull:
            pass
        finally:
            self.disk.capacity = None
        assert (self.state(), self.host.log.end_offset) == (before, end)

    @rule(kind=st.sampled_from(["close", "kill", "power", "power"]))
    def restart(self, kind: str) -> None:
        durable, end = self.host.log.durable.value, self.host.log.end_offset
        if kind == "close":
            self.host.log.close()
            durable = end
        elif kind == "kill":
            self.disk.crash(self.rng, "kill")
            durable = end
        else:
            self.disk.crash(self.rng, "power")
        self.waiting.clear()
        self.start()
        assert durable <= self.found_end <= end
        at = max(position for position in self.history if position <= self.found_end)
        assert self.state() == self.history[at], f"the log ends at {self.found_end}"
        self.history = {position: state for position, state in self.history.items() if position <= at}
        self.remember()

    @rule(topic_id=ids)
    def tear_a_snapshot(self, topic_id: TopicId) -> None:
        """The power goes while one is written; what is told in the next life must be there in the one after it."""
        self.sync()
        self.snapshot()
        self.restart("power")
        self.submit(CreateTopic(f"after.{topic_id}", topic_id, 1, TopicSettings()))
        self.sync()
        self.restart("kill")

    # --- what holds at any time

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "topics"):
            return
        topics = self.topics
        assert {topic.topic_id: topic for topic in topics.by_name.values()} == topics.by_id
        assert all(name == topic.name for name, topic in topics.by_name.items())
        assert all(topic_id == gone.topic_id for topic_id, gone in topics.deleted.items())
        assert not topics.by_id.keys() & topics.deleted.keys()
        assert topics.partitions == sum(topic.partitions for topic in topics.by_id.values())

    @invariant()
    def a_snapshot_would_make_it_again(self) -> None:
        if not hasattr(self, "topics"):
            return
        other, others = Topics(), Readers()
        for record in self.topics.snapshot():
            other.apply(record, 0)
        for record in self.readers.snapshot():
            others.apply(record, 0)
        assert state_of(other, others) == self.state()

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.restart("power")
            self.restart("kill")


MetadataMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_metadata_is_what_its_records_add_up_to = MetadataMachine.TestCase
