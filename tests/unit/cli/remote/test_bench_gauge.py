"""What a bench measures, and how it looks."""

import pytest

from goqueue.cli.remote.bench_gauge import Gauge, histogram, milliseconds, quantile


def test_a_quantile_is_the_value_that_so_much_is_not_above() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert [quantile(ordered, part) for part in (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)] == [1, 50, 90, 99, 100, 100]
    assert quantile([], 0.5) == 0


def test_a_histogram_counts_all_and_leaves_out_what_is_empty() -> None:
    lines = list(histogram([0.0001, 0.0002, 0.0002, 0.004], has_signs=True))
    assert [line.split()[-1] for line in lines] == ["1", "2", "1"]
    assert lines[1].count("█") == 40
    assert [line.split()[1:3] for line in lines] == [["0.100", "ms"], ["0.200", "ms"], ["5.000", "ms"]]
    assert all("#" in line for line in histogram([0.0, 0.001, 0.0021, 9.5, 70.0], has_signs=False))


@pytest.mark.parametrize(("latency_s", "shown"), [(0.00025, "0.250 ms"), (1.5, "1.500 s")])
def test_latencies_have_units(latency_s: float, shown: str) -> None:
    assert milliseconds(latency_s) == shown


def test_a_gauge_counts_from_its_begin_to_its_end() -> None:
    gauge = Gauge("produce", 10, 100)
    gauge.begin()
    gauge.add(10)
    for latency in (0.001, 0.002):
        gauge.took(latency)
    gauge.end()
    numbers = gauge.numbers()
    assert (numbers["done"], numbers["bytes"]) == (10, 1000)
    assert numbers["latency_ms"] == {"samples": 2, "p50": 1.0, "p90": 2.0, "p99": 2.0, "p99.9": 2.0, "max": 2.0}
    assert gauge.numbers() == numbers
