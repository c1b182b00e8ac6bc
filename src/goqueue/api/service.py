"""What a handler works with: the broker, and what the doors know besides."""

from collections.abc import Iterable
from typing import Any

from goqueue.broker.broker import Broker
from goqueue.telemetry.exposition import BrokerReading, PartitionReading, TopicReading
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
            )

    def broker(self) -> BrokerReading:
        broker = self._service.broker
        return BrokerReading(
            ready=broker.failure is None and not broker.draining,
            connections=dict(self._service.connections),
            in_flight_bytes=broker.requests.held + broker.replies.held,
            fsync_latency=broker.fsync_latency,
        )
