"""Web pages and a broker: none may use it that nobody allowed, by any door, and programs notice nothing of that."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goqueue.wire import frames
from goqueue.wire.codes import CODES
from tests.support.broker import Answer, RunningBroker, running_broker
from tests.support.hostile import Peer, run, watched_server
from tests.support.patience import PATIENCE_S
from tests.support.raw_http import answers, request

PAGE = "https://console.example.com"
EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
FORM = {**EVIL, "Content-Type": "text/plain"}
MESSAGE = b'{"value":"from a form","key":"="}'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    env = {"GOQUEUE_HTTP_ALLOWED_HOSTS": "queue.example.org", "GOQUEUE_HTTP_ALLOWED_ORIGINS": PAGE}
    with running_broker(tmp_path_factory.mktemp("browsers"), "--http", ":0", "--metrics", ":0", env=env) as broker:
        assert broker.request("POST", "/topics", {"name": "orders", "num_partitions": 1}).status == 201
        yield broker


def ask(
    broker: RunningBroker, method: str, path: str, body: object = None, *, door: str = "http", headers: Any = None
) -> Answer:
    with broker.client(door) as client:
        return client.request(method, path, body, headers=headers)


def test_an_address_without_a_host_is_this_machine_only(broker: RunningBroker) -> None:
    assert broker.http.startswith("127.0.0.1:")
    assert broker.endpoints["metrics"].startswith("127.0.0.1:")


def test_a_form_of_another_site_publishes_redrives_and_reads_nothing(broker: RunningBroker) -> None:
    with broker.client() as client:
        for method, path in (
            ("POST", "/topics/orders/publish"),
            ("POST", "/v1/topics/orders/publish"),
            ("POST", "/topics/orders/dlq/redrive"),
            ("DELETE", "/topics/orders"),
            ("GET", "/topics"),
            ("GET", "/metrics"),
            ("GET", "/docs"),
            ("OPTIONS", "/topics/orders/publish"),
            ("GET", "/nowhere"),
        ):
            for headers in (FORM, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}, {"Host": "evil.example:8080"}):
                answer = client.request(method, path, MESSAGE if method == "POST" else None, headers=headers)
                assert (answer.status, answer.body["code"]) == (403, "forbidden"), (method, path, headers)
                assert "http.allowed" in answer.body["error"]
                assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert client.request("GET", "/topics/orders").body["total_messages"] == 0


def test_the_metrics_door_answers_no_page_either(broker: RunningBroker) -> None:
    for path in ("/metrics", "/health", "/version"):
        assert ask(broker, "GET", path, door="metrics").status == 200
        for headers in (EVIL, {"Host": "evil.example"}):
            answer = ask(broker, "GET", path, door="metrics", headers=headers)
            assert (answer.status, answer.body["code"]) == (403, "forbidden")


def test_whether_it_lives_is_told_under_any_name_and_not_to_pages(broker: RunningBroker) -> None:
    for path in ("/livez", "/readyz", "/v1/readyz"):
        assert ask(broker, "GET", path, headers={"Host": "probe.cluster.local"}).status == 200
        assert ask(broker, "GET", path, headers=EVIL).status == 403


def test_names_that_users_have_for_a_broker_are_answered(broker: RunningBroker) -> None:
    port = broker.http.rpartition(":")[2]
    for host in (f"localhost:{port}", "127.0.0.1", "[::1]:80", "192.168.7.7:8080", f"queue.example.org:{port}"):
        assert ask(broker, "GET", "/topics", headers={"Host": host}).status == 200, host
    machine = socket.gethostname()
    assert ask(broker, "GET", "/topics", headers={"Host": f"not-{machine}"}).status == 403


def test_a_wide_bind_is_answered_under_the_name_of_the_machine_and_warned_of(tmp_path: Path) -> None:
    machine = socket.gethostname()
    with running_broker(tmp_path, "--http", "0.0.0.0:0") as wide:
        for host in (machine, machine.partition(".")[0], f"{machine}:8080", "10.9.8.7"):
            assert ask(wide, "GET", "/topics", headers={"Host": host}).status == 200, host
        assert ask(wide, "GET", "/topics", headers={"Host": "evil.example"}).status == 403
        assert "OPEN TO THE NETWORK" in wide.stderr
        assert "http.allowedHosts" in wide.stderr, "the operator hears of a name that users have for it"


def test_a_request_without_a_host_is_one_of_http_1_0(broker: RunningBroker) -> None:
    def tell(data: bytes) -> list[int]:
        host, _, port = broker.http.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            return [said.status for said in answers(peer)]

    assert tell(b"GET /topics HTTP/1.0\r\n\r\n") == [200]
    assert tell(b"GET /topics HTTP/1.1\r\n\r\n") == [400]
    assert tell(b"GET /livez HTTP/1.1\r\n\r\n") == [400]
    assert tell(b"GET /topics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n") == [400]
    assert tell(b"GET http://evil.example/topics HTTP/1.1\r\nHost: localhost\r\n\r\n") == [403]
    assert tell(b"GET http://localhost/topics HTTP/1.1\r\nHost: evil.example\r\n\r\n") == [403]


def test_a_page_that_is_allowed_asks_publishes_and_sees_every_answer(broker: RunningBroker) -> None:
    page = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    with broker.client() as client:
        asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        for path in ("/topics/orders/publish", "/metrics", "/nowhere"):
            preflight = client.request("OPTIONS", path, headers=asked)
            assert preflight.status == 200
            assert preflight.headers["access-control-allow-origin"] == PAGE
            assert "POST" in preflight.headers["access-control-allow-methods"]
            assert preflight.headers["access-control-allow-headers"] == "content-type"
        for method, path, body, status in (
            ("POST", "/topics/orders/publish", MESSAGE, 200),
            ("GET", "/topics/orders", None, 200),
            ("GET", "/metrics", None, 200),
            ("GET", "/nowhere", None, 404),
            ("DELETE", "/livez", None, 405),
            ("POST", "/topics/orders/publish", b"{", 400),
        ):
            answer = client.request(method, path, body, headers=page)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, PAGE), path
            assert answer.headers["vary"] == "origin"
        assert "access-control-allow-origin" not in client.request("GET", "/topics").headers
    host, _, port = broker.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
        peer.sendall(request("POST", "/topics", b"", f"Origin: {PAGE}", "Content-Length: 99999999"))
        head = peer.recv(10_000)
        assert head.startswith(b"HTTP/1.1 413")
        assert f"access-control-allow-origin: {PAGE}\r\n".encode() in head, "also what is refused before it is whole"


def test_the_brokers_own_page_may_ask_it(broker: RunningBroker) -> None:
    own = {"Origin": f"http://{broker.http}", "Sec-Fetch-Site": "same-origin"}
    assert ask(broker, "POST", "/topics/orders/publish", {"value": "x"}, headers=own).status == 200
    assert ask(broker, "GET", "/docs", headers={"Sec-Fetch-Site": "none"}).status == 200


@pytest.mark.parametrize("door", ["wire", "grpc"])
def test_a_form_reaches_neither_the_wire_nor_grpc(tmp_path: Path, door: str) -> None:
    """A browser speaks HTTP/1.1 to a port without TLS, and both begin with something else, whatever the body says."""

    async def scenario() -> None:
        async with watched_server(tmp_path, grpc="127.0.0.1:0") as server:
            call = b'{"name":"made-by-a-form"}'
            frame = frames.pack_preface() + frames.pack_header(CODES["create_topic"], frames.OK, 1, len(call)) + call
            http_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
            for lines in ((), ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")):
                for body in (frame, b"\r\n\r\n" + frame, http_2, call):
                    for path in ("/", "/goqueue.v1.GoQueue/CreateTopic"):
                        async with Peer(server.endpoints[door]) as peer:
                            await peer.send(request("POST", path, body, "Content-Type: application/grpc", *lines))
                            peer.finish()
                            said = await peer.read_to_the_end()
                        assert b" 200 " not in said
                        assert b" 101 " not in said
                        assert not said.startswith(b"GQWP")
            assert list(server.broker.topics.by_name) == []

    run(scenario())
