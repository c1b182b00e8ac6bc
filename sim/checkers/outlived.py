"""No transaction outlives its timeout by more than ten seconds in which a broker runs; in any partition."""

from typing import Final

from sim.checkers import require
from sim.rooms.deeds import Deed

RULE = "outlived"
GRACE_MS: Final = 10_000


def check(deed: Deed, uptime: int) -> None:
    """Of one that is open somewhere. In each life it may be as long, if nobody knows how long it was open before."""
    since = deed.lives_at if deed.stepped else deed.began
    over = uptime - since - deed.timeout_ms
    require(over <= GRACE_MS, RULE, f"transaction {deed.number} is open {over} ms after its timeout")
