"""Asking a broker, and waiting for one that is away."""

import asyncio
import gc
import warnings
from typing import Any, cast

import pytest
import uvloop

from goqueue.cli.remote.broker import Broker, run
from goqueue.client import link
from goqueue.client.connection import Connection
from goqueue.client.link import Link
from goqueue.model.errors import Busy, DiskFull, Draining, GoQueueError, RequestTimeout, Unavailable, UnknownTopic

AWAY = "note: the broker at b:1 is away; waiting for it to come back\n"
BACK = "note: the broker at b:1 is back\n"
Said = GoQueueError | str


class FakeConnection:
    """Answers one thing after the other."""

    def __init__(self, *said: Said) -> None:
        self.said = [*said]
        self.aborted = False

    async def ask(self, *_: Any, timeout_s: float) -> dict[str, Any]:
        await asyncio.sleep(0)
        found = self.said.pop(0)
        if isinstance(found, GoQueueError):
            raise found
        return {"said": found}

    def abort(self, reason: str) -> None:
        self.aborted = True


class FakeLink:
    """Gives its connections one after the other, each until it fails; None is a try that finds nobody."""

    def __init__(self, *connections: FakeConnection | None) -> None:
        self._connections = [*connections]

    async def get(self) -> FakeConnection:
        while (first := self._connections[0]) is not None and first.aborted:
            del self._connections[0]
        if first is None:
            del self._connections[0]
            raise Unavailable("nobody there")
        return first


def broker(patient: bool, *connections: FakeConnection | None) -> Broker:
    return Broker(cast(Link, FakeLink(*connections)), cast(Connection, connections[0]), "b:1", patient=patient)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "backoff_s", lambda _: 0.0)


@pytest.mark.parametrize("error", [Unavailable("lost"), RequestTimeout("silent"), Draining("stopping")])
def test_the_patient_wait_and_ask_again(error: GoQueueError, capsys: pytest.CaptureFixture[str]) -> None:
    first = FakeConnection(error)
    asked = broker(True, first, None, None, FakeConnection("yes"))
    assert asyncio.run(asked.call("version")) == {"said": "yes"}
    assert capsys.readouterr().err == AWAY + BACK
    assert first.aborted
    assert (asked.is_away, asked.lost_answers) == (False, 1)


def test_many_who_wait_say_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def ask() -> list[dict[str, Any]]:
        first = FakeConnection(*[Unavailable("lost")] * 3)
        asked = broker(True, first, None, None, None, FakeConnection("a", "b", "c"))
        return await asyncio.gather(*(asked.call("version") for _ in range(3)))

    assert sorted(reply["said"] for reply in asyncio.run(ask())) == ["a", "b", "c"]
    assert capsys.readouterr().err == AWAY + BACK


@pytest.mark.parametrize("error", [Busy("full up"), DiskFull("full"), UnknownTopic("none")])
def test_what_a_broker_says_that_is_there_is_an_error(error: GoQueueError, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)):
        asyncio.run(broker(True, FakeConnection(error, "no")).call_plainly("version", {}))
    assert capsys.readouterr().err == ""


def test_others_do_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unavailable):
        asyncio.run(broker(False, FakeConnection(Unavailable("lost"), "no"), FakeConnection("no")).call("version"))
    assert capsys.readouterr().err == ""


def test_a_signal_before_there_is_a_loop_leaves_nothing_that_was_never_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    async def work(_: Broker) -> None:
        raise AssertionError("there is no broker")

    monkeypatch.setattr(uvloop, "new_event_loop", interrupted)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run(work)
        gc.collect()
    assert [str(each.message) for each in told] == []
