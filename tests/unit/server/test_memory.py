"""Memory that was freed is kept for the next who needs it."""

import platform
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S

_SCRIPT = """
import resource, sys
from goqueue.server.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def use():
    buffers = [b"x" * 1_000_000 for _ in range(4)]
use()
before = resource.getrusage(resource.RUSAGE_SELF)
for _ in range(20):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before.ru_minflt)
"""


def _faults(how: str) -> int:
    """Page faults of a process that takes and frees 4 MB again and again."""
    command = [sys.executable, "-c", _SCRIPT, how]
    return int(subprocess.run(command, env={}, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other habits")
def test_buffers_that_are_freed_are_there_for_the_next() -> None:
    assert _faults("as it is") > 1_000, "nothing is gained any more: it may go"
    assert _faults("kept") < 100
