"""Topics: create, list, describe, change, delete, add partitions; and metadata for clients."""

from typing import Any

import msgspec
from msgspec import UNSET

from goqueue.api import shapes
from goqueue.api.service import Service
from goqueue.broker.partition import Partition
from goqueue.broker.topic import OpenTopic
from goqueue.model.errors import InvalidSetting
from goqueue.model.names import format_topic_id
from goqueue.model.times import show_time
from goqueue.model.topic import TopicSettings

_REPLICATION = ("replication_factor", "min_insync_replicas")
"""Accepted at the only value there is, and not kept."""


async def create_topic(service: Service, request: shapes.CreateTopic) -> shapes.TopicCreated:
    broker = service.broker
    partitions = broker.settings.partitions if request.num_partitions is UNSET else request.num_partitions
    settings = msgspec.structs.replace(broker.settings.topic, **_changes(request))
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
    changes = _changes(request)
    if not changes:
        return _describe(service.broker.topics.named(topic))
    return _describe(await service.broker.topics.change(topic, changes, service.broker.clock()))


async def delete_topic(service: Service, request: shapes.Nothing, topic: str) -> shapes.TopicDeleted:
    await service.broker.topics.delete(topic, service.broker.clock())
    return shapes.TopicDeleted(deleted=True, name=topic)


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


def _changes(request: shapes.TopicSettingsFields) -> dict[str, Any]:
    """The settings a request sets, as the model has them."""
    changes: dict[str, Any] = {}
    for name in shapes.TopicSettingsFields.__struct_fields__:
        value = getattr(request, name)
        if value is UNSET or name in _REPLICATION:
            continue
        changes[name] = None if value == shapes.UNLIMITED and name.startswith("retention_") else value
    hours = changes.get("retention_hours")
    if hours is not None and hours < 0:
        raise InvalidSetting(f"retention_hours is {hours}; it must be at least 0, or -1 for no limit")
    return changes


def _describe(topic: OpenTopic) -> shapes.TopicDescription:
    meta, partitions = topic.meta, topic.partitions
    unavailable = {str(number): str(slot) for number, slot in enumerate(topic.slots) if not isinstance(slot, Partition)}
    return shapes.TopicDescription(
        name=meta.name,
        topic_id=format_topic_id(meta.topic_id),
        partitions=meta.partitions,
        total_messages=sum(segment.count for part in partitions for segment in part.log.segments),
        total_size_bytes=sum(segment.size for part in partitions for segment in part.log.segments),
        partition_offsets={
            str(part.number): shapes.OffsetRange(earliest=part.log.start_offset, latest=part.log.end_offset)
            for part in partitions
        },
        unavailable=unavailable or UNSET,
        config=_config(meta.settings),
        created=show_time(meta.created_ms),
    )


def _config(settings: TopicSettings) -> shapes.TopicConfig:
    return shapes.TopicConfig(**msgspec.structs.asdict(settings), replication_factor=1, min_insync_replicas=1)
