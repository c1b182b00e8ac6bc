"""Reading wrk's report."""

import shutil

import pytest

from bench.http import parse_wrk, single
from bench.processes import Failed
from bench.report import Run

REPORT = """\
Running 3s test @ http://127.0.0.1:42917/
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.87ms    1.06ms  45.18ms   86.81%
    Req/Sec     8.65k     1.80k    9.41k    58.06%
  Latency Distribution
     50%  870.00us
     75%    2.45ms
     90%    3.00ms
     99%    1.20s
  26000 requests in 3.10s, 2.26MB read
Requests/sec:   8619.59
Transfer/sec:    745.83KB
"""


def test_the_rate_and_the_quantiles_are_found_in_any_unit() -> None:
    assert parse_wrk(REPORT) == (8619.59, 0.87, 1200.0)


@pytest.mark.parametrize(
    "line", ["  Non-2xx or 3xx responses: 7\n", "  Socket errors: connect 0, read 1, write 0, timeout 0\n"]
)
def test_a_run_with_errors_is_no_figure(line: str) -> None:
    with pytest.raises(Failed, match="wrk met errors"):
        parse_wrk(REPORT + line)


def test_a_report_without_figures_is_refused() -> None:
    with pytest.raises(Failed, match="something else"):
        parse_wrk("wrk 5 says nothing\n")


def test_without_wrk_the_figures_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    figures = list(single(Run(short=True, say=print)))
    assert [figure.met for figure in figures] == [None, None]
    assert all(figure.value is None and "wrk is not installed" in figure.note for figure in figures)
