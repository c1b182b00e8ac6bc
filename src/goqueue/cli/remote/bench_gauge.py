"""What `goqueue-cli bench` measures: a rate as it goes, latencies, and how they look."""

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

from goqueue.cli.output import say, screen, show_size
from goqueue.cli.progress import Counter
from goqueue.cli.remote.showing import count, print_fields, seconds

_BAR: Final = 40
_QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value that so much of all is not above."""
    if not ordered:
        return 0.0
    return ordered[max(math.ceil(len(ordered) * part) - 1, 0)]


class Gauge(Counter):
    """Counts from `begin` to `end`, with a bar meanwhile. Latencies are seconds."""

    def __init__(self, name: str, total: int, size: int) -> None:
        super().__init__(name, total)
        self._name = name
        self._size = size
        self.done = 0
        self._latencies = array("d")
        self._times = (0.0, 0.0)

    def begin(self) -> None:
        self._times = (time.perf_counter(), 0.0)

    def end(self) -> None:
        """The load has ended; of several calls the first one says when."""
        if not self._times[1]:
            self._times = (self._times[0], time.perf_counter())

    def add(self, messages: int) -> None:
        self.done += messages
        self.advance(messages)

    def took(self, latency_s: float) -> None:
        self._latencies.append(latency_s)

    def numbers(self) -> dict[str, Any]:
        """For programs; latencies are milliseconds."""
        ordered = sorted(self._latencies)
        elapsed = max(self._times[1] - self._times[0], 1e-9)
        return {
            "done": self.done,
            "bytes": self.done * self._size,
            "seconds": round(elapsed, 6),
            "messages_per_second": round(self.done / elapsed, 1),
            "bytes_per_second": round(self.done * self._size / elapsed, 1),
            "latency_ms": {
                "samples": len(ordered),
                **{name: round(quantile(ordered, part) * 1000, 4) for name, part in _QUANTILES},
            },
        }

    def print(self) -> None:
        found = self.numbers()
        ordered = sorted(self._latencies)
        print_fields(
            [
                ("benchmark", (self._name, "bold")),
                ("messages", f"{count(found['done'])} of {show_size(self._size)} in {seconds(found['seconds'])}"),
                ("throughput", (f"{found['messages_per_second']:,.0f} messages/s", "green")),
                ("", f"{show_size(int(found['bytes_per_second']))}/s"),
                *((f"latency {name}", milliseconds(quantile(ordered, part))) for name, part in _QUANTILES),
            ]
        )
        if len(ordered) > 1:
            say()
            for line in histogram(ordered, screen().has_signs):
                say(line)


def milliseconds(latency_s: float) -> str:
    return f"{latency_s * 1000:,.3f} ms" if latency_s < 1 else f"{latency_s:,.3f} s"


def histogram(ordered: Sequence[float], has_signs: bool) -> Iterator[str]:
    """Buckets of 1, 2 and 5 times a power of ten; empty ones are left out."""
    counts: dict[float, int] = {}
    for latency_s in ordered:
        power = 10.0 ** math.floor(math.log10(max(latency_s, 1e-6)))
        bound = next(times * power for times in (1, 2, 5, 10) if latency_s <= times * power * (1 + 1e-9))
        counts[bound] = counts.get(bound, 0) + 1
    most = max(counts.values())
    for bound, found in sorted(counts.items()):
        bar = ("█" if has_signs else "#") * max(round(found / most * _BAR), 1)
        yield f"  {'≤' if has_signs else '<='} {milliseconds(bound):>12}  {bar:<{_BAR}}  {found:,}"
