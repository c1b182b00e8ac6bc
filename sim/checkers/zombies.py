"""A commit for what was delivered in a tenure that is over is refused; one in a tenure that lasts is not."""

from sim.checkers import require
from sim.rooms.tenures import Key, Tenure, Tenures

RULE = "zombies"


def check(tenures: Tenures, key: Key, delivered: Tenure, *, fenced: bool, accepted: bool) -> None:
    """`delivered` is when the messages were delivered; `fenced` whether the commit says in which generation."""
    now = tenures.standing.tenures.get(key)
    if accepted:
        same = now == delivered if fenced else now is not None and now.member_id == delivered.member_id
        require(same, RULE, f"a commit of {delivered} was taken, {key} is {now}")
    else:
        require(now != delivered, RULE, f"a commit of {delivered} was refused, and {key} is still its")
