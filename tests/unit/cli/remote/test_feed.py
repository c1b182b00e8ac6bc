"""Input read by a thread of its own."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue.cli.remote.feed import FileSource, fed


async def collect(items: Iterator[int]) -> list[int]:
    return [item async for item in fed(items)]


def test_items_come_in_order() -> None:
    assert asyncio.run(collect(iter(range(100)))) == list(range(100))


def test_what_raises_there_raises_here_behind_what_came_before() -> None:
    found: list[int] = []

    def items() -> Iterator[int]:
        yield 1
        raise OSError("broken")

    async def work() -> None:
        async for item in fed(items()):
            found.append(item)

    with pytest.raises(OSError, match="broken"):
        asyncio.run(work())
    assert found == [1]


def test_a_reader_that_stops_early_is_not_waited_for() -> None:
    async def work() -> int:
        async for item in fed(iter(range(1_000_000))):
            return item
        return -1

    assert asyncio.run(work()) == 0


def test_a_file_is_closed_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    source = FileSource(str(path))
    assert (source.read1(2), source.read1(2), source.read1(2)) == (b"ab", b"c", b"")
    assert source._file.closed
