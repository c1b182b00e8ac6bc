"""The client over brokers that are killed: a few kills in the suite, many on request; and broken clients, which the rig
must catch. What it may demand is tested on made-up histories."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from goqueue.client.connection import Connection
from goqueue.client.line import Line
from goqueue.client.settling import SettleQueue
from goqueue.model.errors import GoQueueError, Unavailable
from goqueue.model.publishing import Durability
from goqueue.wire.blocks import PublishReply, Range
from goqueue.wire.settles import Action
from tests.chaos.client_kill import kill_under_load, runs
from tests.chaos.client_ledger import (
    Decision,
    DeliveredAgain,
    Delivery,
    Duplicated,
    Found,
    Ledger,
    Miscounted,
    Mode,
    Name,
    OutOfOrder,
    Place,
    Publisher,
    Raised,
    Stuck,
)
from tests.chaos.ledger import Lost, Phantom, Violation


def any_seed() -> int:
    return int.from_bytes(os.urandom(3), "big")


def test_programs_that_use_the_client_do_not_notice_that_the_broker_is_killed(tmp_path: Path) -> None:
    outcome = kill_under_load(tmp_path, 3, seed=any_seed())
    assert len(outcome.kills) == 3
    assert any(kill.in_doubt for kill in outcome.kills), "nothing was under way: little is shown"
    late = {group.name: group.late for group in outcome.ledger.groups.values() if group.mode is not Mode.KEY}
    assert all(late.values()), f"no handle outlived its broker: {late}"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_programs_do_not_notice_twenty_kills(tmp_path: Path) -> None:
    for number, (cycles, fsync) in enumerate(runs(20)):
        directory = tmp_path / str(number)
        directory.mkdir()
        outcome = kill_under_load(directory, cycles, seed=any_seed(), fsync=fsync)
        assert outcome.ledger.repeated, "no answer was lost"


# ---------------------------------------------------------------- broken clients

STUCK_S = 60.0
"""After which a broken client is taken for stuck. One that works is given all the time there is."""


def number_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had no answer is sent again as if it had never been sent: under a new sequence."""
    settle = Line.settle

    def planted(line: Line) -> None:
        settle(line)
        for block in line.waiting:
            block.sequence, block.in_doubt = None, False
        if line.identity is not None:
            line.former, line.identity = line.identity, None
        line._next_sequence = 0

    monkeypatch.setattr(Line, "settle", planted)


def take_silence_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was under way when the connection was lost is dropped, and said to be there."""
    settle = Line.settle

    def planted(line: Line) -> None:
        for block in line.under_way:
            block.succeed(PublishReply(Durability.WRITTEN, (Range(block.count, 1 << 40, 0, False),)))
        settle(line)

    monkeypatch.setattr(Line, "settle", planted)


def give_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had no answer fails."""
    settle = Line.settle

    def planted(line: Line) -> None:
        for block in line.under_way:
            if isinstance(block.answer, GoQueueError):
                block.fail(block.answer)
        settle(line)

    monkeypatch.setattr(Line, "settle", planted)


def forget_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks that wait while there is no connection are dropped when there is one again, and taken for done."""
    send = SettleQueue._send
    used: dict[SettleQueue, Connection] = {}

    async def planted(queue: SettleQueue, action: Action, *rest: Any) -> Any:
        if action is not Action.ACK:
            return await send(queue, action, *rest)
        try:
            connection = await queue._link.get()
        except GoQueueError:
            return []
        before = used.setdefault(queue, connection)
        used[queue] = connection
        return await send(queue, action, *rest) if before is connection else []

    monkeypatch.setattr(SettleQueue, "_send", planted)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (number_again, (Duplicated,)),
        (take_silence_for_an_answer, (Lost, OutOfOrder)),  # whoever sees the gap first
        (give_up_at_once, (Raised,)),
        (forget_decisions, (Stuck, DeliveredAgain)),
    ],
)
def test_a_broken_client_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    found: tuple[type[Violation], ...],
) -> None:
    plant(monkeypatch)
    with pytest.raises(found):
        kill_under_load(tmp_path, 1, seed=any_seed(), certain=True, patience_s=STUCK_S)


# ---------------------------------------------------------------- made-up histories

A0, A1, A2 = (Name(b"a", number) for number in range(3))


def at(*names: Name) -> list[Found]:
    """A log of one partition."""
    return [(Place(0, offset), name.key, name.value) for offset, name in enumerate(names)]


def published(*names: Name) -> Ledger:
    """All of them acknowledged, in this order."""
    ledger = Ledger()
    publisher = Publisher(ledger)
    for offset, name in enumerate(names):
        publisher.offer(name)
        publisher.has_receipt(name, Place(0, offset), duplicate=False)
    return ledger


def consumed(mode: Mode, deliveries: Iterable[tuple[Name, int, Decision]], *names: Name) -> tuple[Ledger, list[Found]]:
    """Published as named, then delivered so: with which count, and what was decided."""
    ledger = published(*names)
    group = ledger.group("group", mode)
    for name, count, decision in deliveries:
        group.receive(Delivery(name, Place(0, names.index(name)), count))
        if decision is not Decision.HELD:
            group.decide(name, decision)
    return ledger, at(*names)


def test_what_is_as_it_should_be_passes() -> None:
    acked, nacked = Decision.ACKED, Decision.NACKED
    ledger, log = consumed(Mode.KEY, [(A0, 1, nacked), (A0, 2, acked), (A1, 1, acked)], A0, A1)
    ledger.check(log)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (at(A0, A1, A1), Duplicated),
        (at(A1, A0), OutOfOrder),
        ([*at(A0), (Place(1, 0), b"a", A1.value)], OutOfOrder),
        (at(A0), Lost),
        (at(A0, A1, A2), Phantom),
        ([(Place(0, 0), b"a", A0.value), (Place(0, 1), b"b", A1.value)], Phantom),
        ([(Place(0, 0), b"a", A0.value), (Place(0, 1), b"a", None)], Phantom),
        ([(Place(0, 0), b"a", A0.value), (Place(0, 2), b"a", A1.value)], Lost),
    ],
    ids=["twice", "turned round", "two partitions", "gone", "unpublished", "wrong key", "wrong value", "wrong place"],
)
def test_a_log_that_is_wrong_is_found_out(log: list[Found], found: type[Violation]) -> None:
    with pytest.raises(found):
        published(A0, A1).check(log)


def test_what_is_there_and_was_never_acknowledged_is_found_out() -> None:
    ledger = published(A0)
    Publisher(ledger).offer(A1)
    with pytest.raises(Violation, match="without anybody being told"):
        ledger.check(at(A0, A1))


def test_outcomes_of_batches_are_those_of_the_messages_in_line() -> None:
    ledger = Ledger()
    publisher = Publisher(ledger)
    for name in (A0, A1, A2):
        publisher.offer(name, 0)
    publisher.has_outcome(0, 0, 2)
    assert publisher.waiting == ledger.in_doubt == 1
    with pytest.raises(Violation):
        publisher.has_outcome(0, 2, 2)
    publisher.has_outcome(0, 2, 1)
    ledger.check(at(A0, A1, A2))


@pytest.mark.parametrize(
    ("mode", "deliveries", "found"),
    [
        (Mode.SHARED, [(A0, 1, Decision.ACKED), (A0, 2, Decision.ACKED)], DeliveredAgain),
        (Mode.SHARED, [(A0, 1, Decision.HELD), (A0, 2, Decision.ACKED)], DeliveredAgain),
        (Mode.SHARED, [(A0, 2, Decision.ACKED), (A1, 1, Decision.ACKED)], Miscounted),
        (Mode.SHARED, [(A0, 1, Decision.NACKED), (A0, 1, Decision.ACKED)], Miscounted),
        (Mode.SHARED, [(A0, 1, Decision.ACKED)], Stuck),
        (Mode.SHARED, [(A0, 1, Decision.ACKED), (A1, 1, Decision.NACKED)], Stuck),
        (Mode.PARTITION, [(A1, 1, Decision.ACKED), (A0, 1, Decision.ACKED)], OutOfOrder),
        (Mode.KEY, [(A0, 1, Decision.NACKED), (A1, 1, Decision.ACKED)], OutOfOrder),
    ],
    ids=["acked", "held", "counted too high", "not counted", "missed", "left", "turned round", "side by side"],
)
def test_deliveries_that_are_wrong_are_found_out(
    mode: Mode, deliveries: list[tuple[Name, int, Decision]], found: type[Violation]
) -> None:
    ledger, log = consumed(mode, deliveries, A0, A1)
    with pytest.raises(found):
        ledger.check(log)


def test_what_the_client_raises_is_found_out() -> None:
    ledger = published(A0)
    ledger.hear_of("send", Unavailable("it is away"))
    with pytest.raises(Raised, match="it is away"):
        ledger.check(at(A0))
