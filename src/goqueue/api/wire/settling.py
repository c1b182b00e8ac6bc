"""settle_block: what a member has done with messages it was delivered, many at a time.

A row is good only with the token that came with it: nobody settles what he was not delivered. What is not good any
more is refused, row by row; a request fails as a whole only when something could not be written down, or a pledge is
not to a transaction that its writer has open.
"""

from functools import partial
from hmac import compare_digest
from typing import Final, NamedTuple

from pyroaring import BitMap64

from goqueue.base.offset_sets import ranged, runs
from goqueue.broker import settle as verdicts
from goqueue.broker.broker import Broker
from goqueue.broker.settle import Claim, Pending, Verdict
from goqueue.model.errors import GoQueueError, StaleHandle
from goqueue.model.names import GroupNumber, TopicId
from goqueue.model.record import Producer
from goqueue.wire import settles
from goqueue.wire.settles import NO_ARGUMENT, Action, OffsetRange, SettleRequest

_TOKEN_BYTES: Final = 8


class Settled(NamedTuple):
    """The reply, or why there is none; to be sent once what is pending is safe."""

    reply: bytes
    failure: GoQueueError | None
    pending: Pending


def settle(broker: Broker, request: SettleRequest) -> Settled:
    """Written down when this returns."""
    group = GroupNumber(request.group)
    if request.writer is not None:
        writer = Producer(*request.writer, 0)
        try:
            broker.transactions.check_producer(writer)
            broker.transactions.check_block(request.argument, writer)
        except GoQueueError as error:
            return Settled(b"", error, broker.settlement.nothing())
    claims: list[Claim] = []
    places: list[int] = []
    refused: list[tuple[OffsetRange, ...]] = [claim.ranges for claim in request.claims]
    for place, (number, partition, poll, token, ranges) in enumerate(request.claims):
        topic_id = TopicId(number)
        if _is_same(token, broker.handles.token(topic_id, partition, group, poll)):
            claims.append(Claim(group, topic_id, partition, poll, _gather(ranges)))
            places.append(place)
    outcomes, pending = broker.settlement.settle(_verdict(broker, request), claims)
    failure: GoQueueError | None = None
    for place, outcome in zip(places, outcomes, strict=True):
        if outcome.error is None:
            bad = outcome.refused
            if bad and request.action is Action.ACK_AGAIN and outcome.partition is not None:
                bad = outcome.partition.deliveries.not_settled(group, bad)
            if bad and request.action is Action.PLEDGE_AGAIN and outcome.partition is not None:
                bad = bad - outcome.partition.deliveries.delivery(group).pledged(request.argument)
            refused[place] = tuple(runs(bad)) if bad else ()
        elif not isinstance(outcome.error, StaleHandle):
            failure = outcome.error
    return Settled(settles.pack_settle_reply(refused) if failure is None else b"", failure, pending)


def _is_same(token: int, issued: int) -> bool:
    return compare_digest(token.to_bytes(_TOKEN_BYTES), issued.to_bytes(_TOKEN_BYTES))


def _gather(ranges: tuple[OffsetRange, ...]) -> BitMap64:
    offsets = ranged(*ranges[0])
    for first, end in ranges[1:]:
        offsets.add_range(first, end)
    return offsets


def _verdict(broker: Broker, request: SettleRequest) -> Verdict:
    argument = request.argument
    if request.action in (Action.ACK, Action.ACK_AGAIN):
        return verdicts.ACK
    if request.action is Action.NACK:
        return verdicts.nack(None if argument == NO_ARGUMENT else argument)
    if request.action is Action.REJECT:
        return verdicts.reject(request.reason)
    if request.writer is not None:
        return verdicts.pledge(argument, partial(broker.transactions.take_part, argument))
    if request.action is Action.RELEASE:
        return verdicts.RELEASE
    return verdicts.extend(argument)
