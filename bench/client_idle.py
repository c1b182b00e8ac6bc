"""Many connections that do nothing: what each costs the broker, and whether somebody who publishes beside them notices.

They are raw sockets that exchanged prefaces and stay open; at the end every one must still be answered.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Final

from bench.callers import WireCaller
from bench.client_ground import LOAD, ground, run_paced
from bench.processes import resident_mib
from bench.report import Figure, Run
from goqueue.model import limits

PACE: Final = 10_000
IDLE: Final = limits.MAX_CONNECTIONS - 10
"""As many as a door lets in, less a few for the publisher."""
_OTHER_FILES: Final = 200
_SETTLE_S: Final = 0.25
_SETTLE_TURNS: Final = 20
_SETTLED_MIB: Final = 0.2


def connections(run: Run) -> Iterator[Figure]:
    count = 1000 if run.short else IDLE
    seconds, warm_s = (1.0, 0.3) if run.short else (10.0, 1.0)
    memory = "memory of an idle wire connection"
    with _open_files(count + _OTHER_FILES) as allowed:
        if not allowed:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            why = (
                f"not measured: {count:,} connections need more open files than the {hard:,} allowed here (ulimit -Hn)"
            )
            yield Figure(memory, None, "KiB", note=why)
            return
        with ground() as found, ExitStack() as idle:
            before = run_paced(found, "before", PACE, seconds, warm_s)
            alone_mib = settled_mib(found.broker.process.pid)
            run.say(f"connections: opening {count:,}")
            begun = time.perf_counter()
            callers = [idle.enter_context(closing(WireCaller(found.broker.address))) for _ in range(count)]
            opened_s = time.perf_counter() - begun
            held_mib = settled_mib(found.broker.process.pid)
            beside = run_paced(found, "beside", PACE, seconds, warm_s)
            for caller in callers:
                caller.ask("metadata", topics=[])
    how = f"{count:,} connections after the preface, RSS difference; opened one after the other in {opened_s:.1f} s"
    yield Figure(memory, (held_mib - alone_mib) * 1024 / count, "KiB", note=how)
    for when, one in (("alone", before), (f"beside {count:,} idle connections", beside)):
        note = f"{LOAD}, enqueued {PACE // 1000} a millisecond; p50 {one.done.p50_ms:.2f} ms"
        yield Figure(f"client publish latency at {PACE:,}/s {when}, p99", one.done.p99_ms, "ms", note=note)


def settled_mib(pid: int) -> float:
    """Resident memory once it does not change any more, or after some seconds."""
    last = resident_mib(pid)
    for _ in range(_SETTLE_TURNS):
        time.sleep(_SETTLE_S)
        now = resident_mib(pid)
        if abs(now - last) < _SETTLED_MIB:
            return now
        last = now
    return last


@contextmanager
def _open_files(wanted: int) -> Iterator[bool]:
    """Whether this process, and those it starts meanwhile, may have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        yield True
    elif hard != unlimited and hard < wanted:
        yield False
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        try:
            yield True
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
