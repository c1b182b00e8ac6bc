"""The machine of redrives: how far each has come, and what another life knows of it."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from goqueue.jobs.redrive import Batch, Plan, Redrive, RedriveId
from goqueue.jobs.redrives import EndRedrive, IntendBatch, Redrives, StartRedrive
from goqueue.machine.shape import Machine
from goqueue.model import limits
from goqueue.model.errors import Conflict, DamagedData, UnknownRedrive
from goqueue.model.jobs import RedriveState
from goqueue.model.names import TopicId
from tests.unit.jobs.test_redrive_records import PLAN

NOW = 1_700_000_000_000


class Script:
    """One machine. Redrives are called "a", "b" and so on; all that matters is that they have different topics."""

    def __init__(self) -> None:
        self.now = NOW
        self.log: list[bytes] = []
        self.machine = Redrives()

    def run(self, command: Any) -> Any:
        before = list(self.machine.snapshot())
        try:
            decision = self.machine.decide(command, self.now)
        finally:
            assert list(self.machine.snapshot()) == before, "deciding changes nothing"
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(record)
        if decision.records:
            assert decision.reply == self.machine.by_id[decision.reply.redrive_id]
        return decision.reply

    def start(self, name: str = "a", *, dlq_id: int = 7, matched: int = 5) -> Redrive:
        redrive: Redrive = self.run(StartRedrive(plan(name, dlq_id=dlq_id, matched=matched)))
        return redrive

    def intend(self, *letters: tuple[int, int], partition: int = 0, name: str = "a", skipped: int = 0) -> Redrive:
        after = letters[-1][0] + 1
        batch = Batch(partition, letters)
        redrive: Redrive = self.run(
            IntendBatch(redrive_id=RedriveId(name), batch=batch, next_offset=after, skipped=skipped)
        )
        return redrive

    def end(self, state: RedriveState = RedriveState.DONE, name: str = "a", **fields: Any) -> Redrive:
        redrive: Redrive = self.run(EndRedrive(redrive_id=RedriveId(name), state=state, **fields))
        return redrive


@pytest.fixture
def script() -> Script:
    return Script()


def plan(name: str = "a", *, dlq_id: int = 7, matched: int = 5) -> Plan:
    return msgspec.structs.replace(PLAN, redrive_id=RedriveId(name), dlq_id=TopicId(dlq_id), matched=matched)


def revived(kept: Iterable[bytes]) -> Redrives:
    machine = Redrives()
    for offset, record in enumerate(kept):
        machine.apply(record, offset)
    return machine


def state(machine: Redrives) -> tuple[object, ...]:
    return machine.by_id, list(machine._ended), machine._running


def test_it_has_the_shape_of_a_machine_and_a_name_that_never_changes(script: Script) -> None:
    held: Machine = script.machine
    assert held.name == "redrives", "its records in every log are found by it"


def test_a_new_redrive_is_at_the_beginning(script: Script) -> None:
    found = script.start()
    assert (found.state, found.partition, found.offset, found.batch) == (RedriveState.RUNNING, 0, 0, None)
    assert (found.redriven, found.skipped, found.finished_ms, found.error) == (0, 0, None, None)
    assert script.machine.running == [found]


def test_a_batch_counts_when_the_next_one_is_intended(script: Script) -> None:
    script.start()
    found = script.intend((3, 0), (4, 0))
    assert (found.partition, found.offset, found.redriven, found.sequences) == (0, 5, 0, {})
    found = script.intend((6, 0), (8, 2), skipped=1)
    assert (found.offset, found.redriven, found.skipped, found.sequences) == (9, 2, 1, {0: 2})
    found = script.intend((1, 2), partition=2)
    assert (found.partition, found.offset, found.redriven, found.sequences) == (2, 2, 4, {0: 3, 2: 1})


def test_at_the_end_all_is_counted(script: Script) -> None:
    script.start(matched=4)
    script.intend((3, 0), (4, 0))
    script.intend((6, 0), skipped=1)
    script.now += 500
    found = script.end(redriven=1)
    assert (found.state, found.redriven, found.skipped) == (RedriveState.DONE, 3, 1)
    assert (found.finished_ms, found.batch) == (NOW + 500, None)
    assert script.machine.running == []


def test_what_was_there_at_the_start_and_is_gone_is_skipped(script: Script) -> None:
    script.start(matched=9)
    script.intend((3, 0), (4, 0))
    assert script.end(redriven=2).skipped == 7


def test_one_that_is_cancelled_or_fails_skips_nothing(script: Script) -> None:
    for name, ended in (("a", RedriveState.CANCELLED), ("b", RedriveState.FAILED)):
        script.start(name, matched=9)
        script.intend((3, 0), (4, 0), name=name)
        found = script.end(ended, name, redriven=1, error="why" * 1000)
        assert (found.state, found.redriven, found.skipped) == (ended, 1, 0)
        assert len(found.error or "") == limits.MAX_JOB_ERROR


def test_what_has_ended_stays_as_it_is(script: Script) -> None:
    script.start()
    before = script.end(RedriveState.CANCELLED)
    assert script.intend((3, 0)) == script.end(redriven=5) == before
    assert len(script.log) == 2


def test_a_dead_letter_topic_has_one_redrive_at_a_time(script: Script) -> None:
    script.start("a")
    with pytest.raises(
        Conflict, match="redrive a of the dead letters of orders is running; wait for its end, or cancel it"
    ):
        script.start("b")
    script.start("b", dlq_id=8)
    script.end(name="a")
    script.start("c")
    assert [redrive.redrive_id for redrive in script.machine.running] == ["b", "c"]


def test_an_id_that_is_taken_is_refused(script: Script) -> None:
    script.start("a")
    with pytest.raises(Conflict, match="the redrive id 'a' is taken"):
        script.start("a", dlq_id=8)


def test_only_so_many_run_at_once(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_RUNNING_REDRIVES", 2)
    script.start("a", dlq_id=1)
    script.start("b", dlq_id=2)
    with pytest.raises(Conflict, match="2 redrives are running, which is the most"):
        script.start("c", dlq_id=3)
    script.end(name="a")
    script.start("c", dlq_id=3)


def test_one_that_is_not_there_is_refused_by_name(script: Script) -> None:
    for command in (
        IntendBatch(redrive_id=RedriveId("a"), batch=Batch(0, ()), next_offset=0),
        EndRedrive(redrive_id=RedriveId("a"), state=RedriveState.DONE),
    ):
        with pytest.raises(UnknownRedrive, match="there is no redrive 'a'"):
            script.run(command)


def test_those_that_have_ended_are_remembered_for_a_while(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REDRIVES_REMEMBERED", 2)
    for number, name in enumerate("abcd"):
        script.start(name, dlq_id=number)
    for name in "bda":
        script.end(name=name)
    assert sorted(script.machine.by_id) == ["a", "c", "d"]
    for kept in (script.log, list(script.machine.snapshot())):
        machine = revived(kept)
        assert state(machine) == state(script.machine)
    script.end(name="c")
    assert sorted(script.machine.by_id) == ["a", "c"]


def lived() -> Script:
    """A machine with something of everything."""
    script = Script()
    for number, name in enumerate("abcd"):
        script.start(name, dlq_id=number)
        script.intend((3, 0), (4, 1), name=name)
    script.intend((1, 2), partition=2, name="a", skipped=2)
    script.end(RedriveState.FAILED, "b", redriven=1, error="the topic orders was deleted")
    script.end(RedriveState.CANCELLED, "c")
    return script


def test_a_restart_finds_what_was_there() -> None:
    script = lived()
    assert state(revived(script.log)) == state(script.machine)


def test_a_snapshot_makes_the_same_state_again() -> None:
    script = lived()
    snapshot = list(script.machine.snapshot())
    again = revived(snapshot)
    assert state(again) == state(script.machine)
    assert list(again.snapshot()) == snapshot


def test_every_end_of_the_log_is_a_whole_state() -> None:
    script = lived()
    for end in range(len(script.log) + 1):
        machine = revived(script.log[:end])
        assert state(revived(machine.snapshot())) == state(machine)
        assert machine.running == [redrive for redrive in machine.by_id.values() if redrive.is_running]


def test_reset_forgets_everything() -> None:
    script = lived()
    script.machine.reset()
    assert state(script.machine) == state(Redrives())


def test_a_record_that_is_not_understood_is_refused(script: Script) -> None:
    with pytest.raises(DamagedData, match="offset 7 of the jobs log is not understood"):
        script.machine.apply(b'{"type":"redrive_renamed"}', 7)
