"""Places in topics, and what lies between two of them: pure arithmetic, no broker, no Spark.

A position says for every topic its id and an offset for each partition. It is what a streaming query writes down, as
JSON; a topic that was deleted and created again by the same name has another id, so its offsets are never mixed up.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from goqueue.model.errors import InvalidRequest

Offsets = dict[str, dict[int, int]]
"""By topic and partition."""


class Position(NamedTuple):
    """Where a query is: the next offset of every partition."""

    ids: dict[str, str]
    """Topics, by name, and which of that name."""
    offsets: Offsets

    def to_json(self) -> dict[str, Any]:
        """With sorted keys: Spark compares the text."""
        return {
            topic: {
                "id": self.ids[topic],
                "offsets": {str(number): offset for number, offset in sorted(self.offsets[topic].items())},
            }
            for topic in sorted(self.offsets)
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Position":
        try:
            ids = {topic: str(place["id"]) for topic, place in saved.items()}
            offsets = {
                topic: {int(number): int(offset) for number, offset in place["offsets"].items()}
                for topic, place in saved.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(
                f"the checkpoint's offsets are not understood ({error!r}); it was written by something else"
            ) from None
        return cls(ids, offsets)


class Stretch(NamedTuple):
    """Offsets of one partition, from `start` up to `end` (not included)."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    is_new: bool = False
    """Nobody was promised its beginning: the partition was not there when the query was planned before."""

    @property
    def size(self) -> int:
        return self.end - self.start


def stretches(start: Position, end: Position) -> list[Stretch]:
    """What lies between two positions. Partitions that came in between are read from their beginning."""
    found = []
    for topic, places in sorted(end.offsets.items()):
        began = start.offsets.get(topic, {}) if start.ids.get(topic) == end.ids[topic] else {}
        for number, offset in sorted(places.items()):
            first = began.get(number)
            if offset > (first or 0):
                found.append(Stretch(topic, end.ids[topic], number, first or 0, offset, is_new=first is None))
    return found


def with_new(start: Position, earliest: Position) -> Position:
    """The same, and partitions that came since at the first message they have."""
    offsets = {topic: {**places} for topic, places in earliest.offsets.items()}
    for topic, places in start.offsets.items():
        if start.ids[topic] == earliest.ids.get(topic):
            offsets[topic] |= places
    return Position(earliest.ids, offsets)


def split(found: Iterable[Stretch], *, least: int | None, most_records: int | None) -> list[Stretch]:
    """In at least so many parts, if there are so many offsets, and none with more than so many of them."""
    parts = [each for each in found if each.size > 0]
    if most_records is not None:
        parts = [part for each in parts for part in _cut(each, -(-each.size // most_records))]
    if least is None or len(parts) >= least:
        return parts
    total = sum(each.size for each in parts)
    shares = _shares([each.size for each in parts], min(least, total))
    return [part for each, share in zip(parts, shares, strict=True) for part in _cut(each, share)]


def _shares(sizes: list[int], parts: int) -> list[int]:
    """How many of the parts each gets: one at least, the others where the parts are largest."""
    total = sum(sizes)
    shares = [max(1, parts * size // total) for size in sizes] if total else []
    while sum(shares) < parts:
        at = max(range(len(sizes)), key=lambda i: sizes[i] / shares[i])
        shares[at] += 1
    return shares


def _cut(each: Stretch, parts: int) -> Iterator[Stretch]:
    for part in range(parts):
        start = each.start + each.size * part // parts
        end = each.start + each.size * (part + 1) // parts
        if end > start:
            yield each._replace(start=start, end=end)


def admit(start: Position, end: Position, most: int, cost: Mapping[str, float] | None = None) -> Position:
    """The furthest position with at most so many offsets behind the start, shared fairly: in proportion to what
    partitions have, and something for each that has something, if it goes round. One offset at least.

    With a `cost` of the offsets of each topic `most` bounds what they cost together.
    """
    ahead = stretches(start, end)
    total = sum(each.size for each in ahead)
    if cost is not None:
        price = sum(each.size * cost[each.topic] for each in ahead)
        most = total if price <= most else max(1, int(total * most / price))
    if total <= most:
        return end
    least = 1 if most >= len(ahead) else 0
    spare = max(1, total - least * len(ahead))
    shares = [least + (most - least * len(ahead)) * (each.size - least) // spare for each in ahead]
    left = most - sum(shares)
    for at in sorted(range(len(ahead)), key=lambda i: -ahead[i].size):
        if not left:
            break
        if shares[at] < ahead[at].size:
            shares[at] += 1
            left -= 1
    offsets = {topic: {**places} for topic, places in end.offsets.items()}
    for each, share in zip(ahead, shares, strict=True):
        offsets[each.topic][each.partition] = each.start + share
    return Position(end.ids, offsets)
