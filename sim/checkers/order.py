"""In key mode a key is with one consumer at a time, in order; only delayed messages come in when they are due. In
partition mode messages that are new come in their lane's order."""

from collections.abc import Collection

from goqueue.groups.group import Part
from goqueue.model.names import GroupNumber
from sim.checkers import require
from sim.rooms.ledger import Ledger

RULE = "order"


def check_keys(ledger: Ledger, group: GroupNumber, part: Part, offsets: Collection[int]) -> None:
    """These are about to be leased, in key mode."""
    content, messages = ledger.contents[part], ledger.messages
    account, postponed = ledger.accounts[group, part], ledger.postponed[part]
    places = account.places
    for offset in offsets:
        key = messages[content.values[offset]].key if offset in content.values else None
        if key is None:
            continue
        for other, value in content.values.items():
            message = messages[value]
            if message.key != key or other == offset:
                continue
            is_gone = value in postponed.cancelled and other not in places.held  # delivered before a clock went back
            require(
                other not in offsets and (is_gone or not places.is_under_way(other)),
                RULE,
                f"offset {offset} of {part} is delivered to group {group} while {other} of the same key is under way",
            )
            passed = other > offset or other in places.done | places.dead or message.deliver_at is not None
            require(
                passed or value in postponed.cancelled,
                RULE,
                f"offset {offset} of {part} is delivered to group {group} before {other} of the same key",
            )


def check_lanes(ledger: Ledger, group: GroupNumber, part: Part, offsets: Collection[int]) -> None:
    """These are about to be leased, in partition mode."""
    content, messages = ledger.contents[part], ledger.messages
    account = ledger.accounts[group, part]
    for offset in offsets:
        value = content.values.get(offset)
        if value is None or value in account.leased or messages[value].deliver_at is not None:
            continue
        for other, older in content.values.items():
            message = messages[older]
            begun = older in account.leased or other in account.places.done or other in account.places.dead
            fresh = not begun and message.deliver_at is None
            require(
                other >= offset or other in offsets or message.lane != messages[value].lane or not fresh,
                RULE,
                f"offset {offset} of {part} is delivered to group {group} before {other} of the same lane",
            )
