"""How far Spark is with what it was told to do, for pipelines that are one large query: it goes by the tasks done."""

from collections.abc import Callable
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, TypeVar

from goqueue.spark.pipelines.progress import Progress

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

T = TypeVar("T")

_GLANCE_S: Final = 0.5


def watched(spark: "SparkSession", progress: Progress, rows: int, work: Callable[[], T]) -> T:
    """Do it, and tell about so many rows on the way. Which tasks there will be turns out as it goes: it never goes
    back, and all is done only at the end."""
    tracker = spark.sparkContext.statusTracker()
    earlier = {*tracker.getActiveJobsIds()}
    over = Event()
    told = 0

    def watch() -> None:
        nonlocal told
        tasks = _Tasks(earlier)
        while not over.wait(_GLANCE_S):
            now = int(rows * tasks.share(tracker))
            if now > told:
                progress.advance(now - told)
                told = now

    watcher = Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        done = work()
    finally:
        over.set()
        watcher.join()
    progress.advance(rows - told)
    return done


class _Tasks:
    """Of every stage that was seen: how many there are, and how many are done."""

    def __init__(self, earlier: set[int]) -> None:
        self._earlier = earlier
        """Jobs of others."""
        self._stages: dict[int, tuple[int, int]] = {}

    def share(self, tracker: "StatusTracker") -> float:
        for job in {*tracker.getActiveJobsIds()} - self._earlier:
            found = tracker.getJobInfo(job)
            for stage in found.stageIds if found is not None else ():
                self._stages.setdefault(stage, (0, 1))
        for stage in self._stages:
            info = tracker.getStageInfo(stage)
            if info is not None:
                self._stages[stage] = (info.numCompletedTasks, max(info.numTasks, 1))
        total = sum(tasks for _, tasks in self._stages.values())
        return sum(done for done, _ in self._stages.values()) / total if total else 0.0
