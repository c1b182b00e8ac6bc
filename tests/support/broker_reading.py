"""Reading a topic back by every path a broker has, and demanding that all of them say the same.

Over the wire in large and small blocks, over HTTP by partition, by time, by topic; with the broker stopped, from its
files and with `goqueue log cat`. `Reading` has the messages of every partition, from offset 0 on.
"""

import asyncio
import itertools
import json
import random
import subprocess
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from goqueue import codec
from goqueue.client.connection import Connection
from goqueue.io.disk import LocalDisk
from goqueue.model.limits import KIB, MAX_READ_COUNT, MAX_READ_MESSAGES, MIB
from goqueue.model.names import TopicId
from goqueue.model.record import Record
from goqueue.model.times import parse_time
from goqueue.storage.offline import OfflineLog
from goqueue.storage.store import log_directory, log_name
from goqueue.storage.verify import Severity, verify
from goqueue.storage.walk import Run
from tests.support.broker import GOQUEUE, HttpClient
from tests.support.broker_ledger import PARTITIONS, Message
from tests.support.patience import PATIENCE_S

Reading = list[list[Message]]

_TIMESTAMP: Final = attrgetter("timestamp")
_STEPS: Final = ((32 * KIB, MAX_READ_COUNT), (MIB, 333))
"""Most bytes and most records of a fetch, beside the largest steps there are."""
_SAMPLES: Final = 25
_LONGEST_WAIT_MS: Final = 30_000


def to_message(record: Record) -> Message:
    return Message(
        record.offset,
        record.timestamp,
        None if record.key is None else record.key.decode(),
        None if record.value is None else record.value.decode(),
    )


# --- over the wire


async def fetch_records(
    connection: Connection, topic_id: int, partition: int, *, max_bytes: int = 8 * MIB, max_count: int = MAX_READ_COUNT
) -> list[Record]:
    """From offset 0 to the end."""
    found: list[Record] = []
    offset = 0
    while True:
        fetched = await connection.fetch_block(topic_id, partition, offset, max_bytes=max_bytes, max_count=max_count)
        if not fetched.records:
            assert offset == fetched.next_offset == fetched.latest, f"partition {partition} at {offset}: {fetched}"
            return found
        records = codec.decode(fetched.block)
        assert len(records) == fetched.records <= max_count, f"partition {partition} at {offset}: {fetched}"
        assert len(fetched.block) <= max_bytes or len(records) == 1, f"{len(fetched.block)} bytes of {max_bytes}"
        found += records
        offset = fetched.next_offset


async def fetch_all(wire: str, topic_id: int, *, max_bytes: int = 8 * MIB, max_count: int = MAX_READ_COUNT) -> Reading:
    host, _, port = wire.rpartition(":")
    async with await Connection.connect(host, int(port)) as connection:
        records = await asyncio.gather(
            *(
                fetch_records(connection, topic_id, partition, max_bytes=max_bytes, max_count=max_count)
                for partition in range(PARTITIONS)
            )
        )
    return [[to_message(record) for record in found] for found in records]


async def follow(wire: str, topic_id: int, partition: int, *, until: int) -> list[Message]:
    """Read along while others write, waiting where there is nothing yet, up to offset `until`."""
    host, _, port = wire.rpartition(":")
    found: list[Message] = []
    async with await Connection.connect(host, int(port)) as connection:
        while len(found) < until:
            fetched = await connection.fetch_block(topic_id, partition, len(found), max_wait_ms=_LONGEST_WAIT_MS)
            found += [to_message(record) for record in codec.decode(fetched.block)]
            assert fetched.next_offset == len(found) <= fetched.latest, f"partition {partition}: {fetched[:4]}"
    return found


async def fetch_some(wire: str, topic_id: int, offsets: Iterable[tuple[int, int]]) -> list[Message]:
    """Single messages, by partition and offset."""
    host, _, port = wire.rpartition(":")
    found = []
    async with await Connection.connect(host, int(port)) as connection:
        for partition, offset in offsets:
            fetched = await connection.fetch_block(topic_id, partition, offset, max_bytes=1)
            found += [to_message(record) for record in codec.decode(fetched.block)]
    return found


# --- over HTTP


def get(client: HttpClient, path: str, **query: object) -> Any:
    answer = client.request("GET", f"{path}?{'&'.join(f'{name}={value}' for name, value in query.items())}")
    assert answer.status == 200, answer
    return answer.body


_time = lru_cache(parse_time)
"""Many messages have one time."""


def _shown(message: dict[str, Any]) -> Message:
    return Message(message["offset"], _time(message["timestamp"]), message["key"], message["value"])


def page_partition(client: HttpClient, topic: str, partition: int, offset: int = 0, *, limit: int) -> Iterator[Message]:
    """Page after page from an offset to the end."""
    while True:
        body = get(client, f"/topics/{topic}/partitions/{partition}/messages", offset=offset, limit=limit)
        if not body["messages"]:
            assert body["next_offset"] == offset
            return
        assert len(body["messages"]) <= limit
        for message in body["messages"]:
            assert message["message_id"] == f"{topic}:{partition}:{message['offset']}"
            assert message["partition"] == partition
            yield _shown(message)
        offset = body["next_offset"]


def page_all(client: HttpClient, topic: str, *, limit: int = MAX_READ_MESSAGES) -> Reading:
    return [list(page_partition(client, topic, partition, limit=limit)) for partition in range(PARTITIONS)]


def read_topic_by_time(client: HttpClient, topic: str, *, until: int) -> Reading:
    """The topic as a whole, by time: each request goes on at the time where the last one ended."""
    found: list[dict[int, Message]] = [{} for _ in range(PARTITIONS)]
    time = 0
    while time < until:
        body = get(client, f"/topics/{topic}/messages", from_time=time, limit=MAX_READ_MESSAGES)
        messages = [(message["partition"], _shown(message)) for message in body["messages"]]
        if not messages:
            break
        for partition, message in messages:
            found[partition][message.offset] = message
        last = messages[-1][1].timestamp
        if last > time:
            time = last
        else:  # more messages in one millisecond than a page holds
            for partition, offset in body["next_offsets"].items():
                for message in page_partition(client, topic, int(partition), offset, limit=MAX_READ_MESSAGES):
                    if message.timestamp > last:
                        break
                    found[int(partition)][message.offset] = message
            time = last + 1
    return [[messages[offset] for offset in sorted(messages)] for messages in found]


def check_times(client: HttpClient, topic: str, reading: Reading, dice: random.Random) -> None:
    """Offsets asked for by time are those of the first messages from then on, and reading there finds them."""
    times = [list(map(_TIMESTAMP, messages)) for messages in reading]
    everything = sorted(set(itertools.chain.from_iterable(times)))
    for time in [0, everything[-1] + 1, *(dice.choice(everything) for _ in range(_SAMPLES))]:
        expected = [bisect_left(of_partition, time) for of_partition in times]
        offsets = get(client, f"/topics/{topic}/offsets", timestamp=time)["offsets"]
        assert offsets == {str(partition): offset for partition, offset in enumerate(expected)}, f"at {time}"
        for partition, offset in enumerate(expected):
            path = f"/topics/{topic}/partitions/{partition}/messages"
            for query in ({"offset": offset}, {"from_time": time}):
                messages = list(map(_shown, get(client, path, limit=10, **query)["messages"]))
                assert messages == reading[partition][offset : offset + len(messages)]
                assert bool(messages) == (offset < len(reading[partition]))


def check_merged(client: HttpClient, topic: str, reading: Reading, dice: random.Random) -> None:
    """A topic read by time has its next messages, of all partitions, and says truly where to go on."""
    merged = sorted((message.timestamp, at, message) for at, messages in enumerate(reading) for message in messages)
    times = [time for time, _, _ in merged]
    for max_bytes in (2 * KIB, 20 * KIB, MIB):
        for time in (dice.choice(times) for _ in range(_SAMPLES)):
            start = bisect_left(times, time)
            body = get(client, f"/topics/{topic}/messages", from_time=time, limit=200, max_bytes=max_bytes)
            found = [
                (shown.timestamp, message["partition"], shown)
                for message in body["messages"]
                for shown in [_shown(message)]
            ]
            assert found
            assert found == merged[start : start + len(found)], f"from {time}, {max_bytes} bytes"
            next_offsets = {str(at): bisect_left(messages, time, key=_TIMESTAMP) for at, messages in enumerate(reading)}
            next_offsets |= {str(at): message.offset + 1 for _, at, message in found}
            assert body["next_offsets"] == next_offsets


# --- from the files of a broker that does not run


def offline_all(data_dir: Path, topic: str, topic_id: int) -> Reading:
    """Also demands that verifying the files finds nothing wrong."""
    reading = []
    for partition in range(PARTITIONS):
        directory = log_directory(str(data_dir), log_name(topic, TopicId(topic_id), partition))
        wrong = [found for found in verify(directory, LocalDisk()) if found.severity is not Severity.NOTE]
        assert not wrong, f"{directory}: {wrong}"
        log = OfflineLog(directory, LocalDisk())
        runs = (item for segment in log.segments() for item in log.walk(segment) if isinstance(item, Run))
        reading.append([to_message(record) for run in runs for record in codec.decode(run.data)])
    return reading


def cat_all(data_dir: Path, topic: str, topic_id: int) -> Reading:
    """What `goqueue log cat` prints."""
    names = [log_name(topic, TopicId(topic_id), partition) for partition in range(PARTITIONS)]
    return [[*map(_printed, _cat(data_dir, name))] for name in names]


def _cat(data_dir: Path, name: str) -> list[bytes]:
    command = [*GOQUEUE, "log", "cat", name, "--data-dir", str(data_dir), "-o", "json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr, done.stderr.decode()
    return done.stdout.splitlines()


def _printed(line: bytes) -> Message:
    shown = json.loads(line)
    return Message(shown["offset"], shown["timestamp"], shown["key"], shown["value"])


# --- all of them


def read_by_every_path(
    *, wire: str, http: str | None, topic: str, topic_id: int, seed: int, check: Callable[[Reading], None]
) -> Reading:
    """What a running broker has of a topic. `check` looks at it once; then every path must give the same.

    Without an `http` address only those over the wire.
    """
    dice = random.Random(seed)
    whole = asyncio.run(fetch_all(wire, topic_id))
    check(whole)
    for max_bytes, max_count in _STEPS:
        again = asyncio.run(fetch_all(wire, topic_id, max_bytes=max_bytes, max_count=max_count))
        demand_same(f"fetched by {max_bytes} bytes and {max_count} records", again, whole)
    points = [(partition, dice.randrange(len(whole[partition]))) for partition in [*range(PARTITIONS)] * _SAMPLES]
    alone = asyncio.run(fetch_some(wire, topic_id, points))
    assert alone == [whole[partition][offset] for partition, offset in points]
    if http is None:
        return whole
    with HttpClient(http) as client:
        demand_same("by partition over HTTP", page_all(client, topic), whole)
        until = 1 + max(messages[-1].timestamp for messages in whole)
        demand_same("by time over HTTP", read_topic_by_time(client, topic, until=until), whole)
        check_times(client, topic, whole, dice)
        check_merged(client, topic, whole, dice)
    return whole


def demand_same(path: str, found: Reading, expected: Reading) -> None:
    """AssertionError that names the first difference, not all of it."""
    for partition, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours == theirs:
            continue
        pairs = itertools.zip_longest(ours, theirs)
        at, pair = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        raise AssertionError(
            f"{path}: {len(ours)} messages of {len(theirs)} in partition {partition}; "
            f"the {at}th is {pair[0]}, elsewhere {pair[1]}"
        )
