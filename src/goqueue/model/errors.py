"""Every error GoQueue raises, in one tree. A class carries a frozen `code` and whether retrying helps.

GoQueueError
├── InvalidRequest            what was asked cannot be right; nothing changed
│   ├── InvalidRecord         a record or block that breaks the format
│   ├── InvalidSetting        a setting out of range
│   ├── MethodNotAllowed      the path is known, not with this method
│   ├── NotBuilt              it names a feature that this version does not have
│   ├── OffsetOutOfRange      before the start of a log, or past its end where that matters
│   ├── ProtocolError         bytes on the wire port that are not our protocol
│   ├── StaleEpoch            a leader epoch older than the log has seen
│   ├── TooLarge              a message, body or frame over its limit
│   └── UnknownTransferCoding  a body over HTTP that is packed in a way that is not understood
├── Forbidden                 a web page, or a name of the broker, that is not allowed
├── NotFound                  what it names is not there
│   ├── UnknownDelay          no such delayed message: it was never one, was cancelled, or its topic is gone
│   ├── UnknownGroup
│   ├── UnknownMember         it left, was silent for too long, or was never in this group: join again
│   ├── UnknownOperation      no such route, method or operation code
│   ├── UnknownPartition
│   ├── UnknownProducer       an id that was never given out, or was forgotten: initialise again
│   ├── UnknownReader         no named reader of this name: put one first
│   ├── UnknownRedrive
│   ├── UnknownSchedule
│   ├── UnknownTopic
│   └── UnknownTransaction    it was never begun, or ended too long ago to be remembered
├── Conflict                  right on its own, but not with what is there
│   ├── AlreadyDelivered      a delayed message that came due before it could be changed or cancelled
│   ├── GroupActive           the group has members, or its members agreed on something else
│   ├── MemberFenced          another process joined with the same instance id and has taken over
│   ├── NotOwner              a partition that moved to another member, or was never this one's
│   ├── OutOfSequence         a producer left out messages, or repeats some that are no longer remembered
│   ├── ProducerFenced        a newer epoch of the same producer has taken over
│   ├── StaleHandle           the message was settled, or delivered again since
│   ├── StaleToken            a later batch was committed under the same name
│   ├── TopicExists
│   └── TransactionAborted    nothing of the transaction counts: begin another one and do it again
├── Unavailable               right request, wrong moment
│   ├── Busy                  as many bytes are in flight as the broker allows
│   │   └── BufferFull        as many messages wait to be published as a producer may hold
│   ├── DiskFull              no space: refused, nothing changed, try again when there is space
│   ├── DirectoryLocked       another process has the data directory
│   ├── Draining              the broker is stopping
│   ├── LogClosed             the log was closed or lost its disk
│   └── RequestTimeout        it took longer than the one who asked, or the broker, would wait
├── DamagedData               bytes on disk are not what was written
│   ├── Quarantined           a range of offsets cannot be read; others can
│   └── DamagedState          a small file that is hard state fails its checksum
└── StorageFailed             writing or syncing failed; the process must stop
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self


class GoQueueError(Exception):
    """The root. The message says what was wrong and what to do."""

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False

    index: int | None = None
    """Which message of a request it is about, counted from 0, if it is about one."""
    field: str | None = None
    """Which field of a request, with what that is in, like backoff.base, if it is about one."""

    @property
    def details(self) -> dict[str, Any]:
        """What a program needs to act on the error, beside its code."""
        found = {"index": self.index, "field": self.field}
        return {name: value for name, value in found.items() if value is not None}

    def bare(self) -> Self:
        """This error without its traceback and causes, which would keep alive all that those calls hold."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class InvalidRequest(GoQueueError):
    code = "invalid_request"


class InvalidRecord(InvalidRequest):
    """A record that breaks the format: which one in its block, where, and why."""

    code = "invalid_record"

    def __init__(self, reason: str, *, index: int, position: int) -> None:
        super().__init__(f"record {index} of the block (byte {position}) is not valid: {reason}")
        self.reason = reason
        self.index = index
        self.position = position

    @property
    def details(self) -> dict[str, Any]:
        return {"index": self.index, "reason": self.reason}


class InvalidSetting(InvalidRequest):
    code = "invalid_setting"


class OffsetOutOfRange(InvalidRequest):
    code = "offset_out_of_range"

    def __init__(self, offset: int, *, start: int, end: int, where: str = "this log") -> None:
        super().__init__(f"offset {offset} is outside {where}, which holds {start} up to {end} (not included)")
        self.offset = offset
        self.start = start
        self.end = end

    @property
    def details(self) -> dict[str, Any]:
        return {"offset": self.offset, "earliest": self.start, "latest": self.end}


class MethodNotAllowed(InvalidRequest):
    code = "method_not_allowed"

    def __init__(self, reason: str, *, allowed: str) -> None:
        super().__init__(reason)
        self.allowed = allowed


class NotBuilt(InvalidRequest):
    """A field, setting or parameter whose feature is not here yet: refused by name, never ignored."""

    code = "not_available"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not available in this version of GoQueue; leave it out")
        self.field = name


class ProtocolError(InvalidRequest):
    code = "protocol_error"


class StaleEpoch(InvalidRequest):
    code = "stale_epoch"


class TooLarge(InvalidRequest):
    code = "too_large"


class UnknownTransferCoding(InvalidRequest):
    code = "unknown_transfer_coding"


class Forbidden(GoQueueError):
    code = "forbidden"


class NotFound(GoQueueError):
    code = "not_found"


class UnknownDelay(NotFound):
    code = "unknown_delay"


class UnknownGroup(NotFound):
    code = "unknown_group"


class UnknownMember(NotFound):
    code = "unknown_member"


class UnknownOperation(NotFound):
    code = "unknown_operation"


class UnknownPartition(NotFound):
    code = "unknown_partition"


class UnknownProducer(NotFound):
    code = "unknown_producer"


class UnknownReader(NotFound):
    code = "unknown_reader"


class UnknownRedrive(NotFound):
    code = "unknown_redrive"


class UnknownSchedule(NotFound):
    code = "unknown_schedule"


class UnknownTopic(NotFound):
    code = "unknown_topic"


class UnknownTransaction(NotFound):
    code = "unknown_transaction"


class Conflict(GoQueueError):
    code = "conflict"


class AlreadyDelivered(Conflict):
    code = "already_delivered"


class GroupActive(Conflict):
    code = "group_active"


class MemberFenced(Conflict):
    code = "member_fenced"


class NotOwner(Conflict):
    """`refused` names the partitions, as "topic-0"; what the request said of others was done."""

    code = "not_owner"

    def __init__(self, reason: str, *, refused: Sequence[str]) -> None:
        super().__init__(reason)
        self.refused = list(refused)

    @property
    def details(self) -> dict[str, Any]:
        return {"refused": self.refused}


class OutOfSequence(Conflict):
    """`expected` is the sequence that would have been accepted."""

    code = "out_of_sequence"

    def __init__(self, reason: str, *, expected: int) -> None:
        super().__init__(reason)
        self.expected = expected

    @property
    def details(self) -> dict[str, Any]:
        return {"expected": self.expected}


class ProducerFenced(Conflict):
    code = "producer_fenced"


class StaleHandle(Conflict):
    """Of one delivery of one message; who holds an older one has lost the message to a later delivery."""

    code = "stale_handle"


class StaleToken(Conflict):
    code = "stale_token"


class TopicExists(Conflict):
    code = "topic_exists"


class TransactionAborted(Conflict):
    code = "transaction_aborted"


class Unavailable(GoQueueError):
    code = "unavailable"
    retriable = True


class Busy(Unavailable):
    code = "busy"


class BufferFull(Busy):
    code = "buffer_full"


class DiskFull(Unavailable):
    code = "disk_full"


class DirectoryLocked(Unavailable):
    code = "directory_locked"


class Draining(Unavailable):
    code = "draining"


class LogClosed(Unavailable):
    code = "log_closed"


class RequestTimeout(Unavailable):
    code = "request_timeout"


class DamagedData(GoQueueError):
    code = "damaged_data"


class Quarantined(DamagedData):
    """Offsets `first` up to `next_offset` (not included) cannot be read; reading goes on at `next_offset`.

    A reader of the client says of which `topic` and `partition` they are, and so does a read of all partitions.
    """

    code = "quarantined"

    def __init__(
        self,
        first: int,
        next_offset: int,
        *,
        where: str,
        reason: str,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        damaged = f"offset {first} is" if next_offset == first + 1 else f"offsets {first} to {next_offset - 1} are"
        super().__init__(f"{damaged} damaged ({reason}, {where}); reading goes on at {next_offset}")
        self.first = first
        self.next_offset = next_offset
        self.where = where
        self.reason = reason
        self.topic = topic
        self.partition = partition

    @property
    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = {"first": self.first, "next_offset": self.next_offset, "reason": self.reason}
        return found if self.partition is None else {**found, "partition": self.partition}


class DamagedState(DamagedData):
    code = "damaged_state"


class StorageFailed(GoQueueError):
    """Whether what was asked is done is not known; an idempotent producer may ask again after a restart."""

    code = "storage_failed"
    retriable = True
