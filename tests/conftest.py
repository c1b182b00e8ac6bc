"""What every test can rely on, however the suite was started."""

import os
import signal
from itertools import groupby

import pytest

# Tests send these to programs they start. Started under nohup, or in the background of a script, the suite would have
# them ignored, and so would those programs.
for each in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(each) is signal.SIG_IGN:
        signal.signal(each, signal.default_int_handler if each is signal.SIGINT else signal.SIG_DFL)

# Tests start programs from processes that also speak gRPC. Its own care for forks would begin its threads again in a
# child that is about to become another program, and end it when their files are closed. Read when it is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

WAITING = ("chaos", "docs", "integration", "regressions", "scale")
"""Directories whose tests wait for processes, disks and timers most of the time."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread files of tests that wait among those that compute: several run at a time, and share few processors."""
    files = [(path.parts, [*found]) for path, found in groupby(items, lambda item: item.path)]
    spread: list[tuple[float, list[pytest.Item]]] = []
    for waits in (True, False):
        chosen = [found for parts, found in files if any(name in parts for name in WAITING) is waits]
        count, before = sum(map(len, chosen)), 0
        for found in chosen:
            spread.append((before / count, found))
            before += len(found)
    spread.sort(key=lambda each: each[0])
    items[:] = [item for _, found in spread for item in found]
