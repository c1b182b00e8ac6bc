"""What a pipeline is: a name, what it does, the options it takes, and a function that runs it and tells how it went.

A pipeline's module has a `PIPELINE`, which stands in the table of `pipelines.table`. Nothing here imports Spark, so
that what there is to run can be said without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from goqueue.client.client import DEFAULT_ADDRESS
from goqueue.model.errors import InvalidRequest
from goqueue.spark import values
from goqueue.spark.pipelines.progress import Progress
from goqueue.spark.pipelines.state import StateDirectory
from goqueue.spark.pipelines.stopping import Stopping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Option(NamedTuple):
    """Something that can be said about a run."""

    name: str
    read: Callable[[str], Any]
    """From text; ValueError, with what it should be, when it is not that."""
    help: str
    default: str | None = None
    """As it would be typed. None: nothing, and the run finds None."""
    required: bool = False
    steers: bool = False
    """It says how to go about it, not what is to be done: it may be another one when a run goes on."""


ADDRESS: Final = Option("address", str.strip, "The broker's wire port.", default=DEFAULT_ADDRESS, steers=True)
"""Of every pipeline that talks to a broker. It may move while its topics stay the same."""
LOST: Final = Option(
    "lost", values.one_of("fail", "skip"), "Messages that are gone: fail or skip.", default="fail", steers=True
)
"""Of every pipeline that goes on where it was."""


class Table(msgspec.Struct, frozen=True):
    """Figures that belong together. Cells are text, numbers or None."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str | int | float | None, ...]]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went: what is shown at its end, and by `pipeline status` later."""

    figures: dict[str, str | int | float]
    tables: list[Table] = []
    bad_rows: int = 0
    bad_rows_at: str | None = None
    """Where they are, with the reason each was left out."""
    report: str | None = None
    """A page for a person to look at."""
    problems: list[str] = []
    """What is not well; none if all is."""

    @property
    def is_well(self) -> bool:
        return not self.problems


@dataclass
class Run:
    """What the function of a pipeline is given."""

    start_spark: "Callable[[], SparkSession]"
    options: dict[str, Any]
    """By name, every declared one; those neither given nor with a default are None."""
    is_dry: bool
    """Say in the summary what would be done, and change nothing."""
    state: StateDirectory
    """Where a checkpoint belongs: the same run again finds what was left there."""
    progress: Progress
    counters: dict[str, int]
    """Metrics: they add up over all runs in the same directory, and are shown while it runs."""
    stopping: Stopping
    """Whether somebody asked for the end. Spark's jobs are cancelled then, unless a run says what to do instead."""

    @cached_property
    def spark(self) -> "SparkSession":
        """The session. It takes seconds to start, which a dry run may do without."""
        return self.start_spark()

    def tally(self, name: str, more: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + more


class Pipeline(NamedTuple):
    name: str
    what: str
    """A line on what it does."""
    options: tuple[Option, ...]
    run: Callable[[Run], Summary]
    check: Callable[[dict[str, Any]], list[str]] = lambda _: []
    """What is wrong with options together, each of which is right."""


def read_options(pipeline: Pipeline, given: Mapping[str, str]) -> dict[str, Any]:
    """What was given, read, and the defaults of the rest. InvalidRequest tells everything that is wrong."""
    known = {option.name: option for option in pipeline.options}
    problems: list[str] = []
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
            problems.append(f"{pipeline.name} has no option {name}; {hint}")
    found: dict[str, Any] = {}
    for name, option in known.items():
        text = given.get(name, option.default)
        found[name] = None
        if text is None:
            if option.required:
                problems.append(f"{name} is missing: {_lowered(option.help)}")
            continue
        try:
            found[name] = option.read(text)
        except ValueError as error:
            problems.append(f"{name} is {text!r}; it is {error}")
        except InvalidRequest as error:
            problems.append(f"{name}: {error}")
    problems += pipeline.check(found) if not problems else []
    if problems:
        raise InvalidRequest("; ".join(problems))
    return found


def _lowered(help: str) -> str:
    return help[0].lower() + help[1:].rstrip(".")


def what_counts(pipeline: Pipeline, given: Mapping[str, str]) -> dict[str, str]:
    """The options that say what is done: two runs that agree in them are the same run."""
    texts = {option.name: given.get(option.name, option.default) for option in pipeline.options if not option.steers}
    return {name: text for name, text in sorted(texts.items()) if text is not None}
