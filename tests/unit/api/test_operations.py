"""The one table of operations: complete, consistent, and the same for every door."""

import asyncio
import inspect
import re
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from goqueue.api.operations import BY_CODE, BY_NAME, OPERATIONS, PATH_FIELDS, Operation
from goqueue.api.refusals import PLANNED, refuse
from goqueue.api.service import Service
from goqueue.model import limits
from goqueue.model.errors import Draining, InvalidRequest, NotBuilt, UnknownTopic
from goqueue.wire import shapes
from goqueue.wire.codes import CODES
from tests.support.loop import run, turns
from tests.unit.api.parking import REPLY_BYTES, Waiting
from tests.unit.api.services import served

NAMED_IN_THE_BODY = {
    "create_schedule", "begin_transaction", "transaction_publish", "add_partition", "transaction_ack",
    "commit_transaction", "abort_transaction", "commit_many",
}  # fmt: skip
every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


def fields_of(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


# --- the table


def test_every_operation_has_a_code_and_every_code_an_operation() -> None:
    blocks = {"publish_block", "fetch_block", "poll_block", "settle_block"}
    assert {operation.name for operation in OPERATIONS} == CODES.keys() - blocks
    assert {code: operation.name for code, operation in BY_CODE.items()} == {
        CODES[operation.name]: operation.name for operation in OPERATIONS
    }
    assert len(BY_NAME) == len(BY_CODE) == len(OPERATIONS)


def test_no_two_operations_share_a_route() -> None:
    routes = [
        (operation.method, re.sub(r"\{\w+\}", "{}", path)) for operation in OPERATIONS for path in operation.paths
    ]
    assert len(set(routes)) == len(routes)


@every_operation
def test_all_paths_of_an_operation_have_the_same_known_fields(operation: Operation) -> None:
    for path in operation.paths:
        assert tuple(fields_of(path)) == operation.path_fields
        assert path.startswith("/")
        assert set(fields_of(path)) <= PATH_FIELDS.keys()


@every_operation
def test_a_handler_takes_what_the_table_gives_it(operation: Operation) -> None:
    parameters = list(inspect.signature(operation.handler).parameters)
    found = () if operation.park is None else ("parked",)
    assert parameters == ["service", "request", *operation.path_fields, *found]
    hints = get_type_hints(operation.handler)
    assert hints["service"] is Service
    assert hints["request"] is operation.request
    assert hints["return"] is operation.reply
    assert {name: hints[name] for name in operation.path_fields} == {
        name: PATH_FIELDS[name] for name in operation.path_fields
    }
    assert inspect.iscoroutinefunction(operation.handler)
    assert operation.handler.__name__ == operation.name


@every_operation
def test_what_waits_for_an_operation_takes_the_same_and_gives_it_what_it_found(operation: Operation) -> None:
    if operation.park is not None:
        hints = get_type_hints(operation.park)
        wanted = {**hints, "return": operation.reply, "parked": hints["return"]}
        assert get_type_hints(operation.handler) == wanted
        assert inspect.iscoroutinefunction(operation.park)
    if operation.undo is not None:
        assert list(inspect.signature(operation.undo).parameters) == ["service", "reply"]
        assert not inspect.iscoroutinefunction(operation.undo)


@every_operation
def test_a_field_of_the_path_is_no_field_of_the_request_too(operation: Operation) -> None:
    """On the wire and in `embedded` both come in one object."""
    assert not set(operation.path_fields) & set(operation.request.__struct_fields__)


@every_operation
def test_a_request_with_an_unknown_field_is_refused(operation: Operation) -> None:
    assert issubclass(operation.request, shapes.Request)
    assert operation.request.__struct_config__.forbid_unknown_fields
    assert issubclass(operation.reply, shapes.Reply)


@every_operation
def test_what_is_answered_while_stopping_changes_nothing(operation: Operation) -> None:
    if operation.while_stopping:
        assert operation.method == "GET"
    assert operation.has_body == (operation.method in ("POST", "PUT", "PATCH"))


@every_operation
def test_it_says_what_it_does_and_what_it_may_refuse(operation: Operation) -> None:
    assert operation.summary
    assert not operation.summary.endswith(".")
    named = bool(operation.path_fields) and operation.name != "transaction_token"
    named = named or operation.name in NAMED_IN_THE_BODY
    assert (404 in operation.refusals) == named, "whatever is named may not be there"
    assert operation.reply_bytes <= limits.MAX_IN_FLIGHT_BYTES


def test_only_requests_that_carry_messages_may_be_large() -> None:
    large = {operation.name for operation in OPERATIONS if operation.request_bytes > limits.MAX_SMALL_BODY_BYTES}
    assert large == {"publish", "publish_batch", "transaction_publish"}


def test_health_is_unavailable_unless_it_is_ok() -> None:
    health = BY_NAME["health"]
    assert health.status_of(shapes.Health(status="ok")) == 200
    for status in ("draining", "failing"):
        assert health.status_of(msgspec.convert({"status": status}, shapes.Health)) == 503


def test_only_a_creation_answers_created() -> None:
    assert {operation.name: operation.status for operation in OPERATIONS if operation.status != 200} == {
        "create_topic": 201,
        "create_schedule": 201,
    }


# --- calling one


def test_the_fields_of_path_and_request_come_together(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            assert (await broker.call("create_topic", name="orders", num_partitions=2))["created"]
            assert (await broker.call("publish", topic="orders", value="x", partition=1))["offset"] == 0
            found = await broker.call("read_partition", topic="orders", partition=1, limit=5)
            assert [message["value"] for message in found["messages"]] == ["x"]

    run(go())


@pytest.mark.parametrize(
    ("operation", "fields", "reason"),
    [
        ("describe_topic", {}, "topic is missing, or is not text"),
        ("describe_topic", {"topic": 5}, "topic is missing, or is not text"),
        ("read_partition", {"topic": "orders"}, "partition is missing, or is not a whole number"),
        ("read_partition", {"topic": "orders", "partition": "0"}, "partition is missing, or is not a whole number"),
        ("read_partition", {"topic": "orders", "partition": True}, "partition is missing, or is not a whole number"),
        ("publish", {"topic": "orders", "value": 5}, "value is a whole number, not text or null"),
        ("list_topics", {"colour": "red"}, "there is no field 'colour'"),
        ("create_topic", {"name": "a b"}, "name is not written as it may be"),
    ],
)
def test_a_field_that_is_wrong_is_named(tmp_path: Path, operation: str, fields: dict[str, object], reason: str) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            with pytest.raises(InvalidRequest, match=reason):
                await broker.call(operation, **fields)

    run(go())


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_a_field_of_a_feature_that_is_not_built_is_refused_by_name(name: str) -> None:
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        pass

    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({name: 1}, Strict)
    error = refuse(caught.value, shapes.Nothing)
    assert isinstance(error, NotBuilt)
    assert error.details == {"field": name}


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_no_request_has_a_field_that_is_called_planned(name: str) -> None:
    having = [operation.name for operation in OPERATIONS if name in operation.request.__struct_fields__]
    assert having == []


def test_a_refusal_does_not_repeat_all_that_was_sent() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"x" * 10**6: 1}, shapes.Nothing)
    assert len(str(refuse(caught.value, shapes.Nothing))) < 1000


def test_a_topic_is_looked_up_by_whoever_needs_it(tmp_path: Path) -> None:
    """Names in a path are not checked before: a name that cannot be is not there."""

    async def go() -> None:
        async with served(tmp_path) as broker:
            for operation in ("describe_topic", "delete_topic", "read_topic", "offsets"):
                for name in ("nope", "../../etc", "\x00", "x" * 10_000):
                    with pytest.raises(UnknownTopic):
                        await broker.call(operation, topic=name)

    run(go())


def test_a_call_waits_first_and_takes_room_for_its_reply_then(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            waiting, replies = Waiting(), broker.broker.replies
            task = asyncio.ensure_future(waiting.wait.call(broker.service, {"topic": "orders", "chars": 2}))
            await turns()
            assert (waiting.events, replies.held) == (["parked"], 0)
            waiting.gate.clear()
            waiting.bell.set()
            await turns()
            assert (waiting.events, replies.held) == (["parked", "begun"], REPLY_BYTES)
            waiting.gate.set()
            assert msgspec.to_builtins(await task) == {"text": "xx"}
            assert replies.held == 0

    run(go())


def test_a_call_that_is_given_up_while_it_waits_holds_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            waiting = Waiting()
            task = asyncio.ensure_future(waiting.wait.call(broker.service, {"topic": "orders"}))
            await turns()
            task.cancel()
            await turns()
            assert waiting.events == ["parked", "left"]
            assert broker.broker.replies.held == 0

    run(go())


def test_a_broker_that_stops_takes_no_call_but_those_about_itself(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as broker:
            broker.broker.drain()
            assert (await broker.call("health"))["status"] == "draining"
            with pytest.raises(Draining):
                await broker.call("list_topics")

    run(go())
