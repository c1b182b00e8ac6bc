"""No door has an operation of its own, and none lacks one."""

import pytest

from goqueue.api.grpc.schema import rpc_name
from goqueue.api.grpc.streams import COMPOSED_OF
from goqueue.api.grpc.translating import pb
from goqueue.api.operations import BY_CODE, BY_NAME, OPERATIONS, Operation
from goqueue.api.router import Router
from goqueue.wire.codes import CODES, PACKED
from goqueue.wire.shapes import Request

RPCS = pb.DESCRIPTOR.services_by_name["GoQueue"].methods_by_name
WIRE_ONLY = {"metadata"}
"""What clients on the wire need to know of ids. gRPC has it too; over HTTP it is read topic by topic."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_is_reachable_at_every_door(operation: Operation) -> None:
    if operation.name not in WIRE_ONLY:
        path = "/".join("1" if part.startswith("{") else part for part in operation.paths[0].split("/"))
        found, _ = Router(OPERATIONS).match(operation.method, path.encode())
        assert found is operation
    assert BY_CODE[CODES[operation.name]] is operation
    rpc = RPCS[rpc_name(operation.name)]
    assert not rpc.client_streaming
    assert not rpc.server_streaming
    assert BY_NAME[operation.name] is operation


def test_grpc_has_no_call_of_its_own() -> None:
    names = {rpc_name(operation.name) for operation in OPERATIONS}
    assert set(RPCS) == names | set(COMPOSED_OF)
    assert names.isdisjoint(COMPOSED_OF)


def test_a_stream_is_made_of_operations() -> None:
    for stream, parts in COMPOSED_OF.items():
        assert RPCS[stream].client_streaming
        assert RPCS[stream].server_streaming
        assert parts
        assert set(parts) <= set(BY_NAME)


def test_the_wire_has_no_code_of_its_own_but_packed_forms() -> None:
    assert set(CODES) == set(BY_NAME) | set(PACKED)
    assert set(PACKED).isdisjoint(BY_NAME)
    for operations in PACKED.values():
        assert operations
        assert set(operations) <= set(BY_NAME)


def test_http_has_no_route_of_its_own() -> None:
    assert {operation.name for operation in OPERATIONS if not operation.paths} == WIRE_ONLY


def test_the_calls_other_languages_were_promised_are_there() -> None:
    wanted = {
        "CreateTopic", "DeleteTopic", "ListTopics", "Publish", "PublishStream", "Subscribe", "Ack", "Commit",
    }  # fmt: skip
    assert wanted <= set(RPCS)


def test_every_operation_has_a_request_of_the_api() -> None:
    assert all(issubclass(operation.request, Request) for operation in OPERATIONS)
