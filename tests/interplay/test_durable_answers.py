"""No answer leaves before each log it speaks of is as durable as was promised, and nothing that the broker does by
itself goes ahead of what it follows from: every operation, with syncs that complete one by one."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyroaring import BitMap64

from goqueue.api.operations import BY_NAME
from goqueue.broker import transactions as broker_transactions
from goqueue.broker.coordination import Coordination
from goqueue.broker.jobs import JobLog
from goqueue.broker.letters import REDRIVEN, Letters
from goqueue.broker.own_messages import Sent
from goqueue.broker.partition import Partition
from goqueue.broker.poll import Poller
from goqueue.broker.publish import Receipt
from goqueue.broker.settle import Pending
from goqueue.broker.sidecars import Sidecars
from goqueue.broker.topics import TopicCatalogue
from goqueue.broker.transactions import TransactionRunner
from goqueue.delivery.commands import Finish
from goqueue.machine.host import Outcome
from goqueue.machine.shape import Machine
from goqueue.model import limits
from goqueue.model.settings import Fsync
from goqueue.storage.log import Log
from goqueue.transactions.ending import Durable, Site
from tests.support.durable_rows import BEGUN, FILLED, ROWS, TELL_WHAT_IS_WRITTEN, Logs, Row
from tests.support.durable_stage import ANSWER, LOGS, in_turn, let_go_one_by_one, staged
from tests.support.loop import run
from tests.support.quiet import quiet
from tests.support.watched_disk import Step, WatchedDisk
from tests.unit.broker.brokers import opened

pytestmark = pytest.mark.one_codec


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker does once a second, it does when a row says so."""
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 3600.0)


def orders_of(row: Row) -> list[tuple[str, ...]]:
    """Whose sync completes first, where several wait."""
    logs = sorted({name for step in row.steps for name in step if name[0] not in "+-"})
    return [tuple(logs), tuple(reversed(logs))] if len(logs) > 1 else [tuple(logs)]


def promised(row: Row, fsync: Fsync) -> Logs:
    return row.always | row.every if fsync is Fsync.EVERY else row.always


def look_at_steps(steps: list[Step], row: Row) -> None:
    """Raises when something went ahead of what it follows from, or is not in the row."""
    at = 0
    for what, dirty, _ in steps:
        if what == ANSWER:
            continue
        while at < len(row.steps) and what not in row.steps[at]:
            early = row.steps[at] & dirty
            assert not early, f"{what} was written before {sorted(early)} was durable"
            at += 1
        assert at < len(row.steps), f"{what} is not in the row, or comes too late: {[step.what for step in steps]}"


async def look_at(
    path: Path, row: Row, fsync: Fsync, order: tuple[str, ...], before: Callable[[], None] = lambda: None
) -> None:
    """`before` is called when all is prepared."""
    async with staged(path, fsync) as stage:
        await row.prepare(stage)
        await stage.everything_durable()
        before()
        disk = stage.disk
        told_before = await stage.ask(row.ask) if row.looks else None
        disk.watch()
        disk.hold(order)
        others = [asyncio.ensure_future(row.first(stage))]
        await let_go_one_by_one(disk, others[0].done)
        if row.beside is not None:
            others.append(asyncio.ensure_future(row.beside(stage)))
            await quiet()
        asked = asyncio.ensure_future(stage.ask(row.ask))
        await let_go_one_by_one(
            disk, lambda: asked.done() and all(other.done() for other in others) and row.until(stage)
        )
        for other in others:
            other.result()
        told = asked.result()
        answer = next(step for step in disk.steps if step.what == ANSWER)
        early = (answer.begun if row.of_first else answer.dirty) & promised(row, fsync)
        assert not early or (row.looks and told == told_before), (
            f"{told} was answered before {sorted(early)} was durable"
        )
        look_at_steps(disk.steps, row)
        if row.looks:
            assert await stage.ask(row.ask) != told_before, (
                "what is under way beside it changes nothing of what it tells"
            )


@pytest.mark.parametrize("fsync", [Fsync.EVERY, Fsync.INTERVAL])
@pytest.mark.parametrize("name", ROWS)
def test_no_answer_leaves_before_what_it_speaks_of_is_durable(tmp_path: Path, name: str, fsync: Fsync) -> None:
    row = ROWS[name]
    for number, order in enumerate(orders_of(row)):
        run(look_at(tmp_path / str(number), row, fsync, order))


def test_every_operation_has_a_row() -> None:
    looked_at = {name.partition(",")[0] for name in ROWS}
    assert not looked_at & TELL_WHAT_IS_WRITTEN.keys()
    assert BY_NAME.keys() <= looked_at | TELL_WHAT_IS_WRITTEN.keys()


def test_a_start_waits_for_what_it_wrote(tmp_path: Path) -> None:
    """Above all for the fences: what is appended next must not seem to be settled."""

    async def start(disk: WatchedDisk) -> Step:
        """The moment when it can be asked."""
        async with AsyncExitStack() as stack:
            opening = asyncio.ensure_future(stack.enter_async_context(opened(tmp_path, disk=disk, logs=LOGS)))
            await let_go_one_by_one(disk, opening.done)
            opening.result()
            disk.say(ANSWER)
            disk.let_all_go()
            return disk.steps[-1]

    async def go() -> None:
        first = WatchedDisk(tmp_path)
        first.hold(["metadata"])
        assert not (await start(first)).dirty
        assert first.steps, "nothing was written"
        async with staged(tmp_path, Fsync.INTERVAL) as stage:
            await in_turn(BEGUN, FILLED)(stage)
        for name in ("orders/0/sidecar", "orders/1/sidecar", "transactions"):
            disk = WatchedDisk(tmp_path)
            disk.hold([name])
            assert not (await start(disk)).dirty
            assert name in {step.what for step in disk.steps}, "nothing of it was held"

    run(go())


# ---------------------------------------------------------------- bugs that are planted


async def _at_once(*_: Any, **__: Any) -> None:
    """In place of a wait."""


async def _the_first_alone(pending: Pending) -> None:
    for partition in pending._unsafe[:1]:
        await pending._sidecars.safe(partition)


async def _mark_and_go_on(letters: Letters, partition: Partition, offsets: list[int]) -> None:
    await letters.prepare(partition)
    letters._sidecars.write(partition, Finish(REDRIVEN, BitMap64(offsets)))


async def _decide_and_tell(topics: TopicCatalogue, machine: Machine, command: Any, now: int) -> Any:
    return topics.submit(machine, command, now).reply


def _without_its_sites(log: Log, sites: list[Site], decide: Callable[[], Outcome]) -> Iterator[list[Durable]]:
    yield [Durable(log, decide().position)]


def _with_one_site(log: Log, sites: list[Site], decide: Callable[[], Outcome]) -> Iterator[list[Durable]]:
    yield list(sites[0].saved())
    yield [Durable(log, decide().position)]


class Bug(NamedTuple):
    """What is put in the place of what, and the row that has to notice."""

    room: Any
    name: str
    stands_in: Any
    row: str
    fsync: Fsync = Fsync.EVERY


BUGS = {
    "an answer does not wait for its messages": Bug(Receipt, "safe", _at_once, "publish"),
    "acks=all does not wait": Bug(Receipt, "safe", _at_once, "publish, acks all", Fsync.INTERVAL),
    "a duplicate is answered at once": Bug(Receipt, "safe", _at_once, "publish_batch, the same again"),
    "acks wait for the first partition alone": Bug(Pending, "safe", _the_first_alone, "ack"),
    "a commit does not wait": Bug(Sidecars, "safe", _at_once, "commit"),
    "it is told that a delay was cancelled": Bug(Sidecars, "safe", _at_once, "get_delayed"),
    "letters are written before it is sure that they are due": Bug(
        Sidecars, "durable", _at_once, "reject, of one partition", Fsync.INTERVAL
    ),
    "the outbox is told of letters that may be lost": Bug(Sent, "durable", _at_once, "reject, of one partition"),
    "a run is done before its message is sure": Bug(Sent, "durable", _at_once, "a schedule is due"),
    "a run is published before it is intended": Bug(JobLog, "durable", _at_once, "a schedule is due"),
    "letters are marked before they are sure in their topic": Bug(Sent, "durable", _at_once, "start_redrive"),
    "a redrive goes on before its marks are sure": Bug(Letters, "mark", _mark_and_go_on, "start_redrive"),
    "a poll is answered while a lease may come back": Bug(
        Poller, "_keep_given_back", _at_once, "poll, what did not arrive"
    ),
    "a reset may come undone": Bug(Sidecars, "durable", _at_once, "reset_offsets", Fsync.INTERVAL),
    "a group has begun and nobody knows where": Bug(
        Sidecars, "durable", _at_once, "join_group, from the end", Fsync.INTERVAL
    ),
    "a member hears of a grant that may be lost": Bug(Coordination, "sure", _at_once, "heartbeat"),
    "groups are told that may be lost": Bug(Coordination, "all_sure", _at_once, "list_groups"),
    "a transaction is decided without its participants": Bug(
        broker_transactions, "decide_commit", _without_its_sites, "commit_transaction", Fsync.INTERVAL
    ),
    "a transaction is decided with its first participant": Bug(
        broker_transactions, "decide_commit", _with_one_site, "commit_transaction", Fsync.INTERVAL
    ),
    "a token is told before it is sure": Bug(TransactionRunner, "sure", _at_once, "transaction_token"),
    "a token is answered again before it is sure": Bug(
        TransactionRunner, "_durable", _at_once, "commit_many, the same again"
    ),
    "partitions are told before it is decided": Bug(TransactionRunner, "_durable", _at_once, "abort_transaction"),
    "a number is told that may be given out twice": Bug(TransactionRunner, "_durable", _at_once, "begin_transaction"),
    "a producer's id is told that may be given out twice": Bug(
        TopicCatalogue, "run", _decide_and_tell, "init_producer"
    ),
    "topics are told that may be lost": Bug(TopicCatalogue, "sure", _at_once, "list_topics"),
    "a schedule is answered before it is sure": Bug(JobLog, "durable", _at_once, "create_schedule"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_wait_that_is_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    bug = BUGS[name]
    row = ROWS[bug.row]

    async def planted(path: Path, order: tuple[str, ...]) -> None:
        with monkeypatch.context() as patch:
            await look_at(path, row, bug.fsync, order, before=lambda: patch.setattr(bug.room, bug.name, bug.stands_in))

    async def all_orders() -> None:
        for number, order in enumerate(orders_of(row)):
            await planted(tmp_path / str(number), order)

    with pytest.raises(AssertionError, match="before"):
        run(all_orders())
