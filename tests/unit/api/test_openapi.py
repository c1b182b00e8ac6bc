"""The OpenAPI document: right by the rules of OpenAPI, and the same as the table it is made from."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from goqueue import __version__
from goqueue.api import openapi
from goqueue.api.errors import STATUS
from goqueue.api.http import door
from goqueue.api.operations import OPERATIONS, Operation
from goqueue.wire import shapes

DOCUMENT: dict[str, Any] = json.loads(openapi.document())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
DESCRIBED = {
    (method, path): described for path, methods in DOCUMENT["paths"].items() for method, described in methods.items()
}
REACHABLE = [operation for operation in OPERATIONS if operation.paths]

every_operation = pytest.mark.parametrize("operation", REACHABLE, ids=lambda operation: operation.name)


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)


def body_of(described: dict[str, Any]) -> str:
    """The name of the schema that a request body or an answer has."""
    assert list(described["content"]) == ["application/json"]
    (reference,) = references(described["content"])
    return reference.rpartition("/")[2]


def places(operation: Operation) -> list[dict[str, Any]]:
    return [DESCRIBED[operation.method.lower(), path] for path in operation.paths]


# --- the rules of OpenAPI


def test_the_document_is_valid_openapi() -> None:
    OPENAPI_31_VALIDATOR.validate(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert (DOCUMENT["info"]["title"], DOCUMENT["info"]["version"]) == ("GoQueue", __version__)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_a_valid_json_schema(name: str) -> None:
    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMAS[name]})


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    used = set(references(DOCUMENT))
    assert used <= {f"#/components/schemas/{name}" for name in SCHEMAS}
    behind_queries = {operation.request.__name__ for operation in REACHABLE if not operation.has_body}
    assert {name for name in SCHEMAS if f"#/components/schemas/{name}" not in used} <= behind_queries


def test_operation_ids_are_unique() -> None:
    ids = [described["operationId"] for described in DESCRIBED.values()]
    assert len(set(ids)) == len(ids)


def test_the_document_stays_the_same_while_the_process_lives() -> None:
    assert openapi.document() is openapi.document()
    assert json.loads(openapi.document()) == json.loads(json.dumps(openapi.build()))


# --- the table


def test_every_operation_with_a_path_is_described_and_nothing_else() -> None:
    assert set(DESCRIBED) == {(operation.method.lower(), path) for operation in REACHABLE for path in operation.paths}


@every_operation
def test_an_operation_has_its_own_name_at_its_first_path(operation: Operation) -> None:
    first, *others = places(operation)
    assert first["operationId"] == operation.name
    for other in others:
        assert other["description"] == f"The same as {operation.method} {operation.paths[0]}."
        same = ("summary", "tags", "parameters", "requestBody", "responses")
        assert [other.get(key) for key in same] == [first.get(key) for key in same]


@every_operation
def test_parameters_are_the_fields_of_the_path_and_of_the_query(operation: Operation) -> None:
    (described, *_) = places(operation)
    parameters = described.get("parameters", [])
    in_path = [parameter["name"] for parameter in parameters if parameter["in"] == "path"]
    in_query = [parameter["name"] for parameter in parameters if parameter["in"] == "query"]
    assert tuple(in_path) == operation.path_fields
    assert in_query == ([] if operation.has_body else list(operation.request.__struct_fields__))
    assert all(parameter["required"] for parameter in parameters if parameter["in"] == "path")


@every_operation
def test_a_body_is_described_where_there_is_one(operation: Operation) -> None:
    (described, *_) = places(operation)
    assert ("requestBody" in described) == operation.has_body
    if operation.has_body:
        name = body_of(described["requestBody"])
        assert name == operation.request.__name__
        assert list(SCHEMAS[name]["properties"]) == list(operation.request.__struct_fields__)
        assert SCHEMAS[name]["additionalProperties"] is False
        assert described["requestBody"]["required"] == bool(SCHEMAS[name].get("required"))


@every_operation
def test_every_answer_is_described(operation: Operation) -> None:
    (described, *_) = places(operation)
    answers = described["responses"]
    assert body_of(answers[str(operation.status)]) == operation.reply.__name__
    assert set(operation.refusals) <= set(map(int, answers))
    assert {"400", "403", "429", "503"} <= set(answers)
    assert ("413" in answers, "501" in answers) == (operation.has_body, operation.has_body)
    for status in set(answers) - {str(operation.status)}:
        health = operation.reply is shapes.Health and status == "503"
        assert body_of(answers[status]) == ("Health" if health else "ErrorBody")
        assert int(status) in STATUS.values()


def test_a_switch_needs_no_value() -> None:
    switches = {
        parameter["name"]
        for described in DESCRIBED.values()
        for parameter in described.get("parameters", [])
        if parameter["schema"].get("type") == "boolean"
    }
    assert switches == door._SWITCHES
    assert all(
        parameter.get("allowEmptyValue", False) == (parameter["name"] in switches)
        for described in DESCRIBED.values()
        for parameter in described.get("parameters", [])
    )


def test_the_settings_of_a_topic_are_refused_by_their_schema_too() -> None:
    fits = jsonschema_rs.validator_for(
        {"$ref": "#/components/schemas/CreateTopic", "components": DOCUMENT["components"]}
    )
    for name in ("a" * 241, "a" * 241 + ".dlq", "orders.dlq"):
        assert fits.is_valid({"name": name})
    for name in ("a" * 242, "a" * 242 + ".dlq", "a" * 241 + "-dlq"):
        assert not fits.is_valid({"name": name})
    good: tuple[dict[str, Any], ...] = (
        {"visibility_timeout": "30s"}, {"visibility_timeout": 30}, {"backoff": {}}, {"backoff": {"factor": 2}},
        {"message_ttl": None}, {"message_ttl": 1.5}, {"lane_weights": [50, 25, 15, 7, 3]}, {"on_expiry": "dlq"},
    )  # fmt: skip
    bad: tuple[dict[str, Any], ...] = (
        {"visibility_timeout": "soon"}, {"visibility_timeout": None}, {"max_retries": 1001}, {"backoff": {"factor": 0}},
        {"backoff": {"jitter": 1}}, {"backoff": None}, {"lane_weights": [1]}, {"lane_weights": [1] * 6},
        {"lane_weights": [0, 1, 1, 1, 1]}, {"on_expiry": "keep"}, {"lane_policy": "fair"}, {"dlq_enabled": 1},
    )  # fmt: skip
    for fields in good:
        assert fits.is_valid({"name": "orders", **fields}), fields
    for fields in bad:
        assert not fits.is_valid({"name": "orders", **fields}), fields


def test_a_request_is_refused_by_its_schema_when_the_broker_refuses_it() -> None:
    """One shape both validates and describes; a few of them, to see that it does."""
    schema = {"$ref": "#/components/schemas/Publish", "components": DOCUMENT["components"]}
    fits = jsonschema_rs.validator_for(schema)
    assert fits.is_valid({"value": "x", "priority": 4, "headers": [["a", "b"]], "acks": "all"})
    assert fits.is_valid({"value": "x", "delay": "5s", "ttl": 1.5})
    assert fits.is_valid({"value": "x", "deliverAt": "2026-01-31T12:00:00Z"})
    for wrong in (
        {"value": 5}, {"value": "x", "nope": 1}, {"value": "x", "priority": 5}, {"value": "x", "partition": -1},
        {"value": "x", "headers": [["a"]]}, {"value": "x", "event_time": "soon"}, {"value": "x", "delay": "soon"},
        {"value": "x", "deliverAt": "tomorrow"}, {"value": "x", "ttl": []},
    ):  # fmt: skip
        assert not fits.is_valid(wrong), wrong
