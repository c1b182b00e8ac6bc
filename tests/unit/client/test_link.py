"""A connection made when it is needed, made again when it was lost, and what is tried again on it."""

import asyncio
from typing import Any, Literal

import pytest

from goqueue.client import link as link_module
from goqueue.client.connection import Connection
from goqueue.client.link import BACKOFF_S, MAX_BACKOFF_S, Endpoint, Link, backoff_s, parse_endpoint
from goqueue.model.errors import Busy, Draining, InvalidRequest, RequestTimeout, Unavailable, UnknownTopic
from tests.support.loop import run
from tests.unit.client.fake_broker import HOST, Peer, serving

ANY = 7
"""An operation."""


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "backoff_s", lambda _: 0.0001)


class Asked:
    """A broker that says what it is told to: errors are answers, None ends the connection, with False all is well, and
    when nothing is left."""

    def __init__(self, *answers: Exception | Literal[False] | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests = 0
        self.silent = False

    async def talk(self, peer: Peer) -> None:
        self.connections += 1
        while True:
            request = await peer.read()
            self.requests += 1
            if self.silent:
                continue
            answer = self.answers.pop(0) if self.answers else False
            if answer is None:
                return
            if answer is False:
                peer.reply(request, b'{"done":true}')
            else:
                assert isinstance(answer, UnknownTopic | Busy | Draining)
                peer.refuse(request, answer)


def link_to(port: int, *, call_timeout_s: float = 30.0, tells: bool = False) -> Link:
    return Link(Endpoint(HOST, port, 10.0, call_timeout_s), tells=tells)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:9001", "127.0.0.1", 9001), ("broker.example:1", "broker.example", 1), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert parse_endpoint(address, connect_timeout_s=1, call_timeout_s=2) == Endpoint(host, port, 1, 2)


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:0", "host:65536", "::1:9", "[]:1", "a:1:2", "a:x"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="is no address"):
        parse_endpoint(address, connect_timeout_s=1, call_timeout_s=1)


def test_the_backoff_doubles_up_to_a_bound_and_is_spread_out() -> None:
    for failures in range(1, 100):
        most = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (failures - 1))
        assert most / 2 <= backoff_s(failures) <= most
    assert len({backoff_s(3) for _ in range(20)}) > 1
    assert 0.5 <= backoff_s(1, 1.0) <= 1.0


def test_one_connection_serves_all_and_is_made_again_when_it_was_lost() -> None:
    async def go() -> None:
        broker = Asked()
        async with serving(broker.talk) as port:
            link = link_to(port)
            connections = await asyncio.gather(*(link.get() for _ in range(10)))
            assert len(set(connections)) == broker.connections == 1
            connections[0].abort("a test")
            assert (await link.get()).failure is None
            assert await link.get() is not connections[0]
            await link.close()

    run(go())


@pytest.mark.parametrize("answers", [(None, None), (Busy("later"),), (None, Busy("later"), None)])
def test_what_may_be_done_twice_is_tried_until_it_is_done(answers: tuple[Any, ...]) -> None:
    async def go() -> None:
        broker = Asked(*answers)
        async with serving(broker.talk) as port:
            link = link_to(port)
            assert await link.ask(ANY, {}, repeatable=True) == {"done": True}
            assert broker.requests == len(answers) + 1
            assert broker.connections == 1 + answers.count(None)
            await link.close()

    run(go())


def test_what_may_not_be_done_twice_is_tried_again_when_the_broker_says_that_it_did_nothing() -> None:
    async def go() -> None:
        broker = Asked(Busy("later"), Draining("ending"))
        async with serving(broker.talk) as port:
            link = link_to(port)
            assert await link.ask(ANY, {}, repeatable=False) == {"done": True}
            assert broker.requests == 3
            await link.close()

    run(go())


def test_the_last_try_is_when_there_is_just_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "backoff_s", lambda _: 1000.0)

    async def go() -> None:
        broker = Asked(Busy("later"))
        async with serving(broker.talk) as port:
            link = link_to(port)
            assert await link.ask(ANY, {}, repeatable=True, timeout_s=0.5) == {"done": True}
            broker.answers = [Busy("later"), Busy("later still")]
            with pytest.raises(Busy, match="later still"):
                await link.ask(ANY, {}, repeatable=True, timeout_s=0.1)
            await link.close()

    run(go())


def test_what_is_no_name_of_a_host_is_said_so() -> None:
    async def go() -> None:
        with pytest.raises(InvalidRequest, match="no name of a host"):
            await Link(Endpoint("a..b", 9001, 10.0, 10.0)).ask(ANY, {}, repeatable=True)

    run(go())


@pytest.mark.parametrize("answer", [None])
def test_what_may_not_be_done_twice_is_sent_once(answer: Any) -> None:
    async def go() -> None:
        broker = Asked(answer)
        async with serving(broker.talk) as port:
            link = link_to(port)
            with pytest.raises(Unavailable):
                await link.ask(ANY, {}, repeatable=False)
            assert broker.requests == 1
            assert await link.ask(ANY, {}, repeatable=False) == {"done": True}
            await link.close()

    run(go())


def test_an_error_that_does_not_pass_is_raised_at_once() -> None:
    async def go() -> None:
        broker = Asked(UnknownTopic("gone"))
        async with serving(broker.talk) as port:
            link = link_to(port)
            with pytest.raises(UnknownTopic, match="gone"):
                await link.ask(ANY, {}, repeatable=True)
            assert broker.requests == 1
            await link.close()

    run(go())


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_broker_that_is_not_there_is_tried_until_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, repeatable: bool
) -> None:
    tries = 0
    connect = Connection.connect

    async def counted(*given: Any, **named: Any) -> Connection:
        nonlocal tries
        tries += 1
        return await connect(*given, **named)

    monkeypatch.setattr(Connection, "connect", counted)

    async def go() -> None:
        async with serving(Asked().talk) as port:
            pass
        with pytest.raises(Unavailable, match="cannot reach a broker"):
            await link_to(port).ask(ANY, {}, repeatable=repeatable, timeout_s=0.05)
        assert tries > 1

    run(go())


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_broker_that_says_nothing_is_waited_for_no_longer_than_was_asked(repeatable: bool) -> None:
    async def go() -> None:
        broker = Asked()
        broker.silent = True
        async with serving(broker.talk) as port:
            link = link_to(port, call_timeout_s=3000)
            with pytest.raises(RequestTimeout, match=r"no answer from .* within 0\.02 s"):
                await link.ask(ANY, {}, repeatable=repeatable, timeout_s=0.02)
            await link.close()

    run(go())


def test_a_time_that_is_up_says_what_went_wrong_before() -> None:
    async def go() -> None:
        broker = Asked(Busy("no room here"))

        async def talk(peer: Peer) -> None:
            peer.refuse(await peer.read(), Busy("no room here"))
            await peer.read_all()

        async with serving(talk) as port:
            link = link_to(port, call_timeout_s=3000)
            with pytest.raises(RequestTimeout, match="the last trouble: no room here"):
                await link.ask(ANY, {}, repeatable=True, timeout_s=0.05)
            await link.close()
        assert broker.requests == 0

    run(go())


def test_a_closed_link_makes_no_connection() -> None:
    async def go() -> None:
        broker = Asked()
        async with serving(broker.talk) as port:
            link = link_to(port)
            await link.ask(ANY, {}, repeatable=True)
            await link.close()
            for repeatable in (True, False):
                with pytest.raises(Unavailable, match="this client is closed"):
                    await link.ask(ANY, {}, repeatable=repeatable)
            assert broker.connections == 1
            await link.close()

    run(go())


def test_a_link_closed_while_it_connects_leaves_no_connection_behind() -> None:
    async def go() -> None:
        greet, gone = asyncio.Event(), asyncio.Event()

        async def talk(peer: Peer) -> None:
            await greet.wait()
            await peer.greet()
            await peer.read_all()
            gone.set()

        async with serving(talk, greeting=None) as port:
            link = link_to(port)
            getting = asyncio.ensure_future(link.get())
            for _ in range(5):
                await asyncio.sleep(0)
            await link.close()
            greet.set()
            with pytest.raises(Unavailable, match="closed while it connected"):
                await getting
            await gone.wait()

    run(go())


def test_who_gives_up_while_connecting_does_not_hold_up_the_others() -> None:
    async def go() -> None:
        greet = asyncio.Event()

        async def talk(peer: Peer) -> None:
            await greet.wait()
            await peer.greet()
            await peer.read_all()

        async with serving(talk, greeting=None) as port:
            link = link_to(port)
            first = asyncio.ensure_future(link.get())
            second = asyncio.ensure_future(link.get())
            for _ in range(5):
                await asyncio.sleep(0)
            first.cancel()
            greet.set()
            assert (await second).failure is None
            with pytest.raises(asyncio.CancelledError):
                await first
            await link.close()

    run(go())


# --- what the log says


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "goqueue.client"]


def test_a_lost_connection_is_told_once_and_so_is_one_that_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Connection.connect
    away = asyncio.Event()

    async def connect(*given: Any, **named: Any) -> Connection:
        if away.is_set():
            raise Unavailable("nobody is there")
        return await real(*given, **named)

    monkeypatch.setattr(Connection, "connect", connect)

    async def go() -> None:
        broker = Asked(False, None)
        async with serving(broker.talk) as port:
            where = f"{HOST}:{port}"
            link = link_to(port, tells=True)
            await link.ask(ANY, {}, repeatable=True)
            assert told(caplog) == []
            away.set()
            for _ in range(5):
                with pytest.raises(Unavailable):
                    await link.ask(ANY, {}, repeatable=True, timeout_s=0.01)
            [(level, lost)] = told(caplog)
            assert level == "WARNING"
            assert f"the connection to {where} was lost" in lost
            away.clear()
            await asyncio.gather(*(link.ask(ANY, {}, repeatable=True) for _ in range(5)))
            assert told(caplog)[1:] == [("WARNING", f"the connection to {where} works again")]
            await link.close()
            assert len(told(caplog)) == 2

    run(go())


def test_a_connection_that_is_lost_while_nobody_uses_it_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        gone = asyncio.Event()

        async def talk(peer: Peer) -> None:
            await gone.wait()

        async with serving(talk) as port:
            link = link_to(port, tells=True)
            ended = asyncio.Event()
            (await link.get()).when_ended(ended.set)
            gone.set()
            await ended.wait()
            assert [level for level, _ in told(caplog)] == ["WARNING"]
            await link.close()

    run(go())


def test_a_broker_that_is_not_there_yet_is_told_at_once_and_so_is_one_that_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who publishes in the background would otherwise hear of it when the messages are given up, after two minutes."""
    real = Connection.connect

    async def connect(*given: Any, **named: Any) -> Connection:
        if not told(caplog):
            raise Unavailable("nobody is there")
        return await real(*given, **named)

    monkeypatch.setattr(Connection, "connect", connect)

    async def go() -> None:
        async with serving(Asked().talk) as port:
            link = link_to(port, tells=True)
            await link.ask(ANY, {}, repeatable=True)
            (level, lost), back = told(caplog)
            assert level == "WARNING"
            assert "nobody is there" in lost
            assert back == ("WARNING", f"the connection to {HOST}:{port} works")
            await link.close()

    run(go())


def test_a_broker_that_hangs_up_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:

    async def go() -> None:
        broker = Asked(*[None] * 20)
        async with serving(broker.talk) as port:
            link = link_to(port, tells=True)
            await link.ask(ANY, {}, repeatable=True)
            assert broker.connections == 21
            assert [level for level, _ in told(caplog)] == ["WARNING", "WARNING"]
            link._quiet_until = 0.0
            broker.answers = [None]
            await link.ask(ANY, {}, repeatable=True)
            assert [level for level, _ in told(caplog)] == ["WARNING", "WARNING"] * 2
            await link.close()

    run(go())


def test_who_tells_of_losses_by_himself_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with serving(Asked(None).talk) as port:
            link = link_to(port)
            await link.ask(ANY, {}, repeatable=True)
            await link.close()
        assert told(caplog) == []

    run(go())
