"""`goqueue log append`: messages from the command line or standard input into a log, durably.

What it prints is an acknowledgement: it appears after the fsync, or not at all.
"""

import io
import itertools
import os
import stat
import sys
import time
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import typer

from goqueue import codec
from goqueue.cli.data_directory import check_writable, log_path
from goqueue.cli.failures import BY_SIGNAL, FAILED, UNPRINTED
from goqueue.cli.interrupts import Interrupted, Interrupts
from goqueue.cli.log.lines import Block, blocks
from goqueue.cli.log.message import typed_message
from goqueue.cli.log.options import DATA_DIR, DataDir, Name, settings
from goqueue.cli.output import OutputFailed, complain, finish_output, name_offsets, note, say, show_count
from goqueue.cli.progress import Meter
from goqueue.io.waiting import wait_for
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRecord, InvalidRequest, StorageFailed
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.log import Log
from goqueue.storage.store import Store

BLOCK_BYTES: Final = limits.MIB
"""How much is appended at a time; less when segments are smaller."""
_DEFAULTS: Final = LogSettings()


def append(
    name: Name,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="The key of every message.")] = None,
    value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The message; without it each line of stdin is one.")
    ] = None,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="No value: compaction then drops the key.")] = False,
    priority: Annotated[
        str, typer.Option(metavar="LANE", help="critical, high, normal, low or background, or 0 to 4.")
    ] = "normal",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be given again.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Deliver this much later, like 30s or 1h30m.")
    ] = None,
    fsync: Annotated[Fsync, typer.Option(help="When to make it durable while writing.")] = _DEFAULTS.fsync,
    segment_bytes: Annotated[
        int, typer.Option(metavar="BYTES", help="Begin a new segment file at this size.")
    ] = _DEFAULTS.segment_bytes,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Append messages to the log NAME, creating it if there is none. The answer comes when they are durable.

    Ctrl-C, SIGTERM and SIGHUP keep what was written: it is made durable and acknowledged before the end.
    """
    log_path(data_dir, name)
    check_writable(name)
    chosen = settings(
        fsync=fsync,
        segment_bytes=segment_bytes,
        index_interval_bytes=min(_DEFAULTS.index_interval_bytes, max(segment_bytes, 1)),
    )
    if tombstone and (value is not None or key is None):
        raise InvalidRequest("--tombstone deletes a key: give --key and no --value with it")
    message = typed_message(key=key, value=value, priority=priority, headers=header or [], delay=delay)
    from_lines = value is None and not tombstone
    one = _encode_one(msgspec.structs.replace(message, value=b"") if from_lines else message)
    if not from_lines:
        append_blocks(data_dir, name, chosen, [Block(one, 0)], input_bytes=None)
        return
    if sys.stdin is None:
        raise InvalidRequest("there is no standard input to read messages from; give --value")
    if sys.stdin.isatty():
        note("reading messages from the terminal, one a line; Ctrl-D ends")
    stdin = sys.stdin.buffer
    assert isinstance(stdin, io.BufferedIOBase)
    source = blocks(stdin, message, min(BLOCK_BYTES, segment_bytes))
    append_blocks(data_dir, name, chosen, source, input_bytes=_input_bytes())


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
    with Interrupts() as interrupts:
        try:
            if not os.path.isdir(log_path(data_dir, name)):
                begun = _begun(source, interrupts)  # no log is made for nothing
                if begun is None:
                    note("there was nothing to append")
                    return
                source = begun
            count, first, failure = _append(data_dir, name, settings, source, input_bytes, interrupts)
        except Interrupted as interruption:
            raise typer.Exit(BY_SIGNAL + interruption.number) from interruption
    if count:
        _acknowledge(f"{name}: {show_count(count, 'record')} at {name_offsets(first, first + count)}, durable")
    elif failure is None:
        note("there was nothing to append")
    if isinstance(failure, Interrupted):
        raise typer.Exit(BY_SIGNAL + failure.number)
    if isinstance(failure, InvalidRequest) and count:
        complain(f"{failure}; what came before is in the log")
        raise typer.Exit(FAILED)
    if failure is not None:
        raise failure


def _begun(source: Iterable[Block], interrupts: Interrupts) -> Iterable[Block] | None:
    """The same blocks, the first of them read already; None when there is none."""
    following = iter(source)
    with interrupts.waiting():
        first = next(following, None)
    return None if first is None else itertools.chain([first], following)


def _append(
    data_dir: str,
    name: str,
    settings: LogSettings,
    source: Iterable[Block],
    input_bytes: int | None,
    interrupts: Interrupts,
) -> tuple[int, int, GoQueueError | OSError | Interrupted | None]:
    """How many records are durable now, from which offset on, and what stopped it if something did."""
    failure: GoQueueError | OSError | Interrupted | None = None
    with Store(data_dir) as store:
        log = store.open_log(name, settings)
        for line in log.recovery.lines():
            note(line)
        first = log.end_offset
        try:
            _write(log, source, input_bytes, interrupts)
        except (GoQueueError, OSError, Interrupted) as error:
            failure = error
    _check_durable(log)
    return log.end_offset - first, first, failure


def _write(log: Log, source: Iterable[Block], input_bytes: int | None, interrupts: Interrupts) -> None:
    following = iter(source)
    with Meter(f"appending to {log.directory.rpartition('/')[2]}", input_bytes) as meter:
        while True:
            with interrupts.waiting():
                block = next(following, None)
            if block is None:
                break
            log.append(block.data, now=time.time_ns() // 1_000_000)
            meter.advance(block.input_bytes)
        if log.settings.fsync is Fsync.EVERY:
            with interrupts.waiting():
                wait_for(log.durable, log.end_offset)


def _check_durable(log: Log) -> None:
    """Closing a log syncs it, unless it had failed before: then nothing more is acknowledged."""
    if log.durable.value < log.end_offset:
        raise log.durable.failure or StorageFailed(f"{log.directory} could not be made durable; check the disk")


def _acknowledge(answer: str) -> None:
    """Say it where it can be seen: whoever gets no answer would append the same again."""
    try:
        say(answer)
        finish_output()
    except OutputFailed as error:
        complain(f"the records are durable, only the answer could not be printed ({error}): {answer}")
        raise typer.Exit(UNPRINTED) from error
