"""In the end everything that survived was delivered and settled, or is a dead letter, and every partition has an owner
who may keep it."""

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.checkers.delivered import Shown, Sight
from sim.rooms.ledger import Ledger
from sim.rooms.tenures import Tenures

RULE = "drained"


def check(ledger: Ledger, group: GroupNumber, part: Part, shown: Shown | None) -> None:
    account = ledger.accounts[group, part]
    cancelled = ledger.postponed[part].cancelled
    for offset, value in ledger.contents[part].values.items():
        where = f"message {value}, offset {offset} of {part},"
        if value in cancelled:
            continue
        if value not in account.passed and value not in account.ended:
            require(value in ledger.received[group], RULE, f"{where} never came to group {group}: {shown}")
        settled = shown is not None and shown.is_settled(offset)
        require(settled, RULE, f"{where} is not settled by {group}: {shown}")


def check_letters(part: Part, sight: Sight) -> None:
    require(not sight.deaths, RULE, f"dead letters of {part} are not written: {sight.deaths}")


def check_owned(tenures: Tenures, group: GroupNumber, part: Part) -> None:
    standing = tenures.standing
    require((group, part) in standing.tenures, RULE, f"nobody of group {group} owns {part}")
    require((group, part) not in standing.revoking, RULE, f"{part} is still on its way in group {group}")
