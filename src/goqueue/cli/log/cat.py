"""`goqueue log cat`: the records of a log, as a table or as one JSON object a line."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import typer

from goqueue.cli.data_directory import open_offline
from goqueue.cli.failures import FAILED
from goqueue.cli.log.options import DATA_DIR, DataDir, Name, Output, check_range
from goqueue.cli.log.rows import RecordTable, record_object
from goqueue.cli.log.selection import ENDLESS, Bounds, Unreadable, select
from goqueue.cli.output import Format, complain, emit, name_offsets, note, print_json, printable, say, screen
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Record
from goqueue.model.times import parse_time

_TABLE_LIMIT: Final = 50
_PAGE_ROWS: Final = 200
"""Records that are printed at once."""


def cat(
    name: Name,
    from_offset: Annotated[int, typer.Option(metavar="OFFSET", help="Begin here.")] = 0,
    to_offset: Annotated[int | None, typer.Option(metavar="OFFSET", help="End before this offset.")] = None,
    from_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin here: RFC 3339 or Unix milliseconds.")
    ] = None,
    to_time: Annotated[str | None, typer.Option(metavar="TIME", help="End before this time.")] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="COUNT", help="How many records; a table stops at 50 by itself.")
    ] = None,
    data_dir: DataDir = DATA_DIR,
    output: Output = Format.TABLE,
) -> None:
    """Show the records of the log NAME. Changes nothing, and needs nobody to stop writing."""
    check_range("--from-offset", from_offset, 0)
    check_range("--to-offset", to_offset, 0)
    check_range("--limit", limit, 1)
    bounds = Bounds(
        from_offset,
        ENDLESS if to_offset is None else to_offset,
        0 if from_time is None else parse_time(from_time),
        ENDLESS if to_time is None else parse_time(to_time),
        ENDLESS if limit is None else limit,
    )
    if to_offset is not None and from_offset > to_offset:
        raise InvalidRequest(f"--from-offset {from_offset} comes after --to-offset {to_offset}; exchange them")
    if from_time is not None and to_time is not None and bounds.from_time > bounds.to_time:
        raise InvalidRequest(f"--from-time {from_time} comes after --to-time {to_time}; exchange them")
    directory = open_offline(data_dir, name).directory
    if output is Format.JSON:
        damaged = _print_objects(select(directory, bounds))
    elif limit is None:
        damaged = _print_some(directory, bounds)
    else:
        damaged = print_records(select(directory, bounds))
    if damaged:
        raise typer.Exit(FAILED)


def _print_objects(found: Iterable[list[Record] | Unreadable]) -> bool:
    damaged = False
    for item in found:
        if isinstance(item, Unreadable):
            damaged |= not item.torn
            (note if item.torn else complain)(describe(item))
        else:
            for start in range(0, len(item), _PAGE_ROWS):
                print_json(*map(record_object, item[start : start + _PAGE_ROWS]))
    return damaged


def _print_some(directory: str, bounds: Bounds) -> bool:
    """A table of the first records, and how to get more if there are."""
    last = -1

    def counted() -> Iterator[list[Record] | Unreadable]:
        nonlocal last
        for item in select(directory, bounds._replace(limit=_TABLE_LIMIT)):
            last = item[-1].offset if isinstance(item, list) else last
            yield item

    damaged = print_records(counted())
    more = select(directory, bounds._replace(from_offset=last + 1, limit=1)) if last >= 0 else iter(())
    if any(isinstance(item, list) for item in more):
        say((f"more: --from-offset {last + 1}, or --limit N, or -o json for everything", "dim"))
    return damaged


def print_records(found: Iterable[list[Record] | Unreadable]) -> bool:
    """Print tables as records come, and damage in its place; True when there was damage."""
    damaged = False
    nothing = True
    target = screen()
    for is_record, group in itertools.groupby(_one_by_one(found), lambda item: isinstance(item, Record)):
        nothing = False
        if not is_record:
            for item in group:
                assert isinstance(item, Unreadable)
                damaged |= not item.torn
                sign, style = ("!", "yellow") if item.torn else (target.sign("✗"), "bold red")
                say((f"{sign} {printable(describe(item))}", style))
            continue
        table = RecordTable(target)
        while page := [record for record in itertools.islice(group, _PAGE_ROWS) if isinstance(record, Record)]:
            emit(table.page(page))
    if nothing:
        note("no records there")
    return damaged


def _one_by_one(found: Iterable[list[Record] | Unreadable]) -> Iterator[Record | Unreadable]:
    for item in found:
        if isinstance(item, Unreadable):
            yield item
        else:
            yield from item


def describe(item: Unreadable) -> str:
    where = f"{item.path.rpartition('/')[2]}, byte {item.position}"
    if item.torn:
        return f"the end from offset {item.first} on is not whole: being written now, or torn ({where})"
    if not item.opened:
        return f"{name_offsets(item.first, item.next_offset)} cannot be read: {item.path}: {item.reason}"
    return f"{name_offsets(item.first, item.next_offset)} damaged: {item.reason} ({where})"
