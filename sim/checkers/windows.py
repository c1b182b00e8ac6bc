"""Time that was up is up: nobody holds on to what it was to give up, or stays without being heard of, past its time."""

from goqueue.groups.groups import Groups
from sim.checkers import require
from sim.rooms.tenures import Tenures

RULE = "windows"


def check(tenures: Tenures, groups: Groups, now: int) -> None:
    """After everything that was due by `now` was done."""
    standing = tenures.standing
    for key in standing.revoking:
        tenure = standing.tenures[key]
        until = tenures.revoked[key] + standing.members[key[0], tenure.member_id].rebalance_ms
        require(now < until, RULE, f"{key} was to be given up by {tenure.member_id} until {until}, it is {now}")
    for (group, member_id), joined in standing.members.items():
        until = tenures.seen[group, member_id] + joined.session_ms
        parked = groups.by_number[group].members[member_id].parked
        require(parked > 0 or now < until, RULE, f"{member_id}'s session ended at {until}, it is {now}")
