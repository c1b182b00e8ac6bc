"""docs/pipelines.md names every pipeline and option, with its default and whether it may change."""

import re

import pytest

from goqueue.spark.pipelines.frame import Option
from goqueue.spark.pipelines.table import PIPELINES
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def shown(option: Option) -> tuple[bool, str]:
    default = "required" if option.required else option.default or ""
    return option.steers, default


def test_every_pipeline_has_a_row() -> None:
    assert re.findall(r"^\| \[(\w+)\]\(#\1\) \|", PAGE, re.MULTILINE) == list(PIPELINES)


@pytest.mark.parametrize("name", PIPELINES)
def test_every_option_is_there_with_its_default(name: str) -> None:
    rows = re.findall(r"^\| (`.*?`)( \*)? \| ([^|]*?) ?\|", section(name), re.MULTILINE)
    found = {
        option: (bool(star), default.strip("`"))
        for names, star, default in rows
        for option in re.findall("`(.*?)`", names)
    }
    assert found == {option.name: shown(option) for option in PIPELINES[name].options}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_is_shown_at_work(name: str) -> None:
    assert f"goqueue-cli pipeline run {name} " in section(name)
