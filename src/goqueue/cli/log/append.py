"""`goqueue log append`: messages from the command line or standard input into a log, durably.

What it prints is an acknowledgement: it appears after the fsync, or not at all.
"""

import io
import os
import stat
import sys
import time
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import typer

from goqueue import codec
from goqueue.cli.failures import INTERRUPTED
from goqueue.cli.log.lines import Block, blocks
from goqueue.cli.log.message import typed_message
from goqueue.cli.log.options import DATA_DIR, DataDir, Name
from goqueue.cli.output import note, say, show_count, show_offsets
from goqueue.cli.progress import Meter
from goqueue.io.waiting import wait_for
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRecord, InvalidRequest, StorageFailed
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from goqueue.storage.store import Store, log_directory

BLOCK_BYTES: Final = limits.MIB
"""How much is appended at a time; less when segments are smaller."""
_DEFAULTS: Final = LogSettings()


def append(
    name: Name,
    key: Annotated[str | None, typer.Option(help="The key of every message.")] = None,
    value: Annotated[str | None, typer.Option(help="The message; without it each line of stdin is one.")] = None,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="No value: compaction then drops the key.")] = False,
    priority: Annotated[str, typer.Option(help="critical, high, normal, low or background, or 0 to 4.")] = "normal",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be given again.")] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver this much later, like 30s or 1h30m.")] = None,
    fsync: Annotated[Fsync, typer.Option(help="When to make it durable while writing.")] = _DEFAULTS.fsync,
    segment_bytes: Annotated[
        int, typer.Option(help="Begin a new segment file at this size.")
    ] = _DEFAULTS.segment_bytes,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Append messages to a log, creating it if there is none."""
    log_directory(data_dir, name)
    settings = LogSettings(
        fsync=fsync,
        segment_bytes=segment_bytes,
        index_interval_bytes=min(_DEFAULTS.index_interval_bytes, segment_bytes),
    )
    if tombstone and (value is not None or key is None):
        raise InvalidRequest("--tombstone deletes a key: give --key and no --value with it")
    message = typed_message(key=key, value=value, priority=priority, headers=header or [], delay=delay)
    from_lines = value is None and not tombstone
    one = _encode_one(msgspec.structs.replace(message, value=b"") if from_lines else message)
    if not from_lines:
        append_blocks(data_dir, name, settings, [Block(one, 0)], input_bytes=None)
        return
    if sys.stdin is None:
        raise InvalidRequest("there is no standard input to read messages from; give --value")
    if sys.stdin.isatty():
        note("reading messages from the terminal, one a line; Ctrl-D ends")
    stdin = sys.stdin.buffer
    assert isinstance(stdin, io.BufferedIOBase)
    source = blocks(stdin, message, min(BLOCK_BYTES, segment_bytes))
    append_blocks(data_dir, name, settings, source, input_bytes=_input_bytes())


def _encode_one(message: Record) -> bytearray:
    """Refuses a message before anything is opened or created."""
    try:
        return codec.encode([message])
    except InvalidRecord as error:
        raise InvalidRequest(f"this message cannot be appended: {error.reason}") from error


def _input_bytes() -> int | None:
    """How much there is to read, where that is known."""
    try:
        status = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def append_blocks(
    data_dir: str, name: str, settings: LogSettings, source: Iterable[Block], *, input_bytes: int | None
) -> None:
    """Append everything, make it durable, and say so; also when only a part of it could be appended."""
    failure: GoQueueError | KeyboardInterrupt | None = None
    with Store(data_dir) as store:
        log = store.open_log(name, settings)
        for line in log.recovery.lines():
            note(line)
        first = log.end_offset
        try:
            _write(log, source, input_bytes)
        except (GoQueueError, KeyboardInterrupt) as error:
            failure = error
    _check_durable(log)
    count = log.end_offset - first
    if count:
        offsets = show_offsets(first, log.end_offset)
        say(f"{name}: {show_count(count, 'record')} at offset{'s' if count > 1 else ''} {offsets}, durable")
    elif failure is None:
        note("there was nothing to append")
    if isinstance(failure, KeyboardInterrupt):
        raise typer.Exit(INTERRUPTED)
    if failure is not None:
        raise failure


def _write(log: Log, source: Iterable[Block], input_bytes: int | None) -> None:
    with Meter(f"appending to {log.directory.rpartition('/')[2]}", input_bytes) as meter:
        for block in source:
            log.append(block.data, now=time.time_ns() // 1_000_000)
            meter.advance(block.input_bytes)
        if log.settings.fsync is Fsync.EVERY:
            wait_for(log.durable, log.end_offset)


def _check_durable(log: Log) -> None:
    """Closing a log syncs it, unless it had failed before: then nothing more is acknowledged."""
    if log.durable.value < log.end_offset:
        raise log.durable.failure or StorageFailed(f"{log.directory} could not be made durable; check the disk")
