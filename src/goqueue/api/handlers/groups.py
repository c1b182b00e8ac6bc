"""Groups: members, polling, offsets."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import UNSET

from goqueue import codec
from goqueue.api.handlers.showing import show_damage, show_incomplete_topics, show_member, show_polled
from goqueue.api.service import Service
from goqueue.api.turns import FEW, exhaust
from goqueue.broker.poll import Turn
from goqueue.groups.commands import Join
from goqueue.groups.group import Group, Member
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.groups import Place, Position
from goqueue.model.names import check_group_name
from goqueue.model.times import parse_span, parse_time, show_duration
from goqueue.wire import shapes

_VALUES: Final = {
    Place.OFFSET: "a whole number",
    Place.TIMESTAMP: "a time, like 2026-01-31T12:00:00Z",
    Place.DURATION: "how long ago, like 1h30m",
}
"""What a reset needs to know, by where it goes."""

# --- members


async def join_group(service: Service, request: shapes.JoinGroup, group: str) -> shapes.MemberReply:
    check_group_name(group)
    broker = service.broker
    interval_ms = _span("auto_commit_interval", request.auto_commit_interval, most=limits.MAX_SESSION_MS)
    command = Join(
        group=group,
        client_id=request.client_id,
        topics=tuple(request.topics),
        new_id=broker.groups.new_member_id(request.client_id),
        session_ms=_session(service, request),
        rebalance_ms=_span("rebalance_timeout", request.rebalance_timeout, most=limits.MAX_SESSION_MS),
        member_id=request.member_id,
        instance_id=request.instance_id,
        assignor=request.assignor,
        mode=request.mode,
        auto_commit_ms=interval_ms if request.auto_commit else None,
        visibility_ms=_visibility(request.visibility),
        max_unacked=request.max_unacked,
    )
    begin = partial(broker.offsets.begin, position=_start(request.start))
    return show_member(await broker.groups.join(command, begin))


async def heartbeat(service: Service, request: shapes.Heartbeat, group: str) -> shapes.MemberReply:
    found, member = find_member(service, group, request.member_id)
    given_up, finishing = request.revoked, request.finishing
    return show_member(await service.broker.groups.heartbeat(found, member, given_up, finishing, request.generation))


async def leave_group(service: Service, request: shapes.LeaveGroup, group: str) -> shapes.Left:
    await service.broker.offsets.leave(*find_member(service, group, request.member_id))
    return shapes.Left(left=True)


# --- polling


async def park_poll(service: Service, request: shapes.Poll, group: str) -> Turn:
    timeout_ms = _span("timeout", request.timeout, most=limits.MAX_WAIT_MS)
    return await service.broker.poller.park(group, request.member_id, timeout_ms=timeout_ms, received=request.received)


async def poll(service: Service, request: shapes.Poll, group: str, parked: Turn) -> shapes.Polled:
    polled = await service.broker.poller.take(
        parked,
        max_messages=request.max_messages,
        max_bytes=request.max_bytes,
        visibility_ms=_visibility(request.visibility),
    )
    view = polled.view
    messages: list[shapes.PolledMessage] = []

    def show() -> Iterator[None]:
        for row in polled.rows:
            for piece in _pieces(row.chunk.data):
                records = codec.decode(piece, verified=True)
                yield
                for record in records:
                    if not record.control:
                        messages.append(show_polled(row, record, service.broker.handles, polled))
                        yield

    if sum(row.chunk.count for row in polled.rows) > FEW:
        await service.turns.take(show())
    else:
        exhaust(show())
    return shapes.Polled(
        group_id=group,
        member_id=request.member_id,
        poll=polled.number,
        messages=messages,
        generation=view.generation,
        state=view.state,
        rebalance_required=view.is_rebalancing,
        assigned_partitions=view.assigned,
        revoke=view.revoke,
        damage=show_damage(polled.damage),
        incomplete=show_incomplete_topics(polled.incomplete),
    )


def _pieces(data: memoryview) -> Iterator[memoryview]:
    """Of records, what is translated at once."""
    at = 0
    while len(data) - at > limits.READ_AT_ONCE_BYTES:
        found = codec.select(
            data[at:],
            from_offset=0,
            to_offset=limits.MAX_OFFSET,
            max_count=limits.MAX_POLL_MESSAGES,
            max_bytes=limits.READ_AT_ONCE_BYTES,
        )
        yield data[at : at + found.end]
        at += found.end
    yield data[at:]


def undo_poll(service: Service, reply: shapes.Reply) -> None:
    if isinstance(reply, shapes.Polled) and reply.messages:
        service.broker.poller.give_back(reply.group_id, reply.member_id, reply.poll)


# --- offsets


async def commit(service: Service, request: shapes.Commit, group: str) -> shapes.Committed:
    offsets = {
        topic: {int(number): offset for number, offset in numbers.items()} for topic, numbers in request.offsets.items()
    }
    found, member = find_member(service, group, request.member_id)
    await service.broker.offsets.commit(
        found, member, offsets, generation=request.generation, received=request.received
    )
    return shapes.Committed(committed=True)


async def group_offsets(service: Service, request: shapes.AskOffsets, group: str) -> shapes.GroupOffsets:
    offsets = await service.broker.offsets.offsets(_group(service, group), request.topic)
    return shapes.GroupOffsets(
        offsets={topic: _by_text(numbers) for topic, numbers in offsets.items()},
        incomplete=show_incomplete_topics(service.broker.offsets.damage(_group(service, group), request.topic)),
    )


async def reset_offsets(service: Service, request: shapes.ResetOffsets, group: str) -> shapes.GroupOffsets:
    position = _position(request.to, request.value)
    offsets = await service.broker.offsets.reset(
        _group(service, group), request.topic, position, partition=request.partition, dry_run=request.dry_run
    )
    return shapes.GroupOffsets(offsets={request.topic: _by_text(offsets)})


async def group_lag(service: Service, request: shapes.Nothing, group: str) -> shapes.GroupLag:
    topics = {
        topic: {
            str(number): shapes.PartitionLag(
                committed=lag.committed,
                end=lag.end,
                lag=lag.lag,
                lag_seconds=lag.lag_ms / 1000,
                delayed=lag.delayed,
                in_flight=lag.in_flight,
            )
            for number, lag in numbers.items()
        }
        for topic, numbers in (await service.broker.offsets.lag(_group(service, group))).items()
    }
    total = sum(lag.lag for numbers in topics.values() for lag in numbers.values())
    damage = service.broker.offsets.damage(_group(service, group))
    return shapes.GroupLag(group_id=group, total_lag=total, topics=topics, incomplete=show_incomplete_topics(damage))


# --- groups


async def list_groups(service: Service, request: shapes.Nothing) -> shapes.GroupList:
    await service.broker.groups.all_sure()
    return shapes.GroupList(groups=sorted(service.broker.groups.machine.by_name))


async def describe_group(service: Service, request: shapes.Nothing, group: str) -> shapes.GroupDescription:
    found = _group(service, group)
    await service.broker.groups.sure(found)
    name = service.broker.groups.part_name
    members = []
    for member in found.members.values():
        revoking = set(found.revoking(member))
        members.append(
            shapes.MemberDescription(
                member_id=member.member_id,
                client_id=member.joined.client_id,
                instance_id=member.joined.instance_id,
                topics=list(member.joined.topics),
                assigned_partitions=[name(part) for part in member.parts if part not in revoking],
                revoke=[name(part) for part in member.parts if part in revoking],
            )
        )
    return shapes.GroupDescription(
        group_id=group,
        state=found.state,
        generation=found.generation,
        mode=found.mode,
        assignor=found.assignor,
        members=members,
    )


async def delete_group(service: Service, request: shapes.Nothing, group: str) -> shapes.GroupDeleted:
    await service.broker.groups.delete(group)
    return shapes.GroupDeleted(deleted=True, group_id=group)


async def rebalance_stats(service: Service, request: shapes.Nothing) -> shapes.RebalanceStats:
    broker = service.broker
    counted = broker.group_meters
    each = {
        meters.group: shapes.GroupRebalances(
            rebalances=meters.rebalance.count,
            moves=meters.moves,
            rebalance_seconds=meters.rebalance.sum,
            pause_seconds=meters.pause.sum,
        )
        for meters in counted
    }
    return shapes.RebalanceStats(
        rebalances=counted.rebalance.count,
        moves=counted.moves,
        rebalance_seconds=counted.rebalance.sum,
        pause_seconds=counted.pause.sum,
        in_progress=sorted(group.name for group in broker.groups.machine.by_name.values() if group.is_rebalancing),
        waiting_polls=len(broker.groups.parks),
        groups=each,
    )


# --- from and to JSON


def _group(service: Service, name: str) -> Group:
    return service.broker.groups.machine.group(name)


def find_member(service: Service, group: str, member_id: str) -> tuple[Group, Member]:
    found = _group(service, group)
    return found, found.member(member_id)


def _by_text(offsets: dict[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in sorted(offsets.items())}


def _session(service: Service, request: shapes.JoinGroup) -> int:
    if request.session_timeout is UNSET:
        return int(service.client_defaults["consumer"]["session_timeout_ms"])
    return _span("session_timeout", request.session_timeout, least=limits.MIN_SESSION_MS, most=limits.MAX_SESSION_MS)


def _span(name: str, span: str | float, *, least: int = 0, most: int) -> int:
    span_ms = parse_span(span)
    if not least <= span_ms <= most:
        raise InvalidRequest(f"{name} is {span!r}; write from {least // 1000}s to {most // 1000}s")
    return span_ms


def _visibility(span: str | float | None) -> int | None:
    if span is None:
        return None
    span_ms = parse_span(span)
    if not limits.MIN_VISIBILITY_MS <= span_ms <= limits.MAX_VISIBILITY_MS:
        longest = show_duration(limits.MAX_VISIBILITY_MS)
        raise InvalidRequest(f"visibility is {span!r}; write from {limits.MIN_VISIBILITY_MS}ms to {longest}")
    return span_ms


def _start(start: str | int) -> Position:
    if isinstance(start, int):
        return Position(Place.OFFSET, start)
    if start in (Place.EARLIEST, Place.LATEST):
        return Position(Place(start))
    return Position(Place.TIMESTAMP, parse_time(start))


def _position(place: Place, value: str | int | None) -> Position:
    """Where a reset goes, from what was asked."""
    match place, value:
        case ((Place.EARLIEST | Place.LATEST), None):
            return Position(place)
        case ((Place.EARLIEST | Place.LATEST), _):
            raise InvalidRequest(f"a reset to {place} has no value; leave it out")
        case _, None:
            raise InvalidRequest(f"a reset to {place} needs a value: {_VALUES[place]}")
        case Place.OFFSET, int():
            return Position(place, value)
        case Place.OFFSET, str() if value.isascii() and value.isdigit() and int(value) < limits.MAX_OFFSET:
            return Position(place, int(value))
        case Place.TIMESTAMP, _:
            return Position(place, parse_time(str(value)))
        case Place.DURATION, _:
            return Position(place, min(parse_span(value), limits.MAX_DURATION_MS))
        case _:
            raise InvalidRequest(f"{value!r} is no offset: write a whole number")
