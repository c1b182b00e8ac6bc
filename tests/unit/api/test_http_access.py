"""Which hosts and origins are answered: every name a user may have for a broker, and every page that is none of its."""

from typing import Any

import pytest

from goqueue.api.http.access import Access, own_names
from goqueue.api.http.parsing import Head
from goqueue.model import limits
from goqueue.model.errors import Forbidden, InvalidRequest


def head(host: str | None = "localhost:8080", *, method: str = "POST", path: str = "/topics", **fields: str) -> Head:
    found = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in fields.items()}
    if host is not None:
        found[b"host"] = host.encode("latin-1")
    return Head(
        method=method, path=path.encode(), query=b"", authority=b"", fields=found, keep_alive=True, length=None,
        expects=False,
    )  # fmt: skip


WELCOME = [
    None, "", "localhost", "localhost:8080", "LocalHost:8080", "localhost.", "queue.localhost:1", "127.0.0.1:8080",
    "127.1.2.3", "[::1]:8080", "[::1]", "[::ffff:10.0.0.1]:80", "10.1.2.3:8080", "192.168.1.5", "0.0.0.0:8080",
    "203.0.113.9:1",
]  # fmt: skip
FOREIGN = [
    "evil.example", "evil.example:8080", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example",
    "2130706433", "0x7f000001", "127.1", "127.0.0.1.nip.io:8080", "a-b_c.example", "...",
]  # fmt: skip
NO_HOST = [
    "a b",
    "a/b",
    "user@localhost",
    "localhost:port",
    "localhost:123456",
    "[::1",
    "::1",
    "localhost\xe9",
    "a,b",
    "*",
]


@pytest.mark.parametrize("host", WELCOME)
def test_a_local_name_and_any_address_is_answered(host: str | None) -> None:
    access = Access()
    for _ in range(2):
        access.check(head(host))


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_nobody_gave_the_broker_is_refused_with_the_setting_that_would_allow_it(host: str) -> None:
    with pytest.raises(Forbidden, match=r"http\.allowedHosts"):
        Access().check(head(host))
    for path in ("/livez", "/readyz", "/v1/livez", "/v1/readyz"):
        Access().check(head(host, path=path, method="GET"))
    for path in ("/health", "/metrics", "/livez/", "/v1/v1/livez"):
        with pytest.raises(Forbidden):
            Access().check(head(host, path=path, method="GET"))
    Access(hosts=["*"]).check(head(host))


@pytest.mark.parametrize("host", NO_HOST)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest):
        Access().check(head(host))


def test_names_that_are_allowed_are_answered_and_those_beside_them_are_not() -> None:
    access = Access(own=("Box.example.com", "box"), hosts=["queue.example.org", ".example.net"])
    for host in (
        "box",
        "BOX:1",
        "box.example.com",
        "queue.example.org:8080",
        "example.net",
        "a.b.example.net",
        "localhost",
    ):
        access.check(head(host))
    for host in ("example.com", "a.box", "example.org", "a.queue.example.org", "badexample.net", "example.net.evil"):
        with pytest.raises(Forbidden):
            access.check(head(host))


def test_a_whole_address_in_the_target_counts_like_a_host() -> None:
    wrong = head("localhost")
    wrong.authority = b"evil.example:8080"
    with pytest.raises(Forbidden):
        Access().check(wrong)


def test_hosts_that_are_remembered_are_bounded() -> None:
    access = Access()
    for number in range(3 * limits.REMEMBERED_HOSTS):
        access.check(head(f"10.0.0.1:{number}"))
        assert len(access._good) <= limits.REMEMBERED_HOSTS


def test_a_door_knows_the_host_it_was_bound_to_and_its_machine_unless_only_that_gets_there() -> None:
    assert own_names("127.0.0.1", is_local=True, machine="box.example.com") == ("127.0.0.1",)
    assert own_names("0.0.0.0", is_local=False, machine="box.example.com") == ("0.0.0.0", "box.example.com", "box")
    assert own_names("queue.example.org", is_local=False, machine="box") == ("queue.example.org", "box")


OWN_PAGES: list[dict[str, Any]] = [
    {},
    {"sec_fetch_site": "none"},
    {"sec_fetch_site": "same-origin"},
    {"origin": "http://localhost:8080"},
    {"origin": "HTTP://LOCALHOST:8080", "sec_fetch_site": "same-origin"},
    {"origin": "https://localhost:8080"},
]
OTHER_PAGES: list[dict[str, Any]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "localhost:8080"},
    {"origin": "://localhost:8080"[3:]},
    {"origin": "http://localhost"},
    {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"},
    {"origin": "http://localhost:8080.evil.example"},
    {"origin": "http://localhost:8080/"},
    {"origin": "http://localhost:8080,http://evil.example"},
    {"origin": "http://127.0.0.1:8080"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "Cross-Site"},
    {"sec_fetch_site": "something new"},
]


@pytest.mark.parametrize("fields", OWN_PAGES, ids=str)
def test_programs_and_own_pages_are_answered(fields: dict[str, str]) -> None:
    Access().check(head(**fields))
    assert Access().grant(head(**fields)) == b""


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/topics/orders/publish", "/livez", "/metrics"])
@pytest.mark.parametrize("fields", OTHER_PAGES, ids=str)
def test_pages_of_other_origins_are_refused_with_the_setting_that_would_allow_them(
    fields: dict[str, str], path: str, method: str
) -> None:
    with pytest.raises(Forbidden, match=r"http\.allowedOrigins"):
        Access().check(head(path=path, method=method, **fields))
    assert Access().grant(head(path=path, method=method, **fields)) == b""


def test_a_page_that_is_allowed_is_told_that_it_may_see_the_answer() -> None:
    access = Access(origins=["https://console.example.com"])
    asked = head(origin="https://console.example.com", sec_fetch_site="cross-site")
    access.check(asked)
    assert b"access-control-allow-origin: https://console.example.com\r\n" in access.grant(asked)
    assert b"vary: origin\r\n" in access.grant(asked)
    assert access.grant(head()) == b"vary: origin\r\n", "a cache must not give this answer to a page"
    for other in ("https://console.example.com.evil", "http://console.example.com", "https://console.example.com:1"):
        with pytest.raises(Forbidden):
            access.check(head(origin=other))
        assert b"access-control" not in access.grant(head(origin=other))
    Access(origins=["*"]).check(head(origin="https://anything.example"))
    with pytest.raises(Forbidden):  # it allows pages, not names
        access.check(head("evil.example", origin="https://console.example.com"))


def test_a_preflight_is_told_apart_and_granted_what_it_asks_for() -> None:
    access = Access(origins=["*"])
    ask = {"origin": "https://a.example", "access_control_request_method": "PUT"}
    assert access.is_preflight(head(method="OPTIONS", **ask))
    assert not access.is_preflight(head(method="POST", **ask))
    assert not access.is_preflight(head(method="OPTIONS", origin="https://a.example"))
    assert b"allow-headers" not in access.grant_request(head(method="OPTIONS", **ask))
    granted = access.grant_request(
        head(
            method="OPTIONS", access_control_request_headers="content-type, x-mine",
            access_control_request_private_network="true", **ask,
        )
    )  # fmt: skip
    assert b"access-control-allow-headers: content-type, x-mine\r\n" in granted
    assert b"access-control-allow-private-network: true\r\n" in granted
    for wrong in ("a" * 2000, "a\x01b", "a: b", ""):
        assert b"allow-headers" not in access.grant_request(head(access_control_request_headers=wrong, **ask))
