"""`repartition`: what a topic has, onto another number of partitions of a new topic; per key in order, nothing lost.

The new topic is made with the settings of the old one. Messages with a key go where the key says; those without one
have no order to keep and are dealt out, some to each partition. Run again, it adds what has come since: so consumers
can move with a short pause in publishing.
"""

import time
from typing import Any, Final

import msgspec

from goqueue.client.sync.client import Client
from goqueue.model.errors import Conflict
from goqueue.model.times import parse_time
from goqueue.model.topic import CleanupPolicy
from goqueue.spark import asking, values
from goqueue.spark.options import Address
from goqueue.spark.pipelines.copying import WRITTEN, Copy, carry_out, describe
from goqueue.spark.pipelines.delays import Delays
from goqueue.spark.pipelines.frame import ADDRESS, LOST, Option, Pipeline, Run, Summary
from goqueue.spark.pipelines.replay import summary_of
from goqueue.spark.pipelines.sources import TopicSource, largest_message
from goqueue.wire.shapes import TopicDescription

_MADE: Final = "made.json"
_HOUR_MS: Final = 3_600_000


class Made(msgspec.Struct, frozen=True):
    """The topic that was made, so that it is known again."""

    topic_id: str | None
    """None: it is about to be made."""


def run(run: Run) -> Summary:
    options = run.options
    with asking.connect(Address(options["address"])) as client:
        if not run.is_dry:
            _make(run, client)
        largest = largest_message(client, options["topic"])
        delays = Delays(client, options["address"], options["topic"])
    skips_lost = options["lost"] == "skip"
    copy = Copy(
        TopicSource(run.spark, options["address"], options["topic"], skips_lost=skips_lost),
        options["into"],
        largest,
        delays,
        (*WRITTEN, "deliver_at", "expires_at"),
        chunk=options["chunk"],
        skips_lost=skips_lost,
    )
    if run.is_dry:
        figures = {"into": options["into"], "partitions": options["partitions"]}
        return Summary(figures=figures, tables=describe(run, copy))
    summary = summary_of(run, copy, carry_out(run, copy))
    return summary if run.stopping.is_asked else _checked(run, summary)


def _make(run: Run, client: Client) -> None:
    """Once. A topic of that name that is not ours is left alone."""
    options = run.options
    made: Made | None = run.state.read(_MADE, Made)
    there = options["into"] in client.list_topics().topics
    if made is None and there:
        raise Conflict(f"there is a topic {options['into']} already; name one that does not exist")
    if made is None:
        run.state.keep(_MADE, Made(None))
    if not there:
        if made is not None and made.topic_id is not None:
            raise Conflict(
                f"the topic {options['into']} that was being filled is gone; begin anew, with another --state"
            )
        config = msgspec.to_builtins(client.describe_topic(options["topic"]).config)
        client.call("create_topic", name=options["into"], num_partitions=options["partitions"], **config)
    found = client.describe_topic(options["into"]).topic_id
    if made is not None and made.topic_id not in (None, found):
        raise Conflict(f"the topic {options['into']} is another one by now; begin anew, with another --state")
    run.state.keep(_MADE, Made(found))


def _checked(run: Run, summary: Summary) -> Summary:
    """What the new topic has, counted. Less than was written is as it should be where some of it may be cleaned."""
    run.progress.begin("counting")
    reader = run.spark.read.format("goqueue").schema("offset long").option("failOnDataLoss", "false")
    reader = reader.option("bootstrap.servers", run.options["address"]).option("subscribe", run.options["into"])
    found, expected = reader.load().count(), int(summary.figures["messages written"])
    with asking.connect(Address(run.options["address"])) as client:
        may_shrink = _is_cleaned(client.describe_topic(run.options["into"]))
    problems = [*summary.problems]
    if found > expected or (found < expected and not may_shrink):
        problems.append(f"{run.options['into']} has {found} messages, and {expected} were written")
    figures: dict[str, Any] = {**summary.figures, "messages there": found}
    return msgspec.structs.replace(summary, figures=figures, problems=problems)


def _is_cleaned(topic: TopicDescription) -> bool:
    """Whether retention or compaction may have removed messages of it."""
    config, age_ms = topic.config, time.time() * 1000 - parse_time(topic.created)
    is_old = config.retention_hours is not None and age_ms >= config.retention_hours * _HOUR_MS
    return is_old or config.retention_bytes is not None or config.cleanup_policy is not CleanupPolicy.DELETE


PIPELINE: Final = Pipeline(
    "repartition",
    "What a topic has, onto another number of partitions of a new topic.",
    (
        ADDRESS,
        Option("topic", values.topic, "The topic as it is.", required=True),
        Option("into", values.topic, "The topic that is made of it.", required=True),
        Option("partitions", values.whole, "How many it gets.", required=True),
        Option("chunk", values.whole, "At most so many offsets at once.", default="100000", steers=True),
        LOST,
    ),
    run,
)
