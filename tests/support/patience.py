"""How long a test waits for what must come about: for as long as it takes.

How busy the machine is decides no test. What never comes about ends a test all the same, after so long that only a hang
gets there; everything that has to name a time names `PATIENCE_S`. `test_no_test_has_a_deadline_of_its_own` looks after
that. A test that wants something *not* to happen waits for what comes after it, not for a while.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 600.0
"""Less than the time after which the suite ends a test, so that what hangs says where."""
_EVERY_S: Final = 0.01


def wait_until(find: Callable[[], T | None], otherwise: str = "it does not come about") -> T:
    """What it finds, as soon as that is something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := find()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(_EVERY_S)
    return found
