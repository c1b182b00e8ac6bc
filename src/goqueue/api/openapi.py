"""The OpenAPI document, made from the table of operations: what validates requests also describes them."""

from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from goqueue import __version__
from goqueue.api.operations import OPERATIONS, PATH_FIELDS, Operation
from goqueue.model import limits
from goqueue.model.names import GROUP_PATTERN, TOPIC_PATTERN, TRANSACTION_NAME_PATTERN, TRANSACTION_PATTERN
from goqueue.wire import shapes
from goqueue.wire.failures import ErrorBody

_EVERYWHERE: Final = (400, 403, 429, 503)
"""Refusals any operation may have."""
_OF_BODIES: Final = (413, 501)
"""Those that any with a body may have, besides."""
_REF: Final = "#/components/schemas/{name}"
_PATH_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "topic": {"type": "string", "pattern": TOPIC_PATTERN},
    "partition": {"type": "integer", "minimum": 0, "maximum": limits.MAX_PARTITIONS_PER_TOPIC - 1},
    "producer_id": {"type": "integer", "minimum": 1, "maximum": limits.MAX_OFFSET - 1},
    "group": {"type": "string", "pattern": GROUP_PATTERN},
    "offset": {"type": "integer", "minimum": 0, "maximum": limits.MAX_OFFSET - 1},
    "schedule": {"type": "string", "pattern": shapes.JOB_PATTERN},
    "redrive": {"type": "string", "pattern": shapes.JOB_PATTERN},
    "transaction": {"type": "string", "pattern": TRANSACTION_PATTERN},
    "name": {"type": "string", "pattern": TRANSACTION_NAME_PATTERN},
}


@cache
def document() -> bytes:
    """As JSON; the same for the whole life of the process."""
    return msgspec.json.format(msgspec.json.encode(build()), indent=1)


def build() -> dict[str, Any]:
    operations = [operation for operation in OPERATIONS if operation.paths]
    kinds: list[type] = [ErrorBody, *(operation.reply for operation in operations)]
    kinds += [operation.request for operation in operations]
    _, components = msgspec.json.schema_components(list(dict.fromkeys(kinds)), ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        for ordinal, path in enumerate(operation.paths):
            described = _describe(operation, components, alias=ordinal)
            paths.setdefault(path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "GoQueue",
            "version": __version__,
            "description": "Every path exists as it is and behind /v1. Errors: error, code, retriable, details. "
            "A method that a path does not have is answered with 405, and `allow` says which it has.",
        },
        "servers": [{"url": "/"}, {"url": "/v1"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _describe(operation: Operation, components: dict[str, Any], *, alias: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name if not alias else f"{operation.name}_{alias + 1}",
        "tags": [operation.handler.__module__.rpartition(".")[2]],
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    if alias:
        described["description"] = f"The same as {operation.method} {operation.paths[0]}."
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]} for name in operation.path_fields
    ]
    if operation.has_body:
        required = bool(components[operation.request.__name__].get("required"))
        described["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=operation.request.__name__)}}},
        }
    else:
        schema = components[operation.request.__name__]
        parameters += [
            _in_query(name, field, required=name in schema.get("required", ()))
            for name, field in schema["properties"].items()
        ]
    if parameters:
        described["parameters"] = parameters
    return described


def _in_query(name: str, field: dict[str, Any], *, required: bool) -> dict[str, Any]:
    parameter = {"name": name, "in": "query", "required": required, "schema": field}
    if field.get("type") == "boolean":
        parameter["allowEmptyValue"] = True  # `?verbose` says enough
    return parameter


def _responses(operation: Operation) -> dict[str, Any]:
    good = {
        "description": HTTPStatus(operation.status).phrase,
        "content": {"application/json": {"schema": {"$ref": _REF.format(name=operation.reply.__name__)}}},
    }
    responses: dict[str, Any] = {str(operation.status): good}
    for status in sorted({*_EVERYWHERE, *operation.refusals, *(_OF_BODIES if operation.has_body else ())}):
        kind = shapes.Health if operation.reply is shapes.Health and status == 503 else ErrorBody
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}},
        }
    return responses


assert set(_PATH_SCHEMAS) == set(PATH_FIELDS)
