"""PublishStream: frames are published as they come and answered in their order, many under way at a time.

A frame never waits for room: that would only hold its bytes for longer. So many frames may wait for their answers, and
these may hold so many bytes; while a client does not take its answers nothing more is read from it.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final

import grpc

from goqueue.api.grpc.caller import Caller, Context
from goqueue.api.grpc.calls import DOOR
from goqueue.api.grpc.failures import refuse, refuse_bug
from goqueue.api.grpc.frames import FEW_VALUES, NAME, Frame
from goqueue.api.grpc.held import Held, log
from goqueue.api.grpc.streams import PUBLISH
from goqueue.api.grpc.weighing import check_fields, count_values
from goqueue.api.service import Service
from goqueue.broker.admission import Ticket
from goqueue.model import limits
from goqueue.model.errors import Draining, GoQueueError, TooLarge

_END: Final = None


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
        self._pending = 0
        """Bytes that are held by answers which were not taken."""
        self._taken = asyncio.Event()
        """Set when an answer was taken."""

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
            frame.weight = frame.held_bytes
            self._pending += frame.weight
            await answers.put(frame)
            self._last = None
            while self._pending > limits.GRPC_PENDING_BYTES:
                self._taken.clear()
                await self._taken.wait()

    async def _publish(self, frame: Frame, body: bytes) -> None:
        """What has little without a pause. Any other is published to its end, also when the stream ends meanwhile."""
        if len(body) <= limits.SMALL_JSON_BYTES:
            await self._publish_small(frame, body)
            return
        values = count_values(NAME, body, limits.MAX_VALUES)
        try:
            if values > limits.MAX_VALUES:
                most = limits.MAX_VALUES
                raise TooLarge(f"a frame has at most {most} fields in all; send fewer messages in it")
            check_fields(NAME, body)
        except TooLarge as error:
            frame.refuse(error)
            return
        counted = self._broker.requests.take_anyway(len(body) + values * limits.VALUE_BYTES)
        if values > FEW_VALUES or len(body) > limits.APPENDED_AT_ONCE_BYTES:
            await self._finish(frame, frame.publish_in_turns(self._turns, body), counted)
            return
        try:
            left = frame.publish(body)
        except BaseException:
            counted.give()
            raise
        await self._go_on(frame, left, counted)

    async def _publish_small(self, frame: Frame, body: bytes) -> None:
        """Its values are only counted where it takes them one by one: most frames are plain."""
        left = frame.publish(body)
        if left is not None:
            values = count_values(NAME, body, limits.MAX_VALUES)
            counted = self._broker.requests.take_anyway(len(body) + values * limits.VALUE_BYTES)
            await self._go_on(frame, left, counted)

    async def _go_on(self, frame: Frame, left: Iterator[None] | None, counted: Ticket) -> None:
        if left is None:
            counted.give()
        else:
            await self._finish(frame, frame.finish(self._turns, left), counted)

    async def _finish(self, frame: Frame, work: Coroutine[Any, Any, None], counted: Ticket) -> None:
        """Publish it in turns with others."""
        publishing = self._held.begin(work)
        publishing.add_done_callback(lambda _: counted.give())
        frame.wait_for(publishing)
        self._last = frame
        await asyncio.shield(publishing)

    async def end(self) -> None:
        """No more frames. That of a read that was cut short is answered too."""
        if self._last is not None:
            await self._answers.put(self._last)
        await self._answers.put(_END)

    async def write(self) -> None:
        while (frame := await self._answers.get()) is not _END:
            if frame.waits:
                await frame.safe()
            answer = await frame.answer_in_turns(self._turns) if frame.answers_at_length else frame.answer()
            self._meters.done(frame.outcome, frame.took_s)
            await self._held.write(self._caller, answer)
            del answer
            self._pending -= frame.weight
            self._taken.set()
