"""The one table of operations: name, how HTTP reaches it, what it takes and gives, what does it.

HTTP routes, the OpenAPI document, the wire door's codes and `embedded` calls all come from here. To add an operation:
its shapes in `wire/shapes/`, its handler in `handlers/`, its code in `wire/codes.py`, a line here.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from goqueue.api.handlers import (
    broker,
    delivery,
    groups,
    jobs,
    producers,
    publishing,
    readers,
    reading,
    stats,
    topics,
    transactions,
)
from goqueue.api.refusals import refuse
from goqueue.api.service import Service
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest, TooLarge
from goqueue.wire import shapes
from goqueue.wire.codes import CODES

Handler = Callable[..., Awaitable[Any]]
"""Takes the service, the request, and the fields of the path by their names."""

_OK: Final = 200
_CREATED: Final = 201
_UNAVAILABLE: Final = 503

PATH_FIELDS: Final[dict[str, type]] = {
    "topic": str,
    "partition": int,
    "producer_id": int,
    "group": str,
    "offset": int,
    "schedule": str,
    "redrive": str,
    "transaction": str,
    "name": str,
}
"""What may stand in braces in a path. Numbers are checked there, names by whoever looks them up."""


class Operation(NamedTuple):
    name: str
    summary: str
    method: str
    paths: tuple[str, ...]
    """The first is the one to use; the others mean the same. None: not over HTTP."""
    request: type[shapes.Request]
    reply: type[shapes.Reply]
    handler: Handler
    status: int = _OK
    refusals: tuple[int, ...] = ()
    """HTTP statuses of its refusals, beside those every operation may have."""
    while_stopping: bool = False
    """Answered also when the broker takes no new work."""
    request_bytes: int = limits.MAX_SMALL_BODY_BYTES
    """How large a request as JSON may be."""
    request_values: int = limits.MAX_SMALL_VALUES
    """How many values a request may have: texts, numbers, lists and objects."""
    later: str | None = None
    """A list of the request that has many entries. They are read one by one, when the handler comes to them."""
    reply_bytes: int = 0
    """What a reply may hold in memory, when that is much."""
    park: Handler | None = None
    """Waits until there is something to answer, holding nothing; run before room for the reply is taken. Ends when the
    client leaves. What it returns the handler gets as `parked`."""
    undo: Callable[[Service, Any], None] | None = None
    """What takes a reply back that could not be written."""
    unread: Callable[[Service, object, GoQueueError], None] | None = None
    """Told why a request about a topic could not be read, where its path names that."""

    @property
    def code(self) -> int:
        """On the wire."""
        return CODES[self.name]

    @property
    def path_fields(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.paths[0].split("/") if part.startswith("{")) if self.paths else ()

    @property
    def has_body(self) -> bool:
        return self.method in ("POST", "PUT", "PATCH")

    def status_of(self, reply: shapes.Reply) -> int:
        if isinstance(reply, shapes.Health) and reply.status != "ok":
            return _UNAVAILABLE
        return self.status

    def check_size(self, body: bytes | bytearray) -> None:
        if len(body) > self.request_bytes:
            raise TooLarge(f"a request for {self.name} has at most {self.request_bytes} bytes, not {len(body)}")

    def weigh(self, values: int) -> int:
        """What a request with so many values counts for beside its bytes; refused if it has more than it may."""
        if values > self.request_values:
            raise TooLarge(
                f"a request for {self.name} has at most {self.request_values} values (texts, numbers, lists, objects) "
                "and this one has more; send less at a time"
            )
        return values * limits.VALUE_BYTES

    def refuse_unread(self, service: Service, path: dict[str, Any], error: GoQueueError) -> NoReturn:
        """Raise the error; it is counted, where that is done."""
        if self.unread is not None:
            self.unread(service, path.get("topic"), error)
        raise error

    def path_of(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields that stand in the path over HTTP, checked."""
        return {name: _path_field(name, fields.get(name)) for name in self.path_fields}

    async def call(self, service: Service, fields: dict[str, Any]) -> shapes.Reply:
        """Run it with fields that are not checked yet: those of the path and of the request together."""
        if not self.while_stopping:
            service.broker.check()
        path = self.path_of(fields)
        rest = {name: value for name, value in fields.items() if name not in path}
        try:
            request = msgspec.convert(rest, self.request)
        except msgspec.ValidationError as error:
            self.refuse_unread(service, path, refuse(error, self.request))
        if self.park is not None:
            path["parked"] = await self.park(service, request, **path)
        room = await service.broker.replies.take(self.reply_bytes, timeout_s=limits.ADMISSION_WAIT_S)
        try:
            reply: shapes.Reply = await self.handler(service, request, **path)
        finally:
            room.give()
        return reply


def _path_field(name: str, value: Any) -> Any:
    kind = PATH_FIELDS[name]
    good = isinstance(value, str) if kind is str else type(value) is int and 0 <= value < limits.MAX_OFFSET
    if not good:
        wanted = "text" if kind is str else f"a whole number from 0 to {limits.MAX_OFFSET - 1}"
        raise InvalidRequest(f"{name} is missing, or is not {wanted}")
    return value


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "publish", "Publish one message", "POST", ("/topics/{topic}/publish",),
        shapes.Publish, shapes.PublishResult, publishing.publish, refusals=(404, 409),
        request_bytes=limits.MAX_BODY_BYTES, request_values=limits.MAX_MESSAGE_VALUES, unread=publishing.count_failure,
    ),
    Operation(
        "publish_batch", "Publish messages; a result for each",
        "POST", ("/topics/{topic}/messages", "/topics/{topic}/batch"),
        shapes.PublishBatch, shapes.PublishResults, publishing.publish_batch, refusals=(404, 409),
        request_bytes=limits.MAX_BODY_BYTES, request_values=limits.MAX_VALUES, later="messages",
        unread=publishing.count_failure,
    ),
    Operation(
        "read_partition", "Read a partition from an offset or a time; changes nothing",
        "GET", ("/topics/{topic}/partitions/{partition}/messages",),
        shapes.ReadPartition, shapes.Messages, reading.read_partition, refusals=(404, 409),
        reply_bytes=limits.MAX_JSON_READ_BYTES,
    ),
    Operation(
        "read_topic", "Read all partitions of a topic from a time; changes nothing",
        "GET", ("/topics/{topic}/messages",),
        shapes.ReadPartition, shapes.TopicMessages, reading.read_topic, refusals=(404, 409),
        reply_bytes=limits.MAX_JSON_READ_BYTES,
    ),
    Operation(
        "offsets", "Which offsets a time has in each partition", "GET", ("/topics/{topic}/offsets",),
        shapes.FindOffsets, shapes.Offsets, reading.offsets, refusals=(404,),
    ),
    Operation(
        "create_topic", "Create a topic", "POST", ("/topics",),
        shapes.CreateTopic, shapes.TopicCreated, topics.create_topic, status=_CREATED, refusals=(409,),
    ),
    Operation(
        "list_topics", "List the topics", "GET", ("/topics",),
        shapes.ListTopics, shapes.TopicList, topics.list_topics, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "describe_topic", "Describe a topic: size, offsets, settings", "GET", ("/topics/{topic}",),
        shapes.Nothing, shapes.TopicDescription, topics.describe_topic, refusals=(404,),
    ),
    Operation(
        "change_topic", "Change settings of a topic while it is in use", "PATCH", ("/topics/{topic}",),
        shapes.TopicSettingsFields, shapes.TopicDescription, topics.change_topic, refusals=(404,),
    ),
    Operation(
        "delete_topic", "Delete a topic and its messages", "DELETE", ("/topics/{topic}",),
        shapes.DeleteTopic, shapes.TopicDeleted, topics.delete_topic, refusals=(404,),
    ),
    Operation(
        "add_partitions", "Give a topic more partitions", "POST", ("/admin/topics/{topic}/partitions",),
        shapes.AddPartitions, shapes.PartitionsAdded, topics.add_partitions, refusals=(404, 409),
    ),
    Operation(
        "metadata", "Topics, their ids and partition counts, for clients", "POST", (),
        shapes.AskMetadata, shapes.Metadata, topics.metadata, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "init_producer", "Get a producer id for publishing without duplicates", "POST", ("/producers/init",),
        shapes.InitProducer, shapes.ProducerReply, producers.init_producer, refusals=(409,),
    ),
    Operation(
        "producer_heartbeat", "Ask whether a producer id is good", "POST", ("/producers/{producer_id}/heartbeat",),
        shapes.ProducerHeartbeat, shapes.ProducerReply, producers.producer_heartbeat, refusals=(404, 409),
    ),
    Operation(
        "poll", "Wait for messages and take them", "GET", ("/groups/{group}/poll",),
        shapes.Poll, shapes.Polled, groups.poll, refusals=(404, 409), reply_bytes=limits.MAX_JSON_READ_BYTES,
        park=groups.park_poll, undo=groups.undo_poll,
    ),
    Operation(
        "commit", "Settle what was delivered below an offset",
        "POST", ("/groups/{group}/offsets", "/groups/{group}/commit"),
        shapes.Commit, shapes.Committed, groups.commit, refusals=(404, 409),
    ),
    Operation(
        "heartbeat", "Say that a member is there; learn what it has and what it is to give up",
        "POST", ("/groups/{group}/heartbeat",),
        shapes.Heartbeat, shapes.MemberReply, groups.heartbeat, refusals=(404, 409),
    ),
    Operation(
        "join_group", "Join a group; it is created if there is none", "POST", ("/groups/{group}/join",),
        shapes.JoinGroup, shapes.MemberReply, groups.join_group, refusals=(404, 409),
    ),
    Operation(
        "leave_group", "Leave a group", "POST", ("/groups/{group}/leave",),
        shapes.LeaveGroup, shapes.Left, groups.leave_group, refusals=(404, 409),
    ),
    Operation(
        "group_offsets", "Up to where a group has settled everything", "GET", ("/groups/{group}/offsets",),
        shapes.AskOffsets, shapes.GroupOffsets, groups.group_offsets, refusals=(404,),
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "reset_offsets", "Move a group to another place in a topic", "POST", ("/groups/{group}/offsets/reset",),
        shapes.ResetOffsets, shapes.GroupOffsets, groups.reset_offsets, refusals=(404,),
    ),
    Operation(
        "group_lag", "How far a group is behind", "GET", ("/groups/{group}/lag",),
        shapes.Nothing, shapes.GroupLag, groups.group_lag, refusals=(404,), reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "list_groups", "List the groups", "GET", ("/groups",),
        shapes.Nothing, shapes.GroupList, groups.list_groups, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "describe_group", "Describe a group: its members and what they have", "GET", ("/groups/{group}",),
        shapes.Nothing, shapes.GroupDescription, groups.describe_group, refusals=(404,),
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "delete_group", "Delete a group that has no members", "DELETE", ("/groups/{group}",),
        shapes.Nothing, shapes.GroupDeleted, groups.delete_group, refusals=(404, 409),
    ),
    Operation(
        "rebalance_stats", "How often and how long groups rebalanced", "GET", ("/rebalance/stats",),
        shapes.Nothing, shapes.RebalanceStats, groups.rebalance_stats,
    ),
    Operation(
        "ack", "Settle messages by their handles", "POST", ("/messages/ack",),
        shapes.Ack, shapes.Settled, delivery.ack, refusals=(409,),
    ),
    Operation(
        "nack", "Give messages back, to be tried again later", "POST", ("/messages/nack",),
        shapes.Nack, shapes.Settled, delivery.nack, refusals=(409,),
    ),
    Operation(
        "reject", "Give messages up: they go to the dead-letter topic", "POST", ("/messages/reject",),
        shapes.Reject, shapes.Settled, delivery.reject, refusals=(409,),
    ),
    Operation(
        "extend_visibility", "Keep messages for longer", "POST", ("/messages/visibility",),
        shapes.ExtendVisibility, shapes.Settled, delivery.extend_visibility, refusals=(409,),
    ),
    Operation(
        "release", "Give messages back untried: others may have them, and the delivery does not count",
        "POST", ("/messages/release",),
        shapes.Ack, shapes.Settled, delivery.release, refusals=(409,),
    ),
    Operation(
        "group_ack", "Settle messages of a group by their handles", "POST", ("/groups/{group}/ack",),
        shapes.Ack, shapes.Settled, delivery.group_ack, refusals=(404, 409),
    ),
    Operation(
        "group_nack", "Give messages of a group back", "POST", ("/groups/{group}/nack",),
        shapes.Nack, shapes.Settled, delivery.group_nack, refusals=(404, 409),
    ),
    Operation(
        "list_delayed", "List messages that are not due yet", "GET", ("/topics/{topic}/delayed",),
        shapes.ListDelayed, shapes.DelayedList, delivery.list_delayed, refusals=(404,),
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "get_delayed", "Look at a delayed message", "GET", ("/topics/{topic}/delayed/{partition}/{offset}",),
        shapes.Nothing, shapes.DelayedMessage, delivery.get_delayed, refusals=(404, 409),
    ),
    Operation(
        "find_delayed", "Look at a delayed message of a topic with one partition",
        "GET", ("/topics/{topic}/delayed/{offset}",),
        shapes.Nothing, shapes.DelayedMessage, delivery.find_delayed, refusals=(404, 409),
    ),
    Operation(
        "cancel_delayed", "Cancel a delayed message", "DELETE", ("/topics/{topic}/delayed/{partition}/{offset}",),
        shapes.Nothing, shapes.DelayCancelled, delivery.cancel_delayed, refusals=(404, 409),
    ),
    Operation(
        "move_delayed", "Move a delayed message to another time",
        "PATCH", ("/topics/{topic}/delayed/{partition}/{offset}",),
        shapes.MoveDelayed, shapes.DelayedMessage, delivery.move_delayed, refusals=(404, 409),
    ),
    Operation(
        "cancel_many_delayed", "Cancel many delayed messages", "POST", ("/topics/{topic}/delayed/cancel",),
        shapes.CancelDelayed, shapes.DelaysCancelled, delivery.cancel_many_delayed, refusals=(404,),
        request_values=4 * limits.MAX_CANCELLED,
    ),
    Operation(
        "priority_stats", "What groups have in each priority lane, and were served of it", "GET", ("/priority/stats",),
        shapes.AskStats, shapes.PriorityStats, stats.priority_stats, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "delay_stats", "How many messages are delayed, came due, were cancelled or moved", "GET", ("/delay/stats",),
        shapes.AskDelayStats, shapes.DelayStats, stats.delay_stats, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "reliability_stats", "How deliveries ended, and what is under way", "GET", ("/reliability/stats",),
        shapes.AskStats, shapes.ReliabilityStats, stats.reliability_stats, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "begin_transaction", "Begin a transaction", "POST", ("/transactions/begin",),
        shapes.BeginTransaction, shapes.TransactionBegun, transactions.begin_transaction, refusals=(404, 409),
    ),
    Operation(
        "transaction_publish", "Publish one message in a transaction", "POST", ("/transactions/publish",),
        shapes.TransactionPublish, shapes.PublishResult, transactions.transaction_publish, refusals=(404, 409),
        request_bytes=limits.MAX_BODY_BYTES, request_values=limits.MAX_MESSAGE_VALUES,
    ),
    Operation(
        "add_partition", "Say that a partition will have messages of a transaction",
        "POST", ("/transactions/add-partition",),
        shapes.AddPartition, shapes.PartitionAdded, transactions.add_partition, refusals=(404, 409),
    ),
    Operation(
        "transaction_ack", "Settle messages if a transaction is committed", "POST", ("/transactions/ack",),
        shapes.TransactionAck, shapes.Settled, transactions.transaction_ack, refusals=(404, 409),
    ),
    Operation(
        "commit_transaction", "Commit a transaction", "POST", ("/transactions/commit",),
        shapes.CommitTransaction, shapes.TransactionCommitted, transactions.commit_transaction, refusals=(404, 409),
    ),
    Operation(
        "abort_transaction", "Abort a transaction, or all of a name", "POST", ("/transactions/abort",),
        shapes.AbortTransaction, shapes.TransactionsAborted, transactions.abort_transaction, refusals=(404, 409),
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "commit_many", "Commit several transactions as one, once per token", "POST", ("/transactions/commit-many",),
        shapes.CommitMany, shapes.ManyCommitted, transactions.commit_many, refusals=(404, 409),
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "list_transactions", "List transactions that are open, or ended lately", "GET", ("/transactions",),
        shapes.ListTransactions, shapes.TransactionList, transactions.list_transactions,
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "transaction_stats", "How many transactions are open, were committed, were aborted and why",
        "GET", ("/transactions/stats",),
        shapes.Nothing, shapes.TransactionStats, transactions.transaction_stats,
    ),
    Operation(
        "transaction_token", "The last number that was committed under a name",
        "GET", ("/transactions/tokens/{name}",),
        shapes.Nothing, shapes.TokenReply, transactions.transaction_token,
    ),
    Operation(
        "describe_transaction", "Describe a transaction: whose it is, what it has", "GET",
        ("/transactions/{transaction}",),
        shapes.Nothing, shapes.ShownTransaction, transactions.describe_transaction, refusals=(404,),
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "put_reader", "Keep where a reader without a group begins", "PUT", ("/readers/{name}",),
        shapes.PutReader, shapes.ReaderPut, readers.put_reader, refusals=(404, 409),
        reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "get_reader", "Where a named reader began", "GET", ("/readers/{name}",),
        shapes.Nothing, shapes.ShownReader, readers.get_reader, refusals=(404,), reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "list_readers", "List the named readers", "GET", ("/readers",),
        shapes.ListReaders, shapes.ReaderList, readers.list_readers, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "delete_reader", "Forget a named reader", "DELETE", ("/readers/{name}",),
        shapes.Nothing, shapes.ReaderDeleted, readers.delete_reader, refusals=(404,),
    ),
    Operation(
        "create_schedule", "Have a message published again and again", "POST", ("/schedules",),
        shapes.CreateSchedule, shapes.ShownSchedule, jobs.create_schedule, status=_CREATED, refusals=(404, 409),
    ),
    Operation(
        "list_schedules", "List the schedules", "GET", ("/schedules",),
        shapes.ListSchedules, shapes.ScheduleList, jobs.list_schedules, reply_bytes=limits.MAX_LIST_BYTES,
    ),
    Operation(
        "describe_schedule", "Describe a schedule: when it runs next, how it went", "GET", ("/schedules/{schedule}",),
        shapes.Nothing, shapes.ShownSchedule, jobs.describe_schedule, refusals=(404,),
    ),
    Operation(
        "change_schedule", "Change a schedule, pause it or go on with it", "PATCH", ("/schedules/{schedule}",),
        shapes.ChangeSchedule, shapes.ShownSchedule, jobs.change_schedule, refusals=(404, 409),
    ),
    Operation(
        "delete_schedule", "Delete a schedule", "DELETE", ("/schedules/{schedule}",),
        shapes.Nothing, shapes.ScheduleDeleted, jobs.delete_schedule, refusals=(404,),
    ),
    Operation(
        "list_dead_letters", "List dead letters and why they died", "GET", ("/topics/{topic}/dlq",),
        shapes.ListDeadLetters, shapes.DeadLetterList, jobs.list_dead_letters, refusals=(404,),
        reply_bytes=limits.MAX_JSON_READ_BYTES,
    ),
    Operation(
        "start_redrive", "Publish dead letters again", "POST", ("/topics/{topic}/dlq/redrive",),
        shapes.StartRedrive, shapes.RedriveStarted, jobs.start_redrive, refusals=(404, 409),
    ),
    Operation(
        "describe_redrive", "How far a redrive is", "GET", ("/dlq/redrives/{redrive}",),
        shapes.Nothing, shapes.ShownRedrive, jobs.describe_redrive, refusals=(404,),
    ),
    Operation(
        "cancel_redrive", "Stop a redrive", "DELETE", ("/dlq/redrives/{redrive}",),
        shapes.Nothing, shapes.ShownRedrive, jobs.cancel_redrive, refusals=(404,),
    ),
    Operation(
        "health", "Whether the broker takes requests", "GET", ("/readyz", "/healthz", "/health", "/admin/health"),
        shapes.AskHealth, shapes.Health, broker.health, while_stopping=True,
    ),
    Operation(
        "live", "Whether the process answers", "GET", ("/livez",),
        shapes.Nothing, shapes.Health, broker.live, while_stopping=True,
    ),
    Operation(
        "version", "What is running", "GET", ("/version",),
        shapes.Nothing, shapes.Version, broker.version, while_stopping=True,
    ),
    Operation(
        "stats", "Counters", "GET", ("/stats",), shapes.Nothing, shapes.Stats, broker.stats, while_stopping=True,
    ),
    Operation(
        "cluster", "The nodes of the cluster", "GET", ("/admin/cluster",),
        shapes.Nothing, shapes.ClusterView, broker.cluster, while_stopping=True,
    ),
)  # fmt: skip

BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
BY_CODE: Final = {operation.code: operation for operation in OPERATIONS}
