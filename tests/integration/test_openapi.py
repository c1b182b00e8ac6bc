"""The OpenAPI document against a running broker: what it promises is what comes, for requests right and wrong.

Checked of every answer: a declared status and content type, a body that fits its schema, no fault but a declared 503;
that wrong requests are refused; and that methods a path does not have are answered 405 with those it has.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from schemathesis.schemas import BaseSchema

from goqueue.api import openapi, pages
from goqueue.model import limits
from goqueue.model.names import READER_PATTERN
from goqueue.wire import shapes
from tests.support.broker import RunningBroker, running_broker
from tests.support.patience import PATIENCE_S

AnyCase = schemathesis.Case[Any]
TOPICS = {"orders": 1, "events": 3}
"""Those that exist, with their partitions."""
GROUPS = ("billing", "idle")
"""Those that exist: one with a member, and one without."""
SETTLING = "settling"
"""One more, whose member settles messages by their handles."""
ENOUGH_PARTITIONS = 4
"""More of them show nothing new, and take a second to make."""
ALLOWED = {"2xx", "4xx", "503"}
_WRITING: dict[str, str] = {
    "/transactions/begin": "BeginTransaction",
    "/transactions/publish": "TransactionPublish",
    "/transactions/add-partition": "AddPartition",
    "/transactions/ack": "TransactionAck",
    "/transactions/commit": "CommitTransaction",
    "/transactions/abort": "AbortTransaction",
    "/transactions/commit-many": "CommitMany",
}
_SETTLING = {"ack": "Ack", "nack": "Nack", "reject": "Reject", "visibility": "ExtendVisibility", "release": "Ack"}
"""What is asked, by the end of the path."""


def described(*, examples: int, wrong_ones: bool) -> BaseSchema:
    """The document, and how to try it: always in the same way, and mostly on topics that exist."""
    likely = {"probability": 0.9 if wrong_ones else 1.0}
    config: dict[str, Any] = {
        "generation": {
            "mode": "all" if wrong_ones else "positive",
            "max-examples": examples,
            "deterministic": True,
            "database": "none",
        },
        "dictionaries": {
            "topics": {"values": list(TOPICS)},
            "groups": {"values": list(GROUPS)},
            "small": {"values": [0, 1, 2]},
        },
        "parameters": {
            "path.topic": {"dictionary": "topics", **likely},
            "path.group": {"dictionary": "groups", **likely},
            "path.partition": {"dictionary": "small", **likely},
            "path.producer_id": {"dictionary": "small", **likely},
            "path.offset": {"dictionary": "small", **likely},
            "query.offset": {"dictionary": "small", "probability": 0.5},
            "query.topic": {"dictionary": "topics", "probability": 0.5},
            "body.partition": {"dictionary": "small", "probability": 0.5},
            "body.topic": {"dictionary": "topics", **likely},
            "body.topics[*]": {"dictionary": "topics", **likely},
            "body.messages[*].partition": {"dictionary": "small", "probability": 0.5},
        },
        "phases": {"coverage": {"enabled": wrong_ones}, "examples": {"enabled": wrong_ones}},
        "checks": {
            "positive_data_acceptance": {"enabled": False},  # a request may be well-formed and still be refused
            "not_a_server_error": {"expected-statuses": sorted(ALLOWED)},
            "negative_data_rejection": {"expected-statuses": ["4xx"]},  # too many of something may be too large first
        },
    }
    document = json.loads(openapi.document())
    return schemathesis.openapi.from_dict(document, config=schemathesis.Config.from_dict(config))


class Trial:
    """A broker, and what it answered so far."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.session = requests.Session()
        self.statuses: dict[str, set[int]] = defaultdict(set)
        self.asked_rightly: set[str] = set()
        """Operations that right requests were sent to: in another process, it may be, only any others were."""
        for _ in range(3):
            assert broker.request("POST", "/producers/init").status == 200
        self.member_id = ""
        self.settler = self.last_redrive = ""
        self.create_topics()
        self.create_groups()

    def create_topics(self) -> None:
        for name, partitions in TOPICS.items():
            if self.broker.request("POST", "/topics", {"name": name, "num_partitions": partitions}).status == 201:
                messages = [{"value": str(number), "partition": number % partitions} for number in range(9)]
                published = self.broker.request("POST", f"/topics/{name}/messages", {"messages": messages})
                assert published.status == 200

    def create_groups(self) -> None:
        busy, idle = (f"/groups/{name}" for name in GROUPS)
        joining = {"client_id": "tester", "topics": ["orders"]}
        if self.broker.request("POST", f"{busy}/heartbeat", {"member_id": self.member_id or "none"}).status != 200:
            self.member_id = self.broker.request("POST", f"{busy}/join", joining).body["member_id"]
        if self.broker.request("GET", idle).status != 200:
            assert self.broker.request("POST", f"{idle}/join", joining).status == 200
        for member in self.broker.request("GET", idle).body["members"]:
            leaving = {"member_id": member["member_id"]}
            assert self.broker.request("POST", f"{idle}/leave", leaving).status == 200

    def handle(self) -> str:
        """Of a message that a member was delivered just now, in a group that no request comes across."""
        self.create_topics()
        path = f"/groups/{SETTLING}"
        good = {"value": "x", "partition": 0, "priority": "critical"}
        assert self.broker.request("POST", "/topics/orders/publish", good).status == 200
        for _ in range(10):
            asked = f"{path}/poll?member_id={self.settler or 'none'}&max_messages=1&timeout=1s"
            answer = self.broker.request("GET", asked)
            if answer.status == 404:
                joining = {"client_id": "settler", "topics": ["orders"], "session_timeout": "1h"}
                self.settler = self.broker.request("POST", f"{path}/join", joining).body["member_id"]
                continue
            for message in answer.body["messages"]:
                found: str = message["receipt_handle"]
                return found
        raise AssertionError("the member was delivered nothing")

    def delayed(self) -> dict[str, Any]:
        """Where a message is that is not due for long, in a topic of one partition."""
        if self.broker.request("GET", "/topics/orders").body.get("partitions") != TOPICS["orders"]:
            self.broker.request("DELETE", "/topics/orders")
        self.create_topics()
        published = self.broker.request("POST", "/topics/orders/publish", {"value": "x", "delay": "1d"}).body
        return {"topic": "orders", "partition": 0, "offset": published["offset"]}

    def schedule(self) -> str:
        self.create_topics()
        wanted = {"topic": "orders", "message": {"value": "x"}, "every": "1d"}
        found: str = self.broker.request("POST", "/schedules", wanted).body["id"]
        return found

    def _read_by_name(self, case: AnyCase) -> None:
        """Names that are right are those of a reader there is, and bodies that are right name a topic there is."""
        self.create_topics()
        wanted: dict[str, Any] = {"offsets": {"orders": {"0": 0}}}
        assert self.broker.request("PUT", "/readers/nightly", wanted).status == 200
        if re.fullmatch(READER_PATTERN[1:-1], str(case.path_parameters.get("name", ""))):
            case.path_parameters["name"] = "nightly"
        if isinstance(case.body, dict) and _is_right("PutReader", case.body, strict=True):
            case.body = case.body | wanted

    def begin(self) -> tuple[dict[str, int], str]:
        """A producer, and the transaction that it has open."""
        writer: dict[str, int] = self.broker.request("POST", "/producers/init").body
        return writer, self.broker.request("POST", "/transactions/begin", writer).body["transaction_id"]

    def _in_one_that_is_open(self, case: AnyCase, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """The same request by somebody who may make it."""
        writer, begun = self.begin()
        plain: dict[str, dict[str, Any]] = {
            "BeginTransaction": self.broker.request("POST", "/producers/init").body,
            "TransactionPublish": writer | {"topic": "orders", "value": "x"},
            "AddPartition": writer | {"topic": "orders", "partition": 0},
            "TransactionAck": writer | {"receipt_handle": ""},
            "CommitTransaction": dict(writer),
            "AbortTransaction": {"transaction_id": begun},
            "CommitMany": {"token": {"name": "nightly", "number": 1}, "transactions": []},
        }
        if not self._has_succeeded(case):
            body = plain[kind]
        elif body.get("producer_id") is not None:
            body = {name: field for name, field in body.items() if not name.startswith("transaction")} | writer
        if "receipt_handle" in body:
            body["receipt_handle"] = self.handle()
        return body

    def redrive(self) -> str:
        """Of a dead letter that was written just now, or one that is under way."""
        deadline = time.monotonic() + PATIENCE_S
        rejected = False
        while True:
            answer = self.broker.request("POST", "/topics/orders/dlq/redrive", {})
            if answer.status == 200 and answer.body["id"]:
                self.last_redrive = answer.body["id"]
            if self.last_redrive:
                return self.last_redrive
            if not rejected:
                handle = {"receipt_handle": self.handle()}
                rejected = self.broker.request("POST", "/messages/reject", handle).status == 200
            assert time.monotonic() < deadline, "the dead letter is not written"
            time.sleep(0.01)

    def _name_what_is_there(self, case: AnyCase) -> None:
        """Handles, delayed messages and jobs are not come by with chance: a request that is right names a real one."""
        if "{schedule}" in case.path:
            case.path_parameters["schedule"] = self.schedule()
        if "{redrive}" in case.path:
            case.path_parameters["redrive"] = self.redrive()
        if "/dlq" in case.path and case.path_parameters.get("topic") == "orders":
            self.redrive()
        if (
            case.path == "/schedules"
            and isinstance(case.body, dict)
            and _is_right("CreateSchedule", case.body, strict=True)
        ):
            case.body = {name: case.body[name] for name in ("topic", "message")} | {"every": "1d"}
        if (
            case.path.endswith("{schedule}")
            and isinstance(case.body, dict)
            and _is_right("ChangeSchedule", case.body, strict=True)
        ):
            case.body = {name: field for name, field in case.body.items() if name in ("paused", "missed")}
        if case.path == "/readers/{name}":
            self._read_by_name(case)
        if "{transaction}" in case.path:
            case.path_parameters["transaction"] = self.begin()[1]
        writing = _WRITING.get(case.path)
        if writing is not None and isinstance(case.body, dict) and _is_right(writing, case.body, strict=True):
            case.body = self._in_one_that_is_open(case, writing, case.body)
            return
        kind = None if case.path in _WRITING else _SETTLING.get(case.path.rpartition("/")[2])
        if kind is not None and isinstance(case.body, dict) and _is_right(kind, case.body, strict=True):
            if not self._has_succeeded(case):
                case.body.clear()
                case.body.update({"receipt_handle": ""} | ({"timeout": "1m"} if kind == "ExtendVisibility" else {}))
            if case.path.startswith("/groups/") and case.path_parameters.get("group") in GROUPS:
                case.path_parameters["group"] = SETTLING
            if "receipt_handles" in case.body:
                case.body["receipt_handles"] = [self.handle()]
                case.body.pop("receipt_handle", None)
            elif "receipt_handle" in case.body:
                case.body["receipt_handle"] = self.handle()
        moved = self._move(case) if case.path.endswith("{offset}") else None
        if moved is not None:
            case.body = moved
        is_first = moved is not None and not self._has_succeeded(case)
        if is_first or ("/delayed/{" in case.path and case.path_parameters.get("offset") in (1, 2)):
            case.path_parameters.update((name, at) for name, at in self.delayed().items() if name in case.path)

    def _move(self, case: AnyCase) -> dict[str, Any] | None:
        """To when a delayed message is moved, if the request is right about that."""
        if not isinstance(case.body, dict) or not _is_right("MoveDelayed", case.body, strict=True):
            return None
        if not self._has_succeeded(case):
            return {"delay": "1h"}
        return {name: field for name, field in case.body.items() if name != "delay" or "deliverAt" not in case.body}

    def _has_succeeded(self, case: AnyCase) -> bool:
        """Until it has, right requests to an operation are plain ones."""
        return bool(self.statuses[case.operation.label] & {200, 201})

    def attempt(self, case: AnyCase) -> None:
        self._name_what_is_there(case)
        if case.method in ("DELETE", "POST"):
            self.create_topics()  # one may be gone, or have all the partitions there can be
        if case.path.startswith("/groups/"):
            self.create_groups()
            for fields in (case.body, case.query):
                if isinstance(fields, dict) and _is_right("MemberId", fields.get("member_id")):
                    fields["member_id"] = self.member_id
        if case.path.endswith("/poll") and isinstance(case.query, dict):
            if _is_right("Duration", case.query.get("timeout", "30s")):
                case.query["timeout"] = "0"  # nobody has the time
        if isinstance(case.body, dict):
            for field in ("num_partitions", "count"):
                number = case.body.get(field)
                if type(number) is int and 0 < number <= limits.MAX_PARTITIONS_PER_TOPIC:
                    case.body[field] = min(number, ENOUGH_PARTITIONS)
            whole = (case.body,) if case.path.endswith("/publish") else ()
            for message in (*whole, case.body.get("message"), *_listed(case.body.get("messages"))):
                _give_value(message)
        answer = case.call_and_validate(base_url=f"http://{self.broker.http}", session=self.session)
        self.statuses[case.operation.label].add(answer.status_code)


def _listed(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _give_value(message: object) -> None:
    """What the document cannot say: a message has a value, or it is a tombstone."""
    if isinstance(message, dict) and message.get("value") is None and not message.get("tombstone"):
        message["value"] = "x"


def _is_right(kind: str, value: object, *, strict: bool = False) -> bool:
    try:
        msgspec.convert(value, getattr(shapes, kind), strict=strict)
    except msgspec.ValidationError:
        return False
    return True


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    with running_broker(tmp_path_factory.mktemp("openapi")) as broker:
        trial = Trial(broker)
        yield trial
        trial.session.close()
    silent = [label for label in trial.asked_rightly if not trial.statuses[label] & {200, 201}]
    assert silent == [], "an operation that only ever refuses was not tried"


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_every_documented_path_answers(trial: Trial, prefix: str) -> None:
    """As it is and behind /v1, whether or not the request has everything it needs."""
    served = trial.broker.request("GET", f"{prefix}/openapi.json")
    assert served.body == json.loads(openapi.document())
    for path, methods in served.body["paths"].items():
        for method in methods:
            trial.create_topics()
            trial.create_groups()
            offset = trial.delayed()["offset"]
            named = {"topic": "orders", "partition": 0, "producer_id": 1, "group": "idle", "offset": offset}
            named |= {"schedule": trial.schedule(), "redrive": trial.redrive(), "name": "nightly"}
            named |= {"transaction": trial.begin()[1]}
            trial.broker.request("PUT", "/readers/nightly", {"offsets": {"orders": {"0": 0}}})
            filled = path.format(**named)
            answer = trial.broker.request(method.upper(), prefix + filled)
            assert answer.status in (200, 201, 400), (method, path, answer.body)
            assert str(answer.status) in methods[method]["responses"]
            assert answer.headers.get_content_type() == "application/json"


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_the_page_that_shows_the_document_is_there(trial: Trial, prefix: str) -> None:
    page = trial.broker.request("GET", f"{prefix}/docs")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.body == pages.docs().decode()


right = described(examples=10, wrong_ones=False)
wrong = described(examples=12, wrong_ones=True)
many_right = described(examples=300, wrong_ones=False)
many_wrong = described(examples=300, wrong_ones=True)


@right.parametrize()
def test_right_requests_are_answered_as_the_document_says(case: AnyCase, trial: Trial) -> None:
    trial.asked_rightly.add(case.operation.label)
    trial.attempt(case)


@wrong.parametrize()
def test_any_requests_are_answered_as_the_document_says(case: AnyCase, trial: Trial) -> None:
    trial.attempt(case)


@pytest.mark.long
@many_right.parametrize()
def test_many_right_requests_are_answered_as_the_document_says(case: AnyCase, trial: Trial) -> None:
    trial.asked_rightly.add(case.operation.label)
    trial.attempt(case)


@pytest.mark.long
@many_wrong.parametrize()
def test_many_requests_are_answered_as_the_document_says(case: AnyCase, trial: Trial) -> None:
    trial.attempt(case)
