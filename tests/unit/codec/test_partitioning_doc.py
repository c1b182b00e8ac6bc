"""docs/internals/partitioning.md: its table is computed again, by our code and by somebody else's."""

import re
from pathlib import Path
from typing import NamedTuple

import mmh3
import pytest

from goqueue.codec import murmur3
from goqueue.codec.partitioning import partition_of

PAGE = (Path(__file__).parents[3] / "docs/internals/partitioning.md").read_text(encoding="utf-8")
COUNTS = (3, 6, 12, 100)


class Vector(NamedTuple):
    text: str
    key: bytes
    hash: int
    partitions: tuple[int, ...]


def _key(cell: str) -> bytes:
    many = re.fullmatch(r"`([0-9a-f]+)`, (\d+) times", cell)
    return bytes.fromhex(many[1]) * int(many[2]) if many else bytes.fromhex(cell.strip("`"))


def _vectors() -> list[Vector]:
    table = PAGE.partition("\n## Test vectors\n")[2]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines() if line.startswith("|")]
    head, _, *body = rows
    assert head == ["key", "bytes", "hash", *(f"of {count}" for count in COUNTS)]
    return [Vector(cells[0], _key(cells[1]), int(cells[2]), tuple(map(int, cells[3:]))) for cells in body]


VECTORS = _vectors()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.key.hex()[:16] or "empty")
def test_a_row_is_what_the_code_computes(vector: Vector) -> None:
    assert murmur3(vector.key) == vector.hash == mmh3.hash(vector.key, 0, signed=False)
    assert tuple(partition_of(vector.key, count) for count in COUNTS) == vector.partitions
    assert vector.partitions == tuple(vector.hash % count for count in COUNTS)


@pytest.mark.parametrize("vector", [found for found in VECTORS if found.text])
def test_a_text_has_the_bytes_beside_it(vector: Vector) -> None:
    many = re.fullmatch(r"`(.)`, (\d+) times", vector.text)
    if vector.text == "(empty)":
        text = ""
    elif many:
        text = many[1] * int(many[2])
    else:
        text = vector.text.strip("`")
    assert text.encode() == vector.key


def test_the_table_has_what_implementations_get_wrong() -> None:
    keys = [vector.key for vector in VECTORS]
    assert len(set(keys)) == len(keys) >= 15
    assert b"" in keys
    assert {len(key) % 4 for key in keys} == {0, 1, 2, 3}
    assert {1, 2, 3, 4} <= {len(key) for key in keys}
    assert any(len(key) > 200 for key in keys)
    assert any(not key.isascii() for key in keys)
    assert any(vector.hash >= 2**31 and vector.hash % 3 != (vector.hash & 0x7FFFFFFF) % 3 for vector in VECTORS)
    assert {partition for vector in VECTORS for partition in vector.partitions[:1]} == {0, 1, 2}
