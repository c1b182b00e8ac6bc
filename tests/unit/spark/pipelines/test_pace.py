"""How much is copied at once, and how long it rests, so that rows come at a rate."""

from typing import Any

from goqueue.spark.pipelines.copying import Copy, _Pace

SOURCE: Any = None
DELAYS: Any = None


def test_without_a_rate_chunks_are_whole_and_there_is_no_rest() -> None:
    pace = _Pace(Copy(SOURCE, "t", 1, DELAYS, chunk=500))
    assert pace.offsets() == 500
    assert pace.pause_s(500, 500) == 0


def test_a_rate_is_kept_over_all_chunks() -> None:
    now = [100.0]
    pace = _Pace(Copy(SOURCE, "t", 1, DELAYS, chunk=500, rate=50.0), clock=lambda: now[0])
    assert pace.offsets() == 50
    now[0] += 0.25
    assert pace.pause_s(50, 50) == 0.75
    now[0] += 0.75
    assert pace.offsets() == 50
    now[0] += 3  # it was slow: nothing is made up for at once, but it does not rest
    assert pace.pause_s(50, 50) == 0


def test_where_a_filter_keeps_few_more_is_read_at_once() -> None:
    pace = _Pace(Copy(SOURCE, "t", 1, DELAYS, chunk=2000, rate=50.0), clock=lambda: 0.0)
    pace.offsets()
    pace.pause_s(999, 99)
    assert pace.offsets() == 500
    pace.pause_s(100_000, 0)
    assert pace.offsets() == 2000
