"""Names and ids users meet: topics, topic ids, message ids."""

import re
from typing import Final, NewType

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

TopicId = NewType("TopicId", int)
"""64 random bits, given at creation: a topic created again under an old name is another topic."""

GroupNumber = NewType("GroupNumber", int)
"""Counted up, given at creation: a group created again under an old name is another group."""

GROUP_PATTERN: Final = rf"^[A-Za-z0-9._-]{{1,{limits.MAX_GROUP_NAME}}}$"
CLIENT_PATTERN: Final = rf"^[A-Za-z0-9._-]{{1,{limits.MAX_CLIENT_ID}}}$"
TRANSACTION_PATTERN: Final = r"^txn-[0-9]{1,19}$"
TRANSACTION_NAME_PATTERN: Final = rf"^[A-Za-z0-9._:-]{{1,{limits.MAX_TRANSACTIONAL_ID}}}$"
"""Of transactional ids, and of names that transactions are begun under."""
INCARNATION_PATTERN: Final = rf"^[A-Za-z0-9._:-]{{1,{limits.MAX_INCARNATION}}}$"
READER_PATTERN: Final = TRANSACTION_NAME_PATTERN
"""The same jobs have both."""
DLQ_SUFFIX: Final = ".dlq"
TOPIC_PATTERN: Final = rf"^[A-Za-z0-9._-]{{1,{limits.MAX_TOPIC_NAME}}}(\{DLQ_SUFFIX})?$"
"""A name of the full length may have the ending of a dead-letter topic behind it, and nothing else."""
RESERVED_PREFIX: Final = "__"
LOG_FILE: Final = re.compile(rf"log\.state(\.tmp)?|synced|(?!\d{{20}}\{DLQ_SUFFIX}$)\d{{20}}[.-].*")
"""What a log calls its own files: a directory of that name could be taken for one. None of them ends in `.dlq`, so that
a topic called by twenty digits may have dead letters, too."""
_GROUP_NAME: Final = re.compile(GROUP_PATTERN[1:-1])
_TOPIC_NAME: Final = re.compile(TOPIC_PATTERN[1:-1])
_TRANSACTION_NAME: Final = re.compile(TRANSACTION_NAME_PATTERN[1:-1])


def check_topic_name(name: str) -> None:
    """Refuse what cannot name a topic that users create."""
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a topic: use letters, digits, '.', '_' and '-', at most "
            f"{limits.MAX_TOPIC_NAME} of them"
        )
    if LOG_FILE.fullmatch(name):
        raise InvalidRequest(f"{name!r} cannot name a topic: files of GoQueue's logs are called so")
    if name.startswith(RESERVED_PREFIX):
        raise InvalidRequest(f"{name!r} cannot name a topic: names that begin with {RESERVED_PREFIX} are GoQueue's own")


def dlq_name(topic: str) -> str:
    """The topic that keeps the dead letters of this one."""
    return topic + DLQ_SUFFIX


def is_dlq(name: str) -> bool:
    """Whether it is, or would be, the dead-letter topic of another one."""
    return name.endswith(DLQ_SUFFIX) and name != DLQ_SUFFIX


def check_group_name(name: str) -> None:
    """Refuse what cannot name a group that users create."""
    if not _GROUP_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a group: use letters, digits, '.', '_' and '-', at most "
            f"{limits.MAX_GROUP_NAME} of them"
        )


def check_transaction_name(name: str) -> None:
    """Refuse what cannot name transactions that are committed together."""
    if not _TRANSACTION_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name transactions: use letters, digits, '.', '_', ':' and '-', at most "
            f"{limits.MAX_TRANSACTIONAL_ID} of them"
        )


def check_reader_name(name: str) -> None:
    """Refuse what cannot name a reader."""
    if not _TRANSACTION_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a reader: use letters, digits, '.', '_', ':' and '-', at most "
            f"{limits.MAX_TRANSACTIONAL_ID} of them"
        )


def partition_name(topic: str, partition: int) -> str:
    """As in lists of assigned partitions."""
    return f"{topic}-{partition}"


def format_topic_id(topic_id: TopicId) -> str:
    """As in file names and JSON: sixteen hexadecimal digits."""
    return f"{topic_id:016x}"


def message_id(topic: str, partition: int, offset: int) -> str:
    return f"{topic}:{partition}:{offset}"
