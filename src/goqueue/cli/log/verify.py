"""`goqueue log verify`: every byte of a log against its checksums, and what to do about what is wrong."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import typer

from goqueue.cli.data_directory import LenientDisk, check_exists, chosen, is_leftover, log_path
from goqueue.cli.failures import FAILED, describe
from goqueue.cli.log.options import DATA_DIR, DataDir, Names, Output
from goqueue.cli.log.selection import ENDLESS, known_end
from goqueue.cli.output import (
    Format,
    note,
    print_json,
    print_table,
    printable,
    say,
    screen,
    show_count,
    show_offsets,
    show_size,
)
from goqueue.cli.progress import Meter
from goqueue.io.small_file import read_file
from goqueue.model.errors import DamagedState
from goqueue.storage import derived as companions
from goqueue.storage import envelope
from goqueue.storage import verify as storage
from goqueue.storage.envelope import Kind
from goqueue.storage.offline import OfflineLog
from goqueue.storage.state import FILE_NAME as STATE_FILE
from goqueue.storage.state import SealedSegment
from goqueue.storage.synced import FILE_NAME as SYNCED_FILE
from goqueue.storage.verify import Finding, Severity

UNREADABLE: Final = "unreadable"
"""Not a verdict on the bytes: they could not be read."""
_STYLES: Final = {
    Severity.DAMAGE: "bold red",
    UNREADABLE: "bold red",
    Severity.TEAR: "yellow",
    Severity.REPAIR: "yellow",
    Severity.NOTE: "dim",
}
_KINDS: Final = {Kind.INDEX: "the index", Kind.TIME_INDEX: "the time index", Kind.VIEW: "the view"}
_ADVICE: Final[dict[str, str]] = {
    Severity.DAMAGE: "damage: all other records stay readable; put a good copy of the file in place",
    UNREADABLE: "unreadable: nothing is known about it; see that this user may read it, then verify again",
    Severity.REPAIR: "repair: nothing to do, it is rebuilt from the records when it is next needed",
    Severity.NOTE: "note: nothing to do; keep the file as long as you need it",
}
_ADVICE_ON_STATE: Final = "damage: nothing of this log can be read without this file; put a good copy of it in place"
_ADVICE_ON_MARK: Final = "repair: nothing to do, it is made again when the log is next opened for writing"
_ADVICE_ON_TEAR: Final = "tear: it never was durable; the next append cuts it and keeps it in a .cut file"
_ADVICE_WITHOUT_MARK: Final = (
    "tear: it may never have been durable, the synced mark that would tell is lost; "
    "the next append cuts it and keeps it in a .cut file"
)


class Extent(NamedTuple):
    """How much there is to verify."""

    segments: int = 0
    size: int = 0


class Found(NamedTuple):
    """A thing to report: a Severity of the storage room, or UNREADABLE."""

    severity: str
    path: str
    position: int
    first_offset: int
    next_offset: int | None
    reason: str
    advice: str

    @property
    def about_offsets(self) -> bool:
        return self.severity in (Severity.DAMAGE, Severity.TEAR, UNREADABLE) and self.path.endswith(".log")


class Verified(NamedTuple):
    """One log and all that is wrong with it."""

    name: str
    extent: Extent
    found: list[Found]


def verify(names: Names = None, data_dir: DataDir = DATA_DIR, output: Output = Format.TABLE) -> None:
    """Check every record, offset and companion file of each NAME, or of every log. Changes nothing.

    Exit code 1 means damage, or something that could not be read.
    """
    asked = chosen(data_dir, names or [])
    results = verify_logs(data_dir, asked)
    if output is Format.JSON:
        print_json(_object(results))
    elif not asked:
        note(f"{data_dir} has no logs, so there is nothing to verify")
    else:
        print_results(results)
    counts = _count(results)
    if counts[Severity.DAMAGE] or counts[UNREADABLE]:
        raise typer.Exit(FAILED)


def verify_logs(data_dir: str, names: list[str]) -> list[Verified]:
    """Each log by itself: what is wrong with one does not keep the others from being verified."""
    total = sum(_extent(data_dir, name).size for name in names)
    with Meter("verifying", total) as meter:
        return [_verify_log(data_dir, name, meter) for name in names]


def _verify_log(data_dir: str, name: str, meter: Meter) -> Verified:
    directory = log_path(data_dir, name)
    found: list[Found] = []
    disk = LenientDisk()
    try:
        if is_leftover(directory):
            reason = "left by a creation that failed before there was a log; the next append makes one"
            return Verified(name, Extent(), [_noted(f"{directory}/{STATE_FILE}.tmp", reason)])
        check_exists(data_dir, name)
        log = _open(directory, disk)
        for finding in storage.verify(directory, disk, meter.advance):
            found += _told(log, disk, finding)
        found += _unopened(log, disk, found)
    except OSError as error:
        path = os.fsdecode(error.filename) if error.filename is not None else directory
        found.append(_unreadable(path, error.strerror or describe(error)))
    return Verified(name, _extent(data_dir, name), found)


def _open(directory: str, disk: LenientDisk) -> OfflineLog | None:
    try:
        return OfflineLog(directory, disk)
    except DamagedState:
        return None


def _extent(data_dir: str, name: str) -> Extent:
    try:
        log = _open(log_path(data_dir, name), LenientDisk())
        segments = log.segments() if log is not None else []
    except OSError:
        return Extent()
    return Extent(len(segments), sum(segment.size for segment in segments))


# --- what is reported


def _told(log: OfflineLog | None, disk: LenientDisk, finding: Finding) -> Iterator[Found]:
    """A finding of the storage room, more exactly where more is known."""
    severity, path, position, first, end, reason = finding
    if path in disk.unreadable:
        yield _unreadable(path, disk.unreadable[path], first, _end(log, first, end))
        return
    if severity is Severity.REPAIR and log is not None and path.endswith(".log"):
        entry = next((entry for entry in log.state.sealed if entry.base == first), None)
        bad = [] if entry is None else list(_bad_companions(disk, path.removesuffix(".log"), entry))
        if bad:
            yield from bad
            return
    yield Found(severity, path, position, first, _end(log, first, end), reason, _advice(log, severity, path))


def _bad_companions(disk: LenientDisk, stem: str, entry: SealedSegment) -> Iterator[Found]:
    for kind, path in companions.companions(stem).items():
        data = read_file(disk, path)
        if path in disk.unreadable:
            yield _unreadable(path, disk.unreadable[path])
        elif data is None or envelope.unwrap(kind, data, base=entry.base, seal=entry.seal) is None:
            reason = f"{_KINDS[kind]} is {'missing' if data is None else 'damaged'}"
            yield Found(Severity.REPAIR, path, 0, entry.base, entry.end, reason, _ADVICE[Severity.REPAIR])


def _unopened(log: OfflineLog | None, disk: LenientDisk, found: list[Found]) -> Iterator[Found]:
    """Files that could not be opened and that nothing has been said about: they seemed empty."""
    bases = {segment.path: segment for segment in (log.segments() if log is not None else ())}
    for path in sorted(disk.unreadable.keys() - {one.path for one in found}):
        segment = bases.get(path)
        if segment is None:
            yield _unreadable(path, disk.unreadable[path])
        else:
            limit = segment.extent.limit
            yield _unreadable(path, disk.unreadable[path], segment.base, _end(log, segment.base, limit))


def _unreadable(path: str, reason: str, first: int = 0, end: int | None = 0) -> Found:
    return Found(UNREADABLE, path, 0, first, end, reason, _ADVICE[UNREADABLE])


def _noted(path: str, reason: str) -> Found:
    return Found(Severity.NOTE, path, 0, 0, 0, reason, _ADVICE[Severity.NOTE])


def _advice(log: OfflineLog | None, severity: Severity, path: str) -> str:
    """What to do about it."""
    file = path.rpartition("/")[2]
    if severity is Severity.DAMAGE and file == STATE_FILE:
        return _ADVICE_ON_STATE
    if severity is Severity.REPAIR and file == SYNCED_FILE:
        return _ADVICE_ON_MARK
    if severity is Severity.TEAR:
        return _ADVICE_ON_TEAR if log is not None and log.synced is not None else _ADVICE_WITHOUT_MARK
    return _ADVICE[severity]


def _end(log: OfflineLog | None, first: int, next_offset: int) -> int | None:
    if log is None:
        return next_offset if next_offset < ENDLESS else None
    return known_end(log, first, next_offset)


def _count(results: list[Verified]) -> Counter[str]:
    return Counter(found.severity for result in results for found in result.found)


# --- how it looks


def print_results(results: list[Verified]) -> None:
    for result in results:
        if result.found:
            _print_found(result)
    counts = _count(results)
    segments = sum(result.extent.segments for result in results)
    checked = (
        f"{show_size(sum(result.extent.size for result in results))} in {show_count(segments, 'segment')} "
        f"of {show_count(len(results), 'log')}"
    )
    damaged, unreadable = counts[Severity.DAMAGE], counts[UNREADABLE]
    bad, good = screen().sign("✗"), screen().sign("✓")
    if damaged:
        also = f", and {show_count(unreadable, 'place')} could not be read" if unreadable else ""
        say((f"{bad} damage found ", "bold red"), f"in {show_count(damaged, 'place')}{also}: {checked}")
    elif unreadable:
        say((f"{bad} not everything could be read", "bold red"), f", no damage found in the rest: {checked}")
    else:
        say((f"{good} no damage found: ", "bold green"), checked)


def _print_found(result: Verified) -> None:
    say("log ", (printable(result.name), "bold"))
    rows = []
    for one in result.found:
        offsets = show_offsets(one.first_offset, one.next_offset) if one.about_offsets else ""
        file = one.path if one.severity == UNREADABLE else one.path.rpartition("/")[2]
        position = str(one.position) if one.about_offsets else ""
        rows.append(((one.severity, _STYLES[one.severity]), printable(file), position, offsets, printable(one.reason)))
    print_table(("found", "file", "byte", "offsets", "what"), rows, numbers=("byte",))
    arrow = screen().sign("→")
    for advice in dict.fromkeys(one.advice for one in result.found):
        say((f"{arrow} {advice}", "dim"))
    say()


def _object(results: list[Verified]) -> dict[str, object]:
    counts = _count(results)
    return {
        "damaged": bool(counts[Severity.DAMAGE]),
        "unreadable": bool(counts[UNREADABLE]),
        "logs": len(results),
        "segments": sum(result.extent.segments for result in results),
        "bytes": sum(result.extent.size for result in results),
        "findings": [
            {
                "log": printable(result.name),
                "severity": one.severity,
                "file": printable(one.path),
                "position": one.position,
                "first_offset": one.first_offset,
                "next_offset": one.next_offset,
                "reason": printable(one.reason),
                "advice": one.advice,
            }
            for result in results
            for one in result.found
        ],
    }
