"""Programs that use the public client and nothing else, while brokers come and go: publishers and consumers.

With an event loop: several that send and wait, one that enqueues and flushes, consumers that iterate and consumers that
poll, in every mode. Without: one thread that enqueues, one that consumes. Consumers ack, ack and wait, nack now and
then, and hold some messages until the broker they came from is dead and another one has taken its place.

None of them expects an error: whatever the client raises, or tells a callback, goes into the ledger and ends its
program.
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from goqueue import AsyncClient, Client, Outcome, Refused
from goqueue.client.consumer import AsyncConsumer, AsyncMessage
from goqueue.client.messages import DeliveredMessage
from goqueue.client.sync.consumer import Consumer, ConsumerMessage
from tests.chaos.broker_load import split
from tests.chaos.client_ledger import Decision, Delivery, Found, Group, Ledger, Mode, Name, Place, Publisher, Stuck
from tests.chaos.ledger import Violation

TOPIC: Final = "orders"
PARTITIONS: Final = 3
VISIBILITY_S: Final = 120
"""Nothing lapses while a broker is away."""
PUBLISHERS: Final = 6
KEYS: Final = 6
"""Of each publisher."""
_MOST_UNSETTLED: Final = 1500
"""Published, and not settled by some group: more is published when it is less."""
_MOST_HELD: Final = {Mode.PARTITION: 40, Mode.SHARED: 40, Mode.KEY: 3}
_HOLD: Final = 0.03
_NACK: Final = 0.03
_WAIT: Final = 0.05
_GLANCE_S: Final = 0.01
_PIECE_BYTES: Final = 1 << 16
_LAST_WORDS_S: Final = 5.0
_CLOSING_S: Final = 1.0


GROUPS: Final = ("iterates", "keyed", "polls", "threads")


async def create_topic(wire: str, *, fsync: str) -> None:
    async with AsyncClient(wire) as client:
        await client.call(
            "create_topic",
            name=TOPIC,
            num_partitions=PARTITIONS,
            fsync=fsync,
            visibility_timeout=f"{VISIBILITY_S}s",
            max_retries=1000,
            backoff={"base": "10ms", "max": "50ms"},
        )


async def read_all(wire: str) -> list[Found]:
    """The log, through the client."""
    async with AsyncClient(wire) as client, client.reader(TOPIC) as reader:
        return [(Place(each.partition, each.offset), each.key, each.value) async for each in reader]


class Muffler:
    """Between clients and a broker. While it is `muted` requests arrive and their answers are lost, as in a kill that
    comes between the two; it hangs up with the broker."""

    def __init__(self, wire: str) -> None:
        self._target = split(wire)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.muted = False
        self.lost = 0
        """Answers, or lots of them."""

    async def open(self) -> str:
        """Where clients connect to."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for end in self._ends:
            end.transport.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with self._watched(to_client):
            try:
                from_broker, to_broker = await asyncio.open_connection(*self._target)
            except OSError:
                return
            with self._watched(to_broker):
                asking = asyncio.create_task(self._pass_on(from_client, to_broker))
                await self._pass_on(from_broker, to_client, answers=True)
                await asking

    @contextmanager
    def _watched(self, end: asyncio.StreamWriter) -> Iterator[None]:
        """So that it is closed in the end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)
            end.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        """Until one of them is gone; then so is the other."""
        try:
            while piece := await reader.read(_PIECE_BYTES):
                if answers and self.muted:
                    self.lost += 1
                    continue
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


class Held(NamedTuple):
    """A message somebody keeps, and in which life of the broker it came."""

    message: Any
    life: int


class Member:
    """What a consumer keeps in mind beside the client."""

    def __init__(self, group: Group, dice: random.Random) -> None:
        self.group = group
        self.dice = dice
        self.held: list[Held] = []

    def receive(self, message: DeliveredMessage) -> Name:
        name = Name.of(message.value)
        place = Place(message.partition, message.offset)
        self.group.receive(Delivery(name, place, message.delivery_count))
        return name

    def take_held(self, life: int | None) -> list[Held]:
        """Those that came before this life, or all: to be acked now."""
        taken = [held for held in self.held if life is None or held.life < life]
        self.held = [held for held in self.held if held not in taken]
        return taken


class Load:
    """Begins with `run`, in a loop beside the rig; the threads with `start_threads`. The rig says when lives begin."""

    def __init__(self, wire: str, muffled: str, ledger: Ledger, seed: str) -> None:
        """Half of the programs connect to the broker, half through a muffler."""
        self._wire = wire
        self._muffled = muffled
        self._ledger = ledger
        self._seed = seed
        self.life = 1
        self._draining = False
        self._stopped = False
        self._published: set[str] = set()
        """Publishers that have a receipt for everything."""
        self._left_iteration = threading.Event()
        """The thread that consumes no longer waits for messages without end."""
        self._consumers: list[AsyncConsumer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: list[threading.Thread] = []
        self._numbers: dict[bytes, itertools.count[int]] = {}
        self._members: list[Member] = []

    # ------------------------------------------------------------------ what the rig says and asks

    @property
    def held(self) -> int:
        """Messages that are to be acked in a later life."""
        return sum(len(member.held) for member in self._members)

    @property
    def is_published(self) -> bool:
        """After `drain`: whether everything has its receipt."""
        return len(self._published) == PUBLISHERS

    def is_settled(self) -> bool:
        """Whether the programs believe that every group has settled everything."""
        return all(group.settled == len(self._ledger.promised) for group in self._ledger.groups.values())

    def drain(self) -> None:
        """No more is published or held."""
        self._draining = True

    async def flush(self) -> None:
        """Every decision has reached the broker, says the client."""
        self._stopped = True
        await asyncio.gather(*(consumer.flush() for consumer in self._consumers))

    async def stop(self) -> None:
        """Consumers leave; publishers have ended."""
        for task in self._tasks:
            task.cancel()

    def start_threads(self) -> None:
        for name, work in (("thread enqueues", self._enqueue_in_thread), ("thread consumes", self._consume_in_thread)):
            thread = threading.Thread(target=self._guard_thread, args=(name, work), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    async def give_up(self) -> None:
        """Whatever happened: all of them end. Those that do not soon are not asked again whether they have finished."""
        self._draining = self._stopped = True
        self._left_iteration.set()
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_CLOSING_S)

    async def wake_thread(self) -> None:
        """The thread that iterates cannot be told to stop; but it stops after a message."""
        async with (
            AsyncClient(self._wire, request_timeout=_LAST_WORDS_S) as client,
            client.producer(delivery_timeout=_LAST_WORDS_S) as producer,
        ):
            await producer.send(TOPIC, Name(b"wake", 0).value)

    def join_threads(self, patience_s: float) -> None:
        """After `flush`."""
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                raise Stuck(f"{thread.name}: it waits for the client without end")

    @property
    def has_threads(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    async def run(self) -> None:
        async with (
            AsyncClient(self._wire, client_id="direct") as direct,
            AsyncClient(self._muffled, client_id="muffled") as muffled,
            asyncio.TaskGroup() as tasks,
        ):
            for name, work in (
                ("send 0", self._send(direct, 0)),
                ("send 1", self._send(muffled, 1)),
                ("send 2", self._send(muffled, 2)),
                ("send 3", self._send(direct, 3)),
                ("enqueue", self._enqueue(muffled)),
                ("iterates", self._iterate(muffled, "iterates", Mode.PARTITION)),
                ("keyed", self._iterate(direct, "keyed", Mode.KEY)),
                ("polls 0", self._poll(direct, 0)),
                ("polls 1", self._poll(muffled, 1)),
            ):
                self._tasks.append(tasks.create_task(self._guard(name, work)))

    async def _guard(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._ledger.hear_of(name, error)

    def _guard_thread(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._ledger.hear_of(name, error)

    # ------------------------------------------------------------------ publishing

    def _dice(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def _next(self, key: bytes) -> Name:
        return Name(key, next(self._numbers.setdefault(key, itertools.count())))

    @property
    def _publishes(self) -> bool:
        return not self._draining or not self._left_iteration.is_set()

    def _is_full(self) -> bool:
        least = min((group.settled for group in self._ledger.groups.values()), default=0)
        return len(self._ledger.promised) - least > _MOST_UNSETTLED and self._publishes

    def _on_batch(self, publisher: Publisher) -> Callable[[Outcome], None]:
        def hear(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._ledger.hear_of(f"a batch of {outcome.messages}", outcome.error)
                return
            try:
                publisher.has_outcome(outcome.partition, outcome.first_offset, outcome.messages)
            except Violation as violation:
                self._ledger.hear_of("on_batch", violation)

        return hear

    async def _send(self, client: AsyncClient, number: int) -> None:
        """Some messages side by side; the next ones when these have their receipts."""
        dice, publisher = self._dice(f"send {number}"), Publisher(self._ledger)
        acks, linger = ("leader", "all")[number % 2], (0.0, 0.005)[number // 2 % 2]
        async with client.producer(acks=acks, linger=linger) as producer:

            async def send(name: Name) -> None:
                receipt = await producer.send(TOPIC, name.value, key=name.key)
                assert receipt.offset is not None
                place = Place(receipt.partition, receipt.offset)
                publisher.has_receipt(name, place, duplicate=receipt.duplicate)

            while self._publishes:
                names = [self._next(b"send-%d-%d" % (number, dice.randrange(KEYS))) for _ in range(dice.randint(1, 8))]
                for name in names:
                    publisher.offer(name)
                await asyncio.gather(*map(send, names))
                await asyncio.sleep(dice.uniform(0, 0.05))
                while self._is_full():
                    await asyncio.sleep(_GLANCE_S)
        self._published.add(f"send {number}")

    def _burst(self, dice: random.Random, publisher: Publisher, kind: bytes) -> Iterator[tuple[Name, int]]:
        """What to enqueue next, and where; a key stays in its partition."""
        for _ in range(dice.randint(1, 30)):
            number = dice.randrange(KEYS)
            name, partition = self._next(b"%s-%d" % (kind, number)), number % PARTITIONS
            publisher.offer(name, partition)
            yield name, partition

    async def _enqueue(self, client: AsyncClient) -> None:
        dice, publisher = self._dice("enqueue"), Publisher(self._ledger)
        async with client.producer(acks="all", on_batch=self._on_batch(publisher)) as producer:
            while self._publishes:
                for name, partition in self._burst(dice, publisher, b"enqueue"):
                    producer.enqueue(TOPIC, name.value, key=name.key, partition=partition)
                await asyncio.sleep(dice.uniform(0, 0.08))
                if dice.random() < 0.3 or self._is_full():
                    await producer.flush()
                    publisher.check_flushed()
                while self._is_full():
                    await asyncio.sleep(_GLANCE_S)
        self._published.add("enqueue")

    def _enqueue_in_thread(self) -> None:
        dice, publisher = self._dice("thread enqueues"), Publisher(self._ledger)
        with (
            Client(self._wire, client_id="thread") as client,
            client.producer(acks="all", linger=0.002, on_batch=self._on_batch(publisher)) as producer,
        ):
            while self._publishes:
                for name, partition in self._burst(dice, publisher, b"thread"):
                    producer.enqueue(TOPIC, name.value, key=name.key, partition=partition)
                time.sleep(dice.uniform(0, 0.08))
                if dice.random() < 0.3 or self._is_full():
                    producer.flush()
                    publisher.check_flushed()
                while self._is_full():
                    time.sleep(_GLANCE_S)
        self._published.add("thread")

    # ------------------------------------------------------------------ consuming in the loop

    def _member(self, name: str, mode: Mode, dice: str = "") -> Member:
        member = Member(self._ledger.group(name, mode), self._dice(f"{name} {dice}"))
        self._members.append(member)
        return member

    def _on_ack_error(self, refused: Refused) -> None:
        self._ledger.hear_of(f"{refused.action} of {refused.message_id}", refused.error)

    def _consumer(self, client: AsyncClient, member: Member) -> AsyncConsumer:
        consumer = client.consumer(
            member.group.name, [TOPIC], mode=member.group.mode.value, prefetch=200, on_ack_error=self._on_ack_error
        )
        self._consumers.append(consumer)
        return consumer

    def _holds(self, member: Member) -> bool:
        return not self._draining and len(member.held) < _MOST_HELD[member.group.mode] and member.dice.random() < _HOLD

    async def _iterate(self, client: AsyncClient, name: str, mode: Mode) -> None:
        member = self._member(name, mode)
        async with self._consumer(client, member) as consumer, asyncio.TaskGroup() as tasks:
            settling = tasks.create_task(self._settle_held(member))
            try:
                async for message in consumer:
                    await self._work_on(member, message)
            finally:
                settling.cancel()

    async def _poll(self, client: AsyncClient, number: int) -> None:
        """Of two that share."""
        member = self._member("polls", Mode.SHARED, str(number))
        dice = member.dice
        async with self._consumer(client, member) as consumer, asyncio.TaskGroup() as tasks:
            settling = tasks.create_task(self._settle_held(member))
            try:
                while True:
                    batch = await consumer.poll(dice.randint(1, 100), timeout=dice.choice((None, 0.2)))
                    if dice.random() < 0.3:
                        for message in batch:
                            await self._work_on(member, message)
                        continue
                    wait = dice.random() < 0.5
                    for message in batch:
                        member.group.decide(member.receive(message), Decision.ACKED)
                    life = self.life
                    await batch.ack(wait=wait)
                    for _ in batch if wait else ():
                        member.group.confirm(late=self.life > life)
            finally:
                settling.cancel()

    async def _work_on(self, member: Member, message: AsyncMessage) -> None:
        name, life = member.receive(message), self.life
        if self._holds(member):
            member.held.append(Held(message, life))
            return
        roll = member.dice.random()
        if roll < _NACK:
            member.group.decide(name, Decision.NACKED)
            await message.nack(member.dice.choice((None, 0.0, 0.03)), wait=member.dice.random() < 0.2)
            return
        member.group.decide(name, Decision.ACKED)
        await message.ack(wait=roll > 1 - _WAIT)
        if roll > 1 - _WAIT:
            member.group.confirm(late=self.life > life)

    async def _settle_held(self, member: Member) -> None:
        """Handles of a life that is over are good, and an ack that returns was done.

        One that holds up all messages of its key is acked before too many of them wait.
        """

        async def settle(held: Held) -> None:
            member.group.decide(Name.of(held.message.value), Decision.ACKED)
            await held.message.ack(wait=True)
            member.group.confirm(late=self.life > held.life)

        while True:
            await asyncio.sleep(_GLANCE_S)
            is_in_the_way = member.group.mode is Mode.KEY and self._is_full()
            life = None if self._draining or is_in_the_way else self.life
            await asyncio.gather(*map(settle, member.take_held(life)))

    # ------------------------------------------------------------------ consuming in a thread

    def _consume_in_thread(self) -> None:
        """Iterates, and when no more is published polls, as another consumer: what the first one leaves comes again."""
        member = self._member("threads", Mode.SHARED)
        with Client(self._muffled, client_id="thread") as client:
            with self._thread_consumer(client) as consumer:
                for message in consumer:
                    self._work_in_thread(member, [message])
                    self._settle_held_in_thread(member)
                    if self._draining:
                        break
                self._settle_held_in_thread(member)
            self._left_iteration.set()
            with self._thread_consumer(client) as consumer:
                while not self._stopped:
                    self._work_in_thread(member, consumer.poll(100, timeout=0.05))
                consumer.flush()

    def _thread_consumer(self, client: Client) -> Consumer:
        return client.consumer(
            "threads", [TOPIC], mode=Mode.SHARED.value, prefetch=200, on_ack_error=self._on_ack_error
        )

    def _work_in_thread(self, member: Member, messages: Iterable[ConsumerMessage]) -> None:
        for message in messages:
            name, life = member.receive(message), self.life
            if self._holds(member):
                member.held.append(Held(message, life))
                continue
            roll = member.dice.random()
            if roll < _NACK:
                member.group.decide(name, Decision.NACKED)
                message.nack(member.dice.choice((None, 0.0, 0.03)), wait=member.dice.random() < 0.2)
                continue
            member.group.decide(name, Decision.ACKED)
            message.ack(wait=roll > 1 - _WAIT)
            if roll > 1 - _WAIT:
                member.group.confirm(late=self.life > life)

    def _settle_held_in_thread(self, member: Member) -> None:
        for held in member.take_held(None if self._draining else self.life):
            member.group.decide(Name.of(held.message.value), Decision.ACKED)
            held.message.ack(wait=True)
            member.group.confirm(late=self.life > held.life)
