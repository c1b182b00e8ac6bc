"""Run seeds: one seed is one simulated life of one room, and everything that happens in it follows from the seed."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import NamedTuple

from sim.checkers import Violation
from sim.disk import Crashed
from sim.planted import planted
from sim.rooms import ROOMS
from sim.trace import Trace


class Result(NamedTuple):
    """What a seed came to. Two runs of one seed have equal results."""

    room: str
    seed: int
    bug: str | None
    events: int
    digest: str
    failure: str | None

    @property
    def command(self) -> str:
        """What to type to see it again."""
        bug = f" --bug {self.bug}" if self.bug else ""
        return f"python -m sim --room {self.room} --seed {self.seed}{bug} --trace"


def run_seed(
    seed: int, *, room: str = "log", bug: str | None = None, show: Callable[[str], None] | None = None
) -> Result:
    """Run one seed; anything that comes out of it as an exception is its failure."""
    trace = Trace(show)
    failure = None
    with planted(bug):
        try:
            ROOMS[room](Random(f"{room} {seed}"), trace)
        except Violation as violation:
            failure = str(violation)
        except (Exception, Crashed):
            failure = traceback.format_exc()
    return Result(room, seed, bug, trace.events, trace.digest(), failure)


def run_seeds(seeds: Iterable[int], *, room: str = "log", bug: str | None = None, jobs: int = 1) -> Iterator[Result]:
    """Results in the order of the seeds; with `jobs` above one from that many processes."""
    run = partial(run_seed, room=room, bug=bug)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=25)
        finally:
            pool.shutdown(cancel_futures=True)
