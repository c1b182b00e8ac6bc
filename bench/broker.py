"""The broker as a process, through its doors."""

from typing import Final

from bench import calls, groups, http, many_topics, wire
from bench.report import Part

PARTS: Final[dict[str, Part]] = {
    "publish": wire.publish,
    "fetch": wire.fetch,
    "batch": http.batch,
    "single": http.single,
    "topics": many_topics.topics,
    "memory": many_topics.memory,
    "calls": calls.calls,
    "polls": groups.polls,
    "wakes": groups.wakes,
    "parked": groups.parked,
    "pairs": groups.pairs,
}
