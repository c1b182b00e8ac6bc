"""No answer leaves before each log it speaks of is as durable as was promised, and nothing that the broker does by
itself goes ahead of what it follows from: every operation, with syncs that complete one by one."""

import asyncio
from pathlib import Path

import pytest

from goqueue.api.operations import BY_NAME
from goqueue.model.settings import Fsync
from tests.support.durable_rows import ROWS, TELL_WHAT_IS_WRITTEN, Logs, Row
from tests.support.durable_stage import ANSWER, staged
from tests.support.loop import run
from tests.support.quiet import quiet
from tests.support.watched_disk import Step


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


async def look_at(path: Path, row: Row, fsync: Fsync, order: tuple[str, ...]) -> None:
    async with staged(path, fsync) as stage:
        await row.prepare(stage)
        await stage.everything_durable()
        disk = stage.disk
        told_before = await stage.ask(row.ask) if row.looks else None
        disk.watch()
        disk.hold(order)
        others = [asyncio.ensure_future(row.first(stage))]
        await stage.let_go_one_by_one(others[0].done)
        if row.beside is not None:
            others.append(asyncio.ensure_future(row.beside(stage)))
            await quiet()
        asked = asyncio.ensure_future(stage.ask(row.ask))
        await stage.let_go_one_by_one(
            lambda: asked.done() and all(other.done() for other in others) and row.until(stage)
        )
        for other in others:
            other.result()
        told = asked.result()
        answer = next(step for step in disk.steps if step.what == ANSWER)
        early = (answer.begun if row.of_first else answer.dirty) & promised(row, fsync)
        assert not early or (row.looks and told == told_before), f"{told} was answered before {sorted(early)} was durable"
        look_at_steps(disk.steps, row)
        if row.looks:
            assert await stage.ask(row.ask) != told_before, "what is under way beside it changes nothing of what it tells"


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
