"""A partition has one owner at a time, and one per assignment epoch for ever, also over crashes."""

from goqueue.groups.groups import Groups
from sim.checkers import require
from sim.rooms.tenures import Key, Tenure, Tenures

RULE = "one owner"


def check(groups: Groups) -> None:
    """What each member owns, and who owns each partition, say the same."""
    for group in groups.by_number.values():
        by_member = [(part, member) for member in group.members.values() for part in member.parts]
        by_part = sum(1 for each in group.ownerships.values() for owner in each.owners if owner is not None)
        names = [(member.member_id, *part) for part, member in by_member]
        require(len({part for part, _ in by_member}) == len(by_member), RULE, f"a partition is twice in {names}")
        require(len(by_member) == by_part, RULE, f"{by_part} partitions are owned, members own {len(by_member)}")
        for part, member in by_member:
            require(group.owner(part) is member, RULE, f"{member.member_id} owns {part}, its owner is another")


def confirm(tenures: Tenures, durable: int) -> None:
    """What has become durable stays: no epoch gets another owner, and none goes back."""
    for key, tenure in tenures.confirm(durable):
        check_told(tenures, key, tenure)
        newest = tenures.newest.get(key, 0)
        require(tenure.epoch >= newest, RULE, f"{key} is in epoch {tenure.epoch}, it was in {newest}")


def check_told(tenures: Tenures, key: Key, tenure: Tenure) -> None:
    owner = tenures.durable.get((key, tenure.epoch), tenure.member_id)
    require(
        owner == tenure.member_id,
        RULE,
        f"{key} is {tenure.member_id}'s in epoch {tenure.epoch}, which was {owner}'s",
    )


def check_served(tenures: Tenures, key: Key, tenure: Tenure) -> None:
    """Nobody is told of a partition, or leased from it, before it is durably its own."""
    owner = tenures.durable.get((key, tenure.epoch))
    require(owner == tenure.member_id, RULE, f"{tenure} of {key} is used before it is durable (owner then: {owner})")
