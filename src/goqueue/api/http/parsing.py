"""Bytes in, requests out: their heads, the parts of their bodies, their ends. No input or output, no clock.

What bytes mean, httptools says. They are given to it in pieces, none of which goes beyond the end of a head, or of a
request. So what came of a request before its body is counted exactly, however it was read; and whoever feeds may stop
behind every request. A piece that turns out to go beyond the end of a request all the same is refused.

A head, and what comes with a body that is sent in chunks, ends with an empty line; httptools takes no other.

A request that offers to go on in another protocol is served as it is. httptools takes the head of such a one for all of
it; its body, and what follows, go to a new parser, which is first given a head that only says how the body comes.
"""

from typing import Final, Protocol
from urllib.parse import SplitResultBytes, urlsplit

import httptools
import msgspec

from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, TooLarge, UnknownTransferCoding

_BLANK_LINE: Final = b"\r\n\r\n"
_READ: Final = frozenset(
    {
        b"access-control-request-headers", b"access-control-request-method", b"access-control-request-private-network",
        b"content-encoding", b"content-length", b"expect", b"host", b"origin", b"sec-fetch-site", b"transfer-encoding",
    }
)  # fmt: skip
"""The header fields that mean something here."""
_FRAMING: Final = (b"content-length", b"transfer-encoding")
_CHUNKED: Final = b"chunked"
_PIECES_AT_ONCE: Final = 500
_SHOWN: Final = 40
"""Bytes of a wrong value that are repeated in a message."""


class Head(msgspec.Struct):
    """What a request says before its body."""

    method: str
    path: bytes
    """As it was sent: still percent-encoded."""
    query: bytes
    authority: bytes
    """Host and port in the target of the request, when it is a whole address; that is as good as a Host."""
    fields: dict[bytes, bytes]
    """Those of the header that mean something, by their names in small letters."""
    keep_alive: bool
    length: int | None
    """Of the body, when it is not sent in chunks."""
    expects: bool
    """The client asked to be told before it sends the body."""


class Arrival(Protocol):
    """What hears of requests as they arrive."""

    def begin(self) -> None:
        """The first byte of a request is here."""

    def take_head(self, head: Head) -> None: ...

    def take_body(self, part: bytes) -> None: ...

    def end(self) -> None:
        """All of the request is here."""


class RequestParser:
    """Once it has refused something it is not used any more: where the next request would begin, nobody knows."""

    __slots__ = (
        "_arrival", "_body_bytes", "_fields", "_head_bytes", "_in_head", "_left", "_other_bytes", "_parser",
        "_refusal", "_repeats", "_tail", "_target", "_upgrades", "_whole",
    )  # fmt: skip

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        self._parser = httptools.HttpRequestParser(self)
        self._refusal: GoQueueError | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._in_head = True
        self._whole = False
        self._upgrades = False
        """It offers another protocol, so httptools takes its head for all of it."""
        self._repeats = False
        """The head that is parsed is the one made for a new parser."""
        self._target = b""
        self._fields: dict[bytes, bytes] = {}
        self._left = 0
        """Bytes of a body of a known length that did not come yet."""
        self._tail = b""
        """The last bytes of a read, which may be the beginning of an empty line."""
        self._body_bytes = 0
        self._head_bytes = 0
        self._other_bytes = 0
        """What came behind the head and is not body: the sizes of chunks, trailers."""

    def feed(self, data: bytes, start: int) -> int:
        """Take bytes from there on, up to the end of a request, or to the last; where it stopped. Raises a refusal.

        Bytes with very many empty lines are very many pieces: it stops after some of them, too.
        """
        view, at, pieces = memoryview(data), start, 0
        while at < len(data) and not self._whole and pieces < _PIECES_AT_ONCE:
            end = self._piece_end(data, at)
            self._take(view[at:end])
            at = end
            pieces += 1
        if self._whole:
            self._begin_anew()
            self._arrival.end()
        return at

    def _piece_end(self, data: bytes, at: int) -> int:
        if self._left:
            return min(len(data), at + self._left)
        tail = self._tail
        found = (tail + data[at : at + len(_BLANK_LINE) - 1]).find(_BLANK_LINE) if tail else -1
        if found >= 0:
            self._tail = b""
            return at + found + len(_BLANK_LINE) - len(tail)
        found = data.find(_BLANK_LINE, at)
        if found >= 0:
            self._tail = b""
            return found + len(_BLANK_LINE)
        self._tail = (tail + data[max(at, len(data) - len(_BLANK_LINE) + 1) :])[1 - len(_BLANK_LINE) :]
        return len(data)

    def _take(self, piece: memoryview) -> None:
        in_head, body_bytes = self._in_head, self._body_bytes
        if in_head:
            self._head_bytes += len(piece)
            if self._head_bytes > limits.MAX_HTTP_HEADER_BYTES:
                raise _too_much("of head")
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._decline_upgrade()
        except httptools.HttpParserError as error:
            self._refuse(InvalidRequest(f"this is not HTTP/1.1: {error}"))
        if self._refusal is None and not in_head:
            self._other_bytes += len(piece) - (self._body_bytes - body_bytes)
            if self._other_bytes > limits.MAX_HTTP_HEADER_BYTES + self._body_bytes:
                self._refuse(_too_much("between and behind its chunks"))
        if self._refusal is not None:
            raise self._refusal

    def _decline_upgrade(self) -> None:
        if self._refusal is None:
            self._parser = httptools.HttpRequestParser(self)
            self._repeats, self._upgrades = True, False
            framing = [b"%s: %s\r\n" % (name, self._fields[name]) for name in _FRAMING if name in self._fields]
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))

    def _refuse(self, error: GoQueueError) -> None:
        if self._refusal is None:  # the first one is the reason for what comes after it
            self._refusal = error

    # --- what httptools calls

    def on_message_begin(self) -> None:
        if self._repeats:
            pass
        elif self._whole:
            self._refuse(InvalidRequest("this is not HTTP/1.1: a request ends where no request can end"))
        elif self._refusal is None:
            self._arrival.begin()

    def on_url(self, url: bytes) -> None:
        if not self._repeats:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer
            field = name.lower()
            if field in _READ:
                value = value.strip(b" \t")
                if field in self._fields:
                    if field == b"host":
                        self._refuse(InvalidRequest("the request has several Hosts; it has one"))
                    elif field != b"expect":  # several lines are one list
                        value = self._fields[field] + b"," + value
                self._fields[field] = value

    def on_headers_complete(self) -> None:
        if self._repeats:
            self._repeats = False
            return
        self._in_head = False
        fields = self._fields
        length = int(fields[b"content-length"]) if b"content-length" in fields else None
        target = _split(self._target)
        if target is None:
            self._refuse(InvalidRequest("the target of the request is not a path"))
            return
        self._upgrades = self._parser.should_upgrade()
        self._left = length or 0
        self._arrival.take_head(  # also of a request that is refused: who sent it decides what the answer may say
            Head(
                method=self._parser.get_method().decode(),
                path=target.path or b"/",
                query=target.query,
                authority=target.netloc,
                fields=fields,
                keep_alive=self._parser.should_keep_alive(),
                length=length,
                expects=fields.get(b"expect", b"").lower() == b"100-continue",
            )
        )
        if b"host" not in fields and self._parser.get_http_version() == "1.1":
            self._refuse(InvalidRequest("the request has no Host; HTTP/1.1 needs one"))
        elif length is not None and length > limits.MAX_BODY_BYTES:
            self._refuse(_too_large())
        elif b"transfer-encoding" in fields and (wrong := self._wrong_coding(fields[b"transfer-encoding"])) is not None:
            self._refuse(wrong)
        elif self._parser.get_method() == b"CONNECT":
            self._refuse(InvalidRequest("this is no proxy: there is no CONNECT"))

    def _wrong_coding(self, listed: bytes) -> GoQueueError | None:
        """A body comes in chunks, or it has a length; what has both was refused by httptools."""
        codings = [coding.strip(b" \t").lower() for coding in listed.split(b",")]
        if self._parser.get_http_version() == "1.0":
            return InvalidRequest("HTTP/1.0 has no Transfer-Encoding; send HTTP/1.1, or a Content-Length")
        if codings == [_CHUNKED]:
            return None
        names = [coding.partition(b";")[0].rstrip(b" \t") for coding in codings]
        if b"" in names or _CHUNKED in names[:-1] or (names[-1] == _CHUNKED and codings[-1] != _CHUNKED):
            return InvalidRequest("the Transfer-Encoding is not valid; it is chunked, once and last, and nothing else")
        strange = next(coding for coding in codings if coding != _CHUNKED)[:_SHOWN].decode("latin-1")
        return UnknownTransferCoding(
            f"the transfer coding {strange!r} is not understood; send the body as it is, chunked"
        )

    def on_body(self, body: bytes) -> None:
        if self._refusal is not None:
            return
        self._body_bytes += len(body)
        if self._left:
            self._left -= len(body)
        if self._body_bytes > limits.MAX_BODY_BYTES:
            self._refuse(_too_large())
        else:
            self._arrival.take_body(body)

    def on_message_complete(self) -> None:
        self._whole = self._refusal is None and not self._upgrades


def _split(target: bytes) -> SplitResultBytes | None:
    if target.startswith(b"/"):
        path, _, query = target.partition(b"?")
        return SplitResultBytes(b"", b"", path, query, b"")
    try:
        return urlsplit(target)
    except ValueError:
        return None


def _too_large() -> TooLarge:
    return TooLarge(f"the body is larger than {limits.MAX_BODY_BYTES} bytes; send fewer messages at a time")


def _too_much(where: str) -> InvalidRequest:
    return InvalidRequest(f"the request has more than {limits.MAX_HTTP_HEADER_BYTES} bytes {where}")
