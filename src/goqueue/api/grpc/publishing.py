"""PublishStream: frames are published as they come and answered in their order, many under way at a time.

A frame never waits for room: that would only hold its bytes for longer. So many frames may wait for their answers;
while a client does not take its answers nothing more is read from it.
"""

import asyncio
from typing import Any, Final

import grpc

from goqueue.api.grpc.caller import Caller, Context
from goqueue.api.grpc.calls import DOOR
from goqueue.api.grpc.failures import refuse, refuse_bug
from goqueue.api.grpc.frames import Frame
from goqueue.api.grpc.held import Held, log
from goqueue.api.grpc.streams import PUBLISH
from goqueue.api.grpc.weighing import count_values
from goqueue.api.service import Service
from goqueue.model import limits
from goqueue.model.errors import Draining, GoQueueError, TooLarge

_END: Final = None
_FRAME: Final = "PublishFrame"
_FEW_VALUES: Final = 5000
"""Fields of a frame that is published without a pause."""


class PublishStreams:
    """All of a door."""

    def __init__(self, service: Service, held: Held) -> None:
        self._service = service
        self._held = held

    async def serve(self, _: Any, context: Context) -> None:
        """One stream, from its first frame to its last answer."""
        async with self._held.caller(context) as caller:
            try:
                with self._held.place():
                    await self._serve(_PublishStream(self._service, caller, self._held))
            except GoQueueError as error:
                await refuse(caller, error)
            except Exception as error:
                log.error("a stream broke", operation=PUBLISH, error=error)
                await refuse_bug(caller)

    async def _serve(self, stream: "_PublishStream") -> None:
        loop = asyncio.get_running_loop()
        reading = loop.create_task(stream.read())
        writing = loop.create_task(stream.write())
        stopping = loop.create_task(self._held.drained.wait())
        tasks: list[asyncio.Task[Any]] = [reading, writing, stopping]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failure: BaseException | None = None
            if not reading.done():
                reading.cancel()
                await asyncio.wait((reading,))
                failure = Draining("the broker is stopping; connect again in a moment, or to another one")
            elif reading.exception() is not None:
                failure = reading.exception()
            tasks.append(loop.create_task(stream.end()))  # there may be no room for it, and never be any
            await writing  # what was published is answered
            if failure is not None:
                raise failure
        finally:
            for task in tasks:
                task.cancel()


class _PublishStream:
    def __init__(self, service: Service, caller: Caller, held: Held) -> None:
        self._held = held
        self._broker = service.broker
        self._meters = service.requests.meters(DOOR, "publish_batch")
        self._caller = caller
        self._turns = service.turns
        self._answers: asyncio.Queue[Frame | None] = asyncio.Queue(limits.GRPC_PENDING_FRAMES)
        self._last: Frame | None = None
        """Published, and not among the answers yet."""

    async def read(self) -> None:
        broker, answers = self._broker, self._answers
        number = 0
        while True:
            body = await self._caller.read()
            if body is grpc.aio.EOF:
                break
            frame = Frame(broker, number)
            number += 1
            await self._publish(frame, body)
            del body
            self._last = frame
            await answers.put(frame)
            self._last = None

    async def _publish(self, frame: Frame, body: bytes) -> None:
        """What is small without a pause. What is large is published to its end, also when the stream ends meanwhile."""
        values = 0 if len(body) <= limits.SMALL_JSON_BYTES else count_values(_FRAME, body, limits.MAX_VALUES)
        if values > limits.MAX_VALUES:
            most = limits.MAX_VALUES
            frame.refuse(TooLarge(f"a frame has at most {most} fields in all; send fewer messages in it"))
            return
        counted = self._broker.requests.take_anyway(len(body) + values * limits.VALUE_BYTES)
        if values > _FEW_VALUES or len(body) > limits.APPENDED_AT_ONCE_BYTES:
            publishing = self._held.begin(frame.publish_in_turns(self._turns, body))
            publishing.add_done_callback(lambda _: counted.give())
            frame.wait_for(publishing)
            self._last = frame
            await asyncio.shield(publishing)
            return
        try:
            frame.publish(body)
        finally:
            counted.give()

    async def end(self) -> None:
        """No more frames. That of a read that was cut short is answered too."""
        if self._last is not None:
            await self._answers.put(self._last)
        await self._answers.put(_END)

    async def write(self) -> None:
        while (frame := await self._answers.get()) is not _END:
            if frame.waits:
                await frame.safe()
            answer = frame.answer()
            self._meters.done(frame.outcome, frame.took_s)
            await self._held.write(self._caller, answer)
