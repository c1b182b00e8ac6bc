"""From a method and a path to an operation."""

import pytest

from goqueue.api.operations import BY_NAME, OPERATIONS, Operation
from goqueue.api.router import Match, Router
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, MethodNotAllowed, UnknownOperation

ROUTER = Router(OPERATIONS)
VALUES: dict[str, object] = {
    "topic": "orders",
    "partition": 7,
    "producer_id": 12,
    "group": "billing",
    "offset": 41,
    "schedule": "5f0c",
    "redrive": "00d1",
    "transaction": "txn-17",
    "name": "nightly-load",
}


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_path_of_an_operation_leads_to_it(operation: Operation, prefix: str) -> None:
    for path in operation.paths:
        match = ROUTER.match(operation.method, (prefix + path.format(**VALUES)).encode())
        assert match == Match(operation, {name: VALUES[name] for name in operation.path_fields})


@pytest.mark.parametrize("path", [
    "/", "//", "", "*", "topics", "/v1", "/v1/", "/v1/v1/topics", "/v2/topics", "/V1/topics", "//topics", "/topics/",
    "/topics//", "/topics//publish", "/topics/orders/", "/topics/orders/nothing", "/topics/orders/partitions",
    "/topics/orders/partitions/0", "/topics/orders/partitions/0/messages/", "/Topics", "/%74opics", "/topics;a=b",
    "/topics/orders/publish/extra", "/admin", "/admin/topics", "/producers", "/..", "/../topics", "/./topics",
])  # fmt: skip
def test_a_path_that_is_none_of_ours_leads_nowhere(path: str) -> None:
    for method in ("GET", "POST", "BREW"):
        with pytest.raises(UnknownOperation, match="there is nothing at"):
            ROUTER.match(method, path.encode())


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("DELETE", "/topics", "GET, POST"),
    ("HEAD", "/topics", "GET, POST"),
    ("PUT", "/topics/orders", "DELETE, GET, PATCH"),
    ("GET", "/v1/topics/orders/publish", "POST"),
    ("get", "/topics/orders", "DELETE, GET, PATCH"),
    ("M" * 1000, "/livez", "GET"),
])  # fmt: skip
def test_a_method_a_path_does_not_have_is_refused_with_those_it_has(method: str, path: str, allowed: str) -> None:
    with pytest.raises(MethodNotAllowed, match=f"possible: {allowed}$") as refused:
        ROUTER.match(method, path.encode())
    assert refused.value.allowed == allowed
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("segment", "topic"), [
    (b"orders", "orders"), (b"%6frders", "orders"), (b"a.b-c_d", "a.b-c_d"), (b"%2e%2e%2fetc", "../etc"), (b"..", ".."),
    (b"%00", "\x00"), (b"%", "%"), (b"%zz", "%zz"), (b"%2525", "%25"), (b"a+b", "a+b"), (b"%20", " "),
    ("größe".encode(), "größe"), (b"gr%C3%B6%C3%9Fe", "größe"), (b"v1", "v1"), (b"topics", "topics"),
    (b"a" * 9999, "a" * 9999),
])  # fmt: skip
def test_a_name_in_a_path_is_percent_decoded_once_and_judged_by_who_looks_it_up(segment: bytes, topic: str) -> None:
    assert ROUTER.match("GET", b"/topics/" + segment).path == {"topic": topic}


@pytest.mark.parametrize("segment", [b"%ff", b"\xff", b"%ed%a0%80", b"%c3", b"orders%fe"])
def test_a_name_that_is_not_utf_8_is_refused(segment: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the topic in the path is not UTF-8"):
        ROUTER.match("GET", b"/topics/" + segment)


def test_a_fixed_segment_goes_before_a_name() -> None:
    assert ROUTER.match("POST", b"/producers/init").operation is BY_NAME["init_producer"]
    with pytest.raises(InvalidRequest, match="the producer_id in the path is 'Init'"):
        ROUTER.match("POST", b"/producers/Init")
    assert ROUTER.match("POST", b"/topics/orders/delayed/cancel").operation is BY_NAME["cancel_many_delayed"]


@pytest.mark.parametrize(("segment", "number"), [
    (b"0", 0), (b"007", 7), (b"999", 999), (b"%31", 1), (str(limits.MAX_OFFSET - 1).encode(), limits.MAX_OFFSET - 1),
])  # fmt: skip
def test_a_number_in_a_path_is_a_number(segment: bytes, number: int) -> None:
    found = ROUTER.match("GET", b"/topics/orders/partitions/" + segment + b"/messages").path
    assert found == {"topic": "orders", "partition": number}


@pytest.mark.parametrize("segment", [
    b"-1", b"+1", b"1.0", b"1e3", b"0x1", b"1_0", b"%20", b"1%20", b"%D9%A1", "²".encode(), b"one", b"%00", b"%",
    str(limits.MAX_OFFSET).encode(), b"9" * 19, b"9" * 5000, b"0" * 5000,
])  # fmt: skip
def test_what_is_no_number_we_count_with_is_refused(segment: bytes) -> None:
    with pytest.raises(
        InvalidRequest, match=r"the partition in the path is .* must be a whole number below"
    ) as refused:
        ROUTER.match("GET", b"/topics/orders/partitions/" + segment + b"/messages")
    assert len(str(refused.value)) < 200


def test_a_refusal_shows_no_more_of_a_path_than_it_needs() -> None:
    with pytest.raises(UnknownOperation) as refused:
        ROUTER.match("GET", b"/" + b"\xff" * 10_000)
    assert len(str(refused.value)) < 500
    str(refused.value).encode()
