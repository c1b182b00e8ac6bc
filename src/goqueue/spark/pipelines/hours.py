"""What a lake has by topic and hour, and a picture of it."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from goqueue.spark.pipelines.lake import Lake, load
from goqueue.spark.pipelines.report import png
from goqueue.spark.pipelines.sizes import content_bytes

_DRAWN_TOPICS: Final = 6
_OTHERS: Final = "others"
_BAR_DAYS: Final = 0.92 / 24


class Hour(NamedTuple):
    topic: str
    hour: datetime
    messages: int
    bytes: int


def hours_of(spark: SparkSession, lake: Lake, directories: Iterable[str]) -> list[Hour]:
    """Of the days in these directories; the bytes are those of keys and values."""
    paths = [each.path for directory in sorted(directories) for each in lake.files.list(directory)]
    found = load(spark, lake.files, paths).groupBy("topic", f.date_trunc("hour", "timestamp").alias("hour"))
    rows = found.agg(f.count("*"), f.sum(content_bytes())).orderBy("hour", "topic").collect()
    return [Hour(*row) for row in rows]


def plot(hours: Sequence[Hour], marked: Iterable[datetime] = (), marks: str = "") -> bytes:
    """A PNG: messages above, bytes below, a bar an hour, with the largest topics in colours of their own.

    Hours that are `marked` have a sign above them; `marks` says what it means.
    """
    totals: dict[str, int] = {}
    for each in hours:
        totals[each.topic] = totals.get(each.topic, 0) + each.bytes
    large = sorted(totals, key=lambda topic: -totals[topic])[:_DRAWN_TOPICS]
    names = [*large, *([_OTHERS] if len(totals) > len(large) else [])]
    named = [each if each.topic in large else each._replace(topic=_OTHERS) for each in hours]
    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _bars(above, names, [(each.topic, each.hour, each.messages) for each in named], "messages", "")
    _bars(below, names, [(each.topic, each.hour, each.bytes) for each in named], "bytes", "B")
    _mark(above, hours, {*marked}, marks)
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=len(labels))
    first, last = hours[0].hour, hours[-1].hour
    below.set_xlim(_number(first - timedelta(hours=1)), _number(last + timedelta(hours=2)))
    locator = dates.AutoDateLocator()  # type: ignore[no-untyped-call]
    below.xaxis.set_major_locator(locator)
    below.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    below.set_xlabel("when it was appended, UTC")
    return png(figure)


def _mark(axis: Axes, hours: Sequence[Hour], marked: set[datetime], label: str) -> None:
    if not marked:
        return
    heights = {at: sum(each.messages for each in hours if each.hour == at) for at in sorted(marked)}
    middle = timedelta(minutes=30)
    highest = max(sum(each.messages for each in hours if each.hour == at) for at in {each.hour for each in hours})
    axis.plot(
        [_number(at + middle) for at in heights],
        [height + 0.07 * highest for height in heights.values()],
        linestyle="none",
        marker="v",
        markersize=9,
        color="#b3261e",
        label=label,
    )
    axis.set_ylim(0, 1.18 * highest)


def _number(hour: datetime) -> float:
    return float(dates.date2num(hour))  # type: ignore[no-untyped-call]


def _bars(axis: Axes, names: Sequence[str], points: Sequence[tuple[str, datetime, int]], label: str, unit: str) -> None:
    piled: dict[datetime, int] = {}
    for name in names:
        heights: dict[datetime, int] = {}
        for topic, hour, amount in points:
            if topic == name:
                heights[hour] = heights.get(hour, 0) + amount
        bottoms = [piled.get(hour, 0) for hour in heights]
        axis.bar(
            [_number(hour) for hour in heights],
            [*heights.values()],
            width=_BAR_DAYS,
            bottom=bottoms,
            label=name,
            align="edge",
        )
        piled.update({hour: bottom + heights[hour] for hour, bottom in zip(heights, bottoms, strict=True)})
    axis.set_ylabel(label)
    axis.yaxis.set_major_formatter(EngFormatter(unit=unit))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
