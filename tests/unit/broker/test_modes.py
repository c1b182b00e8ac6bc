"""How members share a topic: by partition, all from all partitions, or the same with keys kept in order."""

from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import pytest

from goqueue.model import limits
from goqueue.model.errors import GroupActive
from goqueue.model.groups import Mode, Place
from goqueue.model.record import Lane
from goqueue.model.topic import Backoff
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.brokers import Clock
from tests.unit.broker.consumers import (
    GROUP,
    SESSION_MS,
    Consumers,
    consuming,
    deliveries_of,
    handle_of,
    handles_of,
    message,
    numbered,
    refused,
    texts,
)

LONG_MS = limits.MAX_SESSION_MS
VISIBLE_MS = 5000
both = pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY])


def put_keyed(to: Consumers, *texts: str, partition: int = 0) -> None:
    to.send(*(message(text, key=text[0]) for text in texts), partition=partition)


# --- joining


def test_a_group_keeps_the_mode_it_was_made_with(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(mode=Mode.SHARED)).member_id
            await to.join("other")
            assert to.group().mode is Mode.SHARED, "who says nothing shares as the others do"
            with pytest.raises(GroupActive, match="shares its topics by shared"):
                await to.join("third", mode=Mode.KEY)
            with pytest.raises(GroupActive):
                await to.join("third", mode=Mode.PARTITION)
            assert len(to.group().members) == 2
            await to.leave(member)
        async with consuming(tmp_path) as to:
            assert to.group().mode is Mode.SHARED

    run_timed(go())


@both
def test_members_that_share_have_every_partition_and_give_up_none(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=3)
            one = await to.join("one", mode=mode)
            two = await to.join("two", mode=mode)
            assert one.assigned == two.assigned == ["orders-0", "orders-1", "orders-2"]
            view = (await to.poll(one.member_id)).view
            assert (view.revoke, view.is_rebalancing) == ([], False)
            await to.grow(4)
            to.put("new", partition=3)
            assert await to.drain(two.member_id) == ["new"]

    run_timed(go())


# --- shared


@both
def test_a_message_is_with_one_member_and_all_of_them_are_with_somebody(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            expected = []
            for partition in (0, 1):
                batch = [f"{partition}.{number}" for number in range(50)]
                to.send(*(message(text, key=text) for text in batch), partition=partition)
                expected += batch
            members = [(await to.join(name, mode=mode)).member_id for name in "abc"]
            found: Counter[str] = Counter()
            shares = []
            for _ in range(5):
                for member in members:
                    part = await to.texts(member, max_messages=7)
                    shares.append(len(part))
                    found.update(part)
            assert sorted(found) == sorted(expected)
            assert set(found.values()) == {1}
            assert shares[:6] == [7] * 6, "everybody gets something, there are fewer partitions than members"

    run_timed(go())


@both
def test_what_one_settles_or_gives_back_is_no_business_of_the_others(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.send(*(message(text, key=text) for text in numbered(8)))
            one = (await to.join("one", mode=mode)).member_id
            two = (await to.join("two", mode=mode)).member_id
            mine, others = await to.poll(one, max_messages=4), await to.poll(two, max_messages=4)
            assert (texts(mine), texts(others)) == (["m0", "m1", "m2", "m3"], ["m4", "m5", "m6", "m7"])
            await to.commit(one, 8)
            assert (await to.lag())[0][:3] == (4, 8, 4), "a commit is about what the member itself was delivered"
            await to.nack(handle_of(others, "m5"))
            await to.pass_by(1000)
            assert await to.texts(one) == ["m5"], "a retry may go to anybody"
            await to.ack(handle_of(others, "m4"), handle_of(others, "m6"), handle_of(others, "m7"))
            assert (await to.lag())[0][:3] == (5, 8, 1)

    run_timed(go())


@both
@pytest.mark.parametrize("how", ["leaves", "is silent"])
def test_what_a_member_that_is_gone_had_comes_again_for_the_others(tmp_path: Path, mode: Mode, how: str) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=LONG_MS, partitions=2)
            for partition in (0, 1):
                to.send(*(message(f"{partition}{n}", key=f"{partition}{n}") for n in range(3)), partition=partition)
            dying = (await to.join("dying", mode=mode)).member_id
            held = await to.poll(dying)
            assert len(texts(held)) == 6
            await to.ack(handles_of(held)[0])
            other = (await to.join("other", session_ms=LONG_MS)).member_id
            waiting = await to.parked(other)
            if how == "leaves":
                await to.leave(dying)
            else:
                await to.pass_by(SESSION_MS)
                assert dying not in to.group().members
            polled = await waiting
            found = [*zip(texts(polled), deliveries_of(polled), strict=True)]
            more = await to.poll(other)
            found += zip(texts(more), deliveries_of(more), strict=True)
            assert sorted(found) == sorted((text, 2) for text in texts(held)[1:])
            assert refused(await to.ack(handles_of(held)[1])) == [True]

    run_timed(go())


@both
def test_a_member_that_is_gone_settles_on_leaving_what_it_commits_by_itself(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.send(*(message(text, key=text) for text in numbered(4)))
            tidy = (await to.join("tidy", mode=mode, auto_commit_ms=5000)).member_id
            other = (await to.join("other")).member_id
            assert await to.texts(tidy, max_messages=2) == ["m0", "m1"]
            assert await to.texts(other, max_messages=1) == ["m2"]
            await to.leave(tidy)
            assert (await to.lag())[0][:3] == (2, 4, 2)

    run_timed(go())


@both
def test_leases_are_known_after_a_restart_and_members_go_on(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            to.send(*(message(text, key=text) for text in numbered(6)))
            one = (await to.join("one", mode=mode, session_ms=LONG_MS)).member_id
            two = (await to.join("two", session_ms=LONG_MS)).member_id
            held = await to.poll(one, max_messages=2)
        async with consuming(tmp_path, clock=clock) as to:
            assert await to.texts(two, max_messages=2) == ["m2", "m3"]
            assert refused(await to.ack(handle_of(held, "m0"))) == [False]
            await to.pass_by(VISIBLE_MS)
            polled = await to.poll(two)
            assert dict(zip(texts(polled), deliveries_of(polled), strict=True)) == {
                "m1": 2, "m2": 2, "m3": 2, "m4": 1, "m5": 1,
            }  # fmt: skip

    run_timed(go())


@both
def test_what_could_not_be_told_is_given_back_of_that_member_only(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.send(*(message(text, key=text) for text in numbered(6)))
            one = (await to.join("one", mode=mode)).member_id
            two = (await to.join("two")).member_id
            first = await to.poll(one, max_messages=2, received=0)
            theirs = await to.poll(two, max_messages=2, received=0)
            again = await to.poll(one, max_messages=2, received=0)
            assert (texts(again), deliveries_of(again)) == (texts(first), [1, 1])
            assert refused(await to.ack(*handles_of(theirs))) == [False, False]
            to.broker.poller.give_back(GROUP, one, again.number)
            polled = await to.poll(two)
            assert (texts(polled), deliveries_of(polled)) == (["m0", "m1", "m4", "m5"], [1] * 4)

    run_timed(go())


@both
def test_a_reset_is_for_all_members(tmp_path: Path, mode: Mode) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.send(*(message(text, key=text) for text in numbered(6)))
            one = (await to.join("one", mode=mode)).member_id
            two = (await to.join("two")).member_id
            held = [*handles_of(await to.poll(one, max_messages=3)), *handles_of(await to.poll(two))]
            await to.reset(Place.OFFSET, 2)
            assert refused(await to.ack(*held)) == [True] * 6
            assert sorted(await to.drain(one, max_messages=2) + await to.drain(two)) == ["m2", "m3", "m4", "m5"]

    run_timed(go())


# --- key


def test_of_each_key_only_the_oldest_unsettled_message_is_out(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            put_keyed(to, "a1", "a2", "b1", "a3", "b2", "c1")
            to.put("x1", "x2", "x3")
            one = (await to.join("one", mode=Mode.KEY)).member_id
            two = (await to.join("two")).member_id
            first = await to.poll(one)
            assert texts(first) == ["a1", "b1", "c1", "x1", "x2", "x3"], "those without a key wait for nobody"
            assert await to.texts(two) == []
            waiting = await to.parked(two)
            await to.ack(handle_of(first, "b1"))
            second = await waiting
            assert texts(second) == ["b2"], "the next of a key may be with another member"
            await to.ack(handle_of(first, "a1"), *handles_of(second))
            assert await to.texts(one) == ["a2"]

    run_timed(go())


def test_nack_backoff_and_lapse_hold_the_key_and_only_that(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            put_keyed(to, "a1", "a2", "b1", "b2", "c1", "c2")
            member = (await to.join(mode=Mode.KEY, session_ms=LONG_MS)).member_id
            polled = await to.poll(member)
            assert texts(polled) == ["a1", "b1", "c1"]
            await to.nack(handle_of(polled, "a1"), delay_ms=2000)
            await to.ack(handle_of(polled, "c1"))
            polled = await to.poll(member)
            assert texts(polled) == ["c2"]
            await to.ack(*handles_of(polled))
            await to.pass_by(2000)
            again = await to.poll(member)
            assert (texts(again), deliveries_of(again)) == (["a1"], [2])
            await to.pass_by(VISIBLE_MS - 2000)
            lapsed = await to.poll(member)
            assert (texts(lapsed), deliveries_of(lapsed)) == (["b1"], [2])
            await to.ack(*handles_of(again), *handles_of(lapsed))
            assert await to.texts(member) == ["a2", "b2"]

    run_timed(go())


def test_what_died_lets_its_key_go_on(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(max_retries=0)
            put_keyed(to, "a1", "a2", "b1", "b2")
            member = (await to.join(mode=Mode.KEY)).member_id
            polled = await to.poll(member)
            await to.reject(handle_of(polled, "a1"))
            await to.nack(handle_of(polled, "b1"))
            await to.buried()
            assert await to.drain(member) == ["a2", "b2"]

    run_timed(go())


def test_a_key_is_in_order_whatever_the_lanes(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.send(
                message("a1", key="a", lane=Lane.BACKGROUND),
                message("a2", key="a", lane=Lane.CRITICAL),
                message("b1", key="b", lane=Lane.CRITICAL),
                message("b2", key="b", lane=Lane.LOW),
            )
            member = (await to.join(mode=Mode.KEY)).member_id
            seen = []
            for _ in range(4):
                polled = await to.poll(member, max_messages=1)
                seen += texts(polled)
                await to.ack(*handles_of(polled))
            assert seen.index("a1") < seen.index("a2")
            assert seen.index("b1") < seen.index("b2")
            assert seen[0] == "b1", "among the heads the lanes decide"

    run_timed(go())


def test_a_delayed_message_joins_its_key_when_it_is_due(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.send(message("late", key="a", deliver_at=-2000), message("a1", key="a"), message("a2", key="a"))
            member = (await to.join(mode=Mode.KEY)).member_id
            first = await to.poll(member)
            assert texts(first) == ["a1"], "the delayed one holds up nobody"
            await to.pass_by(2010)
            assert await to.texts(member) == [], "but its key is busy when it is due"
            await to.ack(*handles_of(first))
            second = await to.poll(member)
            await to.ack(*handles_of(second))
            third = await to.poll(member)
            assert [*texts(second), *texts(third)] == ["a2", "late"], "it joins the end of the line"

    run_timed(go())


def test_after_a_restart_a_key_that_is_out_is_still_busy(tmp_path: Path) -> None:
    async def go() -> None:
        clock = Clock()
        async with consuming(tmp_path, clock=clock) as to:
            await to.create(visibility_ms=VISIBLE_MS)
            put_keyed(to, "a1", "b1", "a2", "b2", "c1")
            member = (await to.join(mode=Mode.KEY, session_ms=LONG_MS)).member_id
            polled = await to.poll(member, max_messages=2)
            await to.nack(handle_of(polled, "b1"), delay_ms=60_000)
        for _ in range(2):
            async with consuming(tmp_path, clock=clock) as to:
                assert [text for text in await to.texts(member) if text != "c1"] == []
                sidecar = to.partition().sidecar
                assert sidecar is not None
                await to.broker._housekeeping.snapshot(sidecar.host)
        async with consuming(tmp_path, clock=clock) as to:
            assert refused(await to.ack(handle_of(polled, "a1"))) == [False]
            assert await to.texts(member) == ["a2"]

    run_timed(go())


def test_more_than_may_stand_in_line_does_not_stop_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LINE", 10)

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            put_keyed(to, *(f"a{number}" for number in range(60)))
            put_keyed(to, "b1")
            member = (await to.join(mode=Mode.KEY)).member_id
            seen: list[str] = []
            for _ in range(70):
                polled = await to.poll(member)
                seen += texts(polled)
                await to.ack(*handles_of(polled))
            assert [text for text in seen if text[0] == "a"] == [f"a{number}" for number in range(60)]
            assert "b1" in seen

    run_timed(go())


@pytest.mark.parametrize("seed", range(12))
def test_a_key_is_with_one_member_at_a_time_and_in_order_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Nacks, lapses, extensions, rejects, members that leave or fall silent, restarts: between two messages of a key
    the first was settled."""

    async def go() -> None:
        chance, clock = Random(seed), Clock()
        sent: dict[str, list[str]] = defaultdict(list)
        done: dict[str, list[str]] = defaultdict(list)
        out: dict[str, str] = {}
        """By key: what was delivered and is not settled, as far as the test has done it."""
        count = 0

        for life in range(3):
            async with consuming(tmp_path, clock=clock) as to:
                if life == 0:
                    backoff = Backoff(base_ms=500, max_ms=2000)
                    await to.create(visibility_ms=VISIBLE_MS, max_retries=1000, backoff=backoff)
                members = list(to.group().members) if life else []
                for _ in range(60):
                    for _ in range(chance.randrange(4)):
                        key = chance.choice("abcd")
                        text = f"{key}{len(sent[key])}"
                        sent[key].append(text)
                        to.send(message(text, key=key, lane=chance.choice(list(Lane))))
                    members = [member for member in members if life == 0 or member in to.group().members]
                    if len(members) < 2 or chance.random() < 0.05:
                        count += 1
                        members.append((await to.join(f"w{count}", mode=Mode.KEY)).member_id)
                    if len(members) > 2 and chance.random() < 0.3:
                        await to.leave(members.pop(chance.randrange(len(members))))
                    member = chance.choice(members)
                    if member not in to.group().members:
                        members.remove(member)
                        continue
                    polled = await to.poll(member, max_messages=chance.choice([1, 3, 10]))
                    for handle, text in zip(handles_of(polled), texts(polled), strict=True):
                        key = text[0]
                        assert text == sent[key][len(done[key])], (text, "those before it are not settled")
                        assert out.get(key, text) == text
                        out[key] = text
                        match chance.randrange(8):
                            case 0 | 1 | 2 | 3:
                                assert refused(await to.ack(handle)) == [False]
                                done[key].append(text)
                                del out[key]
                            case 4:
                                assert refused(await to.nack(handle)) == [False]
                            case 5:
                                assert refused(await to.nack(handle, delay_ms=0)) == [False]
                            case 6:
                                assert refused(await to.extend(handle, by_ms=chance.randrange(1, 9000))) == [False]
                            case _:
                                pass  # it is forgotten, and lapses
                    await to.pass_by(chance.choice([0, 10, 600, 3000, SESSION_MS if chance.random() < 0.1 else 0]))
            clock.now += chance.choice([0, 1000, 20_000])
        async with consuming(tmp_path, clock=clock) as to:
            await to.pass_by(2 * SESSION_MS)
            last = (await to.join("last", session_ms=LONG_MS)).member_id
            for _ in range(400):
                polled = await to.poll(last)
                for handle, text in zip(handles_of(polled), texts(polled), strict=True):
                    assert text == sent[text[0]][len(done[text[0]])]
                    await to.ack(handle)
                    done[text[0]].append(text)
                await to.pass_by(100)
                await turns(2)
            assert done == sent, "all of it was done, each once, in order"

    run_timed(go())
