"""`goqueue log stats`: what a log is, in numbers. A line a log, or everything about the ones named."""

import time

import typer

from goqueue.cli.data_directory import chosen, is_leftover, log_path, open_offline
from goqueue.cli.failures import FAILED, describe
from goqueue.cli.log.measure import LogNumbers, measure
from goqueue.cli.log.options import DATA_DIR, DataDir, Names, Output
from goqueue.cli.output import (
    Format,
    complain,
    note,
    print_json,
    print_table,
    say,
    show_count,
    show_size,
)
from goqueue.model.errors import DamagedData
from goqueue.model.times import show_time


def stats(names: Names = None, data_dir: DataDir = DATA_DIR, output: Output = Format.TABLE) -> None:
    """Show offsets, sizes, times and lanes: of every log a line, of each NAME everything.

    Does not look for damage: verify does.
    """
    asked = chosen(data_dir, names or [])
    now = time.time_ns() // 1_000_000
    numbers = []
    failed = False
    for name in asked:
        try:
            numbers.append(measure(name, open_offline(data_dir, name), now))
        except (DamagedData, OSError) as error:
            if _is_leftover(data_dir, name):
                note(f"{name}: {describe(error)}")
            else:
                failed = True
                complain(f"{name}: {describe(error)}")
    if output is Format.JSON:
        for one in numbers:
            print_json(one)
    elif not asked:
        note(f"{data_dir} has no logs yet; write one with goqueue log append NAME --value hello")
    elif names:
        for one in numbers:
            print_numbers(one)
    elif numbers:
        _print_overview(numbers)
    if failed:
        raise typer.Exit(FAILED)


def _is_leftover(data_dir: str, name: str) -> bool:
    try:
        return is_leftover(log_path(data_dir, name))
    except OSError:
        return False


def _print_overview(numbers: list[LogNumbers]) -> None:
    print_table(
        ("log", "start", "end", "records", "on disk", "segments", "last record"),
        [
            (
                (one.name, "bold"),
                str(one.start_offset),
                str(one.end_offset),
                f"{one.records:,}",
                show_size(one.bytes),
                str(one.sealed_segments + one.unsealed_segments),
                _time(one.last_timestamp),
            )
            for one in numbers
        ],
        numbers=("start", "end", "records", "on disk", "segments"),
        optional=("segments", "last record", "start"),
    )
    say(("goqueue log stats NAME shows more; goqueue log verify looks for damage", "dim"))


def print_numbers(one: LogNumbers) -> None:
    """Everything about one log."""
    rows = {
        "offsets": f"{one.start_offset} up to {one.end_offset} (not included)",
        "records": f"{one.records:,}" + (f", {show_count(one.cleaned, 'offset')} cleaned" if one.cleaned else ""),
        "lanes": ", ".join(f"{lane} {count:,}" for lane, count in one.lanes.items() if count) or "none used",
        "delayed": f"{one.delayed:,} not due yet",
        "on disk": f"{show_size(one.bytes)} in {show_count(one.sealed_segments + one.unsealed_segments, 'segment')}"
        f" ({one.sealed_segments} sealed)",
        "times": f"{_time(one.first_timestamp)} to {_time(one.last_timestamp)}" if one.records else "none",
        "synced up to": "unknown: the mark is lost" if one.synced_offset is None else str(one.synced_offset),
    }
    if one.leader_epochs:
        rows["leader epochs"] = ", ".join(
            f"{entry.epoch} from offset {entry.start_offset}" for entry in one.leader_epochs
        )
    say("log ", (one.name, "bold"))
    width = max(map(len, rows)) + 2
    for label, text in rows.items():
        say("  ", (label.ljust(width), "dim"), text)
    for line in one.notes:
        note(f"{one.name}: {line}; see goqueue log verify {one.name}")


def _time(unix_ms: int | None) -> str:
    return "none" if unix_ms is None else show_time(unix_ms)
