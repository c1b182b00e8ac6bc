"""What a message has beside its value, as options."""

from typing import Annotated, Final

from goqueue.cli.remote.names import option
from goqueue.cli.remote.typed import typed_duration
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Lane

Key = Annotated[str | None, option("--key -k", "KEY", "Its key: one key, one partition.")]
Headers = Annotated[list[str] | None, option("--header -H", "NAME=VALUE", "A header; may be given again.")]
Priority = Annotated[
    str | None, option("--priority", "LANE", "critical, high, normal, low or background, or 0 to 4 (normal).")
]
Partition = Annotated[int | None, option("--partition", "NUMBER", "Into this partition, whatever its key.")]
Ttl = Annotated[str | None, option("--ttl", "DURATION", "Do not deliver it later than so long after it is due.")]
_LANES: Final = {typed: lane.name.lower() for lane in Lane for typed in (lane.name.lower(), str(int(lane)))}


def header_pairs(typed: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for header in typed or []:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"--header is {header!r}; write NAME=VALUE")
        pairs.append((name, value))
    return pairs


def lane_name(typed: str) -> str:
    """The lane's name; what is none is refused here, before anything is sent."""
    if typed not in _LANES:
        raise InvalidRequest(f"--priority is {typed!r}; it is critical, high, normal, low or background, or 0 to 4")
    return _LANES[typed]


def ttl_ms(typed: str) -> int:
    """Milliseconds: some, or nothing would ever be delivered."""
    return typed_duration("--ttl", typed, least_ms=limits.MIN_TTL_MS)
