"""Settling single messages by their handles, and delayed messages."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from goqueue.api.handlers.showing import show_incomplete
from goqueue.api.service import Service
from goqueue.api.turns import in_turns
from goqueue.broker.delayed import Delayed, damage_of
from goqueue.broker.settle import Fate
from goqueue.delivery.handles import Handle
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, StaleHandle
from goqueue.model.names import TopicId, message_id
from goqueue.model.times import parse_span, parse_time, show_duration, show_time
from goqueue.wire import shapes

_NOT_THERE: Final = "this is not a handle that was given out for a message that is still there"

# --- handles


async def ack(service: Service, request: shapes.Ack) -> shapes.Settled:
    return await _settle(service, request, None, service.broker.settlement.ack, _acked)


async def group_ack(service: Service, request: shapes.Ack, group: str) -> shapes.Settled:
    return await _settle(service, request, group, service.broker.settlement.ack, _acked)


async def nack(service: Service, request: shapes.Nack) -> shapes.Settled:
    return await _nack(service, request, None)


async def group_nack(service: Service, request: shapes.Nack, group: str) -> shapes.Settled:
    return await _nack(service, request, group)


async def _nack(service: Service, request: shapes.Nack, group: str | None) -> shapes.Settled:
    delay_ms = None if request.delay is UNSET else _span("delay", request.delay, 0, limits.MAX_BACKOFF_MS)

    async def work(handles: Sequence[Handle]) -> list[Fate]:
        return await service.broker.settlement.nack(handles, delay_ms)

    return await _settle(service, request, group, work, _nacked)


async def release(service: Service, request: shapes.Ack) -> shapes.Settled:
    return await _settle(service, request, None, service.broker.settlement.release, _released)


async def reject(service: Service, request: shapes.Reject) -> shapes.Settled:
    async def work(handles: Sequence[Handle]) -> list[Fate]:
        return await service.broker.settlement.reject(handles, request.reason)

    return await _settle(service, request, None, work, _rejected)


async def extend_visibility(service: Service, request: shapes.ExtendVisibility) -> shapes.Settled:
    span_ms = _span("timeout", request.timeout, limits.MIN_VISIBILITY_MS, limits.MAX_VISIBILITY_MS)

    async def work(handles: Sequence[Handle]) -> list[Fate]:
        return await service.broker.settlement.extend(handles, span_ms, service.broker.clock())

    return await _settle(service, request, None, work, _extended)


def _acked(fate: Fate) -> shapes.Settled:
    return shapes.Settled(acknowledged=True)


def _released(fate: Fate) -> shapes.Settled:
    return shapes.Settled(released=True)


def _nacked(fate: Fate) -> shapes.Settled:
    if fate.visible_at is None:  # it failed too often
        return shapes.Settled(requeued=False, dlq_topic=fate.dlq_topic or UNSET)
    return shapes.Settled(requeued=True, visible_at=show_time(fate.visible_at))


def _rejected(fate: Fate) -> shapes.Settled:
    return shapes.Settled(rejected=True, dlq_topic=fate.dlq_topic or UNSET)


def _extended(fate: Fate) -> shapes.Settled:
    return shapes.Settled(extended=True, new_deadline=UNSET if fate.visible_at is None else show_time(fate.visible_at))


async def _settle(
    service: Service,
    request: shapes.Ack,
    group: str | None,
    work: Callable[[Sequence[Handle]], Awaitable[list[Fate]]],
    show: Callable[[Fate], shapes.Settled],
) -> shapes.Settled:
    return await settle_handles(service, request.receipt_handle, request.receipt_handles, group, work, show)


async def settle_handles(
    service: Service,
    one: str | UnsetType,
    many: Sequence[str] | UnsetType,
    group: str | None,
    work: Callable[[Sequence[Handle]], Awaitable[list[Fate]]],
    show: Callable[[Fate], shapes.Settled],
) -> shapes.Settled:
    """One handle that is refused refuses the request; of many each has a result."""
    if (one is UNSET) == (many is UNSET):
        raise InvalidRequest("name receipt_handle for one message, or receipt_handles for many")
    texts = [one] if one is not UNSET else list(many or ())
    number = None if group is None else service.broker.groups.machine.group(group).number
    checked = await in_turns(service.turns, texts, lambda text: _checked(service, text, number))
    found = _still_there(service, checked)  # a handle names its topic: from here on nothing may happen to it
    settled = iter(await work([each for each in found if isinstance(each, Handle)]))
    fates = [next(settled) if isinstance(each, Handle) else each for each in found]
    if one is not UNSET:
        if fates[0].refusal is not None:
            raise fates[0].refusal
        return show(fates[0])
    return shapes.Settled(results=await in_turns(service.turns, fates, lambda fate: _shown(fate, show)))


def _checked(service: Service, text: str, group: int | None) -> tuple[Handle, TopicId] | Fate:
    """A handle that this cluster signed, and the id of its topic, which is the one of then; or why it is none."""
    try:
        handle = service.broker.handles.parse(text)
        shape = service.broker.topics.shape_of(handle.topic)
        if shape is None or not service.broker.handles.check(shape[0], text, handle):
            raise StaleHandle(_NOT_THERE)
        if group is not None and handle.group != group:
            raise StaleHandle("this handle is of another group")
    except GoQueueError as error:
        return Fate(error)
    return handle, shape[0]


def _still_there(service: Service, checked: Sequence[tuple[Handle, TopicId] | Fate]) -> list[Handle | Fate]:
    """The handles whose topics were not deleted while others had their turns."""
    ids = {each[1] for each in checked if not isinstance(each, Fate)}
    gone = {topic_id for topic_id in ids if service.broker.topics.name_of(topic_id) is None}
    return [
        each if isinstance(each, Fate) else Fate(StaleHandle(_NOT_THERE)) if each[1] in gone else each[0]
        for each in checked
    ]


def _shown(fate: Fate, show: Callable[[Fate], shapes.Settled]) -> shapes.Settled:
    if fate.refusal is None:
        return show(fate)
    return shapes.Settled(error=str(fate.refusal), code=fate.refusal.code, retriable=fate.refusal.retriable)


def _span(name: str, span: str | float, least_ms: int, most_ms: int) -> int:
    span_ms = parse_span(span)
    if not least_ms <= span_ms <= most_ms:
        raise InvalidRequest(f"{name} is {span!r}; write from {show_duration(least_ms)} to {show_duration(most_ms)}")
    return span_ms


# --- delayed messages


async def list_delayed(service: Service, request: shapes.ListDelayed, topic: str) -> shapes.DelayedList:
    opened = service.broker.topics.named(topic)
    page = await service.broker.delayed.list(opened, skip=request.skip, limit=request.limit)
    return shapes.DelayedList(
        messages=[_show(each) for each in page.found], count=page.total, incomplete=show_incomplete(page.incomplete)
    )


async def get_delayed(
    service: Service, request: shapes.Nothing, topic: str, partition: int, offset: int
) -> shapes.DelayedMessage:
    return _show(await service.broker.delayed.get(service.broker.topics.named(topic), partition, offset))


async def find_delayed(service: Service, request: shapes.Nothing, topic: str, offset: int) -> shapes.DelayedMessage:
    opened = service.broker.topics.named(topic)
    if len(opened.slots) > 1:
        raise InvalidRequest(
            f"{topic} has {len(opened.slots)} partitions and an offset belongs to one: "
            f"write /topics/{topic}/delayed/0/{offset}"
        )
    return _show(await service.broker.delayed.get(opened, 0, offset))


async def cancel_delayed(
    service: Service, request: shapes.Nothing, topic: str, partition: int, offset: int
) -> shapes.DelayCancelled:
    await service.broker.delayed.cancel(service.broker.topics.named(topic), partition, offset)
    return shapes.DelayCancelled(cancelled=True)


async def move_delayed(
    service: Service, request: shapes.MoveDelayed, topic: str, partition: int, offset: int
) -> shapes.DelayedMessage:
    if (request.delay is UNSET) == (request.deliverAt is UNSET):
        raise InvalidRequest("name delay, from now on, or deliverAt")
    if request.delay is not UNSET:
        deliver_at = service.broker.clock() + _span("delay", request.delay, 0, limits.MAX_DURATION_MS)
    else:
        time = request.deliverAt
        deliver_at = time if isinstance(time, int) else parse_time(str(time).replace(" ", "+"))
    opened = service.broker.topics.named(topic)
    return _show(await service.broker.delayed.move(opened, partition, offset, deliver_at))


async def cancel_many_delayed(service: Service, request: shapes.CancelDelayed, topic: str) -> shapes.DelaysCancelled:
    ids = set(request.ids)
    opened = service.broker.topics.named(topic)
    failed = await service.broker.delayed.cancel_all(opened, ids)
    concerned = {number for number, _ in failed}
    damage = {number: reason for number, reason in damage_of(opened).items() if number in concerned}
    return shapes.DelaysCancelled(
        cancelled=len(ids) - len(failed),
        failed=[list(each) for each in sorted(failed)],
        incomplete=show_incomplete(damage),
    )


def _show(delayed: Delayed) -> shapes.DelayedMessage:
    record = delayed.record
    return shapes.DelayedMessage(
        topic=delayed.topic,
        partition=delayed.partition,
        offset=record.offset,
        message_id=message_id(delayed.topic, delayed.partition, record.offset),
        deliver_at=show_time(delayed.deliver_at),
        priority=shapes.LANE_NAMES[record.priority],
        key=None if record.key is None else record.key.decode("utf-8", "backslashreplace"),
        state=delayed.state,
    )
