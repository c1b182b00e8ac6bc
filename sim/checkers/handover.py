"""Revoke before assign: a member loses a partition only when it gave it up, went, was silent, was replaced, or did not
want it any more, or when its time to give it up was over; and in no other way does anybody else get it. Its owner's
epoch is renewed when offsets get another meaning."""

from typing import Any

from goqueue.groups.commands import Join, Leave, Release, Renew
from goqueue.machine.shape import Tick
from sim.checkers import require
from sim.rooms.tenures import Key, Standing, Tenure, Tenures

RULE = "handover"


def check(tenures: Tenures, after: Standing, command: Any, now: int) -> None:
    """`after` is what the command has led to."""
    for key, tenure in tenures.standing.tenures.items():
        if after.tenures.get(key) != tenure:
            require(
                _is_over(tenures, key, tenure, command, now),
                RULE,
                f"{key} was {tenure}, is {after.tenures.get(key)}: it was not given up ({command})",
            )


def _is_over(tenures: Tenures, key: Key, tenure: Tenure, command: Any, now: int) -> bool:
    group, part = key
    member = tenures.standing.members[group, tenure.member_id]
    if tenures.standing.topics[key] not in member.topics:
        return True  # it said so before, and a crash took the rest of that decision
    if isinstance(command, Tick):
        silent = tenures.seen[group, tenure.member_id] + member.session_ms <= now
        late = key in tenures.standing.revoking and tenures.revoked[key] + member.rebalance_ms <= now
        return silent or late
    if tenures.standing.names.get(getattr(command, "group", "")) != group:
        return False
    match command:
        case Release(member_id=member_id, parts=parts):
            return member_id == tenure.member_id and part in parts and key in tenures.standing.revoking
        case Renew(parts=parts):
            return part in parts  # it stays its owner's
        case Leave(member_id=member_id):
            return member_id == tenure.member_id
        case Join(member_id=None, instance_id=instance_id):
            return instance_id is not None and instance_id == member.instance_id
        case Join(member_id=member_id, topics=topics):
            return member_id == tenure.member_id and tenures.standing.topics[key] not in topics
    return False
