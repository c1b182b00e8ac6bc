"""`goqueue log stats`: what a log is, in numbers. A line a log, or everything about the ones named."""

import time

import typer
from rich.table import Table
from rich.text import Text

from goqueue.cli.data_directory import chosen, open_offline
from goqueue.cli.failures import FAILED
from goqueue.cli.log.measure import LogNumbers, measure
from goqueue.cli.log.options import DATA_DIR, DataDir, Names, Output
from goqueue.cli.output import (
    Format,
    complain,
    console,
    new_table,
    note,
    print_json,
    printable,
    say,
    show_count,
    show_size,
)
from goqueue.cli.times import show_time
from goqueue.model.errors import DamagedData


def stats(names: Names = None, data_dir: DataDir = DATA_DIR, output: Output = Format.TABLE) -> None:
    """Show offsets, sizes, times and lanes. Does not look for damage: verify does."""
    asked = chosen(data_dir, names or [])
    now = time.time_ns() // 1_000_000
    numbers = []
    for name in asked:
        try:
            numbers.append(measure(name, open_offline(data_dir, name), now))
        except DamagedData as error:
            complain(str(error))
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
    if len(numbers) < len(asked):
        raise typer.Exit(FAILED)


def _print_overview(numbers: list[LogNumbers]) -> None:
    table = new_table(
        "log", "start", "end", "records", "on disk", "segments", "last record",
        numbers=("start", "end", "records", "on disk", "segments"),
    )  # fmt: skip
    for one in numbers:
        table.add_row(
            Text(printable(one.name), style="bold"),
            str(one.start_offset),
            str(one.end_offset),
            f"{one.records:,}",
            show_size(one.bytes),
            str(one.sealed_segments + one.unsealed_segments),
            _time(one.last_timestamp),
        )
    console().print(table)
    say("goqueue log stats NAME shows more; goqueue log verify looks for damage", style="dim")


def print_numbers(one: LogNumbers) -> None:
    """Everything about one log."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
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
    say(Text.assemble("log ", (printable(one.name), "bold")))
    for label, text in rows.items():
        table.add_row(f"  {label}", text)
    console().print(table)
    for line in one.notes:
        note(f"{one.name}: {line}; see goqueue log verify {one.name}")


def _time(unix_ms: int | None) -> str:
    return "none" if unix_ms is None else show_time(unix_ms)
