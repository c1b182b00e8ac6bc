"""HTTP/1.1 taken apart: the same requests however the bytes come, and bounds that are exact however they come."""

from collections.abc import Iterator
from typing import Any

import pytest

from goqueue.api.http.parsing import Head, RequestParser
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, TooLarge

MOST = limits.MAX_HTTP_HEADER_BYTES


class Heard:
    """What came of some bytes."""

    def __init__(self) -> None:
        self.parser = RequestParser(self)
        self.begun = 0
        self.pauses = 0
        """How often it stopped in the middle of something."""
        self.requests: list[tuple[str, bytes, bytes]] = []
        self.heads: list[Head] = []
        self.refusal: GoQueueError | None = None
        self._body = b""

    def begin(self) -> None:
        self.begun += 1

    def take_head(self, head: Head) -> None:
        self.heads.append(head)
        self._body = b""

    def take_body(self, part: bytes) -> None:
        self._body += part

    def end(self) -> None:
        self.requests.append((self.heads[-1].method, self.heads[-1].path, self._body))

    def feed(self, *reads: bytes) -> "Heard":
        for data in reads:
            at = 0
            while at < len(data) and self.refusal is None:
                whole = len(self.requests)
                try:
                    stop = self.parser.feed(data, at)
                except GoQueueError as error:
                    self.refusal = error
                    break
                assert stop > at
                self.pauses += stop < len(data) and len(self.requests) == whole
                assert stop == len(data) or len(self.requests) <= whole + 1, "it stops behind every request"
                at = stop
        return self


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Whole, byte by byte, and in two, around every place where something ends."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))] if len(data) < 2000 else [data]
    ends = [at for at in range(1, len(data)) if data[at - 1 : at + 1] in (b"\r\n", b"\n\r")]
    for end in ends[:40] + ends[-40:]:
        for at in range(max(end - 2, 1), min(end + 3, len(data))):
            yield [data[:at], data[at:]]


def head(method: str = "GET", path: str = "/a", *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: broker", *lines, "", ""]).encode()


def head_of(size: int, *lines: str) -> bytes:
    """A head of exactly that many bytes."""
    return head("POST", "/a", *lines, "X: " + "x" * (size - len(head("POST", "/a", *lines, "X: "))))


CHUNKED = "Transfer-Encoding: chunked"
GOOD = {
    "no body": (head(), [("GET", b"/a", b"")]),
    "a length of nothing": (head("POST", "/a", "Content-Length: 0"), [("POST", b"/a", b"")]),
    "a body": (head("POST", "/a", "Content-Length: 5") + b"\r\n\r\nx", [("POST", b"/a", b"\r\n\r\nx")]),
    "chunks": (head("POST", "/a", CHUNKED) + b"3\r\nabc\r\n0\r\n\r\n", [("POST", b"/a", b"abc")]),
    "no chunks": (head("POST", "/a", CHUNKED) + b"0\r\n\r\n", [("POST", b"/a", b"")]),
    "chunks of empty lines": (
        head("POST", "/a", CHUNKED) + b"4\r\n\r\n\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n",
        [("POST", b"/a", b"\r\n" * 3)],
    ),
    "an end of chunks as a chunk": (
        head("POST", "/a", CHUNKED) + b"5\r\n0\r\n\r\n\r\n0\r\n\r\n",
        [("POST", b"/a", b"0\r\n\r\n")],
    ),
    "trailers": (
        head("POST", "/a", CHUNKED) + b"1\r\nx\r\n0\r\nX-Sum: 9\r\nExpect: 100-continue\r\n\r\n",
        [("POST", b"/a", b"x")],
    ),
    "empty lines before it": (b"\r\n\r\n\r\n" + head(), [("GET", b"/a", b"")]),
    "an offer to go on in another protocol": (
        head("GET", "/a", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA"),
        [("GET", b"/a", b"")],
    ),
    "an offer with a body": (
        head("POST", "/a", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 5") + b"\r\n\r\nx",
        [("POST", b"/a", b"\r\n\r\nx")],
    ),
    "an offer with a body of nothing": (
        head("POST", "/a", "Content-Length: 0", "Connection: Upgrade", "Upgrade: h2c"),
        [("POST", b"/a", b"")],
    ),
    "an offer with chunks": (
        head("POST", "/a", CHUNKED, "Connection: Upgrade", "Upgrade: websocket") + b"3\r\nabc\r\n0\r\nX: y\r\n\r\n",
        [("POST", b"/a", b"abc")],
    ),
    "an offer that is not meant for the next one": (head("GET", "/a", "Upgrade: h2c"), [("GET", b"/a", b"")]),
    "a whole address": (head("GET", "http://broker/b?c=d"), [("GET", b"/b", b"")]),
}


@pytest.mark.parametrize("what", GOOD)
def test_a_request_is_the_same_however_it_comes(what: str) -> None:
    data, expected = GOOD[what]
    for reads in cuts(data):
        heard = Heard().feed(*reads)
        assert (heard.refusal, heard.requests, heard.begun) == (None, expected, 1), reads


@pytest.mark.parametrize("what", GOOD)
@pytest.mark.parametrize("before", GOOD)
def test_requests_behind_each_other_are_told_apart_however_they_come(before: str, what: str) -> None:
    data = GOOD[before][0] + GOOD[what][0]
    for reads in cuts(data):
        heard = Heard().feed(*reads)
        assert (heard.refusal, heard.requests) == (None, GOOD[before][1] + GOOD[what][1]), reads


def test_a_head_is_counted_to_the_byte_however_it_comes() -> None:
    follower = head("GET", "/" + "f" * (MOST - 100))
    for lines, body in (((), b""), (("Content-Length: 2",), b"{}"), ((CHUNKED,), b"2\r\n{}\r\n0\r\n\r\n")):
        for more in (b"", body, body + follower):
            just, over = head_of(MOST, *lines) + more, head_of(MOST + 1, *lines) + more
            for size in (1, 1000, MOST - 1, MOST, MOST + 1, 10 * MOST):
                if size == 1 and more:
                    continue
                reads = [just[at : at + size] for at in range(0, len(just), size)]
                assert Heard().feed(*reads).refusal is None, (lines, len(more), size)
                reads = [over[at : at + size] for at in range(0, len(over), size)]
                heard = Heard().feed(*reads)
                assert isinstance(heard.refusal, InvalidRequest), (lines, len(more), size)
                assert "bytes of head" in str(heard.refusal)
                assert heard.requests == []


def test_a_head_that_comes_in_one_read_is_not_larger_for_it() -> None:
    heard = Heard().feed(head_of(200_000))
    assert "bytes of head" in str(heard.refusal)
    assert heard.heads == []


def test_a_follower_has_a_head_of_its_own() -> None:
    large = head_of(MOST - 10)
    assert len(Heard().feed(large * 5).requests) == 5
    heard = Heard().feed(large * 3 + head_of(MOST + 1) + large)
    assert (len(heard.requests), "bytes of head" in str(heard.refusal)) == (3, True)


@pytest.mark.parametrize("before", GOOD)
def test_nothing_is_counted_for_a_request_that_came_before_it(before: str) -> None:
    data = GOOD[before][0]
    assert Heard().feed(data + head_of(MOST)).refusal is None
    assert Heard().feed(data + head_of(MOST + 1)).refusal is not None


def test_what_comes_with_chunks_is_bounded_by_what_they_bring() -> None:
    start = head("POST", "/a", CHUNKED)
    assert Heard().feed(start + b"1000\r\n" + b"x" * 4096 + b"\r\n" + b"2;x=" + b"y" * 60_000).refusal is None
    for endless in (b"1\r\nx\r\n" * 40_000, b"0\r\n" + b"X: y\r\n" * 20_000, b"2;x=" + b"y" * 100_000, b"0" * 70_000):
        for size in (1000, len(endless)):
            reads = [endless[at : at + size] for at in range(0, len(endless), size)]
            heard = Heard().feed(start, *reads)
            assert "bytes between and behind its chunks" in str(heard.refusal)


def test_a_body_that_is_too_large_is_refused_before_it_is_handed_on() -> None:
    start = head("POST", "/a", f"Content-Length: {limits.MAX_BODY_BYTES + 1}")
    heard = Heard().feed(start + b"x" * 100)
    assert (type(heard.refusal), heard.requests) == (TooLarge, [])
    chunk = b"100000\r\n" + b"x" * limits.MIB + b"\r\n"
    heard = Heard().feed(head("POST", "/a", CHUNKED), *[chunk] * (limits.MAX_BODY_BYTES // limits.MIB))
    assert heard.refusal is None
    assert type(heard.feed(b"1\r\nx\r\n").refusal) is TooLarge


BAD: dict[str, Any] = {
    "a bare line feed": b"GET /a HTTP/1.1\nHost: x\n\n",
    "a line feed for an empty line": b"GET /a HTTP/1.1\r\nX: a\r\n\n" + head(),
    "a bare line feed in the end of chunks": head("POST", "/a", CHUNKED) + b"0\r\n\n" + head(),
    "a bare line feed in trailers": head("POST", "/a", CHUNKED) + b"0\r\nA: b\n\r\n" + head(),
}


@pytest.mark.parametrize("what", BAD)
def test_nothing_else_than_an_empty_line_ends_a_head(what: str) -> None:
    """What the parser cuts by; if httptools took another end, a request could hide behind it."""
    for reads in cuts(BAD[what]):
        heard = Heard().feed(*reads)
        assert isinstance(heard.refusal, InvalidRequest), reads
        assert heard.requests == []


def test_two_requests_in_one_piece_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an empty line were overlooked: then it is not known where the second one began."""
    monkeypatch.setattr(RequestParser, "_piece_end", lambda _, data, __: len(data))
    heard = Heard().feed(head() + head("DELETE", "/b"))
    assert isinstance(heard.refusal, InvalidRequest)
    assert heard.requests == []


def test_who_offers_another_protocol_says_the_rest_as_always() -> None:
    offer = ["Connection: Upgrade, close", "Upgrade: h2c", "Expect: 100-continue", "Content-Length: 7"]
    heard = Heard().feed(head("PUT", "/a/b?c=d", *offer))
    (said,) = heard.heads
    assert (said.method, said.path, said.query) == ("PUT", b"/a/b", b"c=d")
    assert (said.keep_alive, said.length, said.expects) == (False, 7, True)
    assert Heard().feed(head("GET", "/", "Connection: upgrade", "Upgrade: x")).heads[0].keep_alive


def test_an_offer_of_another_protocol_changes_no_bound() -> None:
    offer = ("Connection: Upgrade", "Upgrade: h2c")
    assert Heard().feed(head_of(MOST, *offer) * 3).refusal is None
    assert "bytes of head" in str(Heard().feed(head_of(MOST + 1, *offer)).refusal)
    too_large = head("POST", "/a", *offer, f"Content-Length: {limits.MAX_BODY_BYTES + 1}")
    assert type(Heard().feed(too_large).refusal) is TooLarge
    endless = Heard().feed(head("POST", "/a", *offer, CHUNKED), b"1\r\nx\r\n" * 40_000)
    assert "between and behind its chunks" in str(endless.refusal)


OFFERED_AND_BAD = {
    "a tunnel": head("CONNECT", "broker:80", "Connection: Upgrade", "Upgrade: h2c"),
    "a packed body": head("POST", "/a", "Connection: Upgrade", "Upgrade: h2c", "Transfer-Encoding: gzip"),
    "a length and chunks": head("POST", "/a", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 1", CHUNKED),
    "a chunk of no size": head("POST", "/a", "Connection: Upgrade", "Upgrade: h2c", CHUNKED) + b"no size\r\n",
    "bytes behind it that are no request": head("GET", "/a", "Connection: Upgrade", "Upgrade: h2c")
    + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("what", OFFERED_AND_BAD)
def test_an_offer_of_another_protocol_makes_nothing_good(what: str) -> None:
    for reads in cuts(OFFERED_AND_BAD[what]):
        heard = Heard().feed(*reads)
        assert isinstance(heard.refusal, InvalidRequest)
        assert len(heard.requests) == (what == "bytes behind it that are no request")


def test_a_body_of_empty_lines_is_parsed_a_few_at_a_time() -> None:
    lines = b"\r\n\r\n" * 10_000
    heard = Heard().feed(
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(lines), lines)
    )
    assert heard.requests == [("POST", b"/a", lines)]
    assert heard.pauses >= 15
    assert Heard().feed(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n" * 100).pauses == 0
