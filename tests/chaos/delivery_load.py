"""The load: publishers, the members of three groups, an operator and one who redrives, all at once, over both doors.

Messages have lanes, some have keys, some are delayed. Members do everything with them that can be done
(`delivery_consumers`). The operator cancels and moves what is delayed; now and then dead letters are published again.
Each writes down what it asks for and what it is told (`delivery_ledger`). Nobody sends anything again: what had no
answer stays in doubt.
"""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple

from goqueue import codec
from goqueue.model.errors import Conflict, GoQueueError
from goqueue.model.publishing import Acks
from goqueue.model.record import Extension, Record
from goqueue.model.times import parse_time
from goqueue.wire.shapes.fields import LANE_NAMES
from tests.chaos.delivery_actor import IN_DOUBT, NO_ANSWER, PARTITIONS, TOPIC, Actor, Book, Pending, now_ms
from tests.chaos.delivery_consumers import CONSUMERS, SEATS
from tests.support.delivery_doors import HttpCaller, WireCaller
from tests.support.delivery_ledger import DONE, Place, Sending, Sent, Verb

_EVERY_S: Final = 0.03
"""How often each publisher sends a few messages."""
_MOST_SENT: Final = 8
_KEYS: Final = 40
_DELAYED: Final = 0.35
_LONGEST_DELAY_MS: Final = 1500
_FILLING: Final = "/" + "x" * 60


# ---------------------------------------------------------------- publishing


class Draft(NamedTuple):
    """A message before it is published. `delay_ms` or `deliver_at`, or neither."""

    number: int
    lane: int
    key: str | None
    delay_ms: int = 0
    deliver_at: int = 0

    @property
    def value(self) -> str:
        return f"{self.number}{_FILLING}"

    def due(self, appended_at: int) -> int:
        return appended_at + self.delay_ms if self.delay_ms else self.deliver_at


class Publisher(Actor):
    async def step(self) -> None:
        drafts = [self._draft() for _ in range(self._dice.randint(1, _MOST_SENT))]
        at = now_ms()
        self._book.events += [Sending(at, each.number, each.lane, each.key, each.due(at)) for each in drafts]
        await self._under_way(self._send(drafts))
        await asyncio.sleep(self._dice.uniform(0, 2 * _EVERY_S))

    def _draft(self) -> Draft:
        dice = self._dice
        key = f"key-{dice.randrange(_KEYS)}" if dice.random() < 0.6 else None
        draft = Draft(self._book.next_number(), dice.randrange(len(LANE_NAMES)), key)
        if dice.random() >= _DELAYED:
            return draft
        delay_ms = dice.randint(20, _LONGEST_DELAY_MS)
        return (
            draft._replace(delay_ms=delay_ms) if dice.random() < 0.5 else draft._replace(deliver_at=now_ms() + delay_ms)
        )

    async def _send(self, drafts: Sequence[Draft]) -> None:
        raise NotImplementedError

    def _sent(self, draft: Draft, place: Place, deliver_at: int) -> None:
        at = now_ms()
        self._book.events.append(Sent(at, draft.number, place, deliver_at))
        if deliver_at > at:
            self._book.delayed.append(Pending(draft.number, place, deliver_at))


class BlockPublisher(Publisher):
    """Whole blocks, over the wire, to any partition."""

    def __init__(self, book: Book, caller: WireCaller, dice: random.Random, topic_id: int) -> None:
        super().__init__(book, caller, dice)
        self._wire = caller
        self._topic_id = topic_id

    async def _send(self, drafts: Sequence[Draft]) -> None:
        partition = self._dice.randrange(PARTITIONS)
        block = codec.encode([_record(draft) for draft in drafts])
        reply = await self._wire.connection.publish_block(self._topic_id, partition, block, acks=Acks.LEADER)
        (placed,) = reply.ranges
        for at, draft in enumerate(drafts):
            self._sent(draft, Place(partition, placed.first_offset + at), draft.due(placed.timestamp))


def _record(draft: Draft) -> Record:
    extension = None
    if draft.delay_ms or draft.deliver_at:
        extension = Extension(deliver_at=-draft.delay_ms or draft.deliver_at)
    key = None if draft.key is None else draft.key.encode()
    return Record(key=key, value=draft.value.encode(), priority=draft.lane, extension=extension)


class JsonPublisher(Publisher):
    """Messages as JSON, to whatever partition the broker chooses."""

    async def _send(self, drafts: Sequence[Draft]) -> None:
        messages = [_json(draft) for draft in drafts]
        reply = await self._caller.ask("publish_batch", topic=TOPIC, messages=messages)
        for draft, result in zip(drafts, reply["results"], strict=True):
            if result.get("code") in IN_DOUBT:
                continue
            deliver_at = parse_time(result["deliverAt"]) if "deliverAt" in result else draft.deliver_at
            self._sent(draft, Place(result["partition"], result["offset"]), deliver_at)


def _json(draft: Draft) -> dict[str, Any]:
    message: dict[str, Any] = {"value": draft.value, "priority": LANE_NAMES[draft.lane]}
    if draft.key is not None:
        message["key"] = draft.key
    if draft.delay_ms:
        message["delay"] = f"{draft.delay_ms}ms"
    elif draft.deliver_at:
        message["deliverAt"] = draft.deliver_at
    return message


# ---------------------------------------------------------------- cancelling and moving


class Operator(Actor):
    """Touches a message again only if it knows what became of it."""

    async def step(self) -> None:
        now = now_ms()
        self._book.delayed = [each for each in self._book.delayed if each.deliver_at > now]
        self._dice.shuffle(self._book.delayed)
        count = self._dice.choice((1, 1, 3, 10))
        chosen, self._book.delayed = self._book.delayed[:count], self._book.delayed[count:]
        if not chosen:
            await asyncio.sleep(_EVERY_S)
        elif self._dice.random() < 0.4:
            for each in chosen:
                await self._under_way(self._move(each))
        elif count == 1:
            await self._under_way(self._cancel(chosen[0]))
        else:
            await self._under_way(self._cancel_many(chosen))
        await asyncio.sleep(self._dice.uniform(0, 2 * _EVERY_S))

    async def _cancel(self, message: Pending) -> None:
        request = self._book.ask(Verb.CANCEL, message.number, message.place)
        partition, offset = message.place
        await self._told(request, self._caller.ask("cancel_delayed", topic=TOPIC, partition=partition, offset=offset))

    async def _cancel_many(self, messages: Sequence[Pending]) -> None:
        requests = [self._book.ask(Verb.CANCEL, each.number, each.place) for each in messages]
        reply = await self._caller.ask("cancel_many_delayed", topic=TOPIC, ids=[each.place for each in messages])
        failed = {Place(*each) for each in reply["failed"]}
        for request, each in zip(requests, messages, strict=True):
            self._book.answer(request, "already_delivered" if each.place in failed else DONE)

    async def _move(self, message: Pending) -> None:
        deliver_at = now_ms() + self._dice.randint(20, _LONGEST_DELAY_MS)
        request = self._book.ask(Verb.MOVE, message.number, message.place, value=deliver_at)
        partition, offset = message.place
        if await self._told(
            request,
            self._caller.ask(
                "move_delayed", topic=TOPIC, partition=partition, offset=offset, deliverAt=str(deliver_at)
            ),
        ):
            self._book.delayed.append(message._replace(deliver_at=deliver_at))

    async def _told(self, request: int, work: Awaitable[Any]) -> bool:
        """Whether it was done."""
        try:
            await work
        except NO_ANSWER:
            raise
        except GoQueueError as refusal:
            self._book.answer(request, refusal.code)
            return False
        self._book.answer(request)
        return True


# ---------------------------------------------------------------- redriving


class Redriver(Actor):
    """Has dead letters published again, now and then. One redrive of a topic goes on at a time."""

    async def step(self) -> None:
        await asyncio.sleep(self._dice.uniform(0, 20 * _EVERY_S))
        try:
            await self._under_way(self._caller.ask("start_redrive", topic=TOPIC))
        except Conflict:
            pass


# ---------------------------------------------------------------- all of them


class Load:
    """Everybody, for one broker that may die and come back at the same addresses."""

    def __init__(self, book: Book, endpoints: dict[str, str], topic_id: int, seed: str) -> None:
        def dice(name: str) -> random.Random:
            return random.Random(f"{seed}/{name}")

        self.book = book
        self.consumers = [
            CONSUMERS[seat.door](book, endpoints, dice(f"consumer-{number}"), seat) for number, seat in enumerate(SEATS)
        ]
        self._others: list[Actor] = [
            BlockPublisher(book, WireCaller(endpoints["wire"]), dice("blocks"), topic_id),
            JsonPublisher(book, HttpCaller(endpoints["http"]), dice("http")),
            JsonPublisher(book, WireCaller(endpoints["wire"]), dice("json")),
            Operator(book, WireCaller(endpoints["wire"]), dice("operator")),
            Redriver(book, WireCaller(endpoints["wire"]), dice("redriver")),
        ]

    async def run(self) -> None:
        """Until `drain` and `stop`; raises what somebody could not go on for."""
        for consumer in self.consumers:
            await consumer.join()
        async with asyncio.TaskGroup() as group:
            for actor in (*self.consumers, *self._others):
                group.create_task(actor.run())

    def drain(self) -> None:
        """Nothing more is published, cancelled or moved; everything is acked."""
        for actor in self._others:
            actor.is_stopped = True
        for consumer in self.consumers:
            consumer.is_draining = True

    def stop(self) -> None:
        for consumer in self.consumers:
            consumer.is_stopped = True

    @property
    def received(self) -> int:
        return sum(consumer.received for consumer in self.consumers)
