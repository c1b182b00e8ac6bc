"""What is delayed is still there when it is due, however old it is: also if it was moved to another time."""

from collections.abc import Collection

from goqueue.groups.group import Part
from sim.checkers import require
from sim.rooms.ledger import Ledger

RULE = "survivors"


def check(ledger: Ledger, part: Part, left: Collection[int], *, wall: int) -> None:
    """Retention has `left` these offsets."""
    postponed = ledger.postponed[part]
    for offset, value in ledger.contents[part].values.items():
        if offset not in left and value not in postponed.cancelled:
            due = postponed.times(value, ledger.messages[value])
            late = all(time <= wall for time in due)
            require(late, RULE, f"message {value}, offset {offset} of {part}, is gone at {wall}, and was due at {due}")
