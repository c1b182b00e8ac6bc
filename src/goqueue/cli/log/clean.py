"""`goqueue log clean`: one pass of retention and compaction over a log nobody else is writing."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from goqueue.cli.data_directory import check_writable, open_offline
from goqueue.cli.failures import FAILED, UNPRINTED
from goqueue.cli.log.options import DATA_DIR, DataDir, Name, settings
from goqueue.cli.output import OutputFailed, complain, finish_output, note, say, show_count, show_size
from goqueue.model.errors import InvalidRequest
from goqueue.model.times import parse_duration, show_time
from goqueue.storage import cleaner
from goqueue.storage.log import Log
from goqueue.storage.store import Store


def clean(
    name: Name,
    retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Remove segments whose last record is older, like 7d.")
    ] = None,
    retention_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Remove the oldest segments while at least this much stays.")
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Keep only the newest record of each key.")] = False,
    roll: Annotated[
        bool, typer.Option("--roll", help="Begin a new segment first, so that all there is can be cleaned.")
    ] = False,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Remove old or superseded records of the log NAME. Survivors keep their offsets.

    Only sealed segments are cleaned, not the one being written; retention removes whole ones. Delayed records stay
    until due.
    """
    if retention is None and retention_bytes is None and not compact:
        raise InvalidRequest("say what to clean: --retention 7d, --retention-bytes N, --compact, or several of them")
    chosen = settings(
        retention_ms=parse_duration(retention) if retention is not None else None,
        retention_bytes=retention_bytes,
        compact=compact,
    )
    check_writable(name)
    open_offline(data_dir, name)
    now = time.time_ns() // 1_000_000
    with Store(data_dir) as store:
        log = store.open_log(name, chosen)
        for line in log.recovery.lines():
            note(line)
        if roll:
            log.roll()
            log.sync()
        report = cleaner.clean(log, now)
        why = [] if report.removed_records or report.removed_segments else list(_why_nothing(log, now))
    answer = (
        f"{name}: removed {show_count(report.removed_records, 'record')} ({show_size(report.removed_bytes)}), "
        f"{show_count(report.removed_segments, 'segment')}; rewrote {show_count(report.rewritten_segments, 'segment')}"
    )
    try:
        say(answer)
        finish_output()
    except OutputFailed as error:
        complain(f"it is done, only the answer could not be printed ({error}): {answer}")
        raise typer.Exit(UNPRINTED) from error
    for line in why:
        note(line)
    for segment in report.skipped:
        complain(f"{segment} is damaged and was left as it is; see goqueue log verify {name}")
    if report.skipped:
        raise typer.Exit(FAILED)


def _why_nothing(log: Log, now: int) -> Iterator[str]:
    """Why a pass removed nothing, for each thing that was asked for."""
    if not log.sealed:
        yield "no segment of this log is sealed yet, and only sealed ones are cleaned; --roll seals what is there"
        return
    oldest = log.sealed[0]
    if log.settings.retention_ms is not None and oldest.last_timestamp >= now - log.settings.retention_ms:
        yield (
            "retention removes whole sealed segments, and the last record of the oldest is of "
            f"{show_time(oldest.last_timestamp)}: not old enough"
        )
    if log.settings.retention_bytes is not None:
        size = sum(segment.size for segment in log.segments)
        if size - oldest.size < log.settings.retention_bytes:
            yield (
                f"retention removes whole sealed segments and at least {show_size(log.settings.retention_bytes)} stay: "
                f"the log has {show_size(size)}, its oldest segment {show_size(oldest.size)}"
            )
    if log.settings.compact:
        yield "no sealed segment holds a record that a newer one of the same key replaces"
