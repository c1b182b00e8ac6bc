"""docs/python.md names every argument of a client and of what it makes."""

import inspect
import re
from collections.abc import Callable

import pytest

import goqueue
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("head", "made"),
    [
        ("| `Client(...)`, `AsyncClient(...)` |", (goqueue.Client, goqueue.AsyncClient)),
        ("| `client.producer(...)` |", (goqueue.Client.producer, goqueue.AsyncClient.producer)),
        ("| `client.consumer(...)` |", (goqueue.Client.consumer, goqueue.AsyncClient.consumer)),
        ("| `client.reader(topic, ...)` |", (goqueue.Client.reader, goqueue.AsyncClient.reader)),
    ],
)
def test_every_argument_has_a_row(head: str, made: tuple[Callable[..., object], ...]) -> None:
    table = PAGE.partition(head)[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])))
    arguments = {name for each in made for name in inspect.signature(each).parameters}
    assert named == arguments - {"self", "group", "topics", "topic"}
