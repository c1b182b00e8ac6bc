"""The options of `format("goqueue-log")`."""

import pytest

from goqueue.model.errors import InvalidRequest
from goqueue.spark.options import Bound, Subscription, log_options


def test_a_path_is_enough() -> None:
    found = log_options({"path": "/data"})
    assert (found.path, found.subscription, found.isolation) == ("/data", Subscription(), "read_committed")
    assert (found.start, found.end) == (Bound(word="earliest"), Bound(word="latest"))
    assert (found.fail_on_data_loss, found.include_headers, found.content) == (True, False, "messages")


def test_a_path_may_be_an_address() -> None:
    assert log_options({"path": "file:///data"}).path == "/data"
    assert log_options({"path": "file:/data"}).path == "/data"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "path is not given"),
        ({"path": "/d", "subscribe": "a", "subscribepattern": "b"}, "leave one out, or both for every topic"),
        ({"path": "/d", "startingoffsets": "earliest", "startingtimestamp": "5"}, "two answers to one question"),
        ({"path": "/d", "endingoffsets": "earliest"}, "nothing would be read"),
        ({"path": "/d", "content": "words"}, "it is messages or damage"),
        ({"path": "/d", "minpartitions": "3"}, "there is no option minpartitions"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        log_options(given)
