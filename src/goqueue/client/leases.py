"""Keeping what a consumer has for as long as it needs it: leases are extended before they are over.

What is in stock is the consumer's to look after; what was handed out is the user's, unless it was asked to look after
that too. What is extended is for others to say: this knows when, and for how long. An extension counts from now, so
each message is extended by what its own topic says: by less it would be cut short.

A program that hangs, or is at one message for very long, must not keep from others what is in stock: when nobody has
come for messages for twice as long as they may be held, all of it goes back.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from goqueue.client.link import Link
from goqueue.client.settling import SettleQueue
from goqueue.client.stock import Stock
from goqueue.model import limits
from goqueue.model.errors import GoQueueError
from goqueue.model.times import parse_span
from goqueue.wire.codes import CODES

log = logging.getLogger("goqueue.client")

DEFAULT_VISIBILITY_S: Final = 30.0
MIN_IDLE_S: Final = 5.0
"""For so long nobody has to come for messages, however short they may be held."""
MIN_EXTEND_S: Final = 0.05
MIN_LEARN_S: Final = 5.0
MAX_LEARN_S: Final = 30.0
"""How often it is asked what topics say now."""
_LOOKS: Final = 6
_FRESH: Final = 8
"""It is looked six times per timeout, and what has an eighth of its timeout behind it is extended. So a message of the
stock is handed out with two thirds of its timeout left, at least."""


class Leases:
    """`visibility_s` is None if the topics say it."""

    def __init__(self, settling: SettleQueue, stock: Stock, *, visibility_s: float | None) -> None:
        self._settling = settling
        self._stock = stock
        self._seen = stock.progress
        self._came_at = asyncio.get_running_loop().time()
        """When somebody last came for messages, as far as was seen."""
        self.visibility_s = visibility_s
        self._by_topic: dict[str, float] = {}
        self._shorter = asyncio.Event()
        """Something was learned that does not wait until the next look."""

    async def learn(self, link: Link, topics: Iterable[str]) -> None:
        """How long messages may be held, unless that is known."""
        if self.visibility_s is not None:
            return
        for topic in topics:
            reply = await link.ask(CODES["describe_topic"], {"topic": topic}, repeatable=True)
            span_s = parse_span(reply["config"]["visibility_timeout"]) / 1000
            before_s, self._by_topic[topic] = self._by_topic.get(topic, span_s), span_s
            if span_s < before_s:
                self._shorter.set()

    async def keep_learning(self, link: Link, topics: Iterable[str]) -> None:
        """On and on: a topic may say something else by now."""
        while self.visibility_s is None:
            await asyncio.sleep(max(MIN_LEARN_S, min(MAX_LEARN_S, self._shortest_s / 3)))
            for topic in topics:
                try:
                    await self.learn(link, (topic,))
                except GoQueueError:
                    continue  # it is gone, or the broker is: what was known holds until there is an answer

    async def keep(self) -> None:
        """On and on."""
        loop = asyncio.get_running_loop()
        while True:
            await self._pause()
            now = loop.time()
            self._look(now)
            answers = []
            for row, offsets in [*self._stock.held()]:
                span_s = self._span_s(row.delivered.topic)
                if offsets and now - row.kept_at >= span_s / _FRESH:
                    row.kept_at = now
                    span_ms = max(limits.MIN_VISIBILITY_MS, round(span_s * 1000))
                    answers.append(self._settling.extend(row, offsets, span_ms))
            if answers:  # while the broker is away they do not pile up
                await asyncio.wait(answers)

    def _look(self, now: float) -> None:
        """Whether somebody still comes for what is in stock."""
        stock = self._stock
        if stock.waiting or stock.progress != self._seen:
            self._seen, self._came_at = stock.progress, now
        idle_s = now - self._came_at
        count = stock.left
        if count and idle_s >= max(MIN_IDLE_S, 2 * self._longest_s):
            stock.sleep()
            log.warning(
                "nobody has taken messages from this consumer for %.0f s: %d that wait in its stock go back, and no "
                "more come until somebody does; for work that takes so long use a small prefetch", idle_s, count,
            )  # fmt: skip

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(max(MIN_EXTEND_S, self._shortest_s / _LOOKS)):
                await self._shorter.wait()
        except TimeoutError:
            pass
        self._shorter.clear()

    def _span_s(self, topic: str) -> float:
        return self.visibility_s or self._by_topic.get(topic, DEFAULT_VISIBILITY_S)

    @property
    def _longest_s(self) -> float:
        return self.visibility_s or max(self._by_topic.values(), default=DEFAULT_VISIBILITY_S)

    @property
    def _shortest_s(self) -> float:
        return self.visibility_s or min(self._by_topic.values(), default=DEFAULT_VISIBILITY_S)
