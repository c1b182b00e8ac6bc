"""Measuring on a noisy machine: best of several for a rate, quantiles for latencies, ratios from one run."""

import statistics
import time
from collections.abc import Callable, Sequence


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def best(work: Callable[[], object], rounds: int) -> float:
    """The shortest time of several: what the code costs when nobody else has the core."""
    return min(seconds(work) for _ in range(rounds))


def quantile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
