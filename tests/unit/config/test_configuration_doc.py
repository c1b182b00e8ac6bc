"""`docs/configuration.md` has the table of keys, row by row, as the code has it."""

import re
from pathlib import Path

import pytest

from goqueue.config.document import read_document
from goqueue.config.keys import KEYS, Key
from goqueue.config.loading import load

PAGE = (Path(__file__).parents[3] / "docs/configuration.md").read_text(encoding="utf-8")


def row(key: Key) -> str:
    default = f"`{key.default}`" + (f", for root `{key.root_default}`" if key.root_default else "")
    about = key.about if key.built else f"{key.about} **Only the default:** {key.lacks}."
    return f"| `{key.path}` | `{key.variable}` | {f'`{key.flag}`' if key.flag else ''} | {default} | {about} |"


def test_the_page_has_every_key_and_no_other() -> None:
    rows = [re.sub(" +", " ", line) for line in PAGE.splitlines() if line.startswith("| `") and "`GOQUEUE_" in line]
    assert rows == [re.sub(" +", " ", row(key)) for key in KEYS]


def test_the_file_on_the_page_is_right(tmp_path: Path) -> None:
    (example,) = re.findall(r"^cat > goqueue\.yaml <<'END'\n(.*?)^END$", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "goqueue.yaml"
    file.write_text(example, encoding="utf-8")
    assert len(read_document(str(file), {}).given) > 5
    load(file=str(file), environ={}, flags={}, is_root=False)


@pytest.mark.parametrize(
    "word", ["`value`", "`source`", "`${NAME:default}`", "`$${`", "`--set KEY=VALUE`", "`--config"]
)
def test_the_page_explains_what_the_table_cannot(word: str) -> None:
    assert word in PAGE
