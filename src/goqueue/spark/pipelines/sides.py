"""What two copies of a log have of each other, before their messages are compared: topics and partitions.

What only one of them has, and topics that have nothing but their name in common, is a finding as it is. The rest can be
compared, offset by offset.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from goqueue.model.names import format_topic_id
from goqueue.spark.log_directory import DataDirectory, PartitionLog
from goqueue.spark.log_source import Survey, survey
from goqueue.spark.options import LogOptions
from goqueue.spark.pipelines.findings import ABSENT, DIFFERENT, EXTRA

Place = tuple[str, int]
"""Topic and partition."""
Finding = tuple[str, int, str, int, int, str | None, int | None, str, str | None]
"""A row of `findings.SCHEMA`."""


class Side(NamedTuple):
    """What a data directory has of the topics that are looked at."""

    logs: dict[Place, PartitionLog]
    unreadable: dict[Place, tuple[str, str]]
    """Where those are that should be there, and what is wrong with them."""
    ids: dict[str, str]
    """Topics, by name, and which of that name."""

    @property
    def places(self) -> set[Place]:
        return {*self.logs, *self.unreadable}


def look(path: str, options: LogOptions) -> Side:
    """UnknownTopic when a topic that is named does not exist."""
    directory = DataDirectory(path)
    return _side(directory, survey(directory, options))


def look_at_copy(path: str, options: LogOptions) -> Side:
    """As much of it as there is."""
    directory = DataDirectory(path)
    named = options.subscription.names
    there = tuple(name for name in named if name in directory.topics)
    if named and not there:
        return Side({}, {}, {})
    subscription = options.subscription._replace(names=there)
    return _side(directory, survey(directory, options._replace(subscription=subscription)))


def _side(directory: DataDirectory, found: Survey) -> Side:
    topics = {topic for topic, _ in (*found.logs, *found.unreadable)}
    return Side(*found, {topic: format_topic_id(directory.topics[topic].topic_id) for topic in topics})


def one_sided(ours: Side, theirs: Side, *, against: str) -> Iterator[Finding]:
    """Partitions that cannot be compared because only one side has them. What we should have and cannot read is a
    finding already."""
    for topic, number in sorted(ours.logs.keys() - theirs.logs.keys()):
        log = ours.logs[topic, number]
        lack = f"the other copy has no such {_lack(topic, theirs)}"
        file, reason = theirs.unreadable.get((topic, number), (None, lack))
        yield topic, number, ABSENT, log.start, log.stable, file, None, reason, against
    for topic, number in sorted(theirs.places - ours.places):
        found = theirs.logs.get((topic, number))
        first, end = (found.start, found.stable) if found is not None else (0, 0)
        reason = f"the log has no such {_lack(topic, ours)}, the other copy has"
        yield topic, number, EXTRA, first, end, None, None, reason, against


def _lack(topic: str, side: Side) -> str:
    return "partition" if topic in side.ids else "topic"


def comparable(ours: Side, ids: Mapping[str, str]) -> set[Place]:
    """Our partitions, but for those of topics of which the other side, by its `ids`, has another of the same name."""
    return {(topic, number) for topic, number in ours.logs if ids.get(topic) in (None, ours.ids[topic])}


def namesakes(ours: Side, ids: Mapping[str, str], *, against: str) -> Iterator[Finding]:
    """The others."""
    for topic, number in sorted(ours.logs.keys() - comparable(ours, ids)):
        log = ours.logs[topic, number]
        reason = f"another topic of that name: {ours.ids[topic]} in the log, {ids[topic]} in the other copy"
        yield topic, number, DIFFERENT, log.start, log.stable, None, None, reason, against
