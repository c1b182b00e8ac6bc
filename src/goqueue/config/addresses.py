"""Where a door listens, as an operator writes it. Knows nothing of sockets: a name is never looked up here."""

import ipaddress
import re
from typing import Final

import msgspec

CLOSED: Final = "off"
"""Instead of an address: the door stays closed. An empty text means the same."""
LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"
_WIDEST: Final = (EVERYWHERE, "::")
_MAX_PORT: Final = 0xFFFF
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]*)):(?P<port>[0-9]{1,5})")
_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*")
_NUMBERS: Final = re.compile(r"[0-9.]+")


class Address(msgspec.Struct, frozen=True):
    """A host and a port. An empty host is one nobody named; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it; of a name other than localhost that is not believed."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def collides(self, other: "Address") -> bool:
        """Whether both cannot be open at once; of names only the same one is seen to be the same."""
        hosts = {self.host, other.host}
        same_family = (":" in self.host) == (":" in other.host)
        return self.port == other.port != 0 and same_family and (len(hosts) == 1 or not hosts.isdisjoint(_WIDEST))


def parse_address(text: str) -> Address | None:
    """None for a closed door; ValueError for what is no address."""
    if text.lower() in ("", CLOSED):
        return None
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise ValueError(text)
    if found["six"]:
        return Address(str(ipaddress.IPv6Address(found["six"])), int(found["port"]))
    host = found["host"]
    if _NUMBERS.fullmatch(host):
        host = str(ipaddress.IPv4Address(host))
    elif host and not _NAME.fullmatch(host):
        raise ValueError(text)
    return Address(host, int(found["port"]))
