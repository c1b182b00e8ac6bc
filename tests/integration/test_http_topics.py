"""Topics over HTTP with a real broker: every route under both prefixes, settings, and what is refused and how."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue.api.operations import OPERATIONS, PATH_FIELDS, Operation
from goqueue.model import limits
from tests.support.broker import Answer, HttpClient, RunningBroker, refusal, running_broker
from tests.support.patience import PATIENCE_S

PREFIXES = ("", "/v1")
PAGES = {
    "/metrics": "text/plain",
    "/admin/metrics": "text/plain",
    "/openapi.json": "application/json",
    "/docs": "text/html",
}
REQUESTS: dict[str, Any] = {
    "publish": {"key": "k", "value": "v"},
    "publish_batch": {"messages": [{"value": "1"}, {"key": "k", "value": "2"}]},
    "read_partition": None,
    "read_topic": None,
    "offsets": None,
    "create_topic": {"name": "orders"},
    "list_topics": None,
    "describe_topic": None,
    "change_topic": {"fsync": "every"},
    "delete_topic": None,
    "add_partitions": {"count": 5},
    "init_producer": {},
    "producer_heartbeat": {"epoch": 0},
    "health": None,
    "live": None,
    "version": None,
    "stats": None,
    "cluster": None,
}
"""A good request for every operation that HTTP reaches."""
REPLIES: dict[str, set[str]] = {
    "publish": {"partition", "offset", "message_id", "timestamp", "priority", "durability"},
    "publish_batch": {"results"},
    "read_partition": {"messages", "next_offset"},
    "read_topic": {"messages", "next_offsets"},
    "offsets": {"offsets"},
    "create_topic": {"name", "partitions", "created"},
    "list_topics": {"topics"},
    "describe_topic": {"name", "partitions", "total_messages", "total_size_bytes", "partition_offsets", "config"},
    "change_topic": {"name", "partitions", "total_messages", "total_size_bytes", "partition_offsets", "config"},
    "delete_topic": {"deleted", "name"},
    "add_partitions": {
        "success", "topic_name", "old_partition_count", "new_partition_count", "partitions_added"
    },
    "init_producer": {"producer_id", "epoch"},
    "producer_heartbeat": {"producer_id", "epoch"},
    "health": {"status"},
    "live": {"status"},
    "version": {"version"},
    "stats": {"topics", "partitions", "messages"},
    "cluster": {"cluster_id", "nodes"},
}  # fmt: skip
"""Fields that clients in use rely on; a reply may have more."""
SETTINGS = {
    "retention_hours": 1,
    "retention_bytes": 5000,
    "cleanup_policy": "both",
    "segment_bytes": 8192,
    "fsync": "every",
    "max_message_bytes": 99,
    "visibility_timeout": "1m30s",
    "max_retries": 7,
    "backoff": {"base": "250ms", "factor": 1.5, "max": "10m"},
    "dlq_enabled": False,
    "message_ttl": "1h",
    "on_expiry": "dlq",
    "lane_weights": [5, 4, 3, 2, 1],
    "lane_policy": "strict",
}
"""All that a topic may be told, each other than its default, as a description shows it."""

_numbers = count(1)


ELSEWHERE = re.compile(r"/groups|/rebalance|/messages/|/transactions|/readers|/schedules|.*/dlq|.*/delayed|.*/stats")
"""Paths that other files try: groups, handles, delayed messages, transactions, named readers, jobs, counters."""
TRIED = [
    operation
    for operation in OPERATIONS
    if operation.paths and (operation.name == "stats" or not ELSEWHERE.match(operation.paths[0]))
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("topics")) as running:
        yield running


@pytest.fixture
def topic(broker: RunningBroker) -> str:
    """The name of a new topic with three partitions."""
    name = new_name()
    assert broker.request("POST", "/topics", {"name": name}).status == 201
    return name


@pytest.fixture(scope="module")
def quiet(broker: RunningBroker) -> str:
    """The name of a topic that stays as it is: for requests that are refused."""
    assert broker.request("POST", "/topics", {"name": "quiet"}).status == 201
    return "quiet"


def new_name() -> str:
    return f"topic-{next(_numbers)}"


def routes() -> list[Any]:
    return [
        pytest.param(prefix, path, operation, id=f"{operation.method} {prefix}{path}")
        for prefix in PREFIXES
        for operation in TRIED
        for path in operation.paths
    ]


def fill(path: str, topic: str, broker: RunningBroker) -> str:
    if "{producer_id}" in path:
        producer_id = broker.request("POST", "/producers/init").body["producer_id"]
        path = path.replace("{producer_id}", str(producer_id))
    return path.replace("{topic}", topic).replace("{partition}", "0")


def everything(broker: RunningBroker) -> list[Path]:
    """What lies in and around the data directory, down to the directories of topics."""
    places = (broker.data_dir.parents[1], broker.data_dir.parent, broker.data_dir, broker.data_dir / "logs")
    return sorted(path for place in places for path in place.iterdir())


# --- routes


def test_every_operation_that_http_reaches_is_tried_here() -> None:
    assert REQUESTS.keys() == REPLIES.keys() == {operation.name for operation in TRIED}


@pytest.mark.parametrize(("prefix", "path", "operation"), routes())
def test_every_route_answers_with_the_fields_clients_know(
    broker: RunningBroker, prefix: str, path: str, operation: Operation
) -> None:
    body, name = REQUESTS[operation.name], new_name()
    if operation.name == "create_topic":
        body = {"name": name}
    elif "{topic}" in path:
        broker.request("POST", "/topics", {"name": name})
    answer = broker.request(operation.method, prefix + fill(path, name, broker), body)
    assert answer.status == operation.status, answer
    assert answer.headers["content-type"] == "application/json"
    assert REPLIES[operation.name] <= answer.body.keys()
    msgspec.convert(answer.body, operation.reply)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_there_whole_and_for_get_alone(broker: RunningBroker, prefix: str, path: str) -> None:
    answer = broker.request("GET", prefix + path)
    assert (answer.status, answer.headers.get_content_type()) == (200, PAGES[path])
    assert int(answer.headers["content-length"]) > 0
    refused = broker.request("POST", prefix + path)
    refusal(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "GET"


def test_the_openapi_document_has_every_route(broker: RunningBroker) -> None:
    document = broker.request("GET", "/openapi.json").body
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(operation.method, path) for operation in OPERATIONS for path in operation.paths}


def test_metrics_name_the_topic_that_was_published_to(broker: RunningBroker, topic: str) -> None:
    broker.request("POST", f"/topics/{topic}/publish", {"value": "x"})
    lines = broker.request("GET", "/metrics").body.splitlines()
    assert [line for line in lines if line.startswith("goqueue_") and f'topic="{topic}"' in line]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("path", sorted({path for operation in OPERATIONS for path in operation.paths}))
@pytest.mark.parametrize("method", ["PUT", "HEAD", "OPTIONS"])
def test_a_method_that_is_not_possible_is_refused_with_those_that_are(
    broker: RunningBroker, prefix: str, path: str, method: str
) -> None:
    possible = {operation.method for operation in OPERATIONS if path in operation.paths}
    if method in possible:
        method = "TRACE"
    numbers = [name for name, kind in PATH_FIELDS.items() if kind is int]
    answer = broker.request(method, prefix + re.sub("{(" + "|".join(numbers) + ")}", "1", path))
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == possible
    if method != "HEAD":
        refusal(answer, 405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/nothing", "/topics/", "//topics", "/v1/v1/topics", "/v2/topics", "/topics/a/b", "/%2e%2e/x"],
)
def test_a_path_that_is_not_there_is_404(broker: RunningBroker, path: str) -> None:
    refusal(broker.request("GET", path), 404, "unknown_operation")


@pytest.mark.parametrize(
    "operation", [operation for operation in TRIED if "topic" in operation.path_fields], ids=lambda one: one.name
)
def test_a_topic_that_is_not_there_is_404(broker: RunningBroker, operation: Operation) -> None:
    path = operation.paths[0].replace("{topic}", "missing").replace("{partition}", "0")
    error = refusal(broker.request(operation.method, path, REQUESTS[operation.name]), 404, "unknown_topic")
    assert "missing" in error["error"]
    assert error["retriable"] is False
    assert "missing" not in broker.request("GET", "/topics").body["topics"]


def test_a_partition_that_is_not_there_is_404(broker: RunningBroker, quiet: str) -> None:
    refusal(broker.request("GET", f"/topics/{quiet}/partitions/3/messages"), 404, "unknown_partition")
    refusal(
        broker.request("POST", f"/topics/{quiet}/publish", {"value": "x", "partition": 3}), 404, "unknown_partition"
    )


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "+1", "%31x", "9" * 30, "%ff", "\u0661".encode().hex("%")])
def test_a_partition_that_is_no_number_is_refused(broker: RunningBroker, quiet: str, text: str) -> None:
    error = refusal(broker.request("GET", f"/topics/{quiet}/partitions/{text}/messages"), 400, "invalid_request")
    assert "partition" in error["error"]


# --- requests that are refused


@pytest.mark.parametrize("operation", TRIED, ids=lambda one: one.name)
def test_an_unknown_field_is_refused_by_name(broker: RunningBroker, quiet: str, operation: Operation) -> None:
    path = fill(operation.paths[0], quiet, broker)
    before = broker.request("GET", f"/topics/{quiet}").body
    if operation.has_body:
        body = {**REQUESTS[operation.name], "colour": "red"}
        if operation.name == "create_topic":
            body["name"] = new_name()
        answer = broker.request(operation.method, path, body)
    else:
        answer = broker.request(operation.method, f"{path}?colour=red")
    assert "colour" in refusal(answer, 400, "invalid_request")["error"]
    assert broker.request("GET", f"/topics/{quiet}").body == before


@pytest.mark.parametrize("field", ["validation", "tracing"])
def test_a_setting_whose_feature_is_not_built_is_refused_by_name(broker: RunningBroker, quiet: str, field: str) -> None:
    name = new_name()
    for method, path, body in (
        ("POST", "/topics", {"name": name, field: "30s"}),
        ("PATCH", f"/topics/{quiet}", {field: "30s"}),
    ):
        error = refusal(broker.request(method, path, body), 400, "not_available")
        assert f"{field} is not available" in error["error"]
        assert error["details"] == {"field": field}
    assert name not in broker.request("GET", "/topics").body["topics"]


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"", "name"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"name": "\xff"}', "JSON"),
        (b'{"name": "\\ud800"}', ""),
        (b'{"name": 7}', "name"),
        (b'{"name": "a", "name": "../b"}', "name"),
        (b'{"name": "a"} {"name": "b"}', "JSON"),
        (b'{"name": "a", "num_partitions": 0}', "num_partitions"),
        (b'{"name": "a", "num_partitions": 1001}', "num_partitions"),
        (b'{"name": "a", "num_partitions": 1.5}', "num_partitions"),
        (b'{"name": "a", "num_partitions": "3"}', "num_partitions"),
        (b'{"name": "a", "num_partitions": 1e400}', ""),
        (b'{"name": "a", "colour": ' + b"[" * 90_000, ""),
    ],
)
def test_a_body_that_cannot_be_understood_is_refused(broker: RunningBroker, body: bytes, hint: str) -> None:
    before = broker.request("GET", "/topics").body
    error = refusal(broker.request("POST", "/topics", body), 400, "invalid_request")
    assert hint in error["error"]
    assert broker.request("GET", "/topics").body == before


@pytest.mark.parametrize(
    "query",
    [
        "?limit=0", "?limit=1001", "?limit=x", "?limit=", "?limit=1&limit=2", "?offset=-1", "?max_bytes=0",
        "?from_time=yesterday", "?from_time=2026-01-01T00:00:00", "?to_time=2026-13-01T00:00:00Z", "?limit=%ff",
        "?isolation=dirty", "?order=newest", "?include=everything", f"?offset={2**62}",
    ],
)  # fmt: skip
def test_a_query_that_cannot_be_understood_is_refused(broker: RunningBroker, quiet: str, query: str) -> None:
    error = refusal(broker.request("GET", f"/topics/{quiet}/partitions/0/messages{query}"), 400, "invalid_request")
    name = query[1:].partition("=")[0]
    assert name in error["error"] or "query" in error["error"] or "time" in error["error"]


def test_a_body_over_the_limit_is_refused_before_it_is_sent(broker: RunningBroker, quiet: str) -> None:
    host, port = broker.http.rsplit(":", 1)
    length = limits.MAX_BODY_BYTES + 1
    head = f"POST /topics/{quiet}/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode())
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head_lines, _, body = received.partition(b"\r\n\r\n")
    assert head_lines.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head_lines
    assert json.loads(body)["code"] == "too_large"


def test_a_client_that_sends_a_body_over_the_limit_to_its_end_is_told_too(broker: RunningBroker, quiet: str) -> None:
    with HttpClient(broker.http) as client:
        for _ in range(2):
            body = b" " * (limits.MAX_BODY_BYTES + limits.MIB)
            answer = client.request("POST", f"/topics/{quiet}/publish", body)
            refusal(answer, 413, "too_large")
            assert client.request("GET", "/livez").status == 200


def test_a_body_of_unknown_size_is_cut_off_at_the_limit(broker: RunningBroker, quiet: str) -> None:
    host, port = broker.http.rsplit(":", 1)
    chunk = b"100000\r\n" + b"x" * limits.MIB + b"\r\n"
    received = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        lines = "Host: localhost\r\nTransfer-Encoding: chunked"
        connection.sendall(f"POST /topics/{quiet}/publish HTTP/1.1\r\n{lines}\r\n\r\n".encode())
        for _ in range(limits.MAX_BODY_BYTES // limits.MIB):
            connection.sendall(chunk)
        connection.sendall(b"1\r\nx\r\n")
        while b"\r\n\r\n" not in received:
            received += connection.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert broker.request("GET", f"/topics/{quiet}").body["total_messages"] == 0


# --- names


BAD_NAMES = [
    "", ".", "..", "../x", "../../x", "a/b", "/x", "%2e%2e%2f", "%2e%2e", "__x", "__consumer_offsets", "x" * 242,
    "x" * 242 + ".dlq",
    "orders\n", "or ders", "orders\0", "caf\u00e9", "\u202eorders", "a\\b", "a:b", "~", "*",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_lead_elsewhere_creates_nothing(broker: RunningBroker, name: str) -> None:
    before, topics = everything(broker), broker.request("GET", "/topics").body
    error = refusal(broker.request("POST", "/topics", {"name": name}), 400, "invalid_request")
    assert "name" in error["error"]
    assert everything(broker) == before
    assert broker.request("GET", "/topics").body == topics


@pytest.mark.parametrize(
    "segment", ["..", "%2e%2e", "%2e%2e%2f", "..%2fx", "%2e%2e%2f%2e%2e%2fetc", "__x", "x" * 242, "%00"]
)
def test_a_path_that_could_lead_elsewhere_finds_nothing(broker: RunningBroker, segment: str) -> None:
    before = everything(broker)
    for method, ending, body in (
        ("GET", "", None),
        ("PATCH", "", {"fsync": "none"}),
        ("DELETE", "", None),
        ("POST", "/publish", {"value": "x"}),
        ("GET", "/partitions/0/messages", None),
        ("GET", "/messages", None),
    ):
        refusal(broker.request(method, f"/topics/{segment}{ending}", body), 404, "unknown_topic")
    refusal(broker.request("POST", f"/admin/topics/{segment}/partitions", {"count": 5}), 404, "unknown_topic")
    assert everything(broker) == before


def test_a_path_that_climbs_is_no_route(broker: RunningBroker) -> None:
    before = everything(broker)
    refusal(broker.request("POST", "/topics/../x/publish", {"value": "x"}), 404, "unknown_operation")
    refusal(broker.request("DELETE", "/topics/../../x"), 404, "unknown_operation")
    assert everything(broker) == before


@pytest.mark.parametrize(
    "name",
    ["x" * 241, "x" * 241 + ".dlq", "a.dlq", "0" * 20 + ".dlq", "a", ".hidden",
     "-", "_x", "a..b", "...", "CON", "UPPER.lower-1_2", "v1", "messages",
     "log.state", "log.state.tmp", "synced", "00000000000000000000.log", "00000000000000000000-0.cut"],
)  # fmt: skip
def test_a_topic_of_any_name_that_is_accepted_works(broker: RunningBroker, name: str) -> None:
    answer = broker.request("POST", "/topics", {"name": name, "num_partitions": 1})
    if answer.status == 400 and ("." in name or name == "synced"):
        return  # refused from the start is as good
    assert answer.status == 201
    published = broker.request("POST", f"/topics/{name}/publish", {"value": "x"})
    assert (published.status, published.body.get("message_id")) == (200, f"{name}:0:0")
    assert len(broker.request("GET", f"/topics/{name}/messages").body["messages"]) == 1
    assert broker.request("DELETE", f"/topics/{name}").body == {"deleted": True, "name": name}


def test_a_name_with_escapes_in_the_path_is_the_same_name(broker: RunningBroker) -> None:
    name = new_name()
    broker.request("POST", "/topics", {"name": name})
    assert broker.request("GET", f"/topics/{name.replace('-', '%2D')}").body["name"] == name


# --- create, describe, change, delete


def test_a_topic_is_created_once(broker: RunningBroker) -> None:
    name = new_name()
    created = broker.request("POST", "/topics", {"name": name})
    assert (created.status, created.body["created"], created.body["partitions"]) == (201, True, 3)
    refusal(broker.request("POST", "/v1/topics", {"name": name, "num_partitions": 7}), 409, "topic_exists")
    described = broker.request("GET", f"/topics/{name}").body
    assert (described["topic_id"], described["partitions"]) == (created.body["topic_id"], 3)


def test_a_new_topic_has_the_defaults(broker: RunningBroker, topic: str) -> None:
    described = broker.request("GET", f"/topics/{topic}").body
    assert described["partition_offsets"] == {
        str(number): {"earliest": 0, "latest": 0, "stable": 0} for number in range(3)
    }
    assert (described["total_messages"], described["total_size_bytes"]) == (0, 0)
    assert described["config"] == {
        "retention_hours": 168,
        "retention_bytes": None,
        "cleanup_policy": "delete",
        "segment_bytes": 64 * limits.MIB,
        "fsync": "interval",
        "max_message_bytes": limits.MIB,
        "visibility_timeout": "30s",
        "max_retries": 3,
        "backoff": {"base": "1s", "factor": 2, "max": "1m"},
        "dlq_enabled": True,
        "message_ttl": None,
        "on_expiry": "drop",
        "lane_weights": [50, 25, 15, 7, 3],
        "lane_policy": "weighted",
        "replication_factor": 1,
        "min_insync_replicas": 1,
    }


@pytest.mark.parametrize("method", ["create", "change"])
@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        ("retention_hours", 1, 1),
        ("retention_hours", 0.5, 0.5),
        ("retention_hours", None, None),
        ("retention_hours", -1, None),
        ("retention_bytes", 4096, 4096),
        ("retention_bytes", None, None),
        ("retention_bytes", -1, None),
        ("cleanup_policy", "compact", "compact"),
        ("cleanup_policy", "both", "both"),
        ("segment_bytes", 4096, 4096),
        ("fsync", "none", "none"),
        ("fsync", "every", "every"),
        ("max_message_bytes", 10, 10),
        ("visibility_timeout", "90s", "1m30s"),
        ("visibility_timeout", 0.001, "1ms"),
        ("visibility_timeout", "43200", "12h"),
        ("max_retries", 0, 0),
        ("max_retries", 1000, 1000),
        ("backoff", {"base": 5, "factor": 100, "max": "7d"}, {"base": "5s", "factor": 100, "max": "7d"}),
        ("backoff", {"base": "250ms"}, {"base": "250ms", "factor": 2, "max": "1m"}),
        ("dlq_enabled", False, False),
        ("message_ttl", "1d1h1m1s1ms", "1d1h1m1s1ms"),
        ("message_ttl", None, None),
        ("on_expiry", "dlq", "dlq"),
        ("lane_weights", [1, 1, 1, 1, 1000], [1, 1, 1, 1, 1000]),
        ("lane_policy", "strict", "strict"),
        ("replication_factor", 1, 1),
        ("min_insync_replicas", 1, 1),
    ],
)
def test_every_setting_can_be_set_and_is_shown(
    broker: RunningBroker, method: str, setting: str, value: object, shown: object
) -> None:
    name = new_name()
    if method == "create":
        assert broker.request("POST", "/topics", {"name": name, setting: value}).status == 201
    else:
        other = 1000 if setting.startswith("retention_") or setting == "message_ttl" else None
        broker.request("POST", "/topics", {"name": name} | ({setting: other} if other else {}))
        changed = broker.request("PATCH", f"/topics/{name}", {setting: value})
        assert (changed.status, changed.body["config"][setting]) == (200, shown)
    assert broker.request("GET", f"/topics/{name}").body["config"][setting] == shown


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention_hours", -2), ("retention_hours", -0.5), ("retention_hours", "7d"), ("retention_hours", 876_001),
        ("retention_hours", True), ("retention_bytes", -2), ("retention_bytes", 1.5), ("retention_bytes", 2**63),
        ("cleanup_policy", "shred"), ("cleanup_policy", None), ("segment_bytes", 4095), ("segment_bytes", None),
        ("segment_bytes", 2 * limits.MAX_SEGMENT_BYTES), ("fsync", "sometimes"), ("fsync", True),
        ("max_message_bytes", 0), ("max_message_bytes", -1), ("max_message_bytes", 16 * limits.MIB),
        ("visibility_timeout", 0), ("visibility_timeout", "12h1ms"), ("visibility_timeout", None),
        ("visibility_timeout", "999999999d"), ("visibility_timeout", True), ("max_retries", -1), ("max_retries", 1001),
        ("backoff", 5), ("backoff", {"base": "2m"}), ("backoff", {"factor": 0.5}), ("backoff", {"max": "8d"}),
        ("backoff", {"jitter": True}), ("dlq_enabled", "yes"), ("message_ttl", 0), ("message_ttl", -1),
        ("on_expiry", "keep"), ("lane_weights", [1, 2, 3, 4]), ("lane_weights", [0, 1, 1, 1, 1]),
        ("lane_weights", [1, 1, 1, 1, "1"]), ("lane_policy", None),
        ("replication_factor", 2), ("replication_factor", 0), ("min_insync_replicas", 2),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_by_name(
    broker: RunningBroker, quiet: str, setting: str, value: object
) -> None:
    before = broker.request("GET", f"/topics/{quiet}").body
    name = new_name()
    for answer in (
        broker.request("POST", "/topics", {"name": name, setting: value}),
        broker.request("PATCH", f"/topics/{quiet}", {"max_message_bytes": 77, setting: value}),
    ):
        assert answer.status == 400, answer
        assert setting in answer.body["error"]
    assert broker.request("GET", f"/topics/{quiet}").body == before
    assert name not in broker.request("GET", "/topics").body["topics"]


def test_what_a_change_does_not_name_stays(broker: RunningBroker) -> None:
    name = new_name()
    broker.request("POST", "/topics", {"name": name, **SETTINGS})
    broker.request("PATCH", f"/topics/{name}", {"fsync": "none", "backoff": {"factor": 3}})
    config = broker.request("PATCH", f"/topics/{name}", {}).body["config"]
    backoff = {"base": "250ms", "factor": 3, "max": "10m"}
    replication = {"replication_factor": 1, "min_insync_replicas": 1}
    assert config == {**SETTINGS, "fsync": "none", "backoff": backoff, **replication}


def test_settings_are_kept_when_the_broker_starts_again(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        broker.request("POST", "/topics", {"name": "orders", **SETTINGS})
        broker.request("POST", "/topics", {"name": "bills"})
        broker.request("PATCH", "/topics/bills", SETTINGS)
        before = [broker.request("GET", f"/topics/{name}").body["config"] for name in ("orders", "bills")]
        broker.restart()
        after = [broker.request("GET", f"/topics/{name}").body["config"] for name in ("orders", "bills")]
    assert before == after
    assert before[0] == before[1]
    assert {name: before[0][name] for name in SETTINGS} == SETTINGS


def test_partitions_cannot_be_changed_by_patch(broker: RunningBroker, quiet: str) -> None:
    error = refusal(broker.request("PATCH", f"/topics/{quiet}", {"num_partitions": 5}), 400, "invalid_request")
    assert "num_partitions" in error["error"]


def test_partitions_are_added_and_used(broker: RunningBroker, topic: str) -> None:
    for number in range(3):
        broker.request("POST", f"/topics/{topic}/publish", {"value": f"{number}", "partition": number})
    added = broker.request("POST", f"/admin/topics/{topic}/partitions", {"count": 5})
    assert added.body == {
        "success": True,
        "topic_name": topic,
        "old_partition_count": 3,
        "new_partition_count": 5,
        "partitions_added": 2,
    }
    published = broker.request("POST", f"/topics/{topic}/publish", {"value": "4", "partition": 4})
    assert (published.body["partition"], published.body["offset"]) == (4, 0)
    described = broker.request("GET", f"/topics/{topic}").body
    assert (described["partitions"], described["total_messages"]) == (5, 4)
    assert described["partition_offsets"]["4"] == {"earliest": 0, "latest": 1, "stable": 1}
    read = broker.request("GET", f"/topics/{topic}/messages").body
    assert sorted(message["value"] for message in read["messages"]) == ["0", "1", "2", "4"]


@pytest.mark.parametrize("total", [3, 2, 0, -1, 1001, "5", 3.5, None])
def test_partitions_never_become_fewer(broker: RunningBroker, quiet: str, total: object) -> None:
    refusal(broker.request("POST", f"/admin/topics/{quiet}/partitions", {"count": total}), 400, "invalid_request")
    assert broker.request("GET", f"/topics/{quiet}").body["partitions"] == 3


def test_a_deleted_topic_is_gone_for_everybody(broker: RunningBroker, topic: str) -> None:
    broker.request("POST", f"/topics/{topic}/publish", {"value": "x"})
    assert broker.request("DELETE", f"/topics/{topic}").body == {"deleted": True, "name": topic}
    refusal(broker.request("DELETE", f"/topics/{topic}"), 404, "unknown_topic")
    refusal(broker.request("GET", f"/topics/{topic}/messages"), 404, "unknown_topic")
    assert topic not in broker.request("GET", "/topics").body["topics"]
    assert f'topic="{topic}"' not in broker.request("GET", "/metrics").body


def test_topics_are_listed_in_order(broker: RunningBroker) -> None:
    for name in ("zz-list", "aa-list"):
        broker.request("POST", "/topics", {"name": name})
    listed = broker.request("GET", "/topics?internal=true").body["topics"]
    assert listed == sorted(listed)
    assert {"aa-list", "zz-list"} <= set(listed)


# --- health


@pytest.mark.parametrize("path", ["/readyz", "/healthz", "/health", "/admin/health"])
def test_health_says_more_when_asked(broker: RunningBroker, path: str) -> None:
    assert broker.request("GET", path).body == {"status": "ok"}
    for query in ("?verbose", "?verbose=true", "?verbose=1"):
        told = broker.request("GET", path + query)
        assert (told.status, told.body["status"]) == (200, "ok")
        assert {"storage", "partitions"} <= told.body["checks"].keys()
    assert broker.request("GET", f"{path}?verbose=false").body == {"status": "ok"}


def test_the_cluster_is_this_broker_with_its_doors(broker: RunningBroker) -> None:
    cluster = broker.request("GET", "/admin/cluster").body
    assert cluster["nodes"] == [{"node_id": "node-1", "state": "ready", "endpoints": broker.endpoints}]
    assert cluster["cluster_id"] == broker.request("GET", "/stats").body["cluster_id"]


def test_one_connection_serves_many_requests_of_all_outcomes(broker: RunningBroker, topic: str) -> None:
    with HttpClient(broker.http) as client:
        for _ in range(20):
            assert client.request("POST", f"/topics/{topic}/publish", {"value": "x"}).status == 200
            assert client.request("POST", f"/topics/{topic}/publish", {"value": 5}).status == 400
            assert client.request("PUT", f"/topics/{topic}", {"value": 5}).status == 405
            assert client.request("POST", "/nothing", {"value": "x" * 10_000}).status == 404
            assert client.request("GET", f"/topics/{topic}").status == 200
    assert broker.request("GET", f"/topics/{topic}").body["total_messages"] == 20


# --- many at once


def at_once(broker: RunningBroker, *work: Callable[[HttpClient], Iterator[Answer]]) -> list[list[Answer]]:
    """The answers of several clients that begin together, each on a connection of its own."""
    begin = threading.Barrier(len(work))

    def follow(one: Callable[[HttpClient], Iterator[Answer]]) -> list[Answer]:
        with HttpClient(broker.http) as client:
            begin.wait()
            return list(one(client))

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(follow, work))


def test_of_many_who_create_the_same_topic_one_does(broker: RunningBroker) -> None:
    names = [new_name() for _ in range(10)]

    def create(client: HttpClient) -> Iterator[Answer]:
        for name in names:
            yield client.request("POST", "/topics", {"name": name, "num_partitions": 1})

    answers = at_once(broker, *[create] * 6)
    for round_of_one_name in zip(*answers, strict=True):
        assert sorted(answer.status for answer in round_of_one_name) == [201, 409, 409, 409, 409, 409]


def test_whoever_uses_a_topic_that_comes_and_goes_is_told_so_and_nothing_breaks(broker: RunningBroker) -> None:
    name = new_name()

    def come_and_go(client: HttpClient) -> Iterator[Answer]:
        for _ in range(10):
            yield client.request("POST", "/topics", {"name": name, "num_partitions": 2})
            yield client.request("PATCH", f"/topics/{name}", {"segment_bytes": 4096})
            yield client.request("POST", f"/admin/topics/{name}/partitions", {"count": 3})
            yield client.request("DELETE", f"/topics/{name}")

    def publish(client: HttpClient) -> Iterator[Answer]:
        for number in range(60):
            acks = "all" if number % 2 else "leader"
            message = {"value": "x" * 500, "partition": 0, "acks": acks}
            yield client.request("POST", f"/topics/{name}/publish", message)

    def read(client: HttpClient) -> Iterator[Answer]:
        for _ in range(60):
            yield client.request("GET", f"/topics/{name}/messages")
            yield client.request("GET", f"/topics/{name}")
            yield client.request("GET", "/metrics")

    owner, *others = at_once(broker, come_and_go, publish, publish, read)
    assert [answer.status for answer in owner] == [201, 200, 200, 200] * 10
    for answer in (answer for answers in others for answer in answers):
        assert answer.status == 200 or answer.body["code"] in ("unknown_topic", "unavailable"), answer
    assert "Traceback" not in broker.stderr
    assert broker.request("POST", "/topics", {"name": name}).status == 201
    assert broker.request("GET", f"/topics/{name}").body["total_messages"] == 0
