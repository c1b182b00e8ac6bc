"""docs/internals/producers.md says what the code does: its tables, numbers and bytes are compared with it."""

import re
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from goqueue.model import limits
from goqueue.model.errors import OutOfSequence, ProducerFenced, UnknownProducer
from goqueue.producers import sequences, views
from goqueue.producers.sequences import LAST_SEQUENCE, ProducerTable, Run

PAGE = (Path(__file__).parents[3] / "docs/internals/producers.md").read_text(encoding="utf-8")
HOUR_MS = 3600 * 1000


def section(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("heading", "layout"),
    [
        ("The saved table", sequences.HEAD),
        ("A producer", sequences.PRODUCER),
        ("A run", sequences.RUN),
        ("The damage", sequences.LOST),
    ],
)
def test_a_layout_table_names_every_field_of_its_struct(heading: str, layout: struct.Struct) -> None:
    found = re.findall(r"^\| ([a-z ]+) \| (\d+) \|\s*(\d*)\s*\|", section(heading), re.MULTILINE)
    rows = [(part, int(position), int(width or 0)) for part, position, width in found]
    assert rows[0][1] == 0
    assert rows[-1] == ("end", layout.size, 0)
    for (_, position, width), (_, following, _) in pairwise(rows):
        assert position + width == following
    assert [width for _, _, width in rows[:-1]] == [struct.calcsize(f">{code}") for code in layout.format[1:]]


def test_the_bytes_of_the_page_are_those_of_the_code() -> None:
    (text,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    table = ProducerTable()
    table.add(Run(7, 3, LAST_SEQUENCE, 100, 6, 1_700_000_000_000))
    assert table.to_bytes() == bytes.fromhex(text)
    assert ProducerTable.from_bytes(bytes.fromhex(text)) == table


def test_the_page_states_the_constants() -> None:
    for text in (
        f"its last {limits.REMEMBERED_RUNS} runs",
        f"After {LAST_SEQUENCE} comes 0",
        f"0 to {LAST_SEQUENCE}",
        f"1 to {sequences.LONGEST_RUN}",
        f"a run of {sequences.LONGEST_RUN} messages",
        f"at most {limits.MAX_PRODUCERS_PER_PARTITION} producers",
        f"idle for\n{limits.PRODUCER_EXPIRY_MS // HOUR_MS} hours",
        f"idle for {views.KEPT_IDLE_MS // HOUR_MS}\nhours",
        f"the view `{views.ProducerViews.name}`",
        f"one byte, {views.COMPLETE} if",
        f"| version | 0 | 2 | {sequences.UNDAMAGED_VERSION}, or {sequences.VERSION} ",
        f"the newest {limits.REMEMBERED_DAMAGE} damaged ranges",
    ):
        assert text in PAGE, text


def test_the_page_names_the_errors_by_their_codes() -> None:
    for error in (OutOfSequence, ProducerFenced, UnknownProducer):
        assert f"`{error.code}`" in section("Rules")
