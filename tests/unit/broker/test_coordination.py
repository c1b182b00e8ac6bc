"""Members that come, stay and go; topics that come, grow and go under them; groups that are deleted."""

import asyncio
import re
from pathlib import Path

import pytest

from goqueue.delivery.commands import Settle
from goqueue.groups.commands import Delete
from goqueue.model.errors import (
    DamagedData,
    DiskFull,
    GroupActive,
    MemberFenced,
    NotOwner,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
)
from goqueue.model.groups import Assignor, GroupState
from goqueue.storage.store import sidecar_name
from tests.support.faulty_disk import FaultyDisk
from tests.support.loop import turns
from tests.support.moved_time import run_timed
from tests.unit.broker.consumers import (
    GROUP,
    LATEST,
    REBALANCE_MS,
    SESSION_MS,
    Consumers,
    consuming,
    numbered,
    texts,
)


async def two_members(to: Consumers) -> tuple[str, str]:
    """Of a topic with two partitions; each has one of them, and nothing is on its way."""
    await to.create(partitions=2)
    first = (await to.join("a")).member_id
    second = (await to.join("b")).member_id
    await to.heartbeat(first)
    await to.heartbeat(first)
    assert (len(to.owned(first)), len(to.owned(second))) == (1, 1)
    assert to.group().state is GroupState.STABLE
    return first, second


# --- joining


def test_the_first_member_gets_everything_and_leads(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=3)
            view = await to.join()
            assert re.fullmatch(r"worker-[0-9a-f]{16}", view.member_id)
            assert view.assigned == ["orders-0", "orders-1", "orders-2"]
            assert (view.leader, view.revoke, view.state) == (view.member_id, [], GroupState.STABLE)
            assert view.generation == 1

    run_timed(go())


def test_another_member_gets_its_share_once_the_first_has_given_it_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            joined = await to.join("b")
            second = joined.member_id
            assert (joined.assigned, joined.state) == ([], GroupState.REBALANCING)

            told = await to.heartbeat(first)
            assert len(told.assigned) == len(told.revoke) == 1
            assert (await to.heartbeat(second)).assigned == [], "the owner was told, and has not been heard of since"
            kept = await to.heartbeat(first)
            assert (kept.assigned, kept.revoke, kept.state) == (told.assigned, [], GroupState.STABLE)
            got = await to.heartbeat(second)
            assert got.assigned == told.revoke
            assert got.generation > told.generation

    run_timed(go())


def test_a_member_may_say_what_it_gives_up_before_it_was_told(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            second = (await to.join("b")).member_id
            (revoked,) = (part.partition for part in to.group().revoking(to.member(first)))
            view = await to.heartbeat(first, f"orders-{revoked}", "orders-7", "nonsense")
            assert (view.assigned, view.revoke) == ([f"orders-{1 - revoked}"], [])
            assert to.owned(second) == [revoked]

    run_timed(go())


def test_a_member_keeps_what_it_is_not_done_with_until_it_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            second = (await to.join("b")).member_id
            (moving,) = (await to.heartbeat(first)).revoke
            for _ in range(3):
                view = await to.heartbeat(first, finishing=[moving, "orders-7", "nonsense"])
                assert view.revoke == [moving]
                assert to.owned(second) == []
            assert (await to.heartbeat(first)).revoke == []
            assert (await to.heartbeat(second)).assigned == [moving]

    run_timed(go())


def test_a_heartbeat_that_crosses_the_answer_that_revokes_has_not_heard_of_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = await to.join("a")
            second = await to.join("b")
            (moving,) = (await to.heartbeat(first.member_id)).revoke  # which is on its way
            crossing = await to.heartbeat(first.member_id, generation=first.generation)
            assert crossing.revoke == [moving]
            assert to.owned(second.member_id) == []
            assert (await to.heartbeat(first.member_id, generation=crossing.generation)).revoke == []
            assert (await to.heartbeat(second.member_id)).assigned == [moving]

    run_timed(go())


def test_a_poll_that_crosses_the_answer_that_revokes_has_not_heard_of_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = await to.join("a")
            second = await to.join("b")
            told = await to.heartbeat(first.member_id)  # which is on its way
            await to.park(first.member_id, known_version=first.version)
            assert to.owned(second.member_id) == []
            await to.park(first.member_id, 0, known_version=told.version)
            assert (await to.heartbeat(second.member_id)).assigned == told.revoke

    run_timed(go())


def test_what_a_member_is_done_with_after_all_may_be_said_in_the_same_heartbeat(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            second = (await to.join("b")).member_id
            (moving,) = (await to.heartbeat(first)).revoke
            await to.heartbeat(first, moving, finishing=[moving])
            assert (await to.heartbeat(second)).assigned == [moving]

    run_timed(go())


def test_who_was_heard_of_may_still_say_that_it_is_not_done(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            for partition in range(2):
                to.put(*numbered(1), partition=partition)
            await to.poll(first)
            second = (await to.join("b")).member_id
            (moving,) = (await to.heartbeat(first)).revoke
            assert (await to.heartbeat(first)).revoke == [moving], "it has a message of it"
            await to.heartbeat(first, finishing=[moving])
            await to.commit(first, 1, partition=int(moving[-1]))
            await to.heartbeat(first, finishing=[moving])
            assert to.owned(second) == []
            await to.heartbeat(first)
            assert to.owned(second) == [int(moving[-1])]

    run_timed(go())


def test_who_is_never_done_loses_it_when_the_time_is_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            second = (await to.join("b")).member_id
            (moving,) = (await to.heartbeat(first)).revoke
            for _ in range(2):
                await to.pass_by(REBALANCE_MS // 3)
                await to.heartbeat(first, finishing=[moving])
                assert (await to.heartbeat(second)).assigned == []
            await to.pass_by(REBALANCE_MS // 3)
            assert (await to.heartbeat(second)).assigned == [moving]

    run_timed(go())


def test_what_is_not_to_be_given_up_is_kept_whatever_a_heartbeat_says(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            member = (await to.join()).member_id
            view = await to.heartbeat(member, "orders-0", "orders-1")
            assert view.assigned == ["orders-0", "orders-1"]

    run_timed(go())


def test_nothing_is_told_before_it_is_durable(tmp_path: Path) -> None:
    """A grant that a power cut could take back is nobody's to know."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            durable = to.broker.groups.host.log.durable
            member = (await to.join()).member_id
            assert durable.value == to.broker.groups.host.log.end_offset
            to.put("a")
            await to.poll(member)
            await to.leave(member)
            assert durable.value == to.broker.groups.host.log.end_offset

    run_timed(go())


def test_a_topic_that_is_not_there_cannot_be_joined_and_leaves_no_group_behind(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            with pytest.raises(UnknownTopic):
                await to.join("worker", "orders", "nope")
            with pytest.raises(UnknownMember, match="leave member_id out to join it"):
                await to.join(member_id="worker-1")
            assert to.broker.groups.machine.by_name == {}

    run_timed(go())


def test_a_join_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    """Not even where the group begins in a topic that is new to it."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills")
            to.put("a", "b", topic="bills")
            member = (await to.join()).member_id
            for refused in ({"assignor": Assignor.RANGE}, {"member_id": "nobody"}):
                with pytest.raises((GroupActive, UnknownMember)):
                    await to.join("other", "bills", start=LATEST, **refused)
            assert list(to.group().members) == [member]
            joined = await to.join("other", "bills")
            assert await to.texts(joined.member_id) == ["a", "b"], "it begins where it was asked to begin"

    run_timed(go())


def test_who_joins_again_with_its_id_keeps_what_it_has(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            first, second = await two_members(to)
            generation = to.group().generation
            again = await to.join("a", member_id=first)
            assert (again.member_id, again.generation) == (first, generation)
            assert len(again.assigned) == 1
            assert again.revoke == []
            assert list(to.group().members) == [first, second]

    run_timed(go())


def test_who_joins_again_may_want_other_topics(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills", 2)
            member = (await to.join()).member_id
            view = await to.join("worker", "bills", member_id=member)
            assert view.assigned == ["bills-0", "bills-1"]
            view = await to.join("worker", "bills", "orders", member_id=member)
            assert sorted(view.assigned) == ["bills-0", "bills-1", "orders-0"]

    run_timed(go())


def test_members_of_one_group_may_want_different_topics(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills")
            one = await to.join("one", "orders")
            other = await to.join("other", "bills")
            assert (one.assigned, other.assigned) == (["orders-0"], ["bills-0"])

    run_timed(go())


def test_a_hundred_that_join_at_once_share_the_partitions(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=200)
            views = await asyncio.gather(*(to.join(f"w{number}") for number in range(100)))
            for _ in range(2):
                await asyncio.gather(*(to.heartbeat(view.member_id) for view in views))
            assert {len(to.owned(view.member_id)) for view in views} == {2}
            owned = [number for view in views for number in to.owned(view.member_id)]
            assert sorted(owned) == list(range(200))

    run_timed(go())


def test_whoever_asked_to_join_may_leave_before_the_answer_and_the_group_is_whole(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            for count in range(12):
                asking = asyncio.ensure_future(to.join(f"w{count}", session_ms=1000))
                await turns(count)
                asking.cancel()
            await turns(100)
            await to.broker.groups.all_sure()
            member = (await to.join("last")).member_id
            await to.pass_by(1000)
            await to.heartbeat(member)
            assert list(to.group().members) == [member], "those nobody has heard of are gone"
            assert to.owned(member) == [0]

    run_timed(go())


# --- staying, and going


def test_a_member_that_is_silent_for_too_long_is_out(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            first, second = await two_members(to)
            await to.pass_by(SESSION_MS - 1)
            await to.heartbeat(second)
            await to.pass_by(1)
            assert list(to.group().members) == [second]
            assert to.owned(second) == [0, 1]
            for ask in (to.heartbeat, to.poll, to.leave):
                with pytest.raises(UnknownMember, match="silent for too long: join again"):
                    await ask(first)

    run_timed(go())


@pytest.mark.parametrize("sign", ["heartbeat", "poll", "commit"])
def test_any_sign_of_life_keeps_a_member_in(tmp_path: Path, sign: str) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            for _ in range(5):
                await to.pass_by(SESSION_MS - 1)
                if sign == "heartbeat":
                    await to.heartbeat(member)
                elif sign == "poll":
                    await to.poll(member)
                else:
                    await to.commit(member, 0)
            assert member in to.group().members

    run_timed(go())


@pytest.mark.parametrize("leaves", [False, True])
def test_a_poll_that_waits_is_a_sign_of_life_until_it_ends(tmp_path: Path, leaves: bool) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            await to.poll(member)
            waiting = await to.parked(member, 10 * SESSION_MS)
            for _ in range(4):
                await to.pass_by(SESSION_MS)
            await to.pass_by(SESSION_MS - 1)
            if leaves:  # as a door does it when its client has gone
                waiting.cancel()
            else:
                to.put("a")
            await asyncio.wait([waiting])
            await to.pass_by(SESSION_MS - 1)
            assert member in to.group().members, "the session begins when the poll ends"
            await to.pass_by(1)
            assert to.group().members == {}

    run_timed(go())


def test_who_leaves_is_gone_at_once_and_others_are_told(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            first, second = await two_members(to)
            await to.poll(second)
            waiting = await to.parked(second)
            await to.leave(first)
            assert (await waiting).view.assigned == ["orders-0", "orders-1"]
            await to.leave(second)
            assert to.group().state is GroupState.EMPTY

    run_timed(go())


def test_an_older_session_may_become_shorter(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            await to.join(member_id=member, session_ms=1000)
            await to.pass_by(1000)
            assert to.group().members == {}

    run_timed(go())


# --- giving up in time, or not


def test_an_owner_that_goes_on_working_keeps_what_it_was_delivered_until_its_time_is_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            for partition in (0, 1):
                to.put(*numbered(3), partition=partition)
            await to.poll(first)
            second = (await to.join("b")).member_id
            (revoked,) = (part.partition for part in to.group().revoking(to.member(first)))
            kept = 1 - revoked

            for _ in range(4):
                await to.heartbeat(first)
            assert to.owned(first) == [0, 1], "three messages of it are not settled"
            await to.commit(first, 2, partition=revoked)
            assert to.owned(first) == [0, 1], "one still is not"
            await to.commit(first, 3, partition=revoked)
            assert to.owned(first) == [kept]
            await to.commit(first, 3, partition=kept)
            assert await to.texts(second) == [], "what was settled does not come again"

    run_timed(go())


def test_when_the_time_is_up_the_partition_goes_and_only_that_one_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            for partition in (0, 1):
                to.put(*numbered(3), partition=partition)
            await to.poll(first)
            second = (await to.join("b")).member_id
            (revoked,) = (part.partition for part in to.group().revoking(to.member(first)))
            for _ in range(3):
                await to.pass_by(REBALANCE_MS // 3)
                await to.heartbeat(first)
                await to.heartbeat(second)
            assert to.owned(second) == [revoked]

            with pytest.raises(NotOwner) as caught:
                await to.commit(first, {"orders": {0: 3, 1: 3}})
            assert caught.value.details == {"refused": [f"orders-{revoked}"]}
            assert (await to.offsets())["orders"][1 - revoked] == 3, "the other one was settled"
            assert await to.texts(second) == ["m0", "m1", "m2"], "what was not settled comes again"

    run_timed(go())


def test_the_time_to_give_something_up_is_the_owners_own(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a", rebalance_ms=2000)).member_id
            for partition in (0, 1):
                to.put("x", partition=partition)
            await to.poll(first)
            second = (await to.join("b", rebalance_ms=20_000)).member_id
            await to.pass_by(1999)
            assert to.owned(second) == []
            await to.pass_by(1)
            assert len(to.owned(second)) == 1

    run_timed(go())


# --- members with an instance id


def test_a_new_process_of_an_instance_takes_over_and_nobody_else_notices(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            old = (await to.join("a", instance_id="pod-1")).member_id
            other = (await to.join("b", instance_id="pod-2")).member_id
            for _ in range(2):
                await to.heartbeat(old)
            before = to.owned(old), to.owned(other)
            for partition in (0, 1):
                to.put("x", "y", partition=partition)
            await to.poll(old)
            await to.poll(other)

            new = await to.join("a", instance_id="pod-1")
            assert new.member_id != old
            assert (to.owned(new.member_id), to.owned(other)) == before
            assert new.state is GroupState.STABLE
            await to.commit(other, 2, partition=before[1][0])
            assert await to.texts(new.member_id) == ["x", "y"], "the old process did not settle them"
            for ask in (to.heartbeat, to.poll, to.leave):
                with pytest.raises(MemberFenced, match="another process joined group 'billing' with the same instance"):
                    await ask(old)
            with pytest.raises(MemberFenced):
                await to.commit(old, 2, partition=before[0][0])

    run_timed(go())


def test_a_process_that_was_replaced_while_it_waited_learns_it_at_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            old = (await to.join(instance_id="pod-1")).member_id
            waiting = await to.parked(old)
            await to.join(instance_id="pod-1")
            with pytest.raises(MemberFenced):
                await waiting

    run_timed(go())


def test_an_instance_id_does_not_change_for_a_member(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(instance_id="pod-1")).member_id
            with pytest.raises(MemberFenced, match="leave member_id out to join with this one"):
                await to.join(member_id=member, instance_id="pod-2")
            assert (await to.join(member_id=member, instance_id="pod-1")).member_id == member

    run_timed(go())


# --- topics that change under members


def test_a_topic_that_grows_is_shared_anew_and_its_new_partitions_begin_at_the_beginning(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put("skipped")
            member = (await to.join(start=LATEST)).member_id
            await to.poll(member)
            waiting = await to.parked(member)
            await to.grow(3)
            await waiting
            to.put("new", partition=2)
            polled = await to.poll(member)
            assert polled.view.assigned == ["orders-0", "orders-1", "orders-2"]
            assert texts(polled) == ["new"]

    run_timed(go())


def test_what_was_published_to_a_new_partition_before_anybody_had_it_is_delivered(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join(start=LATEST)).member_id
            await to.broker.topics.add_partitions("orders", 2, to.clock())
            to.put("early", partition=1)
            await to.followed()
            assert await to.texts(member) == ["early"]

    run_timed(go())


def test_a_topic_that_is_deleted_is_taken_from_its_members_and_the_rest_stays(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills")
            to.put("a")
            to.put("b", topic="bills")
            member = (await to.join("worker", "orders", "bills")).member_id
            assert sorted(await to.texts(member)) == ["a", "b"]
            waiting = await to.parked(member)
            await to.delete()
            await waiting
            assert (await to.poll(member)).view.assigned == ["bills-0"]
            with pytest.raises(NotOwner):
                await to.commit(member, 1)
            await to.commit(member, {"bills": {0: 1}})
            assert await to.offsets() == {"bills": {0: 1}}

    run_timed(go())


def test_a_topic_that_is_created_again_is_a_new_one_to_its_members(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put("old", "older")
            member = (await to.join(start=LATEST)).member_id
            await to.delete()
            assert (await to.poll(member)).view.assigned == []
            await to.create(partitions=2)
            await to.followed()
            to.put("new")
            polled = await to.poll(member)
            assert polled.view.assigned == ["orders-0", "orders-1"]
            assert texts(polled) == ["new"], "where the group was in the old topic does not matter"

    run_timed(go())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_that_is_created_again_under_its_members_is_theirs_from_its_beginning(
    tmp_path: Path, restarts: bool
) -> None:
    """Whoever joins later does not decide where the group begins there."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            await to.delete()
            if restarts:
                to.broker.topics.on_change = lambda _: None  # the broker dies before the groups hear of it
            await to.create(partitions=2)
            await to.followed()
            if not restarts:
                await late_join(to, member)
        if restarts:
            async with consuming(tmp_path) as to:
                await late_join(to, member)

    async def late_join(to: Consumers, member: str) -> None:
        for partition in (0, 1):
            to.put("new", partition=partition)
        other = (await to.join("other", start=LATEST)).member_id
        assert {number: lag.lag for number, lag in (await to.lag()).items()} == {0: 1, 1: 1}
        found = []
        for _ in range(3):
            found += await to.texts(member) + await to.texts(other)
        assert found == ["new", "new"]

    run_timed(go())


def test_a_poll_that_waits_over_the_end_of_its_topic_is_answered(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            member = (await to.join()).member_id
            await to.poll(member)
            waiting = await to.parked(member)
            await to.delete()
            assert texts(await waiting) == []

    run_timed(go())


# --- deleting a group


def test_a_group_with_members_cannot_be_deleted(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            first, second = await two_members(to)
            with pytest.raises(GroupActive, match="has 2 members"):
                await to.broker.groups.delete(GROUP)
            await to.leave(first)
            with pytest.raises(GroupActive, match="has 1 members"):
                await to.broker.groups.delete(GROUP)
            assert to.owned(second) == [0, 1]

    run_timed(go())


def test_a_deleted_group_is_forgotten_everywhere_and_a_new_one_of_that_name_begins_anew(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            to.put(*numbered(4))
            member = (await to.join()).member_id
            stays = (await to.join(group="audit")).member_id
            await to.poll(member)
            await to.poll(stays, group="audit")
            await to.commit(member, 3)
            await to.leave(member)
            await to.broker.groups.delete(GROUP)
            assert to.deliveries().groups == [to.group("audit").number]
            for ask in (lambda: to.broker.groups.delete(GROUP), lambda: to.poll(member)):
                with pytest.raises(UnknownGroup, match="join it to create it"):
                    await ask()
            again = (await to.join()).member_id
            assert await to.texts(again) == list(numbered(4))

    run_timed(go())


def test_what_a_crash_left_of_a_deleted_group_goes_at_the_next_start(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            to.put("a")
            to.put("b", partition=1)
            for group in (GROUP, "audit"):
                member = (await to.join(group=group)).member_id
                await to.poll(member, group=group)
                await to.leave(member, group=group)
            await to.broker.groups.run(Delete(GROUP))  # and nobody told the sidecars
            audit = to.group("audit").number
            assert len(to.deliveries(0).groups) == len(to.deliveries(1).groups) == 2
        for _ in range(2):
            async with consuming(tmp_path) as to:
                assert to.deliveries(0).groups == to.deliveries(1).groups == [audit]
                again = (await to.join()).member_id
                assert to.group().number > audit, "a number is never used again"
                assert sorted(await to.texts(again)) == ["a", "b"]
                await to.leave(again)
                await to.broker.groups.delete(GROUP)

    run_timed(go())


# --- restarts


def test_a_restart_leaves_members_with_what_they_have(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            first, second = await two_members(to)
            before = to.owned(first), to.owned(second)
            generation = to.group().generation
        async with consuming(tmp_path) as to:
            assert (to.owned(first), to.owned(second)) == before
            assert to.group().generation == generation
            assert (await to.heartbeat(first)).assigned == [f"orders-{before[0][0]}"]
            await to.pass_by(SESSION_MS)
            assert to.group().members == {}, "sessions began anew, and went on"

    run_timed(go())


def test_a_rebalance_that_was_under_way_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            first = (await to.join("a")).member_id
            second = (await to.join("b")).member_id
            assert to.owned(first) == [0, 1]
        async with consuming(tmp_path) as to:
            assert to.group().state is GroupState.REBALANCING
            assert len((await to.heartbeat(first)).revoke) == 1
            await to.heartbeat(first)
            assert len(to.owned(first)) == len(to.owned(second)) == 1

    run_timed(go())


def test_topics_that_changed_while_the_broker_was_away_are_followed(tmp_path: Path) -> None:
    """The groups log is one log and the metadata another: one may know what the other does not."""

    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            await to.create("bills")
            member = (await to.join("worker", "orders", "bills")).member_id
            to.put("a", topic="bills")
            await to.poll(member)
            to.broker.topics.on_change = lambda _: None  # from now on the groups hear nothing
            await to.broker.topics.delete("orders", to.clock())
            await to.broker.topics.add_partitions("bills", 2, to.clock())
            assert len(list(to.member(member).parts)) == 2
        async with consuming(tmp_path) as to:
            assert (await to.heartbeat(member)).assigned == ["bills-0", "bills-1"]
            assert len(to.group().started) == 1

    run_timed(go())


# --- when the disk is in trouble


def test_on_a_full_disk_members_come_and_go(tmp_path: Path) -> None:
    async def go() -> None:
        disk = FaultyDisk()
        async with consuming(tmp_path, disk=disk) as to:
            await to.create(partitions=2)
            to.put("a")
            member = (await to.join("a")).member_id
            disk.free = 0
            with pytest.raises(DiskFull):
                to.put("b")
            other = (await to.join("b")).member_id
            for _ in range(2):
                await to.heartbeat(member)
                await to.heartbeat(other)
            assert len(to.owned(member)) == len(to.owned(other)) == 1
            await to.leave(member)
            assert await to.texts(other) == ["a"]
            await to.commit(other, 1)
            assert (await to.offsets())["orders"][0] == 1
            disk.free = None

    run_timed(go())


def test_a_partition_whose_sidecar_is_damaged_is_left_out_and_the_others_work(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create(partitions=2)
            for partition in (0, 1):
                to.put(*numbered(2), partition=partition)
            member = (await to.join()).member_id
            assert len(await to.texts(member)) == 4
            await to.commit(member, {"orders": {0: 1, 1: 1}})
            name = to.partition(0).log_name
        segment = next((tmp_path / "logs" / sidecar_name(name)).glob("*.log"))
        data = bytearray(segment.read_bytes())
        data[40] ^= 0xFF
        segment.write_bytes(data)
        async with consuming(tmp_path) as to:
            assert to.partition(0).sidecar_damage is not None
            to.put("m2", partition=0)
            to.put("m2", partition=1)
            assert await to.texts(member) == ["m2"]
            with pytest.raises(DamagedData):
                await to.commit(member, {"orders": {0: 2, 1: 3}})
            assert await to.offsets() == {"orders": {1: 3}}, "what can be kept is kept, the rest is not claimed to be"
            waiting = await to.parked(member)  # messages nobody can be given do not keep it from that
            to.put("m3", partition=1)
            assert texts(await waiting) == ["m3"]

    run_timed(go())


def test_a_sidecar_is_made_once_however_many_ask(tmp_path: Path) -> None:
    async def go() -> None:
        async with consuming(tmp_path) as to:
            await to.create()
            to.put("a")
            views = await asyncio.gather(*(to.join(group=f"g{number}") for number in range(20)))
            found = await asyncio.gather(
                *(to.texts(view.member_id, group=f"g{number}") for number, view in enumerate(views))
            )
            assert found == [["a"]] * 20
            sidecar = to.partition().sidecar
            assert sidecar is not None
            assert sidecar.submit(Settle(to.group("g7").number, 1), wall=0, now=0).refusal is None

    run_timed(go())
