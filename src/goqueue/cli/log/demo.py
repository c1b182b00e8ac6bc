"""`goqueue log demo`: what `make run` shows. A few orders into a log, out again, measured and verified."""

import os
import shlex
import shutil
import sys
import time
from typing import Final

from goqueue import codec
from goqueue.cli.data_directory import open_offline
from goqueue.cli.log.append import append_blocks
from goqueue.cli.log.cat import print_records
from goqueue.cli.log.lines import Block
from goqueue.cli.log.measure import measure
from goqueue.cli.log.options import DATA_DIR, DataDir
from goqueue.cli.log.selection import Bounds, select
from goqueue.cli.log.stats import print_numbers
from goqueue.cli.log.verify import print_results, verify_logs
from goqueue.cli.output import printable, say
from goqueue.model.record import Extension, Lane, Record
from goqueue.model.settings import Fsync, LogSettings

_NAME: Final = "demo"
_SHOWN: Final = 10
_WEB: Final = (("source", b"web"),)
_REMINDER_MS: Final = 60_000
_FIRST: Final = (
    Record(key=b"alice", value=b"order 1001: two apples", headers=_WEB),
    Record(key=b"bob", value=b"order 1002: one pear", headers=(("source", b"app"),)),
    Record(key=b"carol", value=b"order 1003: insulin, today", priority=Lane.CRITICAL, headers=_WEB),
    Record(key=b"alice", value="order 1001: paid, 3.20 €".encode(), priority=Lane.HIGH),
    Record(key=b"bob", value=b"remind: pear not paid", extension=Extension(deliver_at=-_REMINDER_MS)),
    Record(value=b"nightly report", priority=Lane.BACKGROUND),
)
_LATER: Final = (
    Record(key=b"dave", value=b"order 1004: three plums", headers=_WEB),
    Record(key=b"bob", value=b"order 1002: paid", priority=Lane.HIGH),
)


def demo(data_dir: DataDir = DATA_DIR) -> None:
    """Show all of this on a small log, and what to try next."""
    existed = _NAME in os.listdir(f"{data_dir}/logs") if os.path.isdir(f"{data_dir}/logs") else False
    messages = _LATER if existed else _FIRST
    _title(1, f"Append {len(messages)} messages, with fsync before the answer")
    block = Block(codec.encode(messages), 0)
    append_blocks(data_dir, _NAME, LogSettings(fsync=Fsync.EVERY), [block], input_bytes=None)

    log = open_offline(data_dir, _NAME)
    numbers = measure(_NAME, log, time.time_ns() // 1_000_000)
    start = max(numbers.start_offset, numbers.end_offset - _SHOWN)
    _title(2, "Read them back" if start == numbers.start_offset else f"Read the last {_SHOWN}")
    print_records(select(log.directory, Bounds(from_offset=start)))

    _title(3, "Ask what is there")
    print_numbers(numbers)

    _title(4, "Check every byte")
    print_results(verify_logs(data_dir, [_NAME]))

    say()
    say(("Try next", "bold"))
    where = (
        ""
        if os.path.normpath(data_dir) == os.path.normpath(DATA_DIR)
        else f" --data-dir {printable(shlex.quote(data_dir))}"
    )
    for command in (
        'append orders --key alice --value "two apples"',
        "cat orders",
        "cat demo --from-offset 2 -o json",
        "verify",
        "--help",
    ):
        say((f"  {_command()} log {command}{where if command != '--help' else ''}", "cyan"))


def _title(number: int, text: str) -> None:
    say()
    say((f"{number}  ", "bold cyan"), (text, "bold"))


def _command() -> str:
    """How to call this command from here: by its name if the shell finds it, else by its path."""
    called = os.path.abspath(sys.argv[0])
    found = shutil.which("goqueue")
    if os.path.basename(called) != "goqueue" or (found is not None and os.path.samefile(found, called)):
        return "goqueue"
    relative = os.path.relpath(called)
    return printable(shlex.quote(min(relative, called, key=len)))
