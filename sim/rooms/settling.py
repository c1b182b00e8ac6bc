"""Settling, as a broker does it: commits, by hand or by itself, and single messages by their handles."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyroaring import BitMap64

from goqueue.delivery.commands import Ack, Claims, Extend, Nack, Reject, Settle
from goqueue.groups.group import Group, Member, Part
from goqueue.model import limits
from goqueue.model.errors import OffsetOutOfRange
from goqueue.model.groups import Mode
from goqueue.model.names import GroupNumber
from sim.checkers import handles, zombies
from sim.rooms.core import Core, Written
from sim.rooms.exchanges import Commit, Steps
from sim.rooms.tenures import Tenure
from sim.rooms.topics import Partition


class Handles(NamedTuple):
    """Of messages of one partition that one group was delivered; offsets by poll."""

    group: GroupNumber
    part: Part
    tenure: Tenure
    claims: Claims


class Settlement:
    def __init__(self, core: Core) -> None:
        self._core = core

    # --- commits

    def commit(self, group_name: str, member_id: str, commits: Sequence[Commit]) -> Steps[list[Commit]]:
        """Those that were refused."""
        core = self._core
        group, member = yield from core.find(group_name, member_id)
        core.touch(group, member)
        for commit in commits:
            data = core.partitions[commit.batch.part].data
            if commit.below > data.end_offset:
                raise OffsetOutOfRange(commit.below, start=data.start_offset, end=data.end_offset)
        refused: list[Commit] = []
        answers: list[tuple[Partition, Written]] = []
        holder = "" if group.mode is Mode.PARTITION else member_id
        for commit in commits:
            partition = core.partitions[commit.batch.part]
            if not self._may_commit(group, member, commit):
                refused.append(commit)
            elif partition.sidecar is not None and not core.needs_open(group, partition):  # else a power cut took it
                to = commit.batch.poll if commit.fenced else limits.MAX_OFFSET
                answers.append((partition, core.write(partition, Settle(group.number, commit.below, to, holder))))
        yield from core.release(group, member)
        for partition, written in answers:
            yield from core.answer(group.number, partition, written)
        yield from core.settled()
        return refused

    def _may_commit(self, group: Group, member: Member, commit: Commit) -> bool:
        if group.mode is not Mode.PARTITION:
            return True
        part = commit.batch.part
        accepted = group.owns(member, part, commit.batch.generation if commit.fenced else None)
        zombies.check(
            self._core.tenures, (group.number, part), commit.batch.tenure, fenced=commit.fenced, accepted=accepted
        )
        return accepted

    def auto_commit(self, group: Group, member: Member, arrived: int, *, leaving: bool = False) -> Steps[None]:
        """What polls up to `arrived` delivered; all is written before anything is waited for."""
        core = self._core
        interval_ms = member.joined.auto_commit_ms
        if interval_ms is None:
            return
        now = core.monotonic()
        is_time = leaving or now - member.auto_committed_at >= interval_ms
        if is_time:
            member.auto_committed_at = now
        answers = []
        shares = group.mode is not Mode.PARTITION
        for part in list(core.parts_of(group, member)) if is_time else sorted(member.acknowledged):
            partition = core.partitions[part]
            mine = shares or (group.owner(part) is member and not core.needs_open(group, partition))
            if partition.sidecar is not None and mine:
                command = Settle(group.number, limits.MAX_OFFSET, arrived, member.member_id if shares else "")
                answers.append((partition, core.write(partition, command)))
        for partition, written in answers:
            yield from core.answer(group.number, partition, written)

    # --- handles

    def ack(self, given: Handles) -> Steps[Claims]:
        """Those that were refused."""
        return (yield from self._settle(given, Ack(given.group, given.claims)))

    def nack(self, given: Handles, delay_ms: int | None) -> Steps[Claims]:
        retries = self._core.partitions[given.part].retries
        return (yield from self._settle(given, Nack(given.group, given.claims, retries, delay_ms), lapsed=False))

    def reject(self, given: Handles) -> Steps[Claims]:
        dead_letters = self._core.partitions[given.part].retries.dead_letters
        return (yield from self._settle(given, Reject(given.group, given.claims, dead_letters, "it said so")))

    def extend(self, given: Handles, span_ms: int) -> Steps[Claims]:
        return (yield from self._settle(given, Extend(given.group, given.claims, span_ms), lapsed=False))

    def _settle(self, given: Handles, command: Any, *, lapsed: bool = True) -> Steps[Claims]:
        """`lapsed`: whether the handle of a lease that has lapsed will do."""
        core = self._core
        group, partition = core.groups.by_number.get(given.group), core.partitions[given.part]
        if group is None or partition.sidecar is None:
            return given.claims
        before = core.ledger.accounts[group.number, given.part].places
        if core.needs_open(group, partition):
            if before.claimed(given.claims):  # else a power cut took the lease
                zombies.check(core.tenures, (group.number, given.part), given.tenure, fenced=True, accepted=False)
            return given.claims
        written = core.write(partition, command)
        refused: Claims = written.reply.refused if isinstance(command, Nack) else written.reply
        handles.check(before, given.part, given.claims, refused, lapsed=lapsed)
        owner = group.owner(given.part)
        if owner is not None:
            yield from core.release(group, owner)
        yield from core.answer(group.number, partition, written)
        return refused


def claims_of(poll: int, offsets: Sequence[int]) -> Claims:
    return {poll: BitMap64(offsets)}
