"""After a kill it is still known of every message whether it is settled, waits to be tried again, or is dead."""

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger

RULE = "remembered"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None, *, now: int) -> None:
    """While a broker lives, and after it was killed. `now` is the time of the clock that never steps."""
    shown = shown or Shown(0)
    possible = ledger.possible(group, part)
    content, cancelled = ledger.contents[part], ledger.postponed[part].cancelled
    for offset, value in content.values.items():
        where = f"message {value}, offset {offset} of {part}, for group {group}"
        if value not in cancelled:
            settled = shown.is_settled(offset)
            may = {offset in places.done for places in possible}
            require(settled in may, RULE, f"{where} is {'' if settled else 'not '}settled: {shown}")
        dead = offset in shown.dead
        require(dead in {offset in places.dead for places in possible}, RULE, f"{where} is dead: {dead} ({shown})")
        waits = [places.waiting.get(offset) for places in possible]
        found = shown.waiting.get(offset)
        if found is None:
            over = any(wait is None or wait.due <= now for wait in waits)
            require(over, RULE, f"{where} waits no more, it was to: {waits}")
        else:
            known = any(wait is not None and wait[:2] == found for wait in waits)
            require(known, RULE, f"{where} waits until {found}, it was {waits}")
