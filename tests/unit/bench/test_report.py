"""Figures against their targets."""

import json
from pathlib import Path

import pytest

from bench import report
from bench.report import Figure, amount


@pytest.mark.parametrize(
    ("value", "at_most", "met"),
    [(2.0, False, True), (2.0, True, True), (1.0, False, False), (3.0, True, False), (None, False, None)],
)
def test_a_figure_is_met_missed_or_was_not_measured(value: float | None, at_most: bool, met: bool | None) -> None:
    assert Figure("x", value, "s", 2.0, at_most=at_most).met is met


def test_a_figure_without_target_is_neither_met_nor_missed() -> None:
    assert Figure("x", 1.0, "s").met is None


def test_amounts_are_shown_as_exactly_as_they_are_known() -> None:
    assert [amount(12_345.6, "msg/s"), amount(0.12345, "ms"), amount(1234.5, "ms"), amount(None, "ms")] == [
        "12,346 msg/s",
        "0.123 ms",
        "1,234 ms",
        "-",
    ]


def test_what_was_not_measured_is_null_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    saved = report.save("python -m bench", {"broker": [Figure("x", None, "s", note="why not")]}, load=1.5)
    body = json.loads(saved.read_text())
    assert body["machine"]["load_average"] == 1.5
    (figure,) = body["figures"]["broker"]
    assert (figure["name"], figure["value"], figure["note"]) == ("x", None, "why not")
