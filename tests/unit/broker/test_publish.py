"""Publishing a block: what is refused and why, where it goes, and when the answer may go out."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from pyroaring import BitMap64

from goqueue import codec
from goqueue.broker.partition import Partition
from goqueue.broker.publish import Publisher, Receipt
from goqueue.broker.topic import OpenTopic
from goqueue.broker.waiting import GONE
from goqueue.codec.layout import CRC_AT, PRIORITY_AT
from goqueue.model import limits
from goqueue.model.errors import (
    DiskFull,
    GoQueueError,
    InvalidRecord,
    InvalidRequest,
    OutOfSequence,
    ProducerFenced,
    StorageFailed,
    TooLarge,
    TransactionAborted,
    Unavailable,
    UnknownPartition,
    UnknownProducer,
)
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import Fsync
from goqueue.model.topic import TopicSettings
from goqueue.producers.registry import InitProducer, ProducerRegistry
from goqueue.storage.store import sidecar_name
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import run, turns
from tests.unit.broker.brokers import T0, Clock, Parts, block, messages, parts, values

ME = Producer(1, 0, 0)


class Permits:
    """Stands in for the transactions: producers are good, and those that are `open` may be published in."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.fenced: set[int] = set()
        self.taking_part: list[tuple[int, int]] = []

    def check_producer(self, producer: Producer) -> None:
        if producer.producer_epoch in self.fenced:
            raise ProducerFenced("it was replaced")

    def check_block(self, number: int, producer: Producer) -> None:
        if number not in self.open:
            raise TransactionAborted(f"{number} has ended")

    def take_part(self, number: int, partition: Partition) -> None:
        self.taking_part.append((number, partition.number))


class Publishing:
    """A publisher and a topic with three partitions. Producer 1 is known."""

    def __init__(self, rig: Parts, topic: OpenTopic) -> None:
        self.rig = rig
        self.topic = topic
        self.clock = Clock()
        registry = ProducerRegistry()
        registry.apply(registry.decide(InitProducer(), T0).records[0], 0)
        self.refusals: list[DiskFull] = []
        self.has_room = True
        self.permits = Permits()
        self.publisher = Publisher(
            registry,
            self.permits,
            self.clock,
            self.clock,
            rig.failures.append,
            self.refusals.append,
            has_room=lambda: self.has_room,
        )

    def publish(
        self,
        data: memoryview,
        partition: int = 0,
        *,
        acks: Acks = Acks.LEADER,
        producer: Producer | None = None,
        transaction: int | None = None,
    ) -> Receipt:
        return self.publisher.publish(
            self.topic, partition, data, acks=acks, producer=producer, transaction=transaction
        )

    def values(self, partition: int = 0) -> list[str]:
        return values(self.topic.partition(partition))


Scenario = Callable[[Publishing], None]


def publishing(path: Path, scenario: Scenario, settings: TopicSettings | None = None) -> None:
    async def go() -> None:
        async with parts(path) as rig:
            scenario(Publishing(rig, await rig.create("orders", 3, settings or TopicSettings())))

    run(go())


# --- what goes through


def test_messages_get_offsets_and_the_time_of_the_clock(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        receipt = to.publish(messages("a", "b"))
        assert receipt.placed == ((2, 0, T0, False),)
        to.clock.now += 5
        assert to.publish(messages("c")).placed == ((1, 2, T0 + 5, False),)
        assert to.publish(messages("d"), 2).placed == ((1, 0, T0 + 5, False),)
        assert (to.values(0), to.values(1), to.values(2)) == (["a", "b", "c"], [], ["d"])

    publishing(tmp_path, scenario)


def test_what_was_published_is_counted(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        data = messages("a", "b", producer=ME)
        to.publish(memoryview(bytearray(data)), producer=ME)
        to.publish(memoryview(bytearray(data)), producer=ME)
        meters = to.topic.meters
        assert (meters.messages_produced, meters.duplicates, meters.bytes_produced) == (2, 2, len(data))
        assert to.topic.partition(0).append_latency.count == 2

    publishing(tmp_path, scenario)


def test_what_is_refused_is_not_counted_as_produced(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        for data in (memoryview(b""), memoryview(b"nonsense" * 10)):
            with pytest.raises(InvalidRequest):
                to.publish(memoryview(bytearray(data)))
        assert to.topic.meters.messages_produced == 0

    publishing(tmp_path, scenario)


def test_event_times_headers_keys_and_lanes_are_the_clients_own(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        sent = Record(
            key=b"k", value=None, priority=0, headers=(("a", b"b"), ("a", b"c")), extension=Extension(event_time=7)
        )
        to.publish(block(sent))
        (found,) = to.topic.partition(0).log.records(0, max_bytes=1000)
        assert (found.key, found.value, found.priority, found.headers) == (b"k", None, 0, (("a", b"b"), ("a", b"c")))
        assert found.extension == Extension(event_time=7)

    publishing(tmp_path, scenario)


# --- what is refused


def test_a_partition_that_is_not_there_is_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        for number in (3, -1, 10**6):
            with pytest.raises(UnknownPartition, match=rf"orders has no partition {number}; it has 3, counted from 0"):
                to.publish(messages("a"), number)

    publishing(tmp_path, scenario)


def test_a_partition_that_could_not_be_opened_says_why(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.topic.slots[1] = DiskFull("no space")
        with pytest.raises(DiskFull, match="no space"):
            to.publish(messages("a"), 1)
        to.publish(messages("a"), 2)

    publishing(tmp_path, scenario)


def test_a_block_without_messages_is_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        with pytest.raises(InvalidRequest, match="no message in this request; send at least one"):
            to.publish(memoryview(bytearray()))

    publishing(tmp_path, scenario)


def test_bytes_that_are_no_records_are_refused_and_the_first_is_named(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        good = bytes(messages("a"))
        for bad in (b"x", b"GQ", good[:-1], b"\0" * 100):
            with pytest.raises(InvalidRecord) as caught:
                to.publish(memoryview(bytearray(good + good + bad)))
            assert (caught.value.index, caught.value.position) == (2, 2 * len(good))
            assert caught.value.details["index"] == 2
        assert to.values() == []

    publishing(tmp_path, scenario)


def test_a_record_with_a_wrong_checksum_is_refused_whole(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        data = bytearray(messages("a", "b", "c"))
        second = codec.scan(bytes(data)).positions[1]
        data[second + CRC_AT] ^= 1
        with pytest.raises(InvalidRecord, match=r"record 1 of the block .*its checksum does not match"):
            to.publish(memoryview(data))
        assert to.values() == []

    publishing(tmp_path, scenario)


def test_a_lane_that_is_not_there_is_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        data = bytearray(messages("a"))
        data[PRIORITY_AT] = 5
        with pytest.raises(InvalidRecord, match="its priority is not 0 to 4"):
            to.publish(memoryview(data))

    publishing(tmp_path, scenario)


def test_a_message_larger_than_the_topic_allows_is_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(block(Record(key=b"k" * 50, value=b"v" * 50)))
        with pytest.raises(TooLarge, match="a message has 101 bytes in key, value and headers; orders allows 100"):
            to.publish(block(Record(value=b"x"), Record(key=b"k" * 50, value=b"v" * 51)))
        with pytest.raises(TooLarge):
            to.publish(block(Record(value=b"v" * 80, headers=(("h", b"v" * 20),))))
        assert to.topic.partition(0).log.end_offset == 1

    publishing(tmp_path, scenario, TopicSettings(max_message_bytes=100))


def test_a_message_with_more_headers_than_it_may_have_is_refused_by_its_index(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        many = tuple([("h", b"v")] * limits.MAX_HEADERS)
        for index, records in enumerate(([], [Record(value=b"a")], [Record(value=b"a"), Record(headers=many)])):
            with pytest.raises(TooLarge, match="a message has 1001 headers; it may have 1000") as refused:
                to.publish(block(*records, Record(value=b"x", headers=(*many, ("one", b"more")))))
            assert refused.value.index == index
        assert to.values() == []
        to.publish(block(Record(value=b"x", headers=many)))
        assert to.values() == ["x"]

    publishing(tmp_path, scenario)


def test_the_message_that_is_too_large_is_named_by_its_index(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        with pytest.raises(TooLarge) as caught:
            to.publish(messages("a", "b", "x" * 101, "c", "x" * 102))
        assert caught.value.details == {"index": 2}

    publishing(tmp_path, scenario, TopicSettings(max_message_bytes=100))


def test_a_good_message_is_never_named_as_the_bad_one(tmp_path: Path) -> None:
    """A client leaves out the one that is named and sends the rest again: there may be two kinds of bad ones."""

    def scenario(to: Publishing) -> None:
        data = bytearray(messages("a", "b", "c", "x" * 101))
        second = codec.scan(bytes(data)).positions[1]
        data[second + CRC_AT] ^= 1
        with pytest.raises(InvalidRequest) as caught:
            to.publish(memoryview(data))
        assert caught.value.details["index"] in (1, 3)

    publishing(tmp_path, scenario, TopicSettings(max_message_bytes=100))


def test_the_extension_does_not_count_for_the_size_of_a_message(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(block(Record(value=b"v" * 10, extension=Extension(event_time=1, producer=ME))), producer=ME)

    publishing(tmp_path, scenario, TopicSettings(max_message_bytes=10))


def test_a_control_record_is_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        for commit in (False, True):
            with pytest.raises(InvalidRequest, match="control records are the broker's own"):
                to.publish(block(Record(value=b"a"), Record(key=b"k", control=True, commit=commit)))

    publishing(tmp_path, scenario)


# --- transactions


def in_transaction(*numbers: int | None, producer: Producer | None = None) -> memoryview:
    """A message for each number."""
    return block(
        *(Record(value=b"a", extension=Extension(transaction=number, producer=producer)) for number in numbers)
    )


def test_messages_of_an_open_transaction_belong_to_it(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.permits.open = {7}
        to.publish(in_transaction(7, 7, producer=ME), 1, producer=ME)
        to.publish(in_transaction(8), 2, transaction=8)
        assert to.permits.taking_part == [(7, 1), (8, 2)]
        assert [to.topic.partition(number).transactions.open for number in range(3)] == [[], [7], [8]]
        assert list(to.topic.partition(1).transactions.uncommitted) == [0, 1]

    publishing(tmp_path, scenario)


def test_what_comes_again_belongs_to_it_once(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.permits.open = {7}
        for _ in range(2):
            to.publish(in_transaction(7, 7, producer=ME), producer=ME)
        to.publish(in_transaction(7, 7, 7, producer=ME), producer=ME)
        assert to.topic.partition(0).transactions.count(7) == 3

    publishing(tmp_path, scenario)


def test_one_that_has_ended_is_refused_and_so_is_a_producer_that_was_replaced(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        with pytest.raises(TransactionAborted):
            to.publish(in_transaction(7, producer=ME), producer=ME)
        to.permits.fenced = {0}
        with pytest.raises(ProducerFenced):
            to.publish(messages("a", producer=ME), producer=ME)
        assert to.values() == []
        assert to.permits.taking_part == []

    publishing(tmp_path, scenario)


@pytest.mark.parametrize(
    ("numbers", "producer", "transaction", "said"),
    [
        ((7,), None, None, "names no producer"),
        ((7, 8), ME, None, "belong to one transaction"),
        ((7, None), ME, None, "belong to one transaction"),
        ((7, None), None, 7, "belong to one transaction"),
        ((8,), None, 7, "another transaction than the request"),
    ],
)
def test_messages_belong_to_one_transaction_which_somebody_has_permitted(
    tmp_path: Path, numbers: tuple[int | None, ...], producer: Producer | None, transaction: int | None, said: str
) -> None:
    def scenario(to: Publishing) -> None:
        to.permits.open = {7, 8}
        with pytest.raises(InvalidRequest, match=said):
            to.publish(in_transaction(*numbers, producer=producer), producer=producer, transaction=transaction)
        assert to.values() == []

    publishing(tmp_path, scenario)


# --- delays


def delayed(*times: int | None) -> memoryview:
    """A message for each time; below zero it is from when it is appended, None is at once."""
    return block(
        *(Record(value=b"a", extension=None if time is None else Extension(deliver_at=time)) for time in times)
    )


def test_delayed_messages_are_pending_from_when_they_are_appended(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        told: list[Partition] = []
        to.publisher.on_delayed = told.append
        to.publish(delayed(None, None))
        assert told == []
        to.publish(delayed(-5000, None, T0 + 1, T0, T0 - 1, 0))
        partition = to.topic.partition(0)
        assert told == [partition], "whoever rings for it hears of it"
        assert list(partition.delays.pending) == [2, 4], "those whose time has not come"
        (first, *_) = partition.log.records(2, max_bytes=1)
        assert first.extension == Extension(deliver_at=T0 + 5000), "a delay is stamped as a time"
        assert partition.delays.fire(wall=T0 + 100, now=T0 + 100, limit=10) == BitMap64([4])

    publishing(tmp_path, scenario)


def test_a_delayed_message_that_is_sent_again_is_not_pending_twice(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        def sent() -> memoryview:
            one = Record(value=b"a", extension=Extension(producer=ME, deliver_at=-5000))
            return block(one, one)

        to.publish(sent(), producer=ME)
        to.clock.now += 1000
        assert [placed.duplicate for placed in to.publish(sent(), producer=ME).placed] == [True]
        delays = to.topic.partition(0).delays
        assert list(delays.pending) == [0, 1]
        assert not delays.fire(wall=T0 + 4999, now=T0 + 4999, limit=10)
        assert list(delays.fire(wall=T0 + 5010, now=T0 + 5010, limit=10)) == [0, 1], "as it was said first"

    publishing(tmp_path, scenario)


def test_of_a_block_that_is_there_in_part_only_the_rest_is_pending(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        one = Record(value=b"a", extension=Extension(producer=ME, deliver_at=-5000))
        to.publish(block(one), producer=ME)
        delays = to.topic.partition(0).delays
        delays.fire(wall=T0 + 5000, now=T0 + 5000, limit=10)
        placed = to.publish(block(one, one, one), producer=ME).placed
        assert [each[0] for each in placed] == [1, 2]
        assert list(delays.pending) == [1, 2]

    publishing(tmp_path, scenario)


def test_a_time_to_live_counts_from_when_the_message_can_be_delivered(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(block(
            Record(value=b"a", extension=Extension(expires_at=-1000)),
            Record(value=b"a", extension=Extension(expires_at=-1000, deliver_at=-5000)),
            Record(value=b"a", extension=Extension(expires_at=-1000, deliver_at=T0 - 5000)),
            Record(value=b"a", extension=Extension(expires_at=T0 + 7)),
        ))  # fmt: skip
        found = [
            record.extension.expires_at
            for record in to.topic.partition(0).log.records(0, max_bytes=10**6)
            if record.extension
        ]
        assert found == [T0 + 1000, T0 + 6000, T0 + 1000, T0 + 7]

    publishing(tmp_path, scenario)


def test_a_blob_is_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        with pytest.raises(InvalidRequest, match="a blob, which only the broker writes"):
            to.publish(block(Record(value=b"a", extension=Extension(blob=b"x"))))

    publishing(tmp_path, scenario)


def test_extension_fields_nobody_knows_are_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        data = bytearray(block(Record(value=b"a", extension=Extension(event_time=1))))
        mask = codec.layout.HEADER_BYTES + 2
        data[mask : mask + 2] = (1 << 9).to_bytes(2, "big")  # the same eight bytes under another bit
        data[CRC_AT : CRC_AT + 4] = codec.crc32c(bytes(data[:CRC_AT] + data[CRC_AT + 4 :])).to_bytes(4, "big")
        with pytest.raises(InvalidRequest, match="extension fields this broker does not know"):
            to.publish(memoryview(data))

    publishing(tmp_path, scenario)


def test_producer_fields_without_a_producer_are_refused(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        with pytest.raises(InvalidRequest, match="carry producer fields but the request names no producer"):
            to.publish(messages("a", producer=ME))

    publishing(tmp_path, scenario)


def test_messages_without_producer_fields_are_refused_when_the_request_names_a_producer(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        data = bytes(messages("a", producer=ME)) + bytes(messages("b"))
        with pytest.raises(InvalidRecord, match=r"record 1 of the block .*it has no producer fields to stamp"):
            to.publish(memoryview(bytearray(data)), producer=ME)
        assert to.values() == []

    publishing(tmp_path, scenario)


@pytest.mark.parametrize("producer_id", [0, -1, 2, 999, 2**62])
def test_an_id_that_was_never_given_out_is_refused(tmp_path: Path, producer_id: int) -> None:
    def scenario(to: Publishing) -> None:
        producer = Producer(producer_id, 0, 0)
        with pytest.raises(UnknownProducer, match=f"no producer has the id {producer_id}; initialise one"):
            to.publish(messages("a", producer=producer), producer=producer)

    publishing(tmp_path, scenario)


def test_messages_that_would_keep_others_waiting_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(to: Publishing) -> None:
        monkeypatch.setattr(limits, "APPENDED_AT_ONCE_BYTES", 1000)
        with pytest.raises(
            TooLarge, match="1340 bytes together, and are appended at once; send 1000 at a time, or one"
        ):
            to.publish(block(*[Record(value=b"v" * 100)] * 10))
        with pytest.raises(TooLarge):
            to.publish(block(Record(value=b"v"), Record(value=b"v" * 1000)))
        assert to.values() == []
        to.publish(block(*[Record(value=b"v" * 100)] * 7))
        to.publish(block(Record(value=b"v" * 2000)))
        assert [len(value) for value in to.values()] == [100] * 7 + [2000]

    publishing(tmp_path, scenario)


# --- producers


def test_a_block_that_comes_again_is_answered_with_where_it_is(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(messages("x"))
        first = to.publish(messages("a", "b", producer=ME), producer=ME)
        to.clock.now += 1000
        again = to.publish(messages("a", "b", producer=ME), producer=ME)
        assert first.placed == ((2, 1, T0, False),)
        assert again.placed == ((2, 1, T0, True),)
        assert to.values() == ["x", "a", "b"]

    publishing(tmp_path, scenario)


def test_of_a_block_that_is_there_in_part_the_rest_is_appended(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(messages("a", "b", producer=ME), producer=ME)
        to.publish(messages("x"))
        to.clock.now += 1000
        receipt = to.publish(messages("a", "b", "c", "d", producer=ME), producer=ME)
        assert receipt.placed == ((2, 0, T0, True), (2, 3, T0 + 1000, False))
        assert to.values() == ["a", "b", "x", "c", "d"]
        assert to.publish(messages("e", producer=Producer(1, 0, 4)), producer=Producer(1, 0, 4)).placed[0][1] == 5

    publishing(tmp_path, scenario)


def test_a_gap_is_refused_with_the_sequence_that_was_expected(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(messages("a", producer=ME), producer=ME)
        late = Producer(1, 0, 2)
        with pytest.raises(OutOfSequence) as caught:
            to.publish(messages("c", producer=late), producer=late)
        assert caught.value.expected == 1
        assert to.values() == ["a"]

    publishing(tmp_path, scenario)


def test_a_producer_that_is_not_known_here_begins_at_nought(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        middle = Producer(1, 0, 5)
        with pytest.raises(UnknownProducer):
            to.publish(messages("c", producer=middle), producer=middle)

    publishing(tmp_path, scenario)


def test_an_older_epoch_is_fenced(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        newer = Producer(1, 1, 0)
        to.publish(messages("a", producer=newer), producer=newer)
        with pytest.raises(ProducerFenced):
            to.publish(messages("b", producer=ME), producer=ME)

    publishing(tmp_path, scenario)


def test_each_partition_counts_for_itself(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        for partition in range(3):
            assert not to.publish(messages("a", producer=ME), partition, producer=ME).placed[0].duplicate

    publishing(tmp_path, scenario)


def test_a_refused_block_does_not_use_up_its_sequence(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        with pytest.raises(TooLarge):
            to.publish(messages("x" * 101, producer=ME), producer=ME)
        assert to.publish(messages("a", producer=ME), producer=ME).placed == ((1, 0, T0, False),)

    publishing(tmp_path, scenario, TopicSettings(max_message_bytes=100))


# --- when the answer may go out


@pytest.mark.parametrize("fsync", Fsync)
@pytest.mark.parametrize("acks", Acks)
def test_what_is_promised_follows_acks_and_fsync(tmp_path: Path, fsync: Fsync, acks: Acks) -> None:
    def scenario(to: Publishing) -> None:
        receipt = to.publish(messages("a", "b"), acks=acks)
        waits = acks is Acks.ALL or (acks is Acks.LEADER and fsync is Fsync.EVERY)
        assert receipt.durable_at == (2 if waits else None)
        promised = {Acks.NONE: Durability.NONE, Acks.LEADER: Durability.WRITTEN, Acks.ALL: Durability.DURABLE}
        assert receipt.durability is (Durability.DURABLE if waits else promised[acks])
        assert receipt.acks is acks

    publishing(tmp_path, scenario, TopicSettings(fsync=fsync))


@pytest.mark.parametrize("fsync", Fsync)
def test_acks_all_ends_also_when_nobody_would_sync_for_long(tmp_path: Path, fsync: Fsync) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            to = Publishing(rig, await rig.create("orders", 1, TopicSettings(fsync=fsync)))
            receipt = to.publish(messages("a"), acks=Acks.ALL)
            await receipt.safe()
            assert receipt.log.durable.value >= 1

    run(go())


def test_a_duplicate_is_answered_once_its_first_copy_is_durable(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path) as rig:
            to = Publishing(rig, await rig.create("orders", 1, TopicSettings(fsync=Fsync.NONE)))
            to.publish(messages("a", producer=ME), producer=ME)
            again = to.publish(messages("a", producer=ME), producer=ME, acks=Acks.ALL)
            assert (again.durability, again.durable_at) == (Durability.DURABLE, 1)
            await again.safe()
            assert again.log.durable.value == 1

    run(go())


def test_a_duplicate_behind_newer_messages_does_not_wait_for_those(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(messages("a", producer=ME), producer=ME)
        to.publish(messages("x", "y", "z"))
        assert to.publish(messages("a", producer=ME), producer=ME, acks=Acks.ALL).durable_at == 1

    publishing(tmp_path, scenario)


def test_a_topic_deleted_meanwhile_is_not_answered_as_durable(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            to = Publishing(rig, await rig.create("orders", 1, TopicSettings(fsync=Fsync.NONE)))
            receipt = to.publish(messages("a"))
            waits = Receipt(receipt.placed, Acks.ALL, Durability.DURABLE, receipt.log, 1, T0)
            waiting = asyncio.ensure_future(waits.safe())
            await turns()
            assert not waiting.done()
            await rig.catalogue.delete("orders", T0)
            with pytest.raises(Unavailable, match=GONE):
                await waiting

    run(go())


# --- disks


def test_a_full_disk_refuses_and_the_sequence_is_not_used_up(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            to = Publishing(rig, await rig.create("orders", 1))
            to.publish(messages("a", producer=ME), producer=ME)
            disk.free = 20
            second = Producer(1, 0, 1)
            for _ in range(2):
                with pytest.raises(DiskFull):
                    to.publish(messages("b", producer=second), producer=second)
            assert to.values() == ["a"]
            disk.free = None
            assert to.publish(messages("b", producer=second), producer=second).placed == ((1, 1, T0, False),)
            assert to.values() == ["a", "b"]
            assert rig.failures == []

    run(go())


def test_without_room_nothing_is_appended_and_with_room_publishing_is_back(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.publish(messages("a", producer=ME), producer=ME)
        to.has_room = False
        second = Producer(1, 0, 1)
        with pytest.raises(DiskFull, match="kept for the commits of consumers; free some and try again") as caught:
            to.publish(messages("b", producer=second), producer=second)
        assert to.refusals == [caught.value]
        assert (to.values(), to.topic.meters.messages_produced) == (["a"], 1)
        to.has_room = True
        assert to.publish(messages("b", producer=second), producer=second).placed == ((1, 1, T0, False),)
        assert to.values() == ["a", "b"]

    publishing(tmp_path, scenario)


def test_what_could_never_be_published_is_told_so_also_without_room(tmp_path: Path) -> None:
    def scenario(to: Publishing) -> None:
        to.has_room = False
        with pytest.raises(InvalidRecord):
            to.publish(memoryview(bytearray(b"nonsense" * 10)))
        with pytest.raises(UnknownPartition):
            to.publish(messages("a"), 3)
        assert to.refusals == []

    publishing(tmp_path, scenario)


def test_while_the_reserve_is_spent_publishers_leave_it_to_the_commits(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            topic = await rig.create("orders", 1)
            publisher = Publisher(
                ProducerRegistry(),
                Permits(),
                Clock(),
                Clock(),
                rig.failures.append,
                has_room=lambda: not rig.store.reserve_spent,
            )
            publisher.publish(topic, 0, messages("a"), acks=Acks.LEADER)
            sidecar = rig.store.open_log(sidecar_name(topic.partition(0).log_name))
            disk.free = 0
            rig.store.spending(lambda: sidecar.append(messages("commit"), now=T0))
            left = disk.free
            with pytest.raises(DiskFull):
                publisher.publish(topic, 0, messages("b"), acks=Acks.LEADER)
            assert disk.free == left > 0
            disk.free += 10_000
            assert rig.store.refill_reserve()
            publisher.publish(topic, 0, messages("c"), acks=Acks.LEADER)
            assert values(topic.partition(0)) == ["a", "c"]

    run(go())


def test_a_disk_that_fails_is_reported(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with parts(tmp_path, disk=disk) as rig:
            to = Publishing(rig, await rig.create("orders", 1))
            disk.write_error = errno.EIO
            with pytest.raises(StorageFailed) as caught:
                to.publish(messages("a"))
            disk.write_error = None
            assert rig.failures == [caught.value]

    run(go())


def test_every_refusal_is_one_of_ours(tmp_path: Path) -> None:
    """Bytes of any kind: a client cannot make a publisher raise anything else."""

    def scenario(to: Publishing) -> None:
        good = bytes(block(Record(key=b"k", value=b"v", extension=Extension(event_time=1, producer=ME))))
        for position in range(len(good)):
            for bit in range(8):
                data = bytearray(good)
                data[position] ^= 1 << bit
                for producer in (None, ME):
                    with pytest.raises(GoQueueError):
                        to.publish(memoryview(bytearray(data)), producer=producer)
        assert to.values() == []

    publishing(tmp_path, scenario)
