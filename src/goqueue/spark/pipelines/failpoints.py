"""Places where a test has the process killed: they must not matter, the next run goes on."""

import os
import signal
from collections import Counter
from typing import Final

VARIABLE: Final = "GOQUEUE_PIPELINE_FAILPOINT"
"""A name, or a name and how many times it is passed before: `published:2`."""
_passed: Final[Counter[str]] = Counter()


def failpoint(name: str) -> None:
    """Nothing, unless the environment names it: then kill -9."""
    wanted, _, before = os.environ.get(VARIABLE, "").partition(":")
    if name == wanted:
        if _passed[name] >= int(before or 0):
            os.kill(os.getpid(), signal.SIGKILL)
        _passed[name] += 1
