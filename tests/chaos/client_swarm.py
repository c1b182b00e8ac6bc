"""A swarm of clients that leave, at every door of one broker, at every point of every operation.

    python -m tests.chaos.client_swarm --seconds 600 [--seed N]

The operations are those of the table, made plausible (`tests/support/plausible.py`), and at the gRPC door its streams
and the services beside them. A round deals each of them once for every point at which a client can leave and every way
of leaving (`swarm_clients`), at each door that has it, in any order, many at a time. The broker has cold partitions,
delayed messages, members with sessions and leases that are short, open transactions.

Meanwhile somebody who behaves publishes and consumes, and must not notice. After each round, when all have gone, the
broker must be the same process as before, reserve nothing, wait for nobody and have no connection left; what members
took that vanished must come to somebody else; its log must know of nothing that went wrong; its memory must not grow
with the rounds.
"""

import argparse
import asyncio
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import grpc
import msgspec

from goqueue import AsyncClient, GoQueueError, codec
from goqueue.api.grpc import health, reflection
from goqueue.api.grpc.door import NAME
from goqueue.api.grpc.schema import rpc_name
from goqueue.api.grpc.streams import PUBLISH, SUBSCRIBE
from goqueue.api.grpc.translating import pb
from goqueue.api.operations import OPERATIONS
from goqueue.model.limits import KIB, MIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from goqueue.wire import frames, polls, settles
from goqueue.wire.blocks import FetchRequest, PublishRequest
from goqueue.wire.codes import CODES, FETCH_BLOCK, PACKED, POLL_BLOCK, PUBLISH_BLOCK, SETTLE_BLOCK
from tests.chaos.ledger import Violation
from tests.chaos.swarm_clients import Call, Point, RawDoor, Way, call, visit
from tests.support import cold_reads
from tests.support.broker import Answer, RunningBroker, running_broker
from tests.support.hostile import resident_bytes
from tests.support.patience import PATIENCE_S
from tests.support.plausible import World, as_protobuf
from tests.support.raw_http import request as http_request
from tests.support.raw_wire import frame

TOPICS: Final = ("orders", "later", "leases")
"""Cold; delayed; for members that vanish."""
OWN: Final = ("swarm-0", "swarm-1", "swarm-2")
"""Topics, groups and names that come and go."""
GROUPS: Final = ("g-0", "g-1", "g-2")
ABANDONED: Final = "abandoned"
"""A group whose members vanish with what they have."""
STEADY: Final = "steady"
"""The topic and the group of somebody who behaves."""
AT_ONCE: Final = 16
SESSION: Final = "1s"
SEGMENT_BYTES: Final = 256 * KIB
_PARTITIONS: Final = 3
_MESSAGES, _MESSAGE_BYTES = 60, 20_000
_LEASED: Final = 20
GROWTH_BYTES: Final = 192 * MIB
"""Resident memory that a broker may have more than after the first rounds: what it may hold in caches, and in state
that is bounded by what there may be of it."""
_WARM_ROUNDS: Final = 2
_GLANCE_S: Final = 0.02
_POINTS: Final = tuple(Point)
_RAW_WAYS: Final = (Way.CLOSE, Way.RESET)
_CUT: Final = (Point.REQUEST, Point.REPLY, Point.UNREAD)
"""Points at which a gRPC client leaves by its connection."""

Tell = Callable[[str], None]


class Died(Violation):
    """The broker is not the process it was."""


class Reserved(Violation):
    """Something is held for clients that have gone."""


class Unserved(Violation):
    """Somebody who behaves was not served."""


class Broke(Violation):
    """The broker wrote down that something went wrong."""


class Grew(Violation):
    """The broker's memory grows with its clients."""


class Outcome(NamedTuple):
    """A run that held."""

    rounds: int
    visits: Counter[str]
    """By door."""
    served: int
    """Messages that somebody who behaves published and was delivered meanwhile."""
    taken_back: int
    """Messages that a member had when it vanished, and somebody else was delivered."""
    resident: list[int]
    """Bytes, after each round."""


# ---------------------------------------------------------------- what is dealt


class Visit(NamedTuple):
    """One client."""

    door: str
    operation: str
    point: Point
    way: Way


def deck(doors: Sequence[str]) -> Iterator[Visit]:
    """Every operation at every door, left at every point and in every way."""
    named = [operation.name for operation in OPERATIONS]
    over_http = [operation.name for operation in OPERATIONS if operation.paths]
    for door, names in (("http", over_http), ("wire", [*named, *PACKED])):
        if door in doors:
            for name, point, way in itertools.product(names, _POINTS, _RAW_WAYS):
                yield Visit(door, name, point, way)
    if "grpc" in doors:
        for name, point in itertools.product([*named, *BESIDE], _POINTS):
            for way in _RAW_WAYS if point in _CUT else Way:
                yield Visit("grpc", name, point, way)


BESIDE: Final = (PUBLISH, SUBSCRIBE, "Check", "Watch", *reflection.NAMES)
"""What the gRPC door has beside the operations."""
ENDLESS: Final = ("Watch",)
"""Calls that end when their client does."""
_BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}


class Swarm:
    """All clients of a run, one after the other, so many at a time."""

    def __init__(self, broker: RunningBroker, world: World, topic_ids: dict[str, int]) -> None:
        self._broker = broker
        self._dice = world.dice
        self._world = world
        self._topic_ids = topic_ids
        self._grpc = broker.endpoints["grpc"]
        self._http = RawDoor(broker.http, b"", is_wire=False)
        self._wire = RawDoor(broker.wire, frames.pack_preface(), is_wire=True)
        self.visits: Counter[str] = Counter()

    async def play(self, dealt: list[Visit], seed: str) -> None:
        """All of them, in this order."""
        waiting = enumerate(dealt)

        async def play_on() -> None:
            for number, each in waiting:
                if self._broker.ended is not None:
                    raise Died
                await self._visit(each, random.Random(f"{seed}/{number}"))
                self.visits[each.door] += 1

        async with asyncio.TaskGroup() as players:
            for _ in range(AT_ONCE):
                players.create_task(play_on())

    async def _visit(self, given: Visit, dice: random.Random) -> None:
        self._dice = self._world.dice = dice  # until it is known what this one says, nobody else has a turn
        waits = given.point not in (Point.NEVER, Point.HALF)
        count = dice.choice((1, 1, 1, 4))
        if given.door == "grpc":
            calls = [self._call(given.operation, waits=waits) for _ in range(count)]
            point = given.point
            if given.operation in ENDLESS and not waits:
                point = Point.AFTER
            await call(self._grpc, calls, point, given.way, dice)
            return
        door, make = (self._http, self._over_http) if given.door == "http" else (self._wire, self._over_wire)
        requests = [make(given.operation, waits=waits) for _ in range(count)]
        await visit(door, requests, given.point, given.way, dice, self._world.learn)

    # --- requests

    def _over_http(self, name: str, *, waits: bool) -> bytes:
        operation = _BY_NAME[name]
        fields = self._world.request(operation, waits=waits)
        path = self._dice.choice(operation.paths)
        for field in operation.path_fields:
            path = path.replace(f"{{{field}}}", quote(str(fields.pop(field)), safe=""))
        if operation.has_body:
            return http_request(operation.method, path, msgspec.json.encode(fields))
        shown = {field: str(value).lower() if isinstance(value, bool) else value for field, value in fields.items()}
        return http_request(operation.method, f"{path}?{urlencode(shown)}" if shown else path)

    def _over_wire(self, name: str, *, waits: bool) -> bytes:
        if name in PACKED:
            return frame(CODES[name], self._packed(CODES[name], waits=waits))
        return frame(CODES[name], msgspec.json.encode(self._world.request(_BY_NAME[name], waits=waits)))

    def _packed(self, code: int, *, waits: bool) -> bytes:
        dice = self._dice
        topic = dice.choice(TOPICS)
        partition = dice.randrange(_PARTITIONS)
        wait_ms = dice.choice((0, 5, 30_000)) if waits else 0
        match code:
            case _ if code == PUBLISH_BLOCK:
                records = [Record(value=bytes(dice.choice((1, 20_000)))) for _ in range(dice.randint(1, 5))]
                request = PublishRequest(self._topic_ids[topic], partition, dice.choice((Acks.LEADER, Acks.ALL)))
                return request.pack() + bytes(codec.encode(records))
            case _ if code == FETCH_BLOCK:
                offset = dice.choice((0, 10, 50, 10**6))
                return FetchRequest(self._topic_ids[topic], partition, offset, 2 * MIB, 1000, wait_ms).pack()
            case _ if code == POLL_BLOCK:
                group, member = dice.choice((*GROUPS, ABANDONED)), self._world.known("member_id")
                return polls.PollRequest(group, member, 2 * MIB, 100, max_wait_ms=wait_ms, visibility_ms=1000).pack()
            case _ if code == SETTLE_BLOCK:
                claim = settles.Claim(self._topic_ids[topic], partition, dice.randint(1, 9), 0, ((0, 3), (5, 2000)))
                return settles.SettleRequest(dice.choice((settles.Action.ACK, settles.Action.NACK)), 1, (claim,)).pack()
        raise AssertionError(f"teach the swarm what a client sends with code {code}")

    def _call(self, name: str, *, waits: bool) -> Call:
        if name in _BY_NAME:
            body = as_protobuf(_BY_NAME[name], self._world.request(_BY_NAME[name], waits=waits))
            return Call(f"/{NAME}/{rpc_name(name)}", [body], is_stream=False)
        if name == PUBLISH:
            messages = [pb.Message(value=bytes(self._dice.choice((1, 20_000)))) for _ in range(3)]
            frames_ = [pb.PublishFrame(topic=self._dice.choice(TOPICS), messages=messages) for _ in range(4)]
            return Call(f"/{NAME}/{PUBLISH}", [each.SerializeToString() for each in frames_], is_stream=True)
        if name == SUBSCRIBE:
            return Call(f"/{NAME}/{SUBSCRIBE}", self._subscription(self._dice.choice(GROUPS)), is_stream=True)
        if name in ("Check", "Watch"):
            return Call(f"/{health.NAME}/{name}", [b""], is_stream=False)
        asked = [b"\x3a\x00", b"\x22\x12goqueue.v1.GoQueue"]  # list_services, file_containing_symbol
        return Call(f"/{name}/ServerReflectionInfo", asked, is_stream=True)

    def _subscription(self, group: str) -> list[bytes]:
        join = {"group": group, "client_id": "c", "topics": ["orders"], "session_timeout": SESSION}
        first = pb.SubscribeRequest(subscription={"join": join, "visibility": "1s"}, credit=self._dice.choice((1, 50)))
        ack = pb.SubscribeRequest(ack={"receipt_handles": [self._world.known("receipt_handle")]}, credit=10)
        return [first.SerializeToString(), ack.SerializeToString()]


# ---------------------------------------------------------------- members that vanish with what they have


async def abandon(broker: RunningBroker) -> int:
    """A member that subscribes, is delivered something, and vanishes; how many messages it had."""
    publish(broker, "leases", [{"value": str(number)} for number in range(_LEASED)])
    join = {"group": ABANDONED, "client_id": "c", "topics": ["leases"], "session_timeout": SESSION, "mode": "shared"}
    first = pb.SubscribeRequest(subscription={"join": join, "visibility": "1s", "stay": True}, credit=5)
    async with grpc.aio.insecure_channel(broker.endpoints["grpc"]) as channel:
        method: Any = channel.stream_stream(f"/{NAME}/{SUBSCRIBE}")
        stream = method(timeout=PATIENCE_S)
        await stream.write(first.SerializeToString())
        while True:
            reply = pb.SubscribeReply.FromString(await stream.read())
            if reply.batch.messages:
                stream.cancel()
                return len(reply.batch.messages)


async def take_back(broker: RunningBroker) -> int:
    """Everything that members had when they vanished is delivered to another; how much of it again."""
    again = 0
    async with AsyncClient(broker.wire) as client, client.consumer(ABANDONED, ["leases"], mode="shared") as consumer:
        while (await client.group_lag(ABANDONED)).total_lag:
            for message in await consumer.poll(timeout=_GLANCE_S) or ():
                again += message.delivery_count > 1
                await message.ack()
    return again


# ---------------------------------------------------------------- somebody who behaves


class Steady:
    """Publishes at every door and consumes; whatever it is refused is a violation."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._published = 0
        self._delivered: set[str] = set()

    @asynccontextmanager
    async def at_work(self) -> Any:
        """Meanwhile. At the end all that it published has been delivered to it."""
        over = asyncio.Event()
        async with AsyncClient(self._broker.wire) as client, self._grpc() as publish:
            work: list[Coroutine[Any, Any, None]] = [self._publish(client, publish, over), self._consume(client, over)]
            tasks = [asyncio.ensure_future(each) for each in work]
            try:
                yield
                over.set()
                await asyncio.gather(*tasks)
            except GoQueueError as error:
                raise Unserved(str(error)) from error
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    @property
    def served(self) -> int:
        return len(self._delivered)

    @asynccontextmanager
    async def _grpc(self) -> Any:
        async with grpc.aio.insecure_channel(self._broker.endpoints["grpc"]) as channel:
            yield channel.unary_unary(f"/{NAME}/Publish")

    async def _publish(self, client: AsyncClient, over_grpc: Any, over: asyncio.Event) -> None:
        async with client.producer() as producer:
            while not over.is_set():
                await producer.send(STEADY, str(self._published))
                asked = pb.PublishRequest(topic=STEADY, value=str(self._published + 1).encode())
                try:
                    await over_grpc(asked.SerializeToString(), timeout=PATIENCE_S)
                except grpc.RpcError as error:
                    raise Unserved(str(error)) from error
                said = await asyncio.to_thread(self._over_http, str(self._published + 2))
                if said.status != 200:
                    raise Unserved(str(said))
                self._published += 3
                await asyncio.sleep(_GLANCE_S)

    def _over_http(self, value: str) -> Answer:
        with self._broker.client() as client:
            return client.request("POST", f"/topics/{STEADY}/publish", {"value": value})

    async def _consume(self, client: AsyncClient, over: asyncio.Event) -> None:
        async with client.consumer(STEADY, [STEADY]) as consumer:
            while not (over.is_set() and len(self._delivered) >= self._published):
                for message in await consumer.poll(timeout=_GLANCE_S) or ():
                    self._delivered.add(str(message.value))
                    await message.ack()


# ---------------------------------------------------------------- what must be so when all have gone


class Judge:
    """Looks at a broker whose clients have gone."""

    def __init__(self, broker: RunningBroker, *, patience_s: float) -> None:
        self._broker = broker
        self._pid = broker.pid
        self._patience_s = patience_s
        self._resident: list[int] = []
        self._connections, self._sockets = self.gauge("goqueue_connections"), self.sockets()

    @property
    def resident(self) -> list[int]:
        return self._resident

    def ask(self, path: str) -> Any:
        """Of the process that was started, on a connection of its own."""
        with self._broker.client() as client:
            answer = client.request("GET", path)
        assert answer.status == 200, answer
        return answer.body

    def gauge(self, name: str) -> float:
        """The sum of its series."""
        found = [line.rpartition(" ") for line in self.ask("/metrics").splitlines() if line.startswith(name)]
        return sum(float(value) for series, _, value in found if series.partition("{")[0] == name)

    def sockets(self) -> int:
        """Connections and listeners of the process, as the system has them."""
        return self.open_files("socket:")

    def open_files(self, kind: str) -> int:
        """How many descriptors of the process the system describes so."""
        found = 0
        for each in Path(f"/proc/{self._pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found += kind in os.readlink(each)
        return found

    def check(self) -> None:
        """All that must be so, sooner or later."""
        for name, otherwise in (
            ("goqueue_in_flight_bytes", "bytes stay reserved"),
            ("goqueue_waiting_polls", "polls wait for clients that have gone"),
            ("goqueue_group_members", "members that have gone stay in their groups"),
            ("goqueue_messages_in_flight", "members that have gone keep messages"),
            ("goqueue_transactions_open", "transactions of clients that have gone stay open"),
        ):
            self._until(lambda name=name: self.gauge(name) == 0, f"{otherwise}: {name}")  # type: ignore[misc]
        if lost := self.gauge("goqueue_in_flight_lost_bytes_total"):
            raise Reserved(f"{lost} bytes were given back by nobody, until they were missed")
        gone = "of clients that have gone stay open"
        self._until(lambda: self.gauge("goqueue_connections") <= self._connections, f"connections {gone}")
        self._until(lambda: self.sockets() <= self._sockets, f"sockets {gone}")
        self._until(lambda: not self.open_files("(deleted)"), "files that were deleted stay open")
        self._resident.append(resident_bytes(self._pid))
        warm = self._resident[:_WARM_ROUNDS][-1]
        if self._resident[-1] > warm + GROWTH_BYTES:
            raise Grew(f"resident after each round, in MiB: {[each // MIB for each in self._resident]}")
        self.check_log()

    def check_log(self) -> None:
        for line in self._broker.stderr.splitlines():
            if any(
                word in line
                for word in ("Traceback", "request broke", "stream broke", " error ", "could not be taken back")
            ):
                raise Broke(line)

    def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while not is_so():
            if time.monotonic() > deadline:
                raise Reserved(f"{otherwise}; {self.ask('/stats')}")
            time.sleep(_GLANCE_S)


# ---------------------------------------------------------------- a run


def furnish(broker: RunningBroker) -> dict[str, int]:
    """Topics with something in them; their ids."""
    ids = {}
    for name in (*TOPICS, STEADY):
        fields = {
            "num_partitions": _PARTITIONS,
            "segment_bytes": SEGMENT_BYTES,
            "max_retries": 1000,
            "visibility_timeout": "1s",
        }
        backoff = {"base": "10ms", "max": "50ms"}
        made = broker.request("POST", "/topics", {"name": name, "backoff": backoff, **fields})
        assert made.status == 201, made
        ids[name] = int(made.body["topic_id"], 16)
    value = "v" * _MESSAGE_BYTES
    for topic, messages in (
        ("orders", [{"value": value, "partition": number % _PARTITIONS} for number in range(_MESSAGES)]),
        ("later", [{"value": str(number), "delay": "1h"} for number in range(_MESSAGES)]),
    ):
        publish(broker, topic, messages)
    return ids


def publish(broker: RunningBroker, topic: str, messages: list[dict[str, Any]]) -> None:
    said = broker.request("POST", f"/topics/{topic}/messages", {"messages": messages})
    assert said.status == 200, said


def run(
    directory: Path,
    *,
    seed: int,
    rounds: int = 1,
    seconds: float | None = None,
    doors: Sequence[str] = ("http", "wire", "grpc"),
    program: Sequence[str] = cold_reads.PROGRAM,
    patience_s: float = PATIENCE_S,
    share: float = 1.0,
    tell: Tell = lambda _: None,
) -> Outcome:
    """So many rounds, or as many as begin in so many seconds; a Violation when something is wrong. `share`: how much of
    the deck is dealt in a round."""
    dice = random.Random(seed)
    try:
        with running_broker(directory, "--grpc", "127.0.0.1:0", program=program) as broker:
            try:
                topic_ids = furnish(broker)
                world = World(dice, topics=list(TOPICS), own=list(OWN), groups=list(GROUPS))
                swarm, steady = Swarm(broker, world, topic_ids), Steady(broker)
                judge = Judge(broker, patience_s=patience_s)
                began, number, taken_back = time.monotonic(), 0, 0
                while number < rounds if seconds is None else time.monotonic() < began + seconds:
                    number += 1
                    dealt = list(deck(doors))
                    dice.shuffle(dealt)
                    hand = dealt[: int(len(dealt) * share)]
                    work = _round(broker, swarm, steady, hand, seed=f"{seed}/{number}", patience_s=patience_s)
                    taken_back += asyncio.run(work)
                    judge.check()
                    tell(f"round {number}: {dict(swarm.visits)} visits, {judge.resident[-1] // MIB} MiB")
                return Outcome(number, swarm.visits, steady.served, taken_back, judge.resident)
            except BaseException as error:
                code = broker.ended
                broker.cut_off()  # whatever else is wrong with it by now
                if code is None:
                    raise
                raise Died(f"the broker ended with exit code {code}") from error
    except BaseException as error:
        error.add_note(f"seed {seed}; data and log lines: {directory}")
        raise


async def _round(
    broker: RunningBroker, swarm: Swarm, steady: Steady, dealt: list[Visit], *, seed: str, patience_s: float
) -> int:
    async with steady.at_work():
        had = await abandon(broker)
        await swarm.play(dealt, seed)
        try:
            async with asyncio.timeout(patience_s):
                again = await take_back(broker)
        except TimeoutError:
            raise Reserved("what a member had when it vanished does not come back") from None
        if again < had:
            raise Reserved(f"{had} messages that a member had when it vanished came back {again} times")
    return again


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="goqueue-client-swarm-"))
    outcome = run(directory, seed=seed, seconds=arguments.seconds, tell=lambda line: print(line, flush=True))
    shutil.rmtree(directory)
    print(
        f"ok: {outcome.rounds} rounds, {sum(outcome.visits.values())} clients left ({dict(outcome.visits)}); nothing "
        f"is reserved for them, {outcome.taken_back} messages they had came to others; {outcome.served} messages of "
        f"somebody who behaves went through meanwhile"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
