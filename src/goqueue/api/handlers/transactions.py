"""Transactions: beginning, taking part, committing, aborting, and looking at them."""

from collections.abc import Sequence
from functools import partial

from msgspec import UNSET

from goqueue.api.handlers.delivery import settle_handles
from goqueue.api.handlers.groups import find_member
from goqueue.api.handlers.publishing import counted, publish_one, span
from goqueue.api.service import Service
from goqueue.broker.settle import Fate
from goqueue.delivery.handles import Handle
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, TransactionAborted, UnknownProducer
from goqueue.model.names import check_transaction_name
from goqueue.model.times import show_time
from goqueue.model.transactions import AbortReason, transaction_id, transaction_number
from goqueue.transactions.commands import Begin
from goqueue.transactions.coordinator import Transaction, Writer, ended
from goqueue.wire import shapes


def _writer(request: shapes.Writer | shapes.TransactionPublish) -> Writer:
    return Writer(request.producer_id, request.epoch, request.transactional_id or "")


def _number(text: str | None) -> int | None:
    return None if text is None else transaction_number(text)


def _of(service: Service, request: shapes.Writer | shapes.TransactionPublish) -> Transaction:
    """The transaction a request is about, if it is the writer's."""
    return service.broker.transactions.machine.of(_writer(request), _number(request.transaction_id))


def _open(service: Service, request: shapes.Writer | shapes.TransactionPublish) -> Transaction:
    return service.broker.transactions.writing(_of(service, request))


# --- taking part


async def begin_transaction(service: Service, request: shapes.BeginTransaction) -> shapes.TransactionBegun:
    if not service.broker.knows_producer(request.producer_id):
        raise UnknownProducer(f"no producer has the id {request.producer_id}; initialise one and use its id")
    least, most = limits.MIN_TRANSACTION_MS, limits.MAX_TRANSACTION_MS
    found = await service.broker.transactions.begin(
        Begin(
            producer_id=request.producer_id,
            epoch=request.epoch,
            transactional_id=request.transactional_id or "",
            name=request.name or "",
            timeout_ms=None if request.timeout is None else span("timeout", request.timeout, least, most),
        )
    )
    return shapes.TransactionBegun(
        transaction_id=found.transaction_id, expires_at=show_time(found.began_at + found.timeout_ms)
    )


async def transaction_publish(service: Service, request: shapes.TransactionPublish) -> shapes.PublishResult:
    with counted(service, request.topic):
        found = _open(service, request)
        return await publish_one(service, request.topic, request, found.number)


async def add_partition(service: Service, request: shapes.AddPartition) -> shapes.PartitionAdded:
    """Publishing does that by itself."""
    found = _open(service, request)
    partition = service.broker.topics.named(request.topic).partition(request.partition)
    service.broker.transactions.take_part(found.number, partition)
    return shapes.PartitionAdded(transaction_id=found.transaction_id, topic=request.topic, partition=request.partition)


async def transaction_ack(service: Service, request: shapes.TransactionAck) -> shapes.Settled:
    found = _open(service, request)
    take_part = partial(service.broker.transactions.take_part, found.number)
    if request.offsets is not UNSET:
        if request.group is UNSET or request.member_id is UNSET:
            raise InvalidRequest("with offsets name the group and the member_id whose they are")
        offsets = {
            topic: {int(number): at for number, at in numbers.items()} for topic, numbers in request.offsets.items()
        }
        group, member = find_member(service, request.group, request.member_id)
        received = None if request.received is UNSET else request.received
        acks = await service.broker.offsets.commit(
            group, member, offsets, received=received, pledged_to=found.number, on_pledged=take_part
        )
        return shapes.Settled(acknowledged=True, acks=acks)

    async def work(handles: Sequence[Handle]) -> list[Fate]:
        _open(service, request)  # it may have ended while the handles were looked at
        return await service.broker.settlement.pledge(found.number, handles, take_part)

    return await settle_handles(
        service,
        request.receipt_handle,
        request.receipt_handles,
        None,
        work,
        lambda _: shapes.Settled(acknowledged=True),
    )


# --- ending


async def commit_transaction(service: Service, request: shapes.CommitTransaction) -> shapes.TransactionCommitted:
    found = _of(service, request)
    committed = await service.broker.transactions.commit(found, messages=request.messages, acks=request.acks)
    return shapes.TransactionCommitted(
        transaction_id=found.transaction_id, committed=True, duplicate=committed.duplicate
    )


async def abort_transaction(service: Service, request: shapes.AbortTransaction) -> shapes.TransactionsAborted:
    runner = service.broker.transactions
    if request.producer_id is not None:
        if request.name is not None:
            raise InvalidRequest("a producer aborts its own transaction; leave out producer_id to abort by name")
        writer = Writer(request.producer_id, request.epoch, request.transactional_id or "")
        try:
            numbers = [runner.machine.of(writer, _number(request.transaction_id)).number]
        except TransactionAborted:
            numbers = []
    elif request.name is not None:
        if request.transaction_id is not None:
            raise InvalidRequest("abort one by its transaction_id, or all of a name; not both")
        numbers = [found.number for found in runner.machine.named(request.name)]
    elif request.transaction_id is not None:
        numbers = [runner.machine.transaction(transaction_number(request.transaction_id)).number]
    else:
        raise InvalidRequest("name the producer_id whose transaction is aborted, a transaction_id, or a name")
    for number in numbers:
        found = runner.machine.transaction(number)
        if found.is_committed:
            raise ended(found)
    aborted = await runner.abort(numbers, AbortReason.ASKED)
    return shapes.TransactionsAborted(aborted=[transaction_id(number) for number in aborted])


async def commit_many(service: Service, request: shapes.CommitMany) -> shapes.ManyCommitted:
    numbers = [transaction_number(text) for text in request.transactions]
    messages, acks = (
        {transaction_number(text): count for text, count in (counts or {}).items()}
        for counts in (request.messages, request.acks)
    )
    token = request.token
    done = await service.broker.transactions.commit_many(token.name, token.number, numbers, messages, acks)
    return shapes.ManyCommitted(
        committed=True,
        duplicate=done.duplicate,
        transactions=[transaction_id(number) for number in done.numbers],
        aborted=[transaction_id(number) for number in done.aborted],
    )


# --- looking


async def list_transactions(service: Service, request: shapes.ListTransactions) -> shapes.TransactionList:
    runner = service.broker.transactions
    known = list(runner.machine.by_number.values())
    ordered = [found for found in known if found.is_open] + [found for found in reversed(known) if not found.is_open]
    wanted = [
        found
        for found in ordered
        if (request.name is None or found.name == request.name)
        and (request.state is None or runner.state(found) == request.state)
    ]
    shown = [_show(service, found, with_parts=False) for found in wanted[: request.limit]]
    await runner.sure()
    return shapes.TransactionList(transactions=shown, total=len(wanted))


async def describe_transaction(service: Service, request: shapes.Nothing, transaction: str) -> shapes.ShownTransaction:
    runner = service.broker.transactions
    shown = _show(service, runner.machine.transaction(transaction_number(transaction)))
    await runner.sure()
    return shown


async def transaction_stats(service: Service, request: shapes.Nothing) -> shapes.TransactionStats:
    runner = service.broker.transactions
    return shapes.TransactionStats(
        ongoing=len(runner.machine.by_producer),
        ending=len(runner.machine.deciding),
        oldest_seconds=runner.oldest_ms / 1000,
        transactional_ids=len(runner.machine.owners),
        begun=runner.counts["begun"],
        committed=runner.counts["committed"],
        aborted={outcome: count for outcome, count in runner.outcomes.items() if outcome != "committed"},
    )


async def transaction_token(service: Service, request: shapes.Nothing, name: str) -> shapes.TokenReply:
    check_transaction_name(name)
    runner = service.broker.transactions
    number = runner.machine.tokens.get(name)
    await runner.sure()
    return shapes.TokenReply(name=name, number=number)


def _show(service: Service, found: Transaction, *, with_parts: bool = True) -> shapes.ShownTransaction:
    runner = service.broker.transactions
    with_parts = with_parts and found.is_open
    parts = [
        shapes.TransactionPart(topic=part.topic, partition=part.partition, messages=part.messages, acks=part.acks)
        for part in (runner.parts(found) if with_parts else ())
    ]
    return shapes.ShownTransaction(
        transaction_id=found.transaction_id,
        state=runner.state(found).value,
        producer_id=found.producer_id,
        epoch=found.epoch,
        began_at=show_time(found.began_at),
        transactional_id=found.transactional_id or UNSET,
        name=found.name or UNSET,
        expires_at=show_time(found.began_at + found.timeout_ms) if found.is_open else UNSET,
        ended_at=UNSET if found.is_open else show_time(found.decided_at),
        reason=UNSET if found.reason is None else found.reason.value,
        producer_silent=runner.is_silent(found) if found.is_open else UNSET,
        partitions=parts if with_parts else UNSET,
    )
