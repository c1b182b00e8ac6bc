"""Which hosts and origins the HTTP doors answer, so that no web page can use a broker that a browser near it reaches.

A browser lets any page send requests to any address, also to those of its own machine. The page does not see the
answer, but a message is published all the same. Such requests carry an `Origin`, or say by `Sec-Fetch-Site` that they
come from another site. A page whose name is made to lead to a broker's address once it was loaded, by DNS rebinding, is
no other site to the browser; there the `Host` is a name that is not the broker's. No page has an address for a name, so
any address will do.

Programs send neither, and are answered as ever. No input or output here.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from goqueue.api.http.parsing import Head
from goqueue.model import limits
from goqueue.model.errors import Forbidden, InvalidRequest

ANY: Final = "*"
"""In a list of hosts or origins: all of them."""
_LOCAL: Final = "localhost"
_WHOEVER: Final = frozenset({b"/livez", b"/readyz"})
"""What is answered whatever the host is called: who asks whether a broker lives often knows no name of it."""
_HOST: Final = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{0,5})?")
_OWN_SITE: Final = (b"", b"same-origin", b"none")
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1000}")
_SHOWN: Final = 100
"""Bytes of a wrong value that are repeated in a message."""


class Access:
    """Of one door. `own` are names under which it is known; `hosts` and `origins` are what the operator allows."""

    def __init__(self, *, own: Iterable[str] = (), hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = {_LOCAL, *(name.lower() for name in (*own, *hosts))}
        self._domains = tuple(name for name in (f".{_LOCAL}", *self._hosts) if name.startswith("."))
        self._origins = frozenset(origin.lower() for origin in origins)
        self._good: set[bytes] = set()
        """Hosts that were allowed lately."""

    def check(self, head: Head) -> None:
        """Raises what the request is refused with."""
        if head.path.removeprefix(b"/v1") not in _WHOEVER:
            for host in (head.fields.get(b"host"), head.authority):
                if host and host not in self._good:
                    self._check_host(host)
        origin, site = head.fields.get(b"origin"), head.fields.get(b"sec-fetch-site", b"")
        if origin is not None:
            if not (self._allows(origin) or _is_own(origin, head)):
                raise Forbidden(
                    f"web pages of {_shown(origin)} may not use this broker; if they should, add that to the setting "
                    "http.allowedOrigins"
                )
        elif site.lower() not in _OWN_SITE:
            raise Forbidden(
                "a web page of another site may not use this broker; if it should, add its origin to the setting "
                "http.allowedOrigins, and let it use fetch with CORS"
            )

    def is_preflight(self, head: Head) -> bool:
        """Whether a browser asks if a page may send a request of some kind."""
        return head.method == "OPTIONS" and b"origin" in head.fields and b"access-control-request-method" in head.fields

    def grant(self, head: Head) -> bytes:
        """Header lines that let a page of an allowed origin see the answer; none for everybody else."""
        origin = head.fields.get(b"origin")
        if origin is None:
            return b"vary: origin\r\n" if self._origins else b""
        if not self._allows(origin):
            return b""
        lines = b"access-control-allow-origin: %s\r\naccess-control-expose-headers: retry-after\r\nvary: origin\r\n"
        return lines % origin

    def grant_request(self, head: Head) -> bytes:
        """Header lines for the answer to a preflight, beside those of `grant`: whatever is asked for."""
        asked = head.fields.get(b"access-control-request-headers", b"")
        lines = [b"access-control-allow-methods: GET, POST, PUT, PATCH, DELETE", b"access-control-max-age: 600"]
        if _HEADER_NAMES.fullmatch(asked):
            lines.append(b"access-control-allow-headers: " + asked)
        if head.fields.get(b"access-control-request-private-network") == b"true":
            lines.append(b"access-control-allow-private-network: true")
        return b"".join(line + b"\r\n" for line in lines)

    def _allows(self, origin: bytes) -> bool:
        return ANY in self._origins or origin.decode("latin-1").lower() in self._origins

    def _check_host(self, host: bytes) -> None:
        found = _HOST.fullmatch(host.decode("latin-1").lower())
        if found is None:
            raise InvalidRequest(f"the Host {_shown(host)} is not a host, or a host and a port")
        if not self._knows(found["host"].removesuffix(".")):
            raise Forbidden(
                f"this broker is not known as {_shown(host)}; if it should be, add that name to the setting "
                "http.allowedHosts"
            )
        if len(self._good) >= limits.REMEMBERED_HOSTS:
            self._good.clear()
        self._good.add(host)

    def _knows(self, name: str) -> bool:
        if ANY in self._hosts or name in self._hosts or name.endswith(self._domains):
            return True
        if any(name == domain[1:] for domain in self._domains):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def own_names(bound: str, *, is_local: bool, machine: str) -> tuple[str, ...]:
    """Names under which a door is known: the host it was bound to, and the machine's unless only that gets there."""
    names = (bound,) if is_local else (bound, machine, machine.partition(".")[0])
    return tuple(dict.fromkeys(name for name in names if name))


def _is_own(origin: bytes, head: Head) -> bool:
    """Whether the page came from where its request goes."""
    _, separator, host = origin.lower().partition(b"://")
    return bool(separator) and host == (head.authority or head.fields.get(b"host", b"")).lower() != b""


def _shown(value: bytes) -> str:
    return repr(value[:_SHOWN].decode("latin-1"))
