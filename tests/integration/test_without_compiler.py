"""A machine without a C compiler gets a package that works, with the pure-Python codec."""

import os
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S

SMOKE = """
from goqueue import codec
from goqueue.model.record import Record

assert codec.COMPILED is False, "GOQUEUE_CODEC=python must choose the Python codec"
block = codec.encode([Record(key=b"k", value=b"v", headers=(("h", b"1"),)), Record(value=b""), Record(key=b"gone")])
stamped = codec.stamp(block, offset=7, timestamp=1_000)
scan = codec.scan(block)
assert scan.problem == codec.Problem.NONE, scan.problem
assert list(scan.offsets) == list(stamped.offsets) == [7, 8, 9], list(scan.offsets)
assert scan.end == len(block)
first, second, third = codec.decode(block)
assert (first.key, first.value, first.headers) == (b"k", b"v", (("h", b"1"),))
assert (second.key, second.value) == (None, b"")
assert (third.key, third.value) == (b"gone", None)
block[-1] ^= 1
assert len(codec.scan(block)) == 2, "a flipped bit must not pass"
print("python codec works")
"""

BLOCKED = """
import sys
sys.modules["goqueue.codec._compiled"] = None  # what an install without a compiler looks like to an import
from goqueue import codec
assert codec.COMPILED is False
print("python codec chosen")
"""


def python(script: str, *, choice: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "GOQUEUE_CODEC": choice},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_python_codec_encodes_stamps_scans_and_decodes() -> None:
    done = python(SMOKE, choice="python")
    assert done.stdout == "python codec works\n", done.stderr


@pytest.mark.parametrize("room", ["goqueue.io.disk", "goqueue.storage", "goqueue.cli"])
def test_every_room_imports_without_the_compiled_codec(room: str) -> None:
    done = python(f"import {room}, goqueue.codec as codec; assert not codec.COMPILED", choice="python")
    assert done.returncode == 0, done.stderr


def test_a_missing_library_is_not_an_error_unless_it_was_asked_for() -> None:
    assert python(BLOCKED, choice="auto").stdout == "python codec chosen\n"
    refused = python(BLOCKED, choice="compiled")
    assert refused.returncode != 0
    assert "GOQUEUE_CODEC asks for the compiled codec" in refused.stderr
