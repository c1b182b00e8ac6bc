"""Producer ids: given out once, never twice."""

from msgspec import UNSET

from goqueue.api.handlers.publishing import span
from goqueue.api.service import Service
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, UnknownProducer
from goqueue.transactions.commands import Former
from goqueue.wire import shapes

_FIRST_EPOCH = 0


async def init_producer(service: Service, request: shapes.InitProducer) -> shapes.ProducerReply:
    if request.transactional_id is UNSET:
        if (request.incarnation, request.producer_id, request.epoch) != (UNSET, UNSET, UNSET):
            raise InvalidRequest("incarnation, producer_id and epoch belong to a transactional_id")
        if request.transaction_timeout is not UNSET:
            raise InvalidRequest("transaction_timeout belongs to a transactional_id; or say timeout when you begin one")
        return shapes.ProducerReply(producer_id=await service.broker.init_producer(), epoch=_FIRST_EPOCH)
    timeout_ms = limits.DEFAULT_TRANSACTION_MS
    if request.transaction_timeout is not UNSET:
        least, most = limits.MIN_TRANSACTION_MS, limits.MAX_TRANSACTION_MS
        timeout_ms = span("transaction_timeout", request.transaction_timeout, least, most)
    identity = await service.broker.transactions.identify(
        request.transactional_id,
        timeout_ms,
        incarnation="" if request.incarnation is UNSET else request.incarnation,
        former=_former(request),
    )
    return shapes.ProducerReply(producer_id=identity.producer_id, epoch=identity.epoch)


def _former(request: shapes.InitProducer) -> Former | None:
    """As whom the program says that it wrote."""
    if request.producer_id is UNSET and request.epoch is UNSET:
        return None
    if request.producer_id is UNSET or request.epoch is UNSET:
        raise InvalidRequest("producer_id and epoch belong together: those that init_producer answered last")
    return Former(request.producer_id, request.epoch)


async def producer_heartbeat(
    service: Service, request: shapes.ProducerHeartbeat, producer_id: int
) -> shapes.ProducerReply:
    """Says whether the id is good. What is known of an idle producer is kept for a day, with or without it.

    The epoch of one without a transactional id is its own to raise: it then counts from 0 again, and partitions refuse
    lower ones. Of one with a transactional id it says that the producer is there, or that it was replaced.
    """
    if not service.broker.knows_producer(producer_id):
        raise UnknownProducer(f"no producer has the id {producer_id}; initialise one and use its id")
    service.broker.transactions.heard_of(producer_id, request.epoch)
    return shapes.ProducerReply(producer_id=producer_id, epoch=request.epoch)
