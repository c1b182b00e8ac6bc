"""Running a pipeline: options read, its directory taken, a session made; how it went is written down in any case."""

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from goqueue.model.errors import GoQueueError
from goqueue.model.times import show_time
from goqueue.spark.pipelines.frame import ADDRESS, Pipeline, Run, Summary, read_options, what_counts
from goqueue.spark.pipelines.progress import Progress
from goqueue.spark.pipelines.state import StateDirectory, StateWord, home, opened, run_name
from goqueue.spark.pipelines.stopping import Stopping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, for the Python it starts."""
_UNTRACED: Final = {"spark__python__sql__dataFrameDebugging__enabled": "false"}
"""Spark asks Java twice more for every column, to tell in errors which line made it: nothing to whoever runs these."""
_STDERR: Final = 2
_SAYS_IT_TWICE: Final = "SQLQueryContextLogger"
"""PySpark's: it prints what is raised, with Java's trace of where."""
_JAVA_TRACE: Final = re.compile(r"\n\tat |\n\nJVM stacktrace|\n=== Streaming Query ===")
_OURS: Final = re.compile(r"^goqueue\.[\w.]+: ")
"""What Python puts before the text of an error of ours."""
_AS_OPTION: Final = ("set failOnDataLoss to false", "set lost=skip")
"""What the source tells to do, and what that is called in a pipeline."""
_TRACEBACK: Final = "Traceback (most recent call last):\n"


class RunFailed(GoQueueError):
    """Something in it failed that is no error of GoQueue's own."""

    code = "pipeline_failed"


class Ended(NamedTuple):
    """A run that ended by itself, or because it was asked to."""

    name: str
    state: Path
    summary: Summary | None
    """None when it was stopped before there was anything to say."""
    signal: int | None
    """That asked it to stop."""


def run_pipeline(
    pipeline: Pipeline,
    given: Mapping[str, str],
    *,
    is_dry: bool = False,
    state: Path | None = None,
    master: str | None = None,
    spark: "SparkSession | None" = None,
) -> Ended:
    """Raises what went wrong. A dry run reads the directory, and leaves it as it is."""
    options = read_options(pipeline, given)
    counts = what_counts(pipeline, given)
    path = state or home() / run_name(pipeline.name, {**counts, "": str(options.get(ADDRESS.name))})
    with opened(path, pipeline.name, counts, is_dry=is_dry) as directory:
        try:
            return _run(pipeline, Ended(path.name, path, None, None), options, is_dry, directory, master, spark)
        except BaseException as error:
            _finish(directory, "failed", error=_told(error))
            if isinstance(error, GoQueueError | OSError) or not isinstance(error, Exception):
                raise
            raise RunFailed(_told(error)) from error


def _run(
    pipeline: Pipeline,
    ended: Ended,
    options: dict[str, object],
    is_dry: bool,
    directory: StateDirectory,
    master: str | None,
    spark: "SparkSession | None",
) -> Ended:
    status = directory.status

    def save(progress: Progress) -> None:
        status.doing, status.done, status.total = progress.doing, progress.done, progress.total
        status.rate = round(progress.rate, 1)
        directory.save()

    progress = Progress(save)
    with Stopping() as stopping:

        def start_spark() -> "SparkSession":
            log = Path(os.devnull) if is_dry else directory.log
            try:
                made = spark or _session(f"goqueue {pipeline.name}", master, log)
            except KeyboardInterrupt:  # Spark listens to Ctrl-C while it starts
                stopping.ask(signal.SIGINT)
                raise RunFailed("it was stopped while Spark started") from None
            stopping.listen()
            stopping.instead(made.sparkContext.cancelAllJobs)
            if stopping.is_asked:
                raise RunFailed("it was stopped while Spark started")
            return made

        run = Run(start_spark, options, is_dry, directory, progress, status.counters, stopping)
        try:
            summary = pipeline.run(run)
        except Exception:
            if not stopping.is_asked:
                raise
            summary = None  # its jobs were cancelled
        finally:
            progress.end()
    _finish(directory, "stopped" if stopping.is_asked else "done", summary=summary)
    return ended._replace(summary=summary, signal=stopping.number)


def _finish(
    directory: StateDirectory, word: StateWord, *, summary: Summary | None = None, error: str | None = None
) -> None:
    status = directory.status
    status.state = word
    status.summary = None if summary is None else msgspec.to_builtins(summary)
    status.error = error
    status.doing = ""
    status.finished = show_time(int(time.time() * 1000))
    directory.save()


def _session(app: str, master: str | None, log: Path) -> "SparkSession":
    """What Java says goes to the log: it inherits standard error, which is that file while it is started.

    Where spark-submit has started it, it speaks where that says.
    """
    from goqueue.spark.sessions import session

    logging.getLogger(_SAYS_IT_TWICE).setLevel(logging.CRITICAL)
    if _SUBMITTED in os.environ:  # whoever submits it says how
        return session(app, master=master)
    sys.stderr.flush()
    before = os.dup(_STDERR)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), _STDERR)
        return session(app, master=master, **_UNTRACED)
    finally:
        os.dup2(before, _STDERR)
        os.close(before)


def _told(error: BaseException) -> str:
    """What it says, in a line or a few: neither Java's trace of where, nor Python's of a task."""
    text = (str(error) or type(error).__name__).strip()
    if isinstance(error, GoQueueError) or not text:
        return text
    text = _JAVA_TRACE.split(text)[0].strip().replace(*_AS_OPTION)
    if _TRACEBACK in text:
        lines = [line for line in text.partition(_TRACEBACK)[2].splitlines() if line and not line[0].isspace()]
        text = _OURS.sub("", lines[0]) if lines else text
    return text
