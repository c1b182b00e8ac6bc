"""Addresses of doors."""

import pytest

from goqueue.config.addresses import Address, parse_address


def is_address(text: str) -> bool:
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:0", "localhost", 0),
        ("queue-1.example.com:65535", "queue-1.example.com", 65535),
        (":8080", "", 8080),
        ("[::1]:8080", "::1", 8080),
        ("[0:0:0:0:0:0:0:1]:8080", "::1", 8080),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        ("0.0.0.0:1", "0.0.0.0", 1),
    ],
)
def test_a_host_and_a_port_are_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize("text", ["127.0.0.1:8080", ":8080", "[::1]:8080", "queue:0"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "off", "OFF"])
def test_a_closed_door_has_no_address(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "8080", "127.0.0.1", "127.0.0.1:", ":65536", ":-1", ":http", "::1:8080", "[::1]", "[]:80", "[127.0.0.1]:80",
        "[::1]x:80", "300.0.0.1:80", "127.1:80", "*:80", "a b:80", "-a:80", "a..b:80", "http://a:80", "a:80/", ":٨",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LocalHost"])
def test_this_machine_is_local(host: str) -> None:
    assert Address(host, 1).is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:0.0.0.0", "localhost.example.com", "queue"])
def test_everything_else_is_not_local(host: str) -> None:
    assert not Address(host, 1).is_local


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "0.0.0.0:1", True),
        ("[::]:1", "[::1]:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("[::]:1", "0.0.0.0:1", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_two_doors_collide_on_one_port_of_one_interface(one: str, other: str, expected: bool) -> None:
    first, second = parse_address(one), parse_address(other)
    assert first is not None
    assert second is not None
    assert first.collides(second) is expected
    assert second.collides(first) is expected
