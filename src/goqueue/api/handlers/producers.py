"""Producer ids: given out once, never twice."""

from goqueue.api.service import Service
from goqueue.model.errors import UnknownProducer
from goqueue.wire import shapes

_FIRST_EPOCH = 0


async def init_producer(service: Service, request: shapes.InitProducer) -> shapes.ProducerReply:
    return shapes.ProducerReply(producer_id=await service.broker.init_producer(), epoch=_FIRST_EPOCH)


async def producer_heartbeat(
    service: Service, request: shapes.ProducerHeartbeat, producer_id: int
) -> shapes.ProducerReply:
    """Says whether the id is good. What is known of an idle producer is kept for a day, with or without it.

    The epoch is the producer's own to raise: it then counts from 0 again, and partitions refuse lower ones.
    """
    if not service.broker.knows_producer(producer_id):
        raise UnknownProducer(f"no producer has the id {producer_id}; initialise one and use its id")
    return shapes.ProducerReply(producer_id=producer_id, epoch=request.epoch)
