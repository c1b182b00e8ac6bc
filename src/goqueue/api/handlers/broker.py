"""How the broker is: health, version, counters, the cluster it is in."""

import platform
from time import monotonic

from msgspec import UNSET

from goqueue import __version__, codec
from goqueue.api.service import Service
from goqueue.model import limits
from goqueue.model.names import partition_name, show_offsets
from goqueue.wire import shapes
from goqueue.wire.frames import VERSION as WIRE_VERSION


async def health(service: Service, request: shapes.AskHealth) -> shapes.Health:
    """Ready for requests? The checks also tell of partitions that are not open, which others do not suffer from."""
    broker = service.broker
    status: shapes.HealthStatus = "ok"
    if broker.draining:
        status = "draining"
    if broker.failure is not None:
        status = "failing"
    checks: dict[str, str] = {
        "storage": _storage(service),
        "partitions": _partitions(service),
        "in_flight": _in_flight(service),
    }
    return shapes.Health(status=status, checks=checks if request.verbose else UNSET)


def _storage(service: Service) -> str:
    broker = service.broker
    if broker.failure is not None:
        return str(broker.failure)
    return "full: publishing is refused until there is space" if broker.full else "ok"


def _partitions(service: Service) -> str:
    catalogue = service.broker.topics
    closed = sum(len(topic.slots) - len(topic.partitions) for topic in catalogue.by_id.values())
    problems = []
    if closed:
        problems.append(f"{closed} cannot be opened; describe their topics to see why")
    without_groups = [
        partition_name(topic.meta.name, part.number)
        for topic in catalogue.by_id.values()
        for part in topic.partitions
        if part.sidecar_damage is not None
    ]
    if without_groups:
        problems.append(f"closed to groups: {_named(without_groups)}; describe their topics to see why")
    damaged = [
        f"{partition_name(topic.meta.name, part.number)} {show_offsets(damage.first, damage.next_offset)}"
        for topic in catalogue.by_id.values()
        for part in topic.partitions
        for segment in part.log.segments
        for damage in segment.damage or ()
    ]
    if damaged:
        problems.append(f"damaged: {_named(damaged)}; goqueue log verify looks for more")
    if catalogue.lagging:
        problems.append(f"{len(catalogue.lagging)} topics wait to be opened")
    return "; ".join(problems) or "ok"


def _named(found: list[str]) -> str:
    more = len(found) - limits.HEALTH_NAMES
    return ", ".join(found[: limits.HEALTH_NAMES]) + (f" and {more} more" if more > 0 else "")


def _in_flight(service: Service) -> str:
    lost = service.broker.requests.lost + service.broker.replies.lost
    return f"{lost} bytes were not given back, and were found; this is a bug in GoQueue" if lost else "ok"


async def live(service: Service, request: shapes.Nothing) -> shapes.Health:
    """The process answers. Nothing else is looked at, so that a restart is asked for only when it would help."""
    return shapes.Health(status="ok")


async def version(service: Service, request: shapes.Nothing) -> shapes.Version:
    return shapes.Version(
        version=__version__,
        codec="compiled" if codec.COMPILED else "python",
        python=platform.python_version(),
        wire_version=WIRE_VERSION,
    )


async def stats(service: Service, request: shapes.Nothing) -> shapes.Stats:
    broker = service.broker
    topics = list(broker.topics.by_id.values())
    segments = [segment for topic in topics for part in topic.partitions for segment in part.log.segments]
    return shapes.Stats(
        node_id=broker.settings.node_id,
        cluster_id=broker.cluster_id,
        uptime_seconds=monotonic() - broker.started_s,
        topics=len(topics),
        partitions=sum(len(topic.slots) for topic in topics),
        messages=sum(segment.count for segment in segments),
        size_bytes=sum(segment.size for segment in segments),
        messages_produced=broker.meters.total("messages_produced"),
        bytes_produced=broker.meters.total("bytes_produced"),
        duplicates=broker.meters.total("duplicates"),
        messages_read=broker.meters.total("messages_read"),
        in_flight_bytes=broker.requests.held + broker.replies.held,
    )


async def cluster(service: Service, request: shapes.Nothing) -> shapes.ClusterView:
    broker = service.broker
    node = shapes.NodeView(
        node_id=broker.settings.node_id,
        state="draining" if broker.draining else "ready",
        endpoints=service.endpoints,
    )
    return shapes.ClusterView(cluster_id=broker.cluster_id, nodes=[node])
