"""Every relative link and every anchor in the documents leads somewhere."""

from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, anchors, documents, links


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_and_anchors_resolve(document: Path) -> None:
    broken = []
    for target, line in links(document.read_text(encoding="utf-8")):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        to = (document.parent / path).resolve() if path else document
        if not to.is_relative_to(ROOT):
            broken.append(f"line {line}: {target} leaves the repository")
        elif not to.exists():
            broken.append(f"line {line}: {target} does not exist")
        elif anchor and anchor not in anchors(to.read_text(encoding="utf-8")):
            broken.append(f"line {line}: {target} names no heading of {to.relative_to(ROOT)}")
    assert not broken, "\n".join(broken)


def test_links_in_code_are_not_links() -> None:
    assert links("see `[a](b.md)`\n```text\n[c](d.md)\n```\nand [e](f.md#g)\n") == [("f.md#g", 5)]


def test_repeated_headings_get_numbered_anchors() -> None:
    assert anchors("# A `b`: c!\n## Same\n## Same\n") == {"a-b-c", "same", "same-1"}
