"""What a client may ask of a broker beside publishing, reading and consuming: one typed method for each operation.

A method spells its arguments as Python has them, leaves out what was not given, and answers with a frozen struct of
`wire.shapes`; `fields` makes fields of what JSON has no word for. It checks nothing that the broker checks. How a
question reaches a broker is for the class this is mixed into: it has `_ask`. Errors are those of `model.errors`; beside
the ones a method names, any may raise `InvalidRequest` (an argument cannot be right) and `Unavailable` (no broker, or
not now).

The synchronous twin is made from this text: `client/sync/administration.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import UNSET, UnsetType

from goqueue.client.arguments import Duration, check, to_json, to_list
from goqueue.client.fields import (
    Backoff,
    CleanupPolicyName,
    FsyncName,
    Handles,
    LanePolicyName,
    MissedName,
    OnExpiryName,
    Priority,
    Reason,
    as_due,
    as_fields,
    as_filter,
    as_handles,
    as_ids,
    as_message,
    as_offsets,
    as_place,
    as_time,
    given,
    settings_given,
)
from goqueue.client.outgoing import Content, Headers, Moment
from goqueue.model.errors import TopicExists
from goqueue.model.topic import LaneWeights
from goqueue.wire import shapes
from goqueue.wire.shapes.transactions import StateName

Answer = TypeVar("Answer", bound=shapes.Reply)


class AsyncAdministration(ABC):
    """Topics, groups, named readers, settling by handle, delays, schedules, dead letters, transactions, statistics, the
    broker."""

    @abstractmethod
    async def _ask(self, operation: str, reply: type[Answer], /, **fields: Any) -> Answer:
        """Send one operation, its fields named as in JSON and those of the path among them; the reply as this type."""

    # ------------------------------------------------------------------ topics

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention_hours: float | UnsetType | None = UNSET,
        retention_bytes: int | UnsetType | None = UNSET,
        cleanup_policy: CleanupPolicyName | UnsetType = UNSET,
        segment_bytes: int | UnsetType = UNSET,
        fsync: FsyncName | UnsetType = UNSET,
        max_message_bytes: int | UnsetType = UNSET,
        visibility_timeout: Duration | UnsetType = UNSET,
        max_retries: int | UnsetType = UNSET,
        backoff: Backoff | UnsetType = UNSET,
        dlq_enabled: bool | UnsetType = UNSET,
        message_ttl: Duration | UnsetType | None = UNSET,
        on_expiry: OnExpiryName | UnsetType = UNSET,
        lane_weights: LaneWeights | UnsetType = UNSET,
        lane_policy: LanePolicyName | UnsetType = UNSET,
        replication_factor: int | UnsetType = UNSET,
        min_insync_replicas: int | UnsetType = UNSET,
        exist_ok: bool = False,
    ) -> shapes.TopicCreated:
        """Create a topic; what is left out is as the broker's configuration says. None lifts a limit.

        TopicExists if there is one of that name, InvalidSetting if a setting is out of range. With `exist_ok` one that
        exists is left as it is, whatever its settings, and `created` is False.
        """
        check(exist_ok=exist_ok)
        try:
            return await self._ask(
                "create_topic",
                shapes.TopicCreated,
                name=name,
                **given(num_partitions=partitions),
                **settings_given(
                    retention_hours=retention_hours,
                    retention_bytes=retention_bytes,
                    cleanup_policy=cleanup_policy,
                    segment_bytes=segment_bytes,
                    fsync=fsync,
                    max_message_bytes=max_message_bytes,
                    visibility_timeout=visibility_timeout,
                    max_retries=max_retries,
                    backoff=backoff,
                    dlq_enabled=dlq_enabled,
                    message_ttl=message_ttl,
                    on_expiry=on_expiry,
                    lane_weights=lane_weights,
                    lane_policy=lane_policy,
                    replication_factor=replication_factor,
                    min_insync_replicas=min_insync_replicas,
                ),
            )
        except TopicExists:
            if not exist_ok:
                raise
        found = await self.describe_topic(name)
        return shapes.TopicCreated(name=found.name, partitions=found.partitions, created=False, topic_id=found.topic_id)

    async def list_topics(self, *, internal: bool = False) -> shapes.TopicList:
        """The names of all topics."""
        return await self._ask("list_topics", shapes.TopicList, internal=internal)

    async def describe_topic(self, topic: str) -> shapes.TopicDescription:
        """Size, offsets and settings of a topic. UnknownTopic if there is none."""
        return await self._ask("describe_topic", shapes.TopicDescription, topic=topic)

    async def change_topic(
        self,
        topic: str,
        *,
        retention_hours: float | UnsetType | None = UNSET,
        retention_bytes: int | UnsetType | None = UNSET,
        cleanup_policy: CleanupPolicyName | UnsetType = UNSET,
        segment_bytes: int | UnsetType = UNSET,
        fsync: FsyncName | UnsetType = UNSET,
        max_message_bytes: int | UnsetType = UNSET,
        visibility_timeout: Duration | UnsetType = UNSET,
        max_retries: int | UnsetType = UNSET,
        backoff: Backoff | UnsetType = UNSET,
        dlq_enabled: bool | UnsetType = UNSET,
        message_ttl: Duration | UnsetType | None = UNSET,
        on_expiry: OnExpiryName | UnsetType = UNSET,
        lane_weights: LaneWeights | UnsetType = UNSET,
        lane_policy: LanePolicyName | UnsetType = UNSET,
        replication_factor: int | UnsetType = UNSET,
        min_insync_replicas: int | UnsetType = UNSET,
    ) -> shapes.TopicDescription:
        """Change settings of a topic while it is in use; what is left out stays as it is. None lifts a limit.

        UnknownTopic if there is none, InvalidSetting if a setting is out of range.
        """
        return await self._ask(
            "change_topic",
            shapes.TopicDescription,
            topic=topic,
            **settings_given(
                retention_hours=retention_hours,
                retention_bytes=retention_bytes,
                cleanup_policy=cleanup_policy,
                segment_bytes=segment_bytes,
                fsync=fsync,
                max_message_bytes=max_message_bytes,
                visibility_timeout=visibility_timeout,
                max_retries=max_retries,
                backoff=backoff,
                dlq_enabled=dlq_enabled,
                message_ttl=message_ttl,
                on_expiry=on_expiry,
                lane_weights=lane_weights,
                lane_policy=lane_policy,
                replication_factor=replication_factor,
                min_insync_replicas=min_insync_replicas,
            ),
        )

    async def delete_topic(self, topic: str, *, dead_letters: bool = False) -> shapes.TopicDeleted:
        """Delete a topic and its messages, with `dead_letters` also those. UnknownTopic if there is none.

        Dead letters that stay can be listed, and redriven to another topic, as those of a `deleted` one.
        """
        return await self._ask(
            "delete_topic", shapes.TopicDeleted, topic=topic, **given(dead_letters=dead_letters or None)
        )

    async def add_partitions(self, topic: str, count: int) -> shapes.PartitionsAdded:
        """Give a topic more partitions: `count` is the new total. Keys may move to other partitions.

        UnknownTopic if there is none, InvalidRequest if it would have fewer.
        """
        return await self._ask("add_partitions", shapes.PartitionsAdded, topic=topic, count=count)

    async def offsets(self, topic: str, *, time: Moment | None = None) -> shapes.Offsets:
        """By partition, the first offset at or after a time, or the end. UnknownTopic if there is none."""
        return await self._ask("offsets", shapes.Offsets, topic=topic, **given(timestamp=as_time(time)))

    # ------------------------------------------------------------------ groups

    async def list_groups(self) -> shapes.GroupList:
        """The names of all groups."""
        return await self._ask("list_groups", shapes.GroupList)

    async def describe_group(self, group: str) -> shapes.GroupDescription:
        """The members of a group and what they have. UnknownGroup if there is none."""
        return await self._ask("describe_group", shapes.GroupDescription, group=group)

    async def delete_group(self, group: str) -> shapes.GroupDeleted:
        """Delete a group and what it has settled. GroupActive while it has members, UnknownGroup if there is none."""
        return await self._ask("delete_group", shapes.GroupDeleted, group=group)

    async def group_lag(self, group: str) -> shapes.GroupLag:
        """How far a group is behind, by topic and partition. UnknownGroup if there is none."""
        return await self._ask("group_lag", shapes.GroupLag, group=group)

    async def group_offsets(self, group: str, *, topic: str | None = None) -> shapes.GroupOffsets:
        """Up to where a group has settled everything, by topic and partition. UnknownGroup if there is none."""
        return await self._ask("group_offsets", shapes.GroupOffsets, group=group, **given(topic=topic))

    async def reset_offsets(
        self,
        group: str,
        *,
        topic: str,
        to: Literal["earliest", "latest"] | None = None,
        offset: int | None = None,
        time: Moment | None = None,
        ago: Duration | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> shapes.GroupOffsets:
        """Move a group to another place in a topic, or in one partition; a dry run only says where that would be.

        The place is one of `to`, `offset` (outside a partition: its nearer end), `time` and `ago`, how long ago.
        UnknownGroup or UnknownTopic if there is none.
        """
        return await self._ask(
            "reset_offsets",
            shapes.GroupOffsets,
            group=group,
            topic=topic,
            dry_run=dry_run,
            **given(partition=partition),
            **as_place(to=to, offset=offset, time=time, ago=ago),
        )

    # ------------------------------------------------------------------ named readers

    async def put_reader(
        self, name: str, offsets: Mapping[str, Mapping[int, int]], *, if_absent: bool = False
    ) -> shapes.ReaderPut:
        """Keep where a reader without a group begins, by topic and partition; the reply is what is kept after that.

        It is all that the reader has. With `if_absent` what it has stays, partition by partition, and only others are
        added: whoever comes first has said it for all. UnknownTopic or UnknownPartition if there is none,
        OffsetOutOfRange behind the end of a partition, Conflict if there are too many.
        """
        return await self._ask(
            "put_reader", shapes.ReaderPut, name=name, offsets=as_offsets(offsets), if_absent=if_absent
        )

    async def get_reader(self, name: str) -> shapes.ShownReader:
        """Where a named reader began. UnknownReader if there is none."""
        return await self._ask("get_reader", shapes.ShownReader, name=name)

    async def list_readers(self, *, limit: int = 100, next: str | UnsetType | None = None) -> shapes.ReaderList:
        """The named readers. `next` is that of a page."""
        return await self._ask("list_readers", shapes.ReaderList, limit=limit, **given(next=next))

    async def delete_reader(self, name: str) -> shapes.ReaderDeleted:
        """Forget a named reader. UnknownReader if there is none."""
        return await self._ask("delete_reader", shapes.ReaderDeleted, name=name)

    # ------------------------------------------------------------------ settling by handle

    async def ack_handles(
        self, handles: Handles, *, group: str | None = None, consumer_id: str | None = None
    ) -> shapes.Settled:
        """Settle messages by their receipt handles; if a group is named, only handles of that group are good.

        StaleHandle if one handle is refused; of many each has a result, in their order. UnknownGroup if there is none.
        """
        return await self._ask(
            "ack" if group is None else "group_ack",
            shapes.Settled,
            **as_handles(handles),
            **given(group=group, consumer_id=consumer_id),
        )

    async def nack_handles(
        self,
        handles: Handles,
        *,
        delay: Duration | None = None,
        group: str | None = None,
        consumer_id: str | None = None,
    ) -> shapes.Settled:
        """Give messages back, to be tried again after `delay`, or as the topic says. Refused as for `ack_handles`.

        One that was tried too often goes to the dead-letter topic: `requeued` is False then.
        """
        return await self._ask(
            "nack" if group is None else "group_nack",
            shapes.Settled,
            **as_handles(handles),
            **given(delay=delay, group=group, consumer_id=consumer_id),
        )

    async def reject_handles(
        self, handles: Handles, *, reason: str = "", consumer_id: str | None = None
    ) -> shapes.Settled:
        """Give messages up: they go to the dead-letter topic, with the reason. Refused as for `ack_handles`."""
        return await self._ask(
            "reject", shapes.Settled, **as_handles(handles), reason=reason, **given(consumer_id=consumer_id)
        )

    async def release_handles(self, handles: Handles, *, consumer_id: str | None = None) -> shapes.Settled:
        """Give messages back untried: others may have them, and the delivery does not count.

        Refused as for `ack_handles`.
        """
        return await self._ask("release", shapes.Settled, **as_handles(handles), **given(consumer_id=consumer_id))

    async def extend_handles(
        self, handles: Handles, *, timeout: Duration, consumer_id: str | None = None
    ) -> shapes.Settled:
        """Keep messages for `timeout` from now on. Refused as for `ack_handles`."""
        return await self._ask(
            "extend_visibility",
            shapes.Settled,
            **as_handles(handles),
            timeout=timeout,
            **given(consumer_id=consumer_id),
        )

    # ------------------------------------------------------------------ delays

    async def list_delayed(self, topic: str, *, limit: int = 100, skip: int = 0) -> shapes.DelayedList:
        """Messages that are not due yet, by partition and offset; `count` is how many there are in all.

        UnknownTopic if there is none.
        """
        return await self._ask("list_delayed", shapes.DelayedList, topic=topic, limit=limit, skip=skip)

    async def get_delayed(self, topic: str, *, partition: int, offset: int) -> shapes.DelayedMessage:
        """A message that is or was delayed, and what became of it. UnknownDelay if it never was."""
        return await self._ask("get_delayed", shapes.DelayedMessage, topic=topic, partition=partition, offset=offset)

    async def find_delayed(self, topic: str, offset: int) -> shapes.DelayedMessage:
        """The same for a topic with one partition. InvalidRequest if it has more."""
        return await self._ask("find_delayed", shapes.DelayedMessage, topic=topic, offset=offset)

    async def cancel_delayed(self, topic: str, *, partition: int, offset: int) -> shapes.DelayCancelled:
        """Cancel a message before it is due.

        AlreadyDelivered if it came due before, Conflict if it was cancelled, UnknownDelay if it never was delayed.
        """
        return await self._ask("cancel_delayed", shapes.DelayCancelled, topic=topic, partition=partition, offset=offset)

    async def cancel_many_delayed(self, topic: str, ids: Iterable[tuple[int, int]]) -> shapes.DelaysCancelled:
        """Cancel messages by partition and offset. Those that are not pending are in `failed`, and raise nothing."""
        return await self._ask("cancel_many_delayed", shapes.DelaysCancelled, topic=topic, ids=as_ids(ids))

    async def move_delayed(
        self,
        topic: str,
        *,
        partition: int,
        offset: int,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
    ) -> shapes.DelayedMessage:
        """Have a delayed message delivered after `delay` from now on, or at `deliver_at`: name one of them.

        AlreadyDelivered if it came due before, Conflict if it was cancelled, UnknownDelay if it never was delayed.
        """
        return await self._ask(
            "move_delayed",
            shapes.DelayedMessage,
            topic=topic,
            partition=partition,
            offset=offset,
            **as_due(delay=delay, deliver_at=deliver_at),
        )

    # ------------------------------------------------------------------ schedules

    async def create_schedule(
        self,
        topic: str,
        value: Content | None,
        *,
        cron: str | None = None,
        time_zone: str | None = None,
        every: Duration | None = None,
        missed: MissedName = "skip",
        paused: bool = False,
        key: Content | None = None,
        partition: int | None = None,
        priority: Priority | None = None,
        headers: Headers = (),
        ttl: Duration | None = None,
    ) -> shapes.ShownSchedule:
        """Have a message published again and again: by `cron`, in UTC or its `time_zone`, or `every` so often.

        UnknownTopic if there is none, InvalidRequest if the expression or the zone cannot be read, TooLarge if the
        message is.
        """
        return await self._ask(
            "create_schedule",
            shapes.ShownSchedule,
            topic=topic,
            message=as_message(value, key=key, partition=partition, priority=priority, headers=headers, ttl=ttl),
            missed=missed,
            paused=paused,
            **given(cron=cron, time_zone=time_zone, every=every),
        )

    async def list_schedules(
        self, *, topic: str | None = None, limit: int = 100, next: str | UnsetType | None = None
    ) -> shapes.ScheduleList:
        """Schedules in the order they were created in; `next` is that of the page before."""
        return await self._ask("list_schedules", shapes.ScheduleList, limit=limit, **given(topic=topic, next=next))

    async def describe_schedule(self, schedule: str) -> shapes.ShownSchedule:
        """When a schedule runs next, and how it went. UnknownSchedule if there is none."""
        return await self._ask("describe_schedule", shapes.ShownSchedule, schedule=schedule)

    async def change_schedule(
        self,
        schedule: str,
        *,
        value: Content | UnsetType | None = UNSET,
        cron: str | None = None,
        time_zone: str | None = None,
        every: Duration | None = None,
        missed: MissedName | None = None,
        paused: bool | None = None,
        key: Content | None = None,
        partition: int | None = None,
        priority: Priority | None = None,
        headers: Headers = (),
        ttl: Duration | None = None,
    ) -> shapes.ShownSchedule:
        """Change a schedule, pause it or go on with it; what is left out stays as it is.

        Its message is replaced as a whole: to change its key or headers give its value too. UnknownSchedule if there
        is none, otherwise refused as for `create_schedule`.
        """
        message = as_message(value, key=key, partition=partition, priority=priority, headers=headers, ttl=ttl)
        return await self._ask(
            "change_schedule",
            shapes.ShownSchedule,
            schedule=schedule,
            **given(message=message, cron=cron, time_zone=time_zone, every=every, missed=missed, paused=paused),
        )

    async def delete_schedule(self, schedule: str) -> shapes.ScheduleDeleted:
        """Delete a schedule; what it published stays. UnknownSchedule if there is none."""
        return await self._ask("delete_schedule", shapes.ScheduleDeleted, schedule=schedule)

    # ------------------------------------------------------------------ dead letters

    async def list_dead_letters(
        self,
        topic: str,
        *,
        reason: Reason | None = None,
        group: str | None = None,
        key: str | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
        header: Mapping[str, str] | None = None,
        offsets: Mapping[int, Iterable[int]] | None = None,
        deleted: bool = False,
        limit: int = 100,
        next: str | UnsetType | None = None,
    ) -> shapes.DeadLetterList:
        """Dead letters of a topic and why they died: those that match all that is given. `next` is that of a page.

        Times are those of death, the later one not included. `offsets` are those in the dead-letter topic, by
        partition. With `deleted` they are those of topics that had the name before, instead of those of the topic that
        has it now. UnknownTopic if there is none.
        """
        wanted = as_filter(
            reason=reason,
            group=group,
            key=key,
            from_time=from_time,
            to_time=to_time,
            header=header,
            offsets=offsets,
            deleted=deleted,
        )
        return await self._ask(
            "list_dead_letters",
            shapes.DeadLetterList,
            topic=topic,
            limit=limit,
            **given(filter=None if wanted is None else to_json(as_fields(wanted)).decode(), next=next),
        )

    async def start_redrive(
        self,
        topic: str,
        *,
        reason: Reason | None = None,
        group: str | None = None,
        key: str | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
        header: Mapping[str, str] | None = None,
        offsets: Mapping[int, Iterable[int]] | None = None,
        deleted: bool = False,
        rate: float | None = None,
        dry_run: bool = False,
        target: str | None = None,
    ) -> shapes.RedriveStarted:
        """Publish dead letters again, those that `list_dead_letters` finds: where they came from, or to `target`.

        Those of a `deleted` topic need a `target`. At most `rate` in a second. With `dry_run`, or if nothing matches,
        none is started: `id` is None. Conflict while another one of this topic is running, UnknownTopic if there is
        none.
        """
        wanted = as_filter(
            reason=reason,
            group=group,
            key=key,
            from_time=from_time,
            to_time=to_time,
            header=header,
            offsets=offsets,
            deleted=deleted,
        )
        return await self._ask(
            "start_redrive",
            shapes.RedriveStarted,
            topic=topic,
            dry_run=dry_run,
            **given(filter=wanted, rate=rate, target=target),
        )

    async def describe_redrive(self, redrive: str) -> shapes.ShownRedrive:
        """How far a redrive is. UnknownRedrive if there is none."""
        return await self._ask("describe_redrive", shapes.ShownRedrive, redrive=redrive)

    async def cancel_redrive(self, redrive: str) -> shapes.ShownRedrive:
        """Stop a redrive; what it published stays. UnknownRedrive if there is none."""
        return await self._ask("cancel_redrive", shapes.ShownRedrive, redrive=redrive)

    # ------------------------------------------------------------------ transactions

    async def commit_many(
        self,
        name: str,
        number: int,
        transactions: Iterable[str],
        *,
        messages: Mapping[str, int] | None = None,
        acks: Mapping[str, int] | None = None,
    ) -> shapes.ManyCommitted:
        """Commit transactions that were begun under a name and prepared: all of them, or none.

        Numbers of a name only grow, and each is committed once: the same one again does nothing (`duplicate`), and
        what is listed and open then is aborted. `messages` and `acks` say how many each has. StaleToken for a lower
        number, TransactionAborted or UnknownTransaction when one of them cannot be committed, Conflict if one has
        another name.
        """
        listed = to_list(
            "transactions", transactions, lambda each: isinstance(each, str), "a list of ids", or_empty=True
        )
        return await self._ask(
            "commit_many",
            shapes.ManyCommitted,
            token={"name": name, "number": number},
            transactions=listed,
            **given(messages=messages, acks=acks),
        )

    async def abort_transaction(self, transaction_id: str) -> shapes.TransactionsAborted:
        """Abort a transaction, whoever began it; nothing if it was. Conflict if it was committed, UnknownTransaction if
        there is none."""
        return await self._ask("abort_transaction", shapes.TransactionsAborted, transaction_id=transaction_id)

    async def abort_transactions(self, name: str) -> shapes.TransactionsAborted:
        """Abort all that are open under a name."""
        return await self._ask("abort_transaction", shapes.TransactionsAborted, name=name)

    async def transactions(
        self, *, name: str | None = None, state: StateName | None = None, limit: int = 100
    ) -> shapes.TransactionList:
        """Transactions: those that are open, the oldest first, then those that have ended, the latest first."""
        return await self._ask(
            "list_transactions", shapes.TransactionList, limit=limit, **given(name=name, state=state)
        )

    async def describe_transaction(self, transaction_id: str) -> shapes.ShownTransaction:
        """A transaction, and what it has where. UnknownTransaction if there is none, or it ended long ago."""
        return await self._ask("describe_transaction", shapes.ShownTransaction, transaction=transaction_id)

    async def transaction_token(self, name: str) -> shapes.TokenReply:
        """The last number that was committed under a name with `commit_many`; None if none was."""
        return await self._ask("transaction_token", shapes.TokenReply, name=name)

    # ------------------------------------------------------------------ statistics

    async def transaction_stats(self) -> shapes.TransactionStats:
        """How many transactions are open, and how those before ended since the broker started."""
        return await self._ask("transaction_stats", shapes.TransactionStats)

    async def priority_stats(
        self, *, topic: str | None = None, group: str | None = None, limit: int = 100
    ) -> shapes.PriorityStats:
        """What groups have in each priority lane, and were served of it; at most `limit` rows."""
        return await self._ask("priority_stats", shapes.PriorityStats, limit=limit, **given(topic=topic, group=group))

    async def delay_stats(self, *, topic: str | None = None, limit: int = 100) -> shapes.DelayStats:
        """How many messages are delayed, came due, were cancelled or moved; at most `limit` rows."""
        return await self._ask("delay_stats", shapes.DelayStats, limit=limit, **given(topic=topic))

    async def reliability_stats(
        self, *, topic: str | None = None, group: str | None = None, limit: int = 100
    ) -> shapes.ReliabilityStats:
        """How deliveries ended, and what is under way; at most `limit` rows."""
        return await self._ask(
            "reliability_stats", shapes.ReliabilityStats, limit=limit, **given(topic=topic, group=group)
        )

    async def rebalance_stats(self) -> shapes.RebalanceStats:
        """How often and how long groups rebalanced."""
        return await self._ask("rebalance_stats", shapes.RebalanceStats)

    async def stats(self) -> shapes.Stats:
        """Counters of the broker."""
        return await self._ask("stats", shapes.Stats)

    # ------------------------------------------------------------------ the broker

    async def health(self, *, verbose: bool = False) -> shapes.Health:
        """Whether the broker takes requests; with `verbose` what was looked at. A bad status is no error."""
        return await self._ask("health", shapes.Health, verbose=verbose)

    async def live(self) -> shapes.Health:
        """Whether the process answers; nothing else is looked at."""
        return await self._ask("live", shapes.Health)

    async def version(self) -> shapes.Version:
        """What is running."""
        return await self._ask("version", shapes.Version)

    async def cluster(self) -> shapes.ClusterView:
        """The nodes of the cluster."""
        return await self._ask("cluster", shapes.ClusterView)
