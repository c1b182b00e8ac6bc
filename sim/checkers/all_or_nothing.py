"""What can be seen of a transaction is all of what was acknowledged in it, or nothing: in all partitions, for ever.

Whoever was told that it is committed, or aborted, was told the truth. Acks that were pledged to it count if it is
committed; else the messages are nobody's, and are tried again.
"""

from collections.abc import Sequence

from goqueue.broker.partition import Partition
from goqueue.transactions.records import Participant
from sim.checkers import Violation, require
from sim.checkers.sighted import Sighted
from sim.rooms.deeds import Ack, Deed, Deeds

RULE = "all or nothing"


def check(
    deeds: Deeds, ended: dict[int, bool], sights: Sequence[Sighted], partitions: dict[Participant, Partition]
) -> None:
    """Between two steps, once a broker has started. `ended`: those everybody has heard of, and how they ended."""
    for seen in sights:
        check_outcomes(deeds, seen.outcomes, seen.part)
    check_outcomes(deeds, ended)
    _check_told(deeds, sights)
    committed = {seen.value(offset) for seen in sights for offsets in seen.committed.values() for offset in offsets}
    half = {number for seen in sights for number in seen.open}
    for deed in deeds.by_number.values():
        if deed.shown:
            missing = deed.written - committed - deeds.cleaned
            if missing or deed.number in half:
                raise Violation(RULE, f"transaction {deed.number} is committed without {sorted(missing)}, or open too")
    strangers = {value for value in committed if not _may_be_in(deeds, value)}
    require(not strangers, RULE, f"{sorted(strangers)} are committed in transactions they were not sent in")
    _check_acks(deeds, sights, partitions)


def check_outcomes(deeds: Deeds, outcomes: dict[int, bool], where: object = "the coordinator") -> None:
    """By transaction, whether it is committed."""
    for number, outcome in outcomes.items():
        deed = deeds.by_number.get(number)
        if deed is None:  # it was begun, and nobody was told
            require(not outcome, RULE, f"transaction {number} is committed in {where}, and nobody knows it")
            continue
        if deed.shown is None:
            deed.shown = outcome
        elif deed.shown != outcome:
            raise Violation(RULE, f"transaction {number}: committed in {where} is {outcome}, and was {deed.shown}")


def _check_told(deeds: Deeds, sights: Sequence[Sighted]) -> None:
    for deed in deeds.by_number.values():
        if deed.told is not None:
            wrong = deed.shown is not None and deed.shown != deed.told
            require(not wrong, RULE, f"transaction {deed.number}: told {deed.told}, and it is {deed.shown}")
            if deed.told and not any(deed.number in seen.committed for seen in sights):
                left = deed.written - deeds.cleaned
                require(not left, RULE, f"transaction {deed.number} was told to be committed; {sorted(left)} are not")


def _may_be_in(deeds: Deeds, value: int) -> bool:
    deed = deeds.by_number.get(deeds.messages[value].number)
    return deed is not None and (value in deed.written or value in deed.unsure)


def _check_acks(deeds: Deeds, sights: Sequence[Sighted], partitions: dict[Participant, Partition]) -> None:
    for seen in sights:
        partition = partitions[seen.part]
        if partition.sidecar is None:
            continue
        deliveries = partition.deliveries
        pledged = deliveries.pledged_to
        ended = {number for number in pledged if (deed := deeds.by_number.get(number)) and deed.shown is not None}
        require(not ended, RULE, f"acks are pledged in {seen.part} to {ended}, which have ended")
        hidden = seen.hidden
        for group in deliveries.groups:
            settled = deliveries.delivery(group).settled
            for offset in seen.records:
                if offset in hidden or not (offset < settled.low or offset in settled.above):
                    continue
                ack = Ack(group, seen.part, seen.value(offset))
                if not deeds.counts(ack):
                    raise Violation(RULE, f"group {group} is done with {ack}, and never said so")
        for deed in deeds.by_number.values():
            if deed.shown and deed.acks:
                _check_counted(deed, seen, partition)


def _check_counted(deed: Deed, seen: Sighted, partition: Partition) -> None:
    offsets = {seen.value(offset): offset for offset in seen.records}
    for group, part, value in deed.acks:
        if part == seen.part and value in offsets:
            settled = partition.deliveries.delivery(group).settled
            offset = offsets[value]
            done = offset < settled.low or offset in settled.above
            require(done, RULE, f"transaction {deed.number} is committed, and its ack of {value} does not count")


def check_delivery(deeds: Deeds, ack: Ack, told: int) -> None:
    """A group is delivered a message, which was delivered so often before, as it is told."""
    number = deeds.messages[ack.value].number
    if number:
        deed = deeds.by_number.get(number)
        require(deed is not None and deed.shown is True, RULE, f"{ack} is delivered, and {number} is not committed")
    require(ack not in deeds.kept, RULE, f"{ack} was acknowledged, and is delivered again")
    for deed in deeds.by_number.values():
        if deed.shown is True and ack in deed.acks:
            raise Violation(RULE, f"{ack} was acknowledged in transaction {deed.number}, and is delivered again")
    before = deeds.leases[ack.group, ack.value]
    if ack.value not in deeds.fuzzy:
        require(told == before, RULE, f"{ack} was delivered {before} times before, not {told}")
