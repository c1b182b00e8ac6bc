"""The broker itself."""

from typing import Literal

from msgspec import UNSET, UnsetType

from goqueue.wire.shapes.fields import HealthStatus, Reply, Request


class Health(Reply, frozen=True, kw_only=True, omit_defaults=True):
    status: HealthStatus
    checks: dict[str, str] | UnsetType = UNSET


class AskHealth(Request, frozen=True, kw_only=True):
    verbose: bool = False


class Version(Reply, frozen=True, kw_only=True):
    version: str
    codec: Literal["compiled", "python"]
    python: str
    wire_version: int


class Stats(Reply, frozen=True, kw_only=True):
    node_id: str
    cluster_id: str
    uptime_seconds: float
    topics: int
    partitions: int
    messages: int
    size_bytes: int
    messages_produced: int
    bytes_produced: int
    duplicates: int
    messages_read: int
    in_flight_bytes: int


class NodeView(Reply, frozen=True, kw_only=True):
    node_id: str
    state: str
    endpoints: dict[str, str]


class ClusterView(Reply, frozen=True, kw_only=True):
    cluster_id: str
    nodes: list[NodeView]
