"""docs/internals/log.md says what the code does: its tables are compared with the constants."""

import re
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from goqueue.model import limits
from goqueue.storage import envelope, state, synced

PAGE = (Path(__file__).parents[3] / "docs/internals/log.md").read_text(encoding="utf-8")


def table(heading: str) -> list[tuple[str, int, int]]:
    """The rows (part, position, width) of the layout table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z0-9 ]+) \| (\d+) \|\s*(\d*)\s*\|", section, re.MULTILINE)
    return [(part, int(position), int(width or 0)) for part, position, width in rows]


@pytest.mark.parametrize(
    ("heading", "layout"),
    [("The envelope", envelope.HEADER), ("The state's payload", state.HEAD), ("The synced mark", synced.SLOT)],
)
def test_a_layout_table_names_every_byte_of_its_struct(heading: str, layout: struct.Struct) -> None:
    rows = table(heading)
    assert rows[0][1] == 0
    assert rows[-1] == ("end", layout.size, 0)
    for (_, position, width), (_, following, _) in pairwise(rows):
        assert position + width == following
    widths = [struct.calcsize(">" + code) for code in re.findall(r"\d*[a-zA-Z]", layout.format.lstrip(">"))]
    boundaries = {sum(widths[:number]) for number in range(len(widths) + 1)}
    assert {position for _, position, _ in rows} <= boundaries


def test_the_page_states_the_constants() -> None:
    for text in (
        f"`{envelope.MAGIC.decode()}`",
        f"`{synced.MAGIC.decode()}`",
        f"at 0 and {synced.SLOT_STRIDE}",
        f"Two slots of {synced.SLOT.size} bytes",
        f"at\nmost {limits.MAX_UNSEALED_SEGMENTS} wait",
        f"each {limits.SYNCED_MARK_INTERVAL_BYTES // limits.MIB} MiB or {limits.SYNCED_MARK_INTERVAL_SYNCS} syncs",
        f"`{state.FILE_NAME}`",
        f"`{synced.FILE_NAME}`",
    ):
        assert text in PAGE, text
    kinds = ", ".join(f"{kind.value} {kind.name.lower().replace('_', ' ')}" for kind in envelope.Kind)
    assert kinds in PAGE
    for trait in state.Trait:
        assert f"bit {trait.bit_length() - 1} {trait.name}" in PAGE
    assert state.SEALED.size == 7 * 8 + 1
    assert state.EPOCH.size == 16
    assert (state.VERSION, envelope.VERSION, synced.VERSION) == (1, 1, 1)
