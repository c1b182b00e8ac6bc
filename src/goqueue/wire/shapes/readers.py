"""Named readers: where somebody who reads without a group began."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from goqueue.model import limits
from goqueue.model.names import READER_PATTERN
from goqueue.wire.shapes.fields import Offset, Reply, Request, TopicName
from goqueue.wire.shapes.groups import PartitionKey

Numbers = Annotated[dict[PartitionKey, Offset], Meta(min_length=1, max_length=limits.MAX_PARTITIONS_PER_TOPIC)]


class PutReader(Request, frozen=True, kw_only=True):
    """All that the reader has from now on. With `if_absent` what it has stays, and only other partitions are added."""

    offsets: Annotated[dict[TopicName, Numbers], Meta(min_length=1, max_length=limits.MAX_READER_TOPICS)]
    if_absent: bool = False


class ShownReader(Reply, frozen=True, kw_only=True):
    """Offsets by topic and partition; those of topics that were deleted are gone."""

    name: str
    offsets: dict[str, dict[str, int]]
    created_at: str
    changed_at: str
    """When a put last changed it."""


class ReaderPut(ShownReader, frozen=True, kw_only=True):
    """What is kept after the call."""

    created: bool
    """Whether there was no such reader before."""


class ListReaders(Request, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=limits.MAX_LISTED_READERS)] = 100
    next: Annotated[str, Meta(pattern=READER_PATTERN, examples=["nightly"])] | UnsetType = UNSET
    """As the page before answered it."""


class ReaderList(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """By name."""

    readers: list[ShownReader]
    next: str | UnsetType = UNSET
    """Where to go on; left out if there are no more."""


class ReaderDeleted(Reply, frozen=True, kw_only=True):
    deleted: bool
    name: str
