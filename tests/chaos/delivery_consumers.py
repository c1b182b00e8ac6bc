"""Members of the groups in the load of the delivery rigs: each does something else with what it is delivered.

They ack most of it, give some back, give some up, ask for more time, or do nothing until the lease has lapsed, and ack
some even later than that; in JSON by receipt handles, or in blocks.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from goqueue import codec
from goqueue.client.member import Delivered, Member
from goqueue.model.errors import StaleHandle
from goqueue.model.times import parse_time
from goqueue.wire.shapes.fields import LANE_NAMES
from tests.chaos.delivery_actor import IN_DOUBT, MAX_RETRIES, TOPIC, VISIBILITY_MS, Actor, Book, now_ms
from tests.support.delivery_doors import Caller, HttpCaller, WireCaller
from tests.support.delivery_ledger import DONE, NOT_TOLD, STALE, Place, Received, Rules, Verb


class Seat(NamedTuple):
    """A place for a member. The door is wire or http, in JSON, or block."""

    group: str
    mode: str
    door: str


SEATS: Final = (
    Seat("shared", "shared", "block"),
    Seat("shared", "shared", "http"),
    Seat("keyed", "key", "wire"),
    Seat("keyed", "key", "block"),
    Seat("owned", "partition", "wire"),
    Seat("owned", "partition", "http"),
)
RULES: Final = Rules(tuple(dict.fromkeys(seat.group for seat in SEATS)), MAX_RETRIES, redriven=True)

_POLL_MS: Final = 300
_MOST_POLLED: Final = 40
_FATES: Final = {"ack": 70, "nack": 8, "nack later": 4, "reject": 4, "extend": 5, "forget": 6, "ack late": 3}
"""What becomes of a delivery, and how often."""


class Held(NamedTuple):
    """One delivery, and what names it: a handle, or the row it came with."""

    delivery: Received
    handle: str = ""
    row: Delivered | None = None


class Claim(NamedTuple):
    """What is asked about some deliveries. `span_ms` is for how long, if that is to be said."""

    verb: Verb
    held: list[Held]
    span_ms: int | None = None


class Fate(NamedTuple):
    """What a claim is answered. `visible_at` as in the ledger."""

    code: str = DONE
    visible_at: int | None = None


class Consumer(Actor):
    """A member. It is in its group for good: nobody else comes or goes."""

    def __init__(self, book: Book, caller: Caller, dice: random.Random, seat: Seat) -> None:
        super().__init__(book, caller, dice)
        self.seat = seat
        self.received = 0
        """Messages so far."""
        self.is_draining = False
        """Then it acks everything."""
        self._late: list[Held] = []

    async def join(self) -> None:
        await self._caller.open()
        await self._join(mode=self.seat.mode, session_timeout="120s")

    async def step(self) -> None:
        lease_ms = self._dice.choice((VISIBILITY_MS, 2 * VISIBILITY_MS))
        held = await self._poll(self._dice.randint(1, _MOST_POLLED), lease_ms)
        self._book.events += [each.delivery for each in held]
        self.received += len(held)
        by_fate: dict[str, list[Held]] = {}
        for each in held:
            fate = "ack" if self.is_draining else self._dice.choices(list(_FATES), list(_FATES.values()))[0]
            by_fate.setdefault(fate, []).append(each)
        failures = await asyncio.gather(*map(self._settle, self._claims(by_fate)), return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    def _claims(self, by_fate: dict[str, list[Held]]) -> list[Claim]:
        now = now_ms()
        self._late += by_fate.get("ack late", [])
        late = [each for each in self._late if now > each.delivery.at + each.delivery.lease_ms]
        extended = by_fate.get("extend", [])
        self._late = [each for each in self._late if each not in late] + extended[::2]  # the others lapse, later
        claims = (
            Claim(Verb.ACK, by_fate.get("ack", [])),
            Claim(Verb.NACK, by_fate.get("nack", [])),
            Claim(Verb.NACK, by_fate.get("nack later", []), self._dice.randint(0, 300)),
            Claim(Verb.REJECT, by_fate.get("reject", [])),
            Claim(Verb.EXTEND, extended, 3 * VISIBILITY_MS),
            Claim(Verb.ACK, late),
        )
        return [claim for claim in claims if claim.held]

    async def _settle(self, claim: Claim) -> None:
        requests = [
            self._book.ask(
                claim.verb,
                each.delivery.number,
                each.delivery.place,
                group=each.delivery.group,
                poll=each.delivery.poll,
                deliveries=each.delivery.deliveries,
                value=claim.span_ms or 0,
            )
            for each in claim.held
        ]
        fates = await self._under_way(self._tell(claim))
        for request, fate in zip(requests, fates, strict=True):
            if fate.code not in IN_DOUBT:
                self._book.answer(request, fate.code, fate.visible_at)

    async def _join(self, **fields: Any) -> None:
        raise NotImplementedError

    async def _poll(self, max_messages: int, lease_ms: int) -> list[Held]:
        raise NotImplementedError

    async def _tell(self, claim: Claim) -> list[Fate]:
        raise NotImplementedError


class JsonConsumer(Consumer):
    """Settles by receipt handles."""

    def __init__(self, book: Book, caller: Caller, dice: random.Random, seat: Seat) -> None:
        super().__init__(book, caller, dice, seat)
        self._member_id = ""
        self._last_poll = 0

    async def _join(self, **fields: Any) -> None:
        told = await self._caller.ask("join_group", group=self.seat.group, client_id="worker", topics=[TOPIC], **fields)
        self._member_id = told["member_id"]

    async def _poll(self, max_messages: int, lease_ms: int) -> list[Held]:
        own = {} if lease_ms == VISIBILITY_MS else {"visibility": f"{lease_ms}ms"}
        asked_at = now_ms()
        reply = await self._caller.ask(
            "poll",
            group=self.seat.group,
            member_id=self._member_id,
            max_messages=max_messages,
            timeout=f"{_POLL_MS}ms",
            received=self._last_poll,
            **own,
        )
        at = now_ms()
        if reply["messages"]:
            self._last_poll = reply["poll"]
        return [
            Held(
                Received(
                    at,
                    asked_at,
                    self.seat.group,
                    int(message["value"].partition("/")[0]),
                    Place(message["partition"], message["offset"]),
                    reply["poll"],
                    message["delivery_count"],
                    lease_ms,
                    LANE_NAMES.index(message["priority"]),
                    message["key"],
                ),
                message["receipt_handle"],
            )
            for message in reply["messages"]
        ]

    async def _tell(self, claim: Claim) -> list[Fate]:
        """One request for all of them; or, if it is only one, sometimes in the form for one."""
        verb, held, span_ms = claim
        operation, fields = str(verb), {}
        if verb is Verb.EXTEND:
            operation, fields = "extend_visibility", {"timeout": f"{span_ms}ms"}
        elif verb is Verb.REJECT:
            fields = {"reason": "it is Monday"}
        elif span_ms is not None:
            fields = {"delay": f"{span_ms}ms"}
        if len(held) == 1 and self._dice.random() < 0.5:
            try:
                return [_fate(await self._caller.ask(operation, receipt_handle=held[0].handle, **fields))]
            except StaleHandle as refusal:
                return [Fate(refusal.code)]
        reply = await self._caller.ask(operation, receipt_handles=[each.handle for each in held], **fields)
        return [_fate(result) for result in reply["results"]]


def _fate(result: dict[str, Any]) -> Fate:
    return Fate(result.get("code", DONE), parse_time(result["visible_at"]) if "visible_at" in result else None)


class BlockConsumer(Consumer):
    """Settles ranges of the blocks that it was delivered, and is told only what was refused."""

    def __init__(self, book: Book, caller: WireCaller, dice: random.Random, seat: Seat) -> None:
        super().__init__(book, caller, dice, seat)
        self._wire = caller
        self._member: Member | None = None

    async def _join(self, **fields: Any) -> None:
        self._member = await Member.join(self._wire.connection, self.seat.group, [TOPIC], **fields)

    async def _poll(self, max_messages: int, lease_ms: int) -> list[Held]:
        assert self._member is not None
        self._member.connection = self._wire.connection
        own_ms = 0 if lease_ms == VISIBILITY_MS else lease_ms
        asked_at = now_ms()
        rows = await self._member.poll(max_messages=max_messages, max_wait_ms=_POLL_MS, visibility_ms=own_ms)
        at = now_ms()
        return [
            Held(
                Received(
                    at,
                    asked_at,
                    self.seat.group,
                    int((record.value or b"").partition(b"/")[0]),
                    Place(row.partition, record.offset),
                    row.poll,
                    row.deliveries,
                    lease_ms,
                    record.priority,
                    None if record.key is None else record.key.decode(),
                ),
                row=row,
            )
            for row in rows
            for record in codec.decode(bytes(row.block))
        ]

    async def _tell(self, claim: Claim) -> list[Fate]:
        assert self._member is not None
        verb, held, span_ms = claim
        by_row: dict[int, tuple[Delivered, list[int]]] = {}
        for each in held:
            assert each.row is not None
            by_row.setdefault(id(each.row), (each.row, []))[1].append(each.delivery.place.offset)
        what = list(by_row.values())
        match verb:
            case Verb.ACK:
                refused = await self._member.ack(what)
            case Verb.NACK:
                refused = await self._member.nack(what, delay_ms=span_ms)
            case Verb.REJECT:
                refused = await self._member.reject(what, "it is Monday")
            case _:
                refused = await self._member.extend(what, span_ms or 0)
        stale = {(id(row), offset) for row, offsets in refused for offset in offsets}
        done = Fate(visible_at=NOT_TOLD if verb is Verb.NACK else None)
        return [Fate(STALE) if (id(each.row), each.delivery.place.offset) in stale else done for each in held]


CONSUMERS: Final[dict[str, Callable[[Book, dict[str, str], random.Random, Seat], Consumer]]] = {
    "wire": lambda book, doors, dice, seat: JsonConsumer(book, WireCaller(doors["wire"]), dice, seat),
    "http": lambda book, doors, dice, seat: JsonConsumer(book, HttpCaller(doors["http"]), dice, seat),
    "block": lambda book, doors, dice, seat: BlockConsumer(book, WireCaller(doors["wire"]), dice, seat),
}
