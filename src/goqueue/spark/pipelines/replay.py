"""`replay`: what a topic had in a range of time, from its log or from a lake, into a topic; filtered, at a rate, once.

Kept are key, value, headers, priority and event time, and the order of each key. Not kept are offsets, append times,
message ids, and who published: the messages are new ones. Delayed messages that were cancelled are left out. Where a
key was in several partitions, because partitions were added, its order is kept within each of them.
"""

from typing import Any, Final

from goqueue.spark import asking, values
from goqueue.spark.options import Address
from goqueue.spark.pipelines.copying import WRITTEN, Copy, Tally, carry_out, describe
from goqueue.spark.pipelines.delays import Delays
from goqueue.spark.pipelines.filters import where, with_header, with_key
from goqueue.spark.pipelines.frame import ADDRESS, LOST, Option, Pipeline, Run, Summary
from goqueue.spark.pipelines.sources import LakeSource, Source, TopicSource, largest_message

_KEEP_OR_DROP: Final = values.one_of("keep", "drop")


def run(run: Run) -> Summary:
    options = run.options
    with asking.connect(Address(options["address"])) as client:
        largest = largest_message(client, options["into"])
        delays = Delays(client, options["address"], options["topic"])
    bounds = (options["topic"], options["from"], options["to"])
    skips_lost = options["lost"] == "skip"
    source: Source = (
        TopicSource(run.spark, options["address"], *bounds, skips_lost=skips_lost)
        if options["lake"] is None
        else LakeSource(run.spark, options["lake"], *bounds)
    )
    times = [name for name, option in (("deliver_at", "delays"), ("expires_at", "expiry")) if options[option] == "keep"]
    copy = Copy(
        source,
        options["into"],
        largest,
        delays,
        (*WRITTEN, *times),
        lambda rows: where(with_header(with_key(rows, options["key"]), options["header"]), options["where"]),
        chunk=options["chunk"],
        rate=options["rate"],
        skips_lost=skips_lost,
    )
    if run.is_dry:
        return Summary(figures={"into": options["into"]}, tables=describe(run, copy))
    return summary_of(run, copy, carry_out(run, copy))


def summary_of(run: Run, copy: Copy, tally: Tally) -> Summary:
    """Figures are of all runs in the directory."""
    problems = [f"{each}; run this again when it is" for each in copy.source.undecided]
    if tally.lost:
        problems.append(f"{tally.lost} offsets were cleaned away before they were read")
    return Summary(
        figures={
            "into": copy.target,
            "messages read": tally.rows,
            "messages written": tally.written,
            "cancelled": tally.cancelled,
            "offsets lost": tally.lost,
        },
        bad_rows=tally.bad,
        bad_rows_at=str(run.state.bad_rows) if tally.bad else None,
        problems=problems,
    )


def _check(options: dict[str, Any]) -> list[str]:
    if options["lake"] is None and options["topic"] == options["into"]:
        return ["into is the topic itself, which would grow with every run; name another one"]
    return []


PIPELINE: Final = Pipeline(
    "replay",
    "Messages of a time, from a topic or a lake, into a topic again.",
    (
        ADDRESS,
        Option("topic", values.topic, "Whose messages.", required=True),
        Option("into", values.topic, "The topic they go to; it must exist.", required=True),
        Option("lake", values.path, "Take them from a lake that archive wrote, instead of the broker."),
        Option("from", values.time, "Appended then or later, like 2026-01-31T12:00:00Z."),
        Option("to", values.time, "Appended before."),
        Option("key", str, "Only those with this key."),
        Option("header", values.pair, "Only those with this header, NAME=VALUE."),
        Option("where", values.text, "Only those for which this SQL expression over the columns is true."),
        Option("delays", _KEEP_OR_DROP, "When they were to be delivered: keep or drop.", default="keep"),
        Option("expiry", _KEEP_OR_DROP, "When they were to expire: keep or drop.", default="drop"),
        Option("rate", values.number, "At most so many a second.", steers=True),
        Option("chunk", values.whole, "At most so many offsets at once.", default="100000", steers=True),
        LOST,
    ),
    run,
    _check,
)
