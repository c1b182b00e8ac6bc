"""`goqueue log verify`: every byte of a log against its checksums, and what to do about what is wrong."""

from collections import Counter
from typing import Final, NamedTuple

import typer
from rich.text import Text

from goqueue.cli.data_directory import DISK, check_exists, chosen
from goqueue.cli.failures import FAILED
from goqueue.cli.log.options import DATA_DIR, DataDir, Names, Output
from goqueue.cli.log.selection import ENDLESS, known_end
from goqueue.cli.output import (
    Format,
    console,
    new_table,
    note,
    print_json,
    printable,
    say,
    show_count,
    show_offsets,
    show_size,
)
from goqueue.cli.progress import Meter
from goqueue.model.errors import DamagedState
from goqueue.storage import verify as storage
from goqueue.storage.offline import OfflineLog
from goqueue.storage.state import FILE_NAME as STATE_FILE
from goqueue.storage.verify import Finding, Severity

_STYLES: Final = {Severity.DAMAGE: "bold red", Severity.TEAR: "yellow", Severity.REPAIR: "yellow", Severity.NOTE: "dim"}
_ADVICE: Final = {
    Severity.DAMAGE: "damage: all other records stay readable; put a good copy of the file in place",
    Severity.TEAR: "tear: it never was durable; the next append cuts it and keeps it in a .cut file",
    Severity.REPAIR: "repair: nothing to do, it is made again when the log is next opened and read",
    Severity.NOTE: "note: nothing to do; keep the file as long as you need it",
}
_ADVICE_ON_STATE: Final = "damage: nothing of this log can be read without this file; put a good copy of it in place"


class Extent(NamedTuple):
    """How much there is to verify."""

    segments: int = 0
    size: int = 0


class Verified(NamedTuple):
    """One log, all that is wrong with it, and the hard state it was judged by, if that can be read."""

    name: str
    log: OfflineLog | None
    extent: Extent
    findings: list[Finding]


def verify(names: Names = None, data_dir: DataDir = DATA_DIR, output: Output = Format.TABLE) -> None:
    """Check every record, offset and companion file. Changes nothing; exit code 1 means damage."""
    asked = chosen(data_dir, names or [])
    results = verify_logs(data_dir, asked)
    if output is Format.JSON:
        print_json(_object(results))
    elif not asked:
        note(f"{data_dir} has no logs, so there is nothing to verify")
    else:
        print_results(results)
    if is_damaged(results):
        raise typer.Exit(FAILED)


def verify_logs(data_dir: str, names: list[str]) -> list[Verified]:
    opened = {name: _open(check_exists(data_dir, name)) for name in names}
    extents = {name: _extent(log) for name, log in opened.items()}
    results = []
    with Meter("verifying", sum(extent.size for extent in extents.values())) as meter:
        for name, log in opened.items():
            findings = list(storage.verify(check_exists(data_dir, name), DISK, meter.advance))
            results.append(Verified(name, log, extents[name], findings))
    return results


def _open(directory: str) -> OfflineLog | None:
    try:
        return OfflineLog(directory, DISK)
    except DamagedState:
        return None


def _extent(log: OfflineLog | None) -> Extent:
    segments = log.segments() if log is not None else []
    return Extent(len(segments), sum(segment.size for segment in segments))


def is_damaged(results: list[Verified]) -> bool:
    return any(finding.severity is Severity.DAMAGE for result in results for finding in result.findings)


# --- how it looks


def print_results(results: list[Verified]) -> None:
    for result in results:
        if result.findings:
            _print_findings(result)
    counts = Counter(finding.severity for result in results for finding in result.findings)
    segments = sum(result.extent.segments for result in results)
    checked = (
        f"{show_size(sum(result.extent.size for result in results))} in {show_count(segments, 'segment')} "
        f"of {show_count(len(results), 'log')}"
    )
    if counts[Severity.DAMAGE]:
        places = show_count(counts[Severity.DAMAGE], "place")
        say(Text.assemble(("✗ damage found ", "bold red"), f"in {places}: {checked}"))
    else:
        say(Text.assemble(("✓ no damage found: ", "bold green"), checked))


def _print_findings(result: Verified) -> None:
    table = new_table("found", "file", "byte", "offsets", "what", numbers=("byte",))
    for finding in result.findings:
        about_offsets = finding.severity in (Severity.DAMAGE, Severity.TEAR) and finding.path.endswith(".log")
        table.add_row(
            Text(finding.severity, style=_STYLES[finding.severity]),
            Text(printable(finding.path.rpartition("/")[2])),
            Text(str(finding.position) if about_offsets else ""),
            Text(show_offsets(finding.first_offset, _end(result, finding)) if about_offsets else ""),
            Text(printable(finding.reason)),
        )
    say(Text.assemble("log ", (printable(result.name), "bold")))
    console().print(table)
    for advice in dict.fromkeys(map(_advice, result.findings)):
        say(f"→ {advice}", style="dim")
    say()


def _advice(finding: Finding) -> str:
    """What to do about it."""
    if finding.severity is Severity.DAMAGE and finding.path.endswith(f"/{STATE_FILE}"):
        return _ADVICE_ON_STATE
    return _ADVICE[finding.severity]


def _end(result: Verified, finding: Finding) -> int | None:
    if result.log is None:
        return finding.next_offset if finding.next_offset < ENDLESS else None
    return known_end(result.log, finding.first_offset, finding.next_offset)


def _object(results: list[Verified]) -> dict[str, object]:
    return {
        "damaged": is_damaged(results),
        "logs": len(results),
        "segments": sum(result.extent.segments for result in results),
        "bytes": sum(result.extent.size for result in results),
        "findings": [
            {
                "log": printable(result.name),
                "severity": finding.severity,
                "file": printable(finding.path),
                "position": finding.position,
                "first_offset": finding.first_offset,
                "next_offset": _end(result, finding),
                "reason": finding.reason,
                "advice": _advice(finding),
            }
            for result in results
            for finding in result.findings
        ],
    }
