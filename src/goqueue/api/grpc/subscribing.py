"""Subscribe: a member of a group on one stream, made of the operations a consumer would call one after the other.

A client that ends its side of the stream leaves the group, unless it asked to stay, however it came. One that just
vanishes is missed when its session is over, like at every other door: it may come back. A member has one stream: one
that is opened later ends the one before it.
"""

import asyncio
from typing import Any

from goqueue.api.grpc.caller import Context
from goqueue.api.grpc.failures import refuse, refuse_bug
from goqueue.api.grpc.held import Held, log
from goqueue.api.grpc.streams import SUBSCRIBE
from goqueue.api.grpc.subscribe_stream import Newest, SubscribeStream
from goqueue.api.service import Service
from goqueue.model.errors import Draining, GoQueueError, MemberFenced


class SubscribeStreams:
    """All of a door."""

    def __init__(self, service: Service, held: Held) -> None:
        self._service = service
        self._held = held
        self._newest: Newest = {}

    async def serve(self, _: Any, context: Context) -> None:
        async with self._held.caller(context) as caller:
            try:
                with self._held.place():
                    await self._serve(SubscribeStream(self._service, caller, self._held, self._newest))
            except GoQueueError as error:
                await refuse(caller, error)
            except Exception as error:
                log.error("a stream broke", operation=SUBSCRIBE, error=error)
                await refuse_bug(caller)

    async def _serve(self, stream: SubscribeStream) -> None:
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(self._held.drained.wait())
        replaced = loop.create_task(stream.replaced.wait())
        reading = loop.create_task(stream.read())
        pump = self._held.begin(stream.pump())
        try:
            await asyncio.wait((stopping, replaced, reading, pump), return_when=asyncio.FIRST_COMPLETED)
            if replaced.done():
                await stream.stop(pump)
                raise MemberFenced("another stream goes on as this member; one at a time")
            if reading.done():
                await reading  # may say why
                await stream.stop(pump)
                await stream.leave()
            elif pump.done():
                await pump  # says why
            else:
                await stream.stop(pump)
                raise Draining("the broker is stopping; subscribe again in a moment, or at another one")
        finally:
            stream.abandon(pump)
            for task in (stopping, replaced, reading):
                task.cancel()
