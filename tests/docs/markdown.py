"""Just enough Markdown to check our own documents: fenced blocks, links and heading anchors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)\s*$")
_HEADING = re.compile(r"^#{1,6}\s+(?P<title>.+?)\s*#*$")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line its fence is on."""

    language: str
    text: str
    line: int


def documents() -> list[Path]:
    """Every document of the project, the ones at the root first."""
    found = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "tests").glob("*.md"))]
    assert found, f"no documents under {ROOT}"
    return found


def blocks(text: str) -> list[Block]:
    return [block for block, _ in _parse(text) if block is not None]


def links(text: str) -> list[tuple[str, int]]:
    """Link targets and their lines; what stands in code is not a link."""
    return [
        (match["target"], number)
        for number, line in _prose(text)
        for match in _LINK.finditer(_CODE.sub(lambda code: "x" * len(code[0]), line))
    ]


def anchors(text: str) -> set[str]:
    """The anchors GitHub gives to a document's headings."""
    found: dict[str, int] = {}
    for _, line in _prose(text):
        heading = _HEADING.match(line)
        if heading:
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["title"]).lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            count = found.get(slug, 0)
            found[slug] = count + 1
            if count:
                found[f"{slug}-{count}"] = 1
    return set(found)


def _prose(text: str) -> list[tuple[int, str]]:
    return [line for _, line in _parse(text) if line is not None]


def _parse(text: str) -> Iterator[tuple[Block | None, tuple[int, str] | None]]:
    """Blocks and prose lines, in order; each yield has one of the two."""
    opening: re.Match[str] | None = None
    start, body = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opening is None and fence:
            opening, start, body = fence, number, []
        elif opening is None:
            yield None, (number, line)
        elif fence and not fence["language"] and fence["fence"].startswith(opening["fence"]):
            yield Block(opening["language"], "\n".join(body) + "\n", start), None
            opening = None
        else:
            body.append(line.removeprefix(opening["indent"]))
    assert opening is None, f"the block opened on line {start} is never closed"
