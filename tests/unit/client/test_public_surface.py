"""What `goqueue` offers is this, all of it is described, and a client does not bring a broker along."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import goqueue
from goqueue.client.administration import AsyncAdministration
from goqueue.client.consumer import AsyncConsumer
from goqueue.client.producer import AsyncProducer
from goqueue.client.reader import AsyncReader
from goqueue.client.sync.consumer import Consumer
from goqueue.client.sync.producer import Producer
from goqueue.client.sync.reader import Reader

PUBLIC = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTransaction",
    "BufferFull",
    "Client",
    "Consumer",
    "ConsumerBatch",
    "ConsumerMessage",
    "GoQueueError",
    "Message",
    "Missed",
    "Outcome",
    "Producer",
    "Reader",
    "Receipt",
    "Refused",
    "Transaction",
    "errors",
]
CLASSES: list[type] = [
    goqueue.AsyncClient,
    goqueue.Client,
    goqueue.Message,
    goqueue.Missed,
    goqueue.Outcome,
    goqueue.Receipt,
    goqueue.Refused,
    AsyncProducer,
    AsyncConsumer,
    AsyncReader,
    goqueue.AsyncTransaction,
    Producer,
    Consumer,
    Reader,
    goqueue.Transaction,
]
SAID_BY_THE_NAME = {
    *("producer", "close", "message_id", "join", "resume"),
    *("expires_at", "headers", "key", "offset", "priority"),
}
"""Methods that may go without a docstring: the class or the name says it."""
OPERATIONS = set(dir(AsyncAdministration))
"""Described where all of them are."""


def methods() -> Iterator[tuple[str, Any]]:
    for kind in CLASSES:
        for name, found in inspect.getmembers(kind):
            if name.startswith("_") or not getattr(found, "__module__", "goqueue").startswith("goqueue"):
                continue
            method = found.fget if isinstance(found, property) else found
            if inspect.isfunction(method) and method.__module__.startswith("goqueue"):
                yield f"{kind.__name__}.{name}", method


METHODS = dict(methods())


def test_what_users_import_is_exactly_this() -> None:
    assert sorted(goqueue._PUBLIC) == PUBLIC
    assert set(PUBLIC) <= set(dir(goqueue))
    assert callable(goqueue.embedded)
    assert goqueue.__version__


@pytest.mark.parametrize("name", PUBLIC)
def test_what_users_import_is_there(name: str) -> None:
    assert getattr(goqueue, name) is not None


def test_what_is_not_there_is_missing_as_anything_else_is() -> None:
    missing = "Nothing"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(goqueue, missing)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_public_class_is_described(kind: type) -> None:
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}("), "that is what NamedTuple says"


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_is_annotated(name: str) -> None:
    signature = inspect.signature(METHODS[name])
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in list(signature.parameters.values())[1:]:
        assert parameter.annotation is not inspect.Parameter.empty, parameter.name


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name.partition(".")[2] not in SAID_BY_THE_NAME | OPERATIONS]
)
def test_a_public_method_of_a_client_says_what_it_does(name: str) -> None:
    assert inspect.getdoc(METHODS[name])


@pytest.mark.parametrize("name", ["AsyncClient", "Client", "Message", "errors"])
def test_a_client_loads_nothing_of_the_broker(name: str) -> None:
    code = f"import sys, goqueue; goqueue.{name}; print(*(each for each in sys.modules if each.startswith('goqueue.')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rooms = {module.split(".")[1] for module in found}
    assert rooms <= {"base", "client", "codec", "model", "wire"}
    assert "model" in rooms


def test_the_package_alone_loads_nothing() -> None:
    code = "import sys, goqueue; print(*(each for each in sys.modules if each.startswith('goqueue.')))"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
