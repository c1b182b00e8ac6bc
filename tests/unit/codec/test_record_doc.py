"""`docs/internals/record.md` says the numbers that `codec.layout` means."""

from itertools import pairwise
from pathlib import Path

from goqueue.codec import layout, reference
from goqueue.codec.layout import Field, Flag
from goqueue.model import limits

PAGE = (Path(__file__).parents[3] / "docs/internals/record.md").read_text(encoding="utf-8")


def tables() -> list[list[dict[str, str]]]:
    """Every table of the page as rows by column name."""
    found: list[list[dict[str, str]]] = []
    columns: list[str] = []
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
            found.append([])
        elif set(cells[0]) != {"-"}:
            found[-1].append(dict(zip(columns, cells, strict=True)))
    return found


HEADER, FLAGS, EXTENSION, FIELDS, HEADERS, LIMITS = tables()


def test_the_header_has_the_positions_and_widths_of_the_layout() -> None:
    positions = {
        "magic": 0,
        "version": layout.VERSION_AT,
        "flags": layout.FLAGS_AT,
        "crc32c": layout.CRC_AT,
        "offset": layout.OFFSET_AT,
        "timestamp": layout.TIMESTAMP_AT,
        "priority": layout.PRIORITY_AT,
        "reserved": layout.RESERVED_AT,
        "key length": layout.KEY_LENGTH_AT,
        "value length": layout.VALUE_LENGTH_AT,
        "headers length": layout.HEADERS_LENGTH_AT,
        "end": layout.HEADER_BYTES,
    }
    assert {row["part"]: int(row["position"]) for row in HEADER} == positions
    for row, after in pairwise(HEADER):
        assert int(row["position"]) + int(row["width"]) == int(after["position"]), row["part"]
    meanings = {row["part"]: row["meaning"] for row in HEADER}
    assert meanings["magic"] == f"`{layout.MAGIC.decode()}`"
    assert meanings["version"] == str(layout.VERSION)
    assert f"to {layout.LANES - 1} " in meanings["priority"]


def test_the_flags_are_those_of_the_layout() -> None:
    assert {row["flag"]: 1 << int(row["bit"]) for row in FLAGS} == {flag.name: flag.value for flag in Flag}


def test_the_extension_has_the_widths_of_the_layout() -> None:
    assert {row["part"]: row["width"] for row in EXTENSION} == {
        "length": str(layout.EXTENSION_LENGTH_BYTES),
        "mask": str(layout.MASK_BYTES),
        "field": str(layout.FIELD_BYTES),
        "blob length": str(layout.BLOB_LENGTH_BYTES),
        "blob": "",
    }


def test_the_fields_are_those_of_the_layout() -> None:
    bits = {field.name: field.value for field in Field} | {"blob": layout.BLOB_BIT}
    assert {row["field"]: int(row["bit"]) for row in FIELDS} == bits
    assert f"Bits {max(Field) + 1} to {layout.BLOB_BIT - 1} are for later" in PAGE


def test_the_header_section_has_the_widths_of_the_layout() -> None:
    assert [int(row["width"]) for row in HEADERS] == [layout.HEADER_COUNT_BYTES, layout.HEADER_LENGTH_BYTES]


def test_the_limits_are_those_of_the_product() -> None:
    assert {row["what"]: int(row["bytes"]) for row in LIMITS} == {
        "key": limits.MAX_KEY_BYTES,
        "header section": limits.MAX_HEADERS_BYTES,
        "blob": limits.MAX_BLOB_BYTES,
        "extension, after its length": layout.MAX_EXTENSION_BYTES,
        "record": limits.MAX_RECORD_BYTES,
    }
    assert f"Fewer than {layout.HEADER_BYTES} bytes" in PAGE
    assert f"at 0 after {reference.SEQUENCE_MASK}" in PAGE
