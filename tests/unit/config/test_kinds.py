"""Kinds of values: what they read, what they refuse, and that they read back what they write."""

from typing import Any

import pytest

from goqueue.config.addresses import Address
from goqueue.config.keys import KEYS, Key
from goqueue.config.kinds import Choice, Directory, Door, Duration, Hosts, Kind, NodeName, Origins, Size, Switch, Whole
from goqueue.model.settings import Fsync

MODE = Choice({mode.value: mode for mode in Fsync})
COUNT = Whole(1, 10)
HOURS = Whole(1, 10, may_be_unlimited=True)
SIZE = Size(1, 2**50)
ROOM = Size(1, may_be_unlimited=True)


def takes(kind: Kind, text: str) -> bool:
    try:
        kind.parse(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (NodeName(), "node-1.a_B", "node-1.a_B"),
        (Directory(), "./my data", "./my data"),
        (MODE, " Every ", Fsync.EVERY),
        (Switch(), "true", True),
        (Switch(), "Off", False),
        (COUNT, " 10 ", 10),
        (COUNT, "010", 10),
        (HOURS, "-1", None),
        (SIZE, "65536", 65536),
        (SIZE, "64MiB", 64 * 2**20),
        (SIZE, "64 mib", 64 * 2**20),
        (SIZE, "1GB", 10**9),
        (SIZE, "1kb", 1000),
        (SIZE, "3B", 3),
        (SIZE, "2TiB", 2 * 2**40),
        (ROOM, "-1", None),
        (Duration(), "250ms", 250),
        (Duration(), "1h30m", 5_400_000),
        (Duration(), "30", 30_000),
        (Door(), " :8080 ", Address("", 8080)),
        (Door(), "off", None),
        (Hosts(), "", ()),
        (Hosts(), " None ", ()),
        (Hosts(), "Queue.example.com , .example.org,box,box", ("queue.example.com", ".example.org", "box")),
        (Hosts(), "*", ("*",)),
        (Origins(), "none", ()),
        (Origins(), "https://A.example,http://[::1]:80", ("https://a.example", "http://[::1]:80")),
        (Origins(), "chrome-extension://abcdef", ("chrome-extension://abcdef",)),
        (Origins(), "*", ("*",)),
    ],
)
def test_a_value_is_read(kind: Kind, text: str, value: Any) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (NodeName(), ""),
        (NodeName(), "a b"),
        (NodeName(), "-a"),
        (NodeName(), "n" * 256),
        (Directory(), ""),
        (Directory(), "~/data"),
        (Directory(), "a\0b"),
        (Directory(), "a\nb"),
        (Directory(), "a\udcffb"),
        (MODE, "always"),
        (MODE, ""),
        (Switch(), "maybe"),
        (Switch(), ""),
        (COUNT, "0"),
        (COUNT, "11"),
        (COUNT, "-1"),
        (COUNT, "1.5"),
        (COUNT, "1_0"),
        (COUNT, "9" * 40),
        (HOURS, "0"),
        (HOURS, "-2"),
        (SIZE, "-1"),
        (SIZE, "1.5GiB"),
        (SIZE, "64M"),
        (SIZE, "MiB"),
        (SIZE, "2000TiB"),
        (ROOM, "0"),
        (Duration(), "soon"),
        (Duration(), "-5s"),
        (Duration(), "1.5"),
        (Duration(), "40000d"),
        (Door(), "8080"),
        (Hosts(), "queue.example.com:8080"),
        (Hosts(), "http://queue.example.com"),
        (Hosts(), "a b"),
        (Hosts(), "a,,b"),
        (Hosts(), "*.example.com"),
        (Hosts(), ",".join(f"n{number}" for number in range(2000))),
        (Origins(), "console.example.com"),
        (Origins(), "https://console.example.com/"),
        (Origins(), "null"),
        (Origins(), "https://*.example.com"),
    ],
)
def test_what_is_not_of_the_kind_is_refused(kind: Kind, text: str) -> None:
    assert not takes(kind, text)


@pytest.mark.parametrize(
    ("kind", "value", "plain", "shown"),
    [
        (SIZE, 64 * 2**20, 64 * 2**20, "64MiB"),
        (SIZE, 1025, 1025, "1025"),
        (ROOM, None, -1, "-1"),
        (HOURS, None, -1, "-1"),
        (COUNT, 3, 3, "3"),
        (Switch(), True, True, "true"),
        (MODE, Fsync.NONE, "none", "none"),
        (Duration(), 250, "250ms", "250ms"),
        (Duration(), 30_000, "30s", "30s"),
        (Duration(), 0, "0s", "0s"),
        (Door(), None, "off", "off"),
        (Hosts(), (), "none", "none"),
        (Hosts(), ("a", ".b"), "a,.b", "a,.b"),
        (Door(), Address("::1", 80), "[::1]:80", "[::1]:80"),
    ],
)
def test_a_value_is_written_for_programs_and_for_people(kind: Kind, value: Any, plain: Any, shown: str) -> None:
    assert kind.plain(value) == plain
    assert type(kind.plain(value)) is type(plain)
    assert kind.show(value) == shown
    assert kind.parse(str(plain)) == kind.parse(shown) == value


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (COUNT, "a whole number, at least 1 and at most 10"),
        (HOURS, "a whole number, at least 1 and at most 10, or -1 for no limit"),
        (ROOM, "a size in bytes or like 64MiB, at least 1, or -1 for no limit"),
        (Size(4096, 2**30), "a size in bytes or like 64MiB, at least 4KiB and at most 1GiB"),
        (MODE, "one of none, interval, every"),
    ],
)
def test_a_kind_says_what_it_wants(kind: Kind, wanted: str) -> None:
    assert kind.wanted == wanted


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_kind_in_use_reads_back_what_it_writes(key: Key) -> None:
    value = key.kind.parse(key.default)
    assert key.kind.show(value) == key.default
    assert key.kind.parse(str(key.kind.plain(value))) == value
    assert key.kind.wanted
    assert key.kind.metavar
