"""A page says what it is given, as text, whatever that is."""

from datetime import datetime

from goqueue.spark.pipelines.frame import Table
from goqueue.spark.pipelines.hours import Hour, plot
from goqueue.spark.pipelines.report import page


def test_what_it_is_given_is_on_the_page_and_nothing_of_it_is_markup() -> None:
    table = Table("by <key>", ("key", "count"), [("<script>", 1234), (None, 5)])
    found = page("A & B", "what", {"rows": 1234567}, [table], {"plot": b"png"}, ["not <well>"])
    for text in ("A &amp; B", "1,234,567", "&lt;script&gt;", "1,234", "cG5n", "not &lt;well&gt;", "<td>-"):
        assert text in found
    assert "<script>" not in found


def test_a_picture_is_drawn_of_one_hour_and_of_many_topics() -> None:
    hours = [Hour(f"topic {number}", datetime(2026, 1, 31, 12), number, number * 100) for number in range(9)]
    assert plot(hours).startswith(b"\x89PNG")
    assert plot(hours[:1]).startswith(b"\x89PNG")
