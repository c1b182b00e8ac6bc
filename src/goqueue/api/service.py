"""What a handler works with: the broker, and what the doors know besides."""

from collections.abc import Iterable, Iterator
from typing import Any

from goqueue.api.turns import Turns
from goqueue.broker.broker import Broker
from goqueue.broker.topic import OpenTopic
from goqueue.groups.group import Group
from goqueue.telemetry.exposition import (
    BrokerReading,
    GroupReading,
    GroupsReading,
    LagReading,
    LaneReading,
    PartitionReading,
    Standing,
    TopicReading,
    TransactionsReading,
)
from goqueue.telemetry.meters import RequestMeterSet


class Service:
    """Shared by all doors of a broker."""

    def __init__(
        self, broker: Broker, *, requests: RequestMeterSet, client_defaults: dict[str, dict[str, Any]]
    ) -> None:
        self.broker = broker
        self.requests = requests
        self.client_defaults = client_defaults
        """`producer` and `consumer`: what clients are told to use where they have no opinion."""
        self.endpoints: dict[str, str] = {}
        """The doors that are open."""
        self.connections: dict[str, int] = {}
        """Open ones, by door."""
        self.turns = Turns()
        """Of requests that take long."""


class Readings:
    """What a scrape asks of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def topics(self) -> Iterable[TopicReading]:
        for topic in list(self._service.broker.topics.by_id.values()):
            yield TopicReading(
                topic.meters,
                [
                    PartitionReading(
                        partition.number,
                        sum(segment.size for segment in partition.log.segments),
                        len(partition.log.segments),
                        partition.log.start_offset,
                        partition.log.end_offset,
                    )
                    for partition in topic.partitions
                ],
                delayed=sum(len(partition.delays) for partition in topic.partitions),
                outbox=sum(
                    len(partition.deliveries.outbox) for partition in topic.partitions if partition.sidecar is not None
                ),
            )

    def groups(self) -> GroupsReading:
        broker = self._service.broker
        groups = list(broker.groups.machine.by_name.values())
        return GroupsReading(
            broker.group_meters,
            (
                GroupReading(group.name, len(group.members), self._lags_of(group), self._lanes_of(group))
                for group in groups
            ),
            waiting_polls=len(broker.groups.parks),
        )

    def _lags_of(self, group: Group) -> Iterator[LagReading]:
        """Only what is in memory is looked at, and only when it is asked for: groups times partitions are many."""
        broker = self._service.broker
        if broker.groups.machine.by_number.get(group.number) is not group:
            return  # it was deleted since the scrape began; its partitions have forgotten what it settled
        by_id = broker.topics.by_id
        topics = [by_id[topic_id] for topic_id in group.started if topic_id in by_id]
        for topic in sorted(topics, key=lambda topic: topic.meta.name):
            yield LagReading(topic.meta.name, self._lags_in(group, topic))

    def _lags_in(self, group: Group, topic: OpenTopic) -> Iterator[Standing]:
        standing = self._service.broker.offsets.standing
        for partition in topic.partitions:
            if partition.sidecar_damage is not None:
                continue  # nobody knows
            _, lag = standing(group, partition)
            if partition.sidecar is None:
                yield Standing(partition.number, lag)
            else:
                in_flight = partition.deliveries.in_flight(group.number)
                yield Standing(partition.number, lag, in_flight, partition.deliveries.waiting(group.number))

    def _lanes_of(self, group: Group) -> Iterator[LaneReading | None]:
        for found in self._service.broker.statistics.counted_lanes(group):
            if found is None:
                yield None
            else:
                ready, waited_ms = found
                yield LaneReading(ready, [ms / 1000 for ms in waited_ms])

    def broker(self) -> BrokerReading:
        broker = self._service.broker
        return BrokerReading(
            ready=broker.failure is None and not broker.draining,
            connections=dict(self._service.connections),
            in_flight_bytes=broker.requests.held + broker.replies.held,
            lost_bytes=broker.requests.lost + broker.replies.lost,
            oldest_s=max(broker.requests.oldest_s, broker.replies.oldest_s),
            fsync_latency=broker.fsync_latency,
            delay_lateness=broker.alarms.lateness,
            transactions=TransactionsReading(
                len(broker.transactions.machine.by_producer),
                broker.transactions.oldest_ms / 1000,
                broker.transactions.outcomes,
            ),
        )
