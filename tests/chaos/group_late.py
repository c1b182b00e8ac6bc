"""Members that come too late: what they commit is refused, and changes nothing, to the last number.

In quiet groups, where nothing else happens. What they had received is delivered to others.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.chaos.ledger import Lost, Violation
from tests.support.group_ledger import Answered, Refused
from tests.support.group_stage import PARTITIONS, Actor, Stage, staged

MESSAGES: Final = 10
"""Of each partition."""

Show = Callable[[Stage, int], Coroutine[Any, Any, None]]


async def show_late_commits(wire: str, http: str) -> int:
    """Of one that lost its partitions, one that was removed, and one that was replaced. Returns how many there were."""
    shows = (_show_moved, _show_removed, _show_replaced)

    async def play(show: Show) -> None:
        async with staged(wire, http, show.__name__.strip("_")) as stage:
            publishers = stage.publishers(every_s=0, limit=MESSAGES)
            await publishers.run()
            await show(stage, PARTITIONS * MESSAGES)
            stage.history().check(publishers.ends)

    await asyncio.gather(*map(play, shows))
    return len(shows)


async def _take(actor: Actor, messages: int) -> None:
    """Poll until it has received so many; nothing is committed."""
    for _ in range(200):
        messages -= await actor.consumer.take()
        if messages <= 0:
            break
    if messages:
        raise Lost(f"{actor.name} has not received {messages} messages that it should, or so many too many")


async def _be_late(stage: Stage, actor: Actor, code: str, *, moved: set[int] | None = None) -> None:
    """`moved` are the partitions that its commit is refused for; without it, all."""
    before = await stage.lag()
    await actor.consumer.commit()
    after = await stage.lag()
    answer = actor.events[-1]
    assert isinstance(answer, Answered)
    if answer.code != code or set(answer.refused) != (moved or set()):
        raise Refused(f"{actor.name}, too late with {moved or 'everything'}, was answered {answer}, not {code}")
    changed = {int(number) for number in after if after[number] != before[number]}
    if changed != (set(range(PARTITIONS)) - moved if moved is not None else set()):
        raise Violation(f"{actor.name} was refused with {answer}; from {before} it became {after}")


async def _finish(*actors: Actor) -> None:
    for actor in actors:
        await actor.consumer.leave()


async def _show_moved(stage: Stage, messages: int) -> None:
    """It is asked to give up half of its partitions and does not; when its time is up they are another one's."""
    slow = stage.add("slow", session_timeout="10s", rebalance_timeout="300ms")
    await slow.consumer.join()
    await _take(slow, messages)
    other = stage.add("other", session_timeout="10s")
    await other.consumer.join()
    await slow.consumer.take()
    await _take(other, messages // 2)
    await _be_late(stage, slow, "not_owner", moved=set(other.consumer.held))
    await _finish(other, slow)


async def _show_removed(stage: Stage, messages: int) -> None:
    silent = stage.add("silent", session_timeout="1s")
    await silent.consumer.join()
    await _take(silent, messages)
    await stage.until("its session has ended", lambda: stage.is_gone(silent.consumer.member_id))
    await _be_late(stage, silent, "unknown_member")
    heir = stage.add("heir", session_timeout="10s")
    await heir.consumer.join()
    await _take(heir, messages)
    await _be_late_again(stage, silent, "unknown_member")
    await _finish(heir)


async def _show_replaced(stage: Stage, messages: int) -> None:
    old, new = (stage.add(name, session_timeout="10s", instance_id="static") for name in ("old", "new"))
    await old.consumer.join()
    await _take(old, messages)
    await new.consumer.join()
    await _be_late(stage, old, "member_fenced")
    await _take(new, messages)
    await _be_late_again(stage, old, "member_fenced")
    await _finish(new)


async def _be_late_again(stage: Stage, actor: Actor, code: str) -> None:
    """Now that another one is at work on what it claims to have done."""
    actor.consumer.held.update(dict.fromkeys(range(PARTITIONS), MESSAGES))
    await _be_late(stage, actor, code)
