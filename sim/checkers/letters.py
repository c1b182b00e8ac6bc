"""Dead letters are written exactly once: the log of them is what died, in order, without gaps and doubles, but for
records that were damaged; and no message counts as buried before its letter is written."""

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


def check_log(ledger: Ledger, part: Part, written: Sequence[Record], first_letter: int, *, damaged: int = 0) -> None:
    """`written` is all that can be read in the log of dead letters; so many records more are damaged."""
    intents = intended(ledger, part)
    numbers = [_number(record) for record in written]
    require(numbers == sorted(set(numbers)), RULE, f"letters of {part} are not each there once, in order: {numbers}")
    end = max(first_letter, numbers[-1] + 1 if numbers else 0)
    missing = end - len(numbers)
    require(missing <= damaged, RULE, f"{first_letter} are buried in {part}, {len(written)} letters written: {numbers}")
    require(end <= len(intents), RULE, f"{part} has {end} letters, and {len(intents)} died")
    for number, record in zip(numbers, written, strict=True):
        intent = intents[number]
        blob = record.extension.blob if record.extension is not None else None
        letter = unpack_dead_letter(blob) if blob is not None else None
        if letter is None:
            lost = intent.value is None or intent.value in ledger.missing
            require(record.control and lost, RULE, f"letter {number} of {part} is {record}, and should be {intent}")
            continue
        right = (intent.group, intent.offset, intent.value)
        found = (letter.group_number, letter.offset, int(record.value or b"0"))
        require(found == right, RULE, f"letter {number} of {part} is {found}, and should be {right}")


def _number(record: Record) -> int:
    """Which letter it is: it was published under its number."""
    producer = None if record.extension is None else record.extension.producer
    require(producer is not None, RULE, f"{record} has no number")
    assert producer is not None
    return producer.sequence
