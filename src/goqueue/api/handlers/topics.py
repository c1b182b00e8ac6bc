"""Topics: create, list, describe, change, delete, add partitions; and metadata for clients."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from goqueue.api.service import Service
from goqueue.broker.partition import Partition
from goqueue.broker.topic import OpenTopic
from goqueue.model.errors import InvalidRequest, InvalidSetting
from goqueue.model.names import format_topic_id
from goqueue.model.times import parse_span, show_duration, show_time
from goqueue.model.topic import Backoff, TopicSettings
from goqueue.wire import shapes
from goqueue.wire.shapes.topics import BackoffConfig, BackoffFields

_REPLICATION: Final = ("replication_factor", "min_insync_replicas")
"""Accepted at the only value there is, and not kept."""
_SPANS: Final = {"visibility_timeout": "visibility_ms", "message_ttl": "message_ttl_ms"}
"""Durations, and what the model calls them."""


async def create_topic(service: Service, request: shapes.CreateTopic) -> shapes.TopicCreated:
    broker = service.broker
    partitions = broker.settings.partitions if request.num_partitions is UNSET else request.num_partitions
    changes = _changes(request, lambda: broker.settings.topic)
    settings = msgspec.structs.replace(broker.settings.topic, **changes)
    topic = await broker.topics.create(request.name, partitions, settings, broker.clock())
    return shapes.TopicCreated(
        name=topic.meta.name,
        partitions=topic.meta.partitions,
        created=True,
        topic_id=format_topic_id(topic.meta.topic_id),
    )


async def list_topics(service: Service, request: shapes.ListTopics) -> shapes.TopicList:
    return shapes.TopicList(topics=await service.broker.topics.names())


async def describe_topic(service: Service, request: shapes.Nothing, topic: str) -> shapes.TopicDescription:
    return _describe(service.broker.topics.named(topic))


async def change_topic(service: Service, request: shapes.TopicSettingsFields, topic: str) -> shapes.TopicDescription:
    topics = service.broker.topics
    changes = _changes(request, lambda: topics.named(topic).meta.settings)
    if not changes:
        return _describe(topics.named(topic))
    return _describe(await topics.change(topic, changes, service.broker.clock()))


async def delete_topic(service: Service, request: shapes.DeleteTopic, topic: str) -> shapes.TopicDeleted:
    """Its dead letters stay unless they are to go too: also those that were on their way."""
    broker = service.broker
    if not request.dead_letters:
        await broker.letters.written(topic)
    gone = await broker.topics.delete(topic, broker.clock(), dead_letters=request.dead_letters)
    return shapes.TopicDeleted(deleted=True, name=topic, dlq_topic=gone[0] if len(gone) > 1 else UNSET)


async def add_partitions(service: Service, request: shapes.AddPartitions, topic: str) -> shapes.PartitionsAdded:
    before = await service.broker.topics.add_partitions(topic, request.count, service.broker.clock())
    return shapes.PartitionsAdded(
        success=True,
        topic_name=topic,
        old_partition_count=before,
        new_partition_count=request.count,
        partitions_added=request.count - before,
    )


async def metadata(service: Service, request: shapes.AskMetadata) -> shapes.Metadata:
    topics = service.broker.topics
    wanted = sorted(topics.by_name) if request.topics is None else request.topics
    found = [topics.by_name[name].meta for name in wanted if name in topics.by_name]
    return shapes.Metadata(
        cluster_id=service.broker.cluster_id,
        node_id=service.broker.settings.node_id,
        topics=[
            shapes.TopicMetadata(
                name=meta.name,
                topic_id=format_topic_id(meta.topic_id),
                partitions=meta.partitions,
                max_message_bytes=meta.settings.max_message_bytes,
            )
            for meta in found
        ],
        **service.client_defaults,
    )


def _changes(request: shapes.TopicSettingsFields, before: Callable[[], TopicSettings]) -> dict[str, Any]:
    """The settings a request sets, as the model has them; `before` is where parts that it leaves out come from."""
    changes: dict[str, Any] = {}
    for name in shapes.TopicSettingsFields.__struct_fields__:
        value = getattr(request, name)
        if value is UNSET or name in _REPLICATION:
            continue
        if name in _SPANS:
            changes[_SPANS[name]] = None if value is None else _span_ms(name, value)
        elif name == "backoff":
            changes[name] = _backoff(value, before().backoff)
        else:
            changes[name] = None if value == shapes.UNLIMITED and name.startswith("retention_") else value
    hours = changes.get("retention_hours")
    if hours is not None and hours < 0:
        raise InvalidSetting(f"retention_hours is {hours}; it must be at least 0, or -1 for no limit")
    return changes


def _backoff(request: BackoffFields, before: Backoff) -> Backoff:
    return Backoff(
        base_ms=before.base_ms if request.base is UNSET else _span_ms("backoff.base", request.base),
        factor=before.factor if request.factor is UNSET else request.factor,
        max_ms=before.max_ms if request.max is UNSET else _span_ms("backoff.max", request.max),
    )


def _span_ms(name: str, span: str | float) -> int:
    try:
        return parse_span(span)
    except InvalidRequest as error:
        raise InvalidSetting(f"{name}: {error}") from error


def _describe(topic: OpenTopic) -> shapes.TopicDescription:
    meta, partitions = topic.meta, topic.partitions
    unavailable = {str(number): str(slot) for number, slot in enumerate(topic.slots) if not isinstance(slot, Partition)}
    for part in partitions:
        if part.sidecar_damage is not None:
            unavailable[str(part.number)] = (
                f"closed to groups: {part.sidecar_damage}; put the files in its sidecar directory back from a copy, or "
                "move that directory away, while the broker is stopped (docs/internals/sidecar.md)"
            )
    return shapes.TopicDescription(
        name=meta.name,
        topic_id=format_topic_id(meta.topic_id),
        partitions=meta.partitions,
        total_messages=sum(segment.count for part in partitions for segment in part.log.segments),
        total_size_bytes=sum(segment.size for part in partitions for segment in part.log.segments),
        partition_offsets={
            str(part.number): shapes.OffsetRange(
                earliest=part.log.start_offset, latest=part.log.end_offset, stable=part.stable_end
            )
            for part in partitions
        },
        unavailable=unavailable or UNSET,
        config=_config(meta.settings),
        created=show_time(meta.created_ms),
    )


def _config(settings: TopicSettings) -> shapes.TopicConfig:
    backoff, ttl_ms = settings.backoff, settings.message_ttl_ms
    return shapes.TopicConfig(
        retention_hours=settings.retention_hours,
        retention_bytes=settings.retention_bytes,
        cleanup_policy=settings.cleanup_policy,
        segment_bytes=settings.segment_bytes,
        fsync=settings.fsync,
        max_message_bytes=settings.max_message_bytes,
        visibility_timeout=show_duration(settings.visibility_ms),
        max_retries=settings.max_retries,
        backoff=BackoffConfig(
            base=show_duration(backoff.base_ms), factor=backoff.factor, max=show_duration(backoff.max_ms)
        ),
        dlq_enabled=settings.dlq_enabled,
        message_ttl=None if ttl_ms is None else show_duration(ttl_ms),
        on_expiry=settings.on_expiry,
        lane_weights=settings.lane_weights,
        lane_policy=settings.lane_policy,
        replication_factor=1,
        min_insync_replicas=1,
    )
