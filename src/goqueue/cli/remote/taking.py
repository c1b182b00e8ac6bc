"""Taking messages as a member of a group: join, poll, settle what was printed, leave.

What was given to it and not settled goes back untried: nobody has seen it, and it does not count as a delivery. Who
follows goes on when the broker was away: what it had decided is sent again, and it joins again if it was forgotten.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from goqueue.cli.output import complain, finish_output, show_count
from goqueue.cli.remote.broker import CLIENT_ID, Broker
from goqueue.model.errors import GoQueueError, StaleHandle, UnknownGroup, UnknownMember

Message = dict[str, Any]
_PAGE: Final = 500
_LONGEST_POLL_S: Final = 5.0
_AT_ONCE_S: Final = 0.001


class Terms(NamedTuple):
    """How to take messages, and what becomes of them: `settle` is ack, nack, reject or None."""

    join: dict[str, Any]
    settle: str | None
    settle_fields: dict[str, Any]
    most: int | None
    wait_s: float
    follow: bool


class Outcome:
    """How many were taken, how many of those could not be settled, and how many were given back for the last time."""

    def __init__(self) -> None:
        self.taken = 0
        self.refused = 0
        self.dead = 0
        self.dlq_topic: str | None = None
        """Where the dead ones are, if they are kept."""


class _Member:
    """`held` is what it was given and has neither settled nor left to somebody else."""

    def __init__(self, broker: Broker, group: str, member_id: str) -> None:
        self._broker = broker
        self._who = {"group": group, "member_id": member_id}
        self._received = 0
        self._is_polling = False
        self.held: list[Message] = []

    async def poll(self, most: int, wait_s: float) -> list[Message]:
        self._is_polling = True
        reply = await self._broker.call(
            "poll", max_messages=most, timeout=f"{max(round(wait_s * 1000), 1)}ms", received=self._received, **self._who
        )
        self._is_polling = False
        self._received = reply["poll"]
        self.held = reply["messages"]
        return self.held

    async def settle(self, operation: str, **fields: Any) -> list[dict[str, Any]]:
        """What became of all it holds. What is stale when it is asked again may be done, and is left out."""
        handles = [message["receipt_handle"] for message in self.held]
        lost = self._broker.lost_answers
        reply = await self._broker.call(operation, receipt_handles=handles, **fields)
        self.held = []
        results: list[dict[str, Any]] = reply["results"]
        if self._broker.lost_answers > lost:
            results = [result for result in results if result.get("code") != StaleHandle.code]
        return results

    async def leave(self) -> None:
        """Whoever is not in the group any more has left it. It does not wait for a broker that is away."""
        self._broker.patient = False
        try:
            if self._is_polling:  # that answer may be on its way: a newer poll says that it did not arrive
                await self.poll(1, _AT_ONCE_S)
            if self.held:
                await self.settle("release")
            await self._broker.call("leave_group", **self._who)
        except GoQueueError:
            pass


async def take(
    broker: Broker, group: str, topic: str, terms: Terms, show: Callable[[list[Message]], None], outcome: Outcome
) -> None:
    """Ends when there were enough, or when nothing came for as long as it was to wait."""
    fields = terms.join
    if terms.follow:  # joining twice is joining once: an answer may get lost
        fields = {**fields, "instance_id": f"{CLIENT_ID}-{secrets.token_hex(6)}"}
    member = await _join(broker, group, topic, fields)
    try:
        since = time.monotonic()
        while terms.most is None or outcome.taken < terms.most:
            left_s = _LONGEST_POLL_S if terms.follow else terms.wait_s - (time.monotonic() - since)
            if left_s <= 0:
                return
            wanted = _PAGE if terms.most is None else min(_PAGE, terms.most - outcome.taken)
            try:
                messages = await member.poll(wanted, min(left_s, _LONGEST_POLL_S))
            except (UnknownMember, UnknownGroup):
                if not terms.follow:
                    raise
                member = await _join(broker, group, topic, fields)
                continue
            if not messages:
                continue
            if terms.settle is None:  # whoever sees a handle may use it
                member.held = []
            show(messages)
            finish_output()  # only what was printed is done
            outcome.taken += len(messages)
            if terms.settle is not None:
                results = await member.settle(terms.settle, **terms.settle_fields)
                dead = [result for result in results if result.get("requeued") is False]
                outcome.dead += len(dead)
                outcome.dlq_topic = next((one["dlq_topic"] for one in dead if "dlq_topic" in one), outcome.dlq_topic)
                refused = [result["error"] for result in results if "error" in result]
                outcome.refused += len(refused)
                if refused:
                    complain(f"{show_count(len(refused), 'message')} could not be settled: {refused[0]}")
            since = time.monotonic()
    finally:
        await member.leave()


async def _join(broker: Broker, group: str, topic: str, fields: dict[str, Any]) -> _Member:
    """Ctrl-C before there is an answer leaves the group as soon as there is one."""
    asked = broker.call("join_group", group=group, client_id=CLIENT_ID, topics=[topic], **fields)
    joining = asyncio.create_task(asked)
    try:
        return _Member(broker, group, (await asyncio.shield(joining))["member_id"])
    except asyncio.CancelledError:
        broker.patient = False
        if broker.is_away:
            joining.cancel()
        try:
            await _Member(broker, group, (await joining)["member_id"]).leave()
        except GoQueueError:
            pass
        raise
