"""Options as Spark hands them over."""

import pytest

from goqueue.model.errors import GoQueueError, InvalidRequest
from goqueue.spark.options import Bound, Subscription, sink_options, source_options


def source(**given: str) -> object:
    return source_options({"subscribe": "orders", **given}, is_stream=False)


def test_what_is_not_given_has_its_default() -> None:
    options = source_options({"subscribe": "orders"}, is_stream=True)
    assert options.address.servers == "127.0.0.1:9001"
    assert (options.start, options.end) == (Bound(word="earliest"), Bound(word="latest"))
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.isolation == "read_committed"
    assert options.json_values is None


def test_names_come_in_any_case_and_values_as_text() -> None:
    options = source_options(
        {
            "SUBSCRIBE": " orders ,bills,orders",
            "startingoffsets": '{"orders": {"0": 5, "1": -2, "2": -1}}',
            "maxoffsetspertrigger": "100",
            "maxbytespertrigger": "64m",
            "maxtriggerdelay": "30s",
            "failondataloss": "FALSE",
            "endingtimestamp": "2026-01-31T12:00:00Z",
        },
        is_stream=False,
    )
    assert options.subscription == Subscription(("orders", "bills"))
    assert options.start == Bound(offsets={"orders": {0: 5, 1: "earliest", 2: "latest"}})
    assert options.end == Bound(time_ms=1_769_860_800_000)
    assert (options.max_offsets, options.max_bytes, options.max_delay_s) == (100, 64 << 20, 30.0)
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"startingOfsets": "latest"}, "do you mean startingOffsets"),
        ({"kafka.bootstrap.servers": "x"}, "do you mean bootstrap.servers"),
        ({"zzz": "x"}, "there are bootstrap.servers"),
        ({"assign": '{"a": [0]}'}, "subscribe and assign are given"),
        ({"assign": "orders"}, "JSON like"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "leave one out"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"orders": [1]}'}, "earliest, latest, or JSON"),
        ({"startingOffsets": "yesterday"}, "it is earliest, latest, or JSON"),
        ({"endingOffsets": "earliest"}, "nothing would be read"),
        ({"maxOffsetsPerTrigger": "0"}, "from 1 on"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "cannot be both"),
        ({"maxBytesPerTrigger": "5 parsecs"}, "a number of bytes"),
        ({"maxTriggerDelay": "soon"}, "a time span"),
        ({"startingTimestamp": "yesterday"}, "a time, like"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"isolation": "serializable"}, "read_committed or read_uncommitted"),
        ({"subscribe": "a b"}, "a b"),
        ({"value.schema": "{}"}, "set value.format to json"),
        ({"value.bad": "null"}, "set value.format to json"),
        ({"bootstrap.servers": "a:1,b:2"}, "name one broker"),
        ({"readerName": " "}, "some text"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(GoQueueError, match=complaint):
        source(**given)


def test_what_is_read_has_to_be_said() -> None:
    with pytest.raises(InvalidRequest, match="one of them; none of them is given"):
        source_options({}, is_stream=False)


def test_a_pattern_has_to_be_one() -> None:
    with pytest.raises(InvalidRequest, match="regular expression"):
        source_options({"subscribePattern": "("}, is_stream=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = "latest" if name == "endingOffsets" else "5"
    with pytest.raises(InvalidRequest, match="a stream has no end"):
        source_options({"subscribe": "a", name: value}, is_stream=True)


def test_the_sink() -> None:
    options = sink_options(
        {"topic": "out", "transactionalid": "nightly", "batchid": "7", "transactiontimeout": "2h"}, is_stream=False
    )
    assert (options.topic, options.name, options.number, options.timeout_s) == ("out", "nightly", 7, 7200.0)
    for given, is_stream, complaint in (
        ({"batchId": "1", "transactionalId": "x"}, True, "numbers of its own"),
        ({"batchId": "1"}, False, "set transactionalId"),
        ({"transactionalId": "x"}, False, "set batchId to the number"),
        ({"topics": "x"}, False, "do you mean topic"),
        ({"topic": "a/b"}, False, "a/b"),
        ({"transactionTimeout": "25h"}, False, "transactionTimeout is not from 1s to 24h"),
    ):
        with pytest.raises(GoQueueError, match=complaint):
            sink_options(given, is_stream=is_stream)
