"""Nothing comes early: no delayed message before its time, no retry before its wait is over.

A delayed message is due when the wall says so and, while the process lives, as much time has passed as was left. What
a group was delivered before may come again although the wall's clock was set back since.
"""

from goqueue.delivery.commands import Move
from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Sight
from sim.rooms.ledger import Ledger
from sim.rooms.places import Moment

RULE = "early"


def check_delivery(ledger: Ledger, group: GroupNumber, part: Part, offset: int, at: Moment) -> None:
    account = ledger.accounts[group, part]
    wait = account.places.waiting.get(offset)
    require(
        wait is None or wait.due <= at.now,
        RULE,
        f"offset {offset} of {part} is tried again by group {group} at {at.now}, it was to be at {wait}",
    )
    for value in ledger.contents[part].find([offset]):
        right = value in account.leased or ledger.is_due(part, value, at)
        left = ledger.postponed[part].left.get(value)
        require(
            right, RULE, f"message {value}, offset {offset} of {part}, is delivered at {at}, and was to be in {left}"
        )


def check(ledger: Ledger, part: Part, sight: Sight, *, durable: int | None) -> None:
    """What was moved to another time stays so; after a power cut, if that was durable."""
    postponed, doubt = ledger.postponed[part], ledger.doubts.get(part)
    for offset, value in ledger.contents[part].values.items():
        times = postponed.times(value, ledger.messages[value], durable)
        if doubt is not None and isinstance(doubt.command, Move) and offset in doubt.command.offsets:
            times.append(doubt.command.deliver_at)
        if times and offset not in sight.cancelled:
            found = sight.moved.get(offset, ledger.messages[value].deliver_at)
            require(found in times, RULE, f"message {value}, offset {offset} of {part}, is due at {found}, not {times}")
