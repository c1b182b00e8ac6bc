"""What the client swarm asks for is something the broker understands: every operation of the table, at every door."""

import random

import msgspec
import pytest

from goqueue.api.bodies import Bodies
from goqueue.api.grpc.schema import request_name
from goqueue.api.grpc.translating import pb, read_request
from goqueue.api.operations import OPERATIONS, Operation
from tests.support.plausible import World, as_protobuf

TRIES = 30


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_request_that_was_made_from_the_table_is_not_refused_for_its_form(operation: Operation) -> None:
    world = World(random.Random(0), topics=["orders"], own=["own"], groups=["g"])
    for _ in range(TRIES):
        fields = world.request(operation)
        Bodies(operation, what="the request", has_path=True).decode(msgspec.json.encode(fields))
        read_request(operation, getattr(pb, request_name(operation.name)).FromString(as_protobuf(operation, fields)))


def test_ids_are_learned_from_replies() -> None:
    world = World(random.Random(0), topics=["orders"], own=["own"], groups=["g"])
    world.learn({"messages": [{"receipt_handle": f"h{number}"} for number in range(100)]})
    assert world.known("receipt_handle").startswith("h")
