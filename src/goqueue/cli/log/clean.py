"""`goqueue log clean`: one pass of retention and compaction over a log nobody else is writing."""

import time
from typing import Annotated

import typer

from goqueue.cli.data_directory import open_offline
from goqueue.cli.failures import FAILED
from goqueue.cli.log.options import DATA_DIR, DataDir, Name
from goqueue.cli.output import complain, note, say, show_count, show_size
from goqueue.cli.times import parse_duration
from goqueue.model.errors import InvalidRequest
from goqueue.model.settings import LogSettings
from goqueue.storage import cleaner
from goqueue.storage.store import Store


def clean(
    name: Name,
    retention: Annotated[str | None, typer.Option(help="Remove what is older, like 7d.")] = None,
    retention_bytes: Annotated[int | None, typer.Option(help="Remove the oldest until this much is left.")] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Keep only the newest record of each key.")] = False,
    roll: Annotated[
        bool, typer.Option("--roll", help="Begin a new segment first: only older ones are cleaned.")
    ] = False,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Remove old or superseded records. Survivors keep their offsets; delayed records stay until due."""
    if retention is None and retention_bytes is None and not compact:
        raise InvalidRequest("say what to clean: --retention 7d, --retention-bytes N, --compact, or several of them")
    settings = LogSettings(
        retention_ms=parse_duration(retention) if retention is not None else None,
        retention_bytes=retention_bytes,
        compact=compact,
    )
    open_offline(data_dir, name)
    with Store(data_dir) as store:
        log = store.open_log(name, settings)
        for line in log.recovery.lines():
            note(line)
        if roll:
            log.roll()
            log.sync()
        report = cleaner.clean(log, time.time_ns() // 1_000_000)
        sealed = bool(log.sealed)
    say(
        f"{name}: removed {show_count(report.removed_records, 'record')} ({show_size(report.removed_bytes)}), "
        f"{show_count(report.removed_segments, 'segment')}; rewrote {show_count(report.rewritten_segments, 'segment')}"
    )
    if not sealed and not report.removed_segments:
        note("no segment of this log is sealed yet, and only sealed ones are cleaned; --roll seals what is there")
    for segment in report.skipped:
        complain(f"{segment} is damaged and was left as it is; see goqueue log verify {name}")
    if report.skipped:
        raise typer.Exit(FAILED)
