"""Which partitions a topic has, as a producer sees it; and that it may get more, or go.

A topic is known once its route was added, until it is gone: then it is looked up again when the next message comes. It
knows nothing of messages.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from goqueue.client import topics
from goqueue.client.accumulator import Place
from goqueue.client.link import Link
from goqueue.client.topics import Topic
from goqueue.model.errors import GoQueueError

REFRESH_S: Final = 30.0
"""How often it is asked whether topics have more partitions."""


class Route:
    """The partitions of a topic, and whose turn it is among messages without a key."""

    __slots__ = ("count", "partition", "places", "topic_id")

    def __init__(self, topic_id: int, places: list[Place]) -> None:
        self.topic_id = topic_id
        self.places = places
        self.count = len(places)
        self.partition = random.randrange(self.count)

    def turn(self) -> int:
        """The next partition for messages without a key."""
        self.partition = (self.partition + 1) % self.count
        return self.partition


class Routes:
    """`place` gives the place of a topic's partition, the same one every time; `retire` hears of those that went."""

    def __init__(
        self,
        link: Link,
        place: Callable[[Topic, int], Place],
        retire: Callable[[list[Place]], None],
        *,
        timeout_s: float,
    ) -> None:
        self._link = link
        self._place = place
        self._retire = retire
        self._timeout_s = timeout_s
        self.known: dict[str, Route] = {}
        self._refreshing: asyncio.Task[None] | None = None

    async def find(self, topic: str) -> Route:
        """Ask the broker. The topic is not known before it is added."""
        found = await topics.find(self._link, topic, timeout_s=self._timeout_s)
        return Route(found.topic_id, [self._place(found, number) for number in range(found.partitions)])

    def add(self, topic: str, route: Route) -> None:
        self.known[topic] = route
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh(), name="refresh")

    def forget(self, topic: str, topic_id: int) -> None:
        """It was deleted; perhaps there is another one by that name."""
        route = self.known.get(topic)
        if route is not None and route.topic_id == topic_id:
            del self.known[topic]
            self._retire(route.places)

    def close(self) -> list[asyncio.Task[None]]:
        """Forget all of them. What is left to wait for."""
        self.known.clear()
        if self._refreshing is None:
            return []
        self._refreshing.cancel()
        return [self._refreshing]

    async def _refresh(self) -> None:
        """Topics may get more partitions, or go; another one may come by the same name."""
        while True:
            await asyncio.sleep(REFRESH_S)
            known = {**self.known}
            try:
                found = await topics.look_up(self._link, [*known])
            except GoQueueError:
                continue
            for name, route in known.items():
                topic = found.get(name)
                if self.known.get(name) is not route:
                    continue
                if topic is None or topic.topic_id != route.topic_id:
                    del self.known[name]
                    self._retire(route.places)
                elif topic.partitions > route.count:
                    route.places += [self._place(topic, n) for n in range(route.count, topic.partitions)]
                    route.count = topic.partitions
