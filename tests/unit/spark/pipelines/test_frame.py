"""Options of a pipeline: read, refused with everything that is wrong, and which of them make a run what it is."""

from typing import Any

import pytest

from goqueue.model.errors import InvalidRequest
from goqueue.spark import values
from goqueue.spark.pipelines.frame import Option, Pipeline, Run, Summary, read_options, what_counts
from goqueue.spark.pipelines.table import PIPELINES


def nothing(_: Run) -> Summary:
    return Summary(figures={})


def check(options: dict[str, Any]) -> list[str]:
    return ["rate is too much"] if options["rate"] == 7 else []


PIPELINE = Pipeline(
    "copy",
    "Copy something.",
    (
        Option("source", values.topic, "The topic to copy.", required=True),
        Option("rate", values.number, "Rows a second.", steers=True),
        Option("follow", values.yes_or_no, "Go on.", default="false"),
    ),
    nothing,
    check,
)


def test_options_are_read_and_the_others_have_their_defaults() -> None:
    assert read_options(PIPELINE, {"source": "orders"}) == {"source": "orders", "rate": None, "follow": False}


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_options(PIPELINE, {"rat": "5", "rate": "fast", "follow": "maybe"})
    told = str(refused.value)
    assert "copy has no option rat; did you mean rate?" in told
    assert "source is missing: the topic to copy" in told
    assert "rate is 'fast'; it is a number above 0" in told
    assert "follow is 'maybe'; it is true or false" in told


def test_an_option_like_no_other_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="it has source, rate, follow"):
        read_options(PIPELINE, {"source": "orders", "xyz": "1"})


def test_a_topic_is_not_replayed_into_itself() -> None:
    with pytest.raises(InvalidRequest, match="into is the topic itself"):
        read_options(PIPELINES["replay"], {"topic": "a", "into": "a"})
    read_options(PIPELINES["replay"], {"topic": "a", "into": "a", "lake": "/lake"})


def test_options_are_checked_together_when_each_is_right() -> None:
    with pytest.raises(InvalidRequest, match=r"^rate is too much$"):
        read_options(PIPELINE, {"source": "orders", "rate": "7"})


def test_what_steers_a_run_does_not_make_it_another_one() -> None:
    slow = what_counts(PIPELINE, {"source": "orders", "rate": "1"})
    assert slow == what_counts(PIPELINE, {"rate": "1000", "source": "orders", "follow": "false"})
    assert slow != what_counts(PIPELINE, {"source": "payments"})


@pytest.mark.parametrize(
    ("read", "good", "value", "bad"),
    [
        (values.text, " a ", "a", " "),
        (values.whole, "12", 12, "0"),
        (values.number, "0.5", 0.5, "nan"),
        (values.number, "1e3", 1000.0, "-1"),
        (values.size, "64m", 64 << 20, "64q"),
        (values.yes_or_no, "True", True, "yes"),
        (values.seconds, "500ms", 0.5, "soon"),
        (values.time, "1970-01-01T00:00:01Z", 1000, "yesterday"),
        (values.one_of("keep", "drop"), "Keep", "keep", "lose"),
        (values.topics, "a, b,a", ("a", "b"), ","),
        (values.pair, "a=b=c", ("a", "b=c"), "=b"),
    ],
)
def test_values_are_read_or_refused(read: Any, good: str, value: object, bad: str) -> None:
    assert read(good) == value
    with pytest.raises(ValueError, match=r"."):
        read(bad)
