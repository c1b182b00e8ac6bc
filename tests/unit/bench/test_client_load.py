"""The load through the public client: it must do what it says, and refuse to be a figure when something is not so."""

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from bench import client_grpc
from bench.callers import Refused, WireCaller
from bench.client_load import ClientLoad, Consume, Done, Ends, Enqueue, Follow, Job, Pace, Places, Read, Send, run
from bench.client_pace import TICK_NS, keep_pace
from bench.client_sync import run_sync
from bench.processes import START_TIMEOUT_S, BrokerProcess, Child
from goqueue import Outcome, Receipt, codec
from goqueue.client.messages import ReadBatch
from goqueue.model.errors import Unavailable

PARTITIONS = 3
MESSAGES = 2000

pytestmark = pytest.mark.skipif(not codec.COMPILED, reason="the bench is not for the Python reference")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(str(tmp_path_factory.mktemp("broker"))) as process:
        yield process


_numbers = count()


def create(address: str) -> str:
    """A new topic."""
    name = f"topic-{next(_numbers)}"
    caller = WireCaller(address)
    caller.ask("create_topic", name=name, num_partitions=PARTITIONS)
    caller.close()
    return name


def do(job: Job) -> Done:
    return asyncio.run(run(job))


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> str:
    topic = create(broker.wire)
    do(Enqueue(address=broker.wire, topic=topic, messages=MESSAGES))
    return topic


# --- publishing


def test_what_is_enqueued_is_in_the_yardsticks_files_each_once(tmp_path: Path) -> None:
    with Child(["-m", "bench.yardstick", str(tmp_path)], name="yardstick", log=str(tmp_path / "log")) as yardstick:
        address = yardstick.hear(START_TIMEOUT_S).decode()
        topic = create(address)
        done = do(Enqueue(address=address, topic=topic, messages=MESSAGES))
    assert done.messages == MESSAGES
    found = [codec.decode((tmp_path / f"{topic}-{number}").read_bytes()) for number in range(PARTITIONS)]
    assert all(found), "some partition has nothing"
    assert len({record.value for records in found for record in records}) == MESSAGES
    assert sum(map(len, found)) == MESSAGES


def test_what_is_enqueued_to_the_broker_can_be_read(broker: BrokerProcess, filled: str) -> None:
    for objects in (False, True):
        job = Read(address=broker.wire, topic=filled, messages=MESSAGES, objects=objects)
        assert do(job).messages == run_sync(job).messages == MESSAGES


def test_messages_that_are_awaited_are_timed_each(broker: BrokerProcess) -> None:
    job = Send(address=broker.wire, topic=create(broker.wire), messages=100, in_flight=4)
    done = do(job)
    assert (done.messages, done.samples) == (100, 100)
    assert 0 < done.p50_ms <= done.p99_ms


def test_the_client_without_a_loop_does_the_same(broker: BrokerProcess) -> None:
    topics = [create(broker.wire) for _ in range(2)]
    assert run_sync(Enqueue(address=broker.wire, topic=topics[0], messages=MESSAGES)).messages == MESSAGES
    assert run_sync(Send(address=broker.wire, topic=topics[1], messages=40, in_flight=4)).samples == 40


def test_a_topic_that_was_not_empty_is_no_figure(broker: BrokerProcess) -> None:
    topic = create(broker.wire)
    do(Enqueue(address=broker.wire, topic=topic, messages=10))
    with pytest.raises(Refused, match="10 of 10 were answered, "):
        do(Enqueue(address=broker.wire, topic=topic, messages=10))


def test_a_read_that_finds_less_is_no_figure(broker: BrokerProcess, filled: str) -> None:
    with pytest.raises(Refused, match=f"{MESSAGES} of {MESSAGES + 1} messages were read"):
        do(Read(address=broker.wire, topic=filled, messages=MESSAGES + 1))


def test_answers_that_fail_lack_or_repeat_something_are_no_figure() -> None:
    whole = Outcome("t", 0, 10, 0, None)
    for bad in (whole._replace(error=Unavailable("gone")), whole._replace(messages=9), whole._replace(first_offset=10)):
        ends = Ends()
        ends.on_batch(bad)
        with pytest.raises(Refused, match="of 10 were answered"):
            ends.check(10)
    ends = Ends()
    ends.on_receipt(Receipt("t", 0, 0, 0, "written", duplicate=True))
    with pytest.raises(Refused, match="duplicate=True"):
        ends.check(1)


def test_a_batch_that_does_not_go_on_where_the_last_ended_is_no_figure() -> None:
    places = Places()
    places.see(ReadBatch("t", 0, memoryview(b""), 5, 5), 5)
    with pytest.raises(Refused, match="5 messages of partition 0 from 5 to 11"):
        places.see(ReadBatch("t", 0, memoryview(b""), 5, 11), 5)


# --- consuming


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("each", "wait", "messages"), [(False, False, MESSAGES), (True, False, 700), (False, True, 900)]
)
def test_what_is_consumed_is_settled(
    broker: BrokerProcess, filled: str, each: bool, wait: bool, messages: int, sync: bool
) -> None:
    job = Consume(
        address=broker.wire, topic=filled, group=f"group-{next(_numbers)}", messages=messages, total=MESSAGES,
        each=each, wait=wait,
    )  # fmt: skip
    assert (run_sync(job) if sync else do(job)).messages == messages


def test_a_lag_that_is_not_what_it_should_be_is_no_figure(broker: BrokerProcess, filled: str) -> None:
    group = f"group-{next(_numbers)}"
    with pytest.raises(Refused, match=f"the lag is {MESSAGES - 100} of {MESSAGES + 1}"):
        do(Consume(address=broker.wire, topic=filled, group=group, messages=100, total=MESSAGES + 1))


@pytest.mark.parametrize("each", [False, True])
def test_a_consumer_sees_every_message_of_a_publisher_that_keeps_its_pace(
    broker: BrokerProcess, tmp_path: Path, each: bool
) -> None:
    topic = create(broker.wire)
    pace = Pace(address=broker.wire, topic=topic, partitions=PARTITIONS, per_s=2000, seconds=0.2, warm_s=0.1)
    assert pace.messages == 400
    follow = Follow(address=broker.wire, topic=topic, group=topic, messages=400, warm_s=0.1, each=each)
    with ClientLoad(str(tmp_path), "consumer") as consumer:
        consumer.begin(follow)
        published = do(pace)
        consumed = consumer.finish()
    assert (published.messages, published.samples) == (400, 200)
    assert (consumed.messages, consumed.samples) == (400, 200)
    assert 0 < published.p50_ms <= published.p99_ms
    assert 0 < consumed.p50_ms <= consumed.p99_ms


# --- the pace


def test_work_is_done_once_for_every_tick_and_told_when_it_was_planned() -> None:
    planned: list[int] = []
    asyncio.run(keep_pace(20, planned.append))
    assert planned == list(range(planned[0], planned[0] + 20 * TICK_NS, TICK_NS))


def test_ticks_that_were_missed_are_made_up_for_with_the_times_they_had() -> None:
    planned: list[int] = []

    def work(due: int) -> None:
        planned.append(due)
        if len(planned) == 2:
            threading.Event().wait(0.02)

    asyncio.run(keep_pace(30, work))
    assert planned == list(range(planned[0], planned[0] + 30 * TICK_NS, TICK_NS))


def test_work_that_fails_ends_the_pace() -> None:
    def work(due: int) -> None:
        raise Refused("no more")

    with pytest.raises(Refused, match="no more"):
        asyncio.run(keep_pace(20, work))


# --- gRPC


@pytest.mark.parametrize("as_blocks", [False, True])
def test_frames_of_a_stream_are_there_once(broker: BrokerProcess, tmp_path: Path, as_blocks: bool) -> None:
    topic = create(broker.wire)
    with client_grpc.GrpcLoad(str(tmp_path)) as client:
        done = client.do(client_grpc.Stream(address=broker.grpc, topic=topic, frames=4, as_blocks=as_blocks))
        assert done.messages == 4 * client_grpc.FRAME_MESSAGES
        if not as_blocks:
            assert (
                client.do(client_grpc.Single(address=broker.grpc, topic=create(broker.wire), messages=50)).samples == 50
            )
    assert do(Read(address=broker.wire, topic=topic, messages=done.messages)).messages == done.messages
