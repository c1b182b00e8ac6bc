"""Dead letters are written exactly once: the log of them is what died, in order, without gaps and doubles; and no
message counts as buried before its letter is written."""

from collections.abc import Sequence

from goqueue.groups.group import Part
from goqueue.model.dead_letters import unpack_dead_letter
from goqueue.model.record import Record
from sim.checkers import require
from sim.checkers.delivered import Sight
from sim.rooms.ledger import Intent, Ledger

RULE = "letters"


def check_outbox(ledger: Ledger, part: Part, sight: Sight, *, durable: int | None) -> None:
    """What is to be written is known; after a power cut, if it was durable."""
    letters = ledger.letters[part]
    intents = intended(ledger, part)
    lasting = sum(1 for intent in letters.intents if durable is None or intent.position <= durable)
    require(
        lasting <= sight.next_letter <= len(intents),
        RULE,
        f"the next letter of {part} is number {sight.next_letter}; {lasting} died for sure, {len(intents)} in all",
    )
    least = letters.buried if durable is None else 0
    most = _being_buried(ledger, part)
    require(
        least <= sight.first_letter <= most,
        RULE,
        f"letters of {part} below {sight.first_letter} are written, and should be those below {least} or {most}",
    )
    for number, death in enumerate(sight.deaths, sight.first_letter):
        found, right = (death.group, death.offset, death.deliveries), intents[number]
        require(
            found == (right.group, right.offset, right.deliveries),
            RULE,
            f"letter {number} of {part} is to be {death}, and should be {right}",
        )


def intended(ledger: Ledger, part: Part) -> list[Intent]:
    """All that died, also what is in doubt."""
    doubt = ledger.doubts.get(part)
    more = ledger.intents(part, doubt.command, doubt.effects, 0) if doubt is not None else []
    return [*ledger.letters[part].intents, *more]


def _being_buried(ledger: Ledger, part: Part) -> int:
    doubt = ledger.doubts.get(part)
    return max(ledger.letters[part].buried, getattr(doubt.command, "below", 0) if doubt is not None else 0)


def check_log(ledger: Ledger, part: Part, written: Sequence[Record], first_letter: int) -> None:
    """`written` is all that lies in the log of dead letters."""
    intents = intended(ledger, part)
    require(len(written) >= first_letter, RULE, f"{first_letter} are buried in {part}, {len(written)} letters written")
    require(len(written) <= len(intents), RULE, f"{part} has {len(written)} letters, and {len(intents)} died")
    for number, (record, intent) in enumerate(zip(written, intents, strict=False)):
        blob = record.extension.blob if record.extension is not None else None
        letter = unpack_dead_letter(blob) if blob is not None else None
        if letter is None:
            lost = intent.value is None or intent.value in ledger.missing
            require(record.control and lost, RULE, f"letter {number} of {part} is {record}, and should be {intent}")
            continue
        right = (intent.group, intent.offset, intent.value)
        found = (letter.group_number, letter.offset, int(record.value or b"0"))
        require(found == right, RULE, f"letter {number} of {part} is {found}, and should be {right}")
