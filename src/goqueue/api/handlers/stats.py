"""Statistics of deliveries."""

from collections.abc import Sequence
from typing import Any

from goqueue.api.service import Service
from goqueue.broker.statistics import DelayRow, LaneStanding
from goqueue.model.times import show_time
from goqueue.telemetry.meters import Consumption, Histogram
from goqueue.wire import shapes


async def priority_stats(service: Service, request: shapes.AskStats) -> shapes.PriorityStats:
    rows, left_out = await service.broker.statistics.lanes(
        group=request.group, topic=request.topic, limit=request.limit
    )
    return shapes.PriorityStats(
        lanes=_lanes([_summed(lane) for lane in zip(*(row.lanes for row in rows), strict=True)]),
        partitions=[
            shapes.PartitionLanes(group=row.group, topic=row.topic, partition=row.partition, lanes=_lanes(row.lanes))
            for row in rows
        ],
        left_out=left_out,
    )


def _summed(lanes: Sequence[LaneStanding]) -> LaneStanding:
    served = [lane.last_served for lane in lanes if lane.last_served is not None]
    return LaneStanding(
        sum(lane.ready for lane in lanes),
        sum(lane.in_flight for lane in lanes),
        sum(lane.served for lane in lanes),
        max(lane.waited_ms for lane in lanes),
        max(served, default=None),
    )


def _lanes(lanes: Sequence[LaneStanding]) -> dict[shapes.PriorityName, shapes.LaneNumbers]:
    """Of no partition at all they are empty."""
    found = lanes or [LaneStanding(0, 0, 0, 0, None)] * len(shapes.LANE_NAMES)
    return {name: _lane(lane) for name, lane in zip(shapes.LANE_NAMES, found, strict=True)}


def _lane(lane: LaneStanding) -> shapes.LaneNumbers:
    return shapes.LaneNumbers(
        ready=lane.ready,
        in_flight=lane.in_flight,
        served=lane.served,
        waited_seconds=lane.waited_ms / 1000,
        last_served=_time(lane.last_served),
    )


async def delay_stats(service: Service, request: shapes.AskDelayStats) -> shapes.DelayStats:
    rows = await service.broker.statistics.delays()
    wanted = [row for row in rows if request.topic in (None, row.topic)]
    dues = [row.next_due for row in rows if row.next_due is not None]
    return shapes.DelayStats(
        pending=sum(row.pending for row in rows),
        scheduled=sum(row.scheduled for row in rows),
        delivered=sum(row.fired for row in rows),
        cancelled=sum(row.cancelled for row in rows),
        moved=sum(row.moved for row in rows),
        next_due=_time(min(dues, default=None)),
        lateness=_lateness(service.broker.alarms.lateness),
        topics={row.topic: _delays(row) for row in wanted[: request.limit]},
        left_out=max(len(wanted) - request.limit, 0),
    )


def _delays(row: DelayRow) -> shapes.TopicDelays:
    return shapes.TopicDelays(
        pending=row.pending,
        scheduled=row.scheduled,
        delivered=row.fired,
        cancelled=row.cancelled,
        moved=row.moved,
        next_due=_time(row.next_due),
    )


def _lateness(lateness: Histogram) -> shapes.Lateness:
    edges = (*map(repr, lateness.bounds), "+Inf")
    return shapes.Lateness(
        count=lateness.count,
        sum_seconds=lateness.sum,
        buckets=dict(zip(edges, lateness.cumulative(), strict=True)),
    )


async def reliability_stats(service: Service, request: shapes.AskStats) -> shapes.ReliabilityStats:
    found = await service.broker.statistics.reliability()
    wanted = [row for row in found.rows if request.group in (None, row.group) and request.topic in (None, row.topic)]
    return shapes.ReliabilityStats(
        **_numbers(service.broker.group_meters.total()),
        in_flight=sum(row.in_flight for row in found.rows),
        waiting=sum(row.waiting for row in found.rows),
        dead_letters=service.broker.meters.total("dead_letters"),
        outbox=found.outbox,
        groups=[
            shapes.GroupDeliveries(
                group=row.group,
                topic=row.topic,
                **_numbers(row.counted),
                in_flight=row.in_flight,
                waiting=row.waiting,
            )
            for row in wanted[: request.limit]
        ],
        left_out=max(len(wanted) - request.limit, 0),
    )


def _numbers(counted: Consumption) -> dict[str, Any]:
    return {
        "acked": counted.acked,
        "nacked": counted.nacked,
        "rejected": counted.rejected,
        "lapsed": counted.lapsed,
        "expired": counted.expired,
        "redelivered": counted.redelivered,
        "dead": dict(counted.dead.counts),
    }


def _time(unix_ms: int | None) -> str | None:
    return None if unix_ms is None else show_time(unix_ms)
