"""What is damaged, as it is told: to the log once for each range, and to one member of every group that passes over it.

Nothing of this is written down: after a restart a range is said again when somebody meets it.
"""

from typing import Final

from goqueue.broker.partition import Partition
from goqueue.groups.group import DamagedRange, Group, Member
from goqueue.model import limits
from goqueue.model.errors import Quarantined
from goqueue.telemetry import logs

log = logs.get("damage")

_MOST_REASON: Final = 200


def meet(partition: Partition, damage: Quarantined) -> None:
    """Somebody read there. What was found when the partition was opened was said then."""
    met = partition.met_damage
    place = damage.first, damage.next_offset
    if place in met or len(met) >= limits.DAMAGE_REMEMBERED:
        return
    met.add(place)
    known = {(found.damage.first, found.damage.next_offset) for found in partition.log.recovery.quarantined}
    if place not in known:
        topic = partition.topic.name
        log.error("messages are damaged", topic=topic, partition=partition.number, reason=str(damage))


def pass_over(group: Group, partition: Partition, damage: Quarantined) -> None:
    """The group goes on behind it."""
    meet(partition, damage)
    place = partition.topic.topic_id, partition.number, damage.first, damage.next_offset
    if place in group.met_damage:
        return
    group.met_damage[place] = None
    if len(group.met_damage) > limits.DAMAGE_REMEMBERED:
        del group.met_damage[next(iter(group.met_damage))]
    log.error("a group passes over damaged messages", group=group.name, log=partition.log_name, found=str(damage))
    if len(group.damage) < limits.DAMAGE_TOLD:
        topic, reason = partition.topic.name, damage.reason[:_MOST_REASON]
        group.damage.append(DamagedRange(topic, partition.number, damage.first, damage.next_offset, reason))


def tell(group: Group, member: Member, number: int) -> None:
    """The member is told with the answer to this poll; once more if that does not arrive. When it goes before it says
    that it heard, the next member is told."""
    if group.damage:
        member.damage = (*member.damage, *group.damage)
        member.version += 1
        member.damage_told_at = number
        group.damage = []
