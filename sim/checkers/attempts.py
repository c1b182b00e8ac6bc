"""Deliveries are counted: one more each time one failed, never more than the topic allows. A kill changes no count;
a power cut may take some away."""

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown
from sim.rooms.ledger import Ledger

RULE = "attempts"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None, *, exact: bool) -> None:
    """`exact`: while a broker lives, and after it was killed. Else a lease may have failed by the fence."""
    account, possible = ledger.accounts[group, part], ledger.possible(group, part)
    tries = shown.tries if shown is not None else {}
    for offset, value in ledger.contents[part].values.items():
        found = tries.get(offset, (0, 0))[0]
        may = {places.count(offset) for places in possible}
        right = found in may if exact else found <= account.failed.get(value, 0) + 1
        require(right, RULE, f"message {value}, offset {offset} of {part}, failed {found} times for {group}, not {may}")


def check_delivery(ledger: Ledger, group: GroupNumber, part: Part, offset: int, *, told: int, max_retries: int) -> None:
    """It is about to be delivered; its consumer will hear that this is the `told`-th time."""
    places = ledger.accounts[group, part].places
    where = f"delivery {told} of offset {offset} of {part} to group {group}"
    count = places.count(offset)
    require(told == count + 1, RULE, f"{where}: it failed {count} times")
    require(told <= max_retries + 1, RULE, f"{where}: there are {max_retries} retries")
