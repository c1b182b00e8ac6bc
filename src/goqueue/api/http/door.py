"""From HTTP requests to operations and back. It has no operations of its own, only pages.

The pages: metrics, the OpenAPI document, and one that shows it to a person.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from goqueue.api import openapi, pages
from goqueue.api.bodies import Bodies
from goqueue.api.http.access import Access
from goqueue.api.http.messages import JSON, Answer, Park, Request, broken, refused
from goqueue.api.operations import OPERATIONS, Operation
from goqueue.api.refusals import refuse
from goqueue.api.router import Router
from goqueue.api.service import Service
from goqueue.model import limits
from goqueue.model.errors import Forbidden, GoQueueError, InvalidRequest, MethodNotAllowed
from goqueue.telemetry import logs
from goqueue.telemetry.exposition import CONTENT_TYPE as METRICS_TYPE
from goqueue.telemetry.exposition import Exposition
from goqueue.telemetry.meters import OTHER

log = logs.get("http")

_SWITCHES: Final = frozenset({"verbose", "internal", "dead_letters"})
"""Fields of a query that need no value to be true."""

_SHOWN_BYTES: Final = 40
"""Of a wrong field of a head, in a refusal."""

Page = Callable[[], Awaitable[Answer]]


class HttpDoor:
    """Shared by all connections of a listener."""

    def __init__(
        self,
        name: str,
        service: Service,
        exposition: Exposition,
        operations: Sequence[Operation] = OPERATIONS,
        access: Access | None = None,
    ) -> None:
        """Without an `access` only what this machine calls itself is a host, and no other origin may come."""
        self.broker = service.broker
        self._service = service
        self._exposition = exposition
        self._access = access or Access()
        self._router = Router(operations)
        self._encode = msgspec.json.Encoder().encode
        self._bodies = {
            operation.name: Bodies(operation, what="the body") for operation in operations if operation.has_body
        }
        self._meters = {operation.name: service.requests.meters(name, operation.name) for operation in operations}
        self._other = service.requests.meters(name, OTHER)
        self._pages: dict[bytes, Page] = {
            b"/metrics": self._metrics,
            b"/admin/metrics": self._metrics,
            b"/openapi.json": _openapi,
            b"/docs": _docs,
        }

    async def answer(self, request: Request, park: Park) -> Answer:
        """Whatever happens, there is an answer, unless the client leaves while its request is parked."""
        begun = perf_counter()
        meters = self._other
        try:
            self._access.check(request.head)
            page = self._page(request)
            if page is not None:
                answer = await page()
            elif self._access.is_preflight(request.head):
                answer = Answer(200, b"", extra=self._access.grant_request(request.head))
            else:
                operation, path = self._router.match(request.head.method, request.head.path)
                meters = self._meters[operation.name]
                answer = await self._operate(operation, path, request, park)
        except GoQueueError as error:
            if isinstance(error, Forbidden):  # the operator must hear of a name that users have and the broker has not
                log.warning_seldom("a request was forbidden", reason=str(error))
            answer = refused(error)
        except Exception as error:
            log.error("a request broke", method=request.head.method, path=repr(request.head.path[:200]), error=error)
            answer = broken()
        answer.extra += self._access.grant(request.head)
        meters.done(answer.outcome, perf_counter() - begun)
        return answer

    def refuse(self, request: Request, error: GoQueueError) -> Answer:
        """A request that was refused before all of it was here. It is counted like one that could not be read."""
        meters = self._other
        try:
            self._access.check(request.head)
            operation, path = self._router.match(request.head.method, request.head.path)
        except GoQueueError:
            pass  # it would have been refused for that; it was refused for something else first
        else:
            meters = self._meters[operation.name]
            if operation.unread is not None:
                operation.unread(self._service, path.get("topic"), error)
        answer = refused(error)
        answer.extra += self._access.grant(request.head)
        meters.done(answer.outcome, 0.0)
        return answer

    async def _operate(self, operation: Operation, path: dict[str, Any], request: Request, park: Park) -> Answer:
        try:
            if not operation.while_stopping:
                self.broker.check()
            if operation.has_body:
                _check_coding(request.head.fields.get(b"content-encoding", b""))
                fields, _ = await self._bodies[operation.name].read(
                    self._service, request.body, lambda weight: request.hold(self.broker.requests.take_anyway(weight))
                )
            else:
                fields = _from_query(operation, request.head.query)
        except GoQueueError as error:
            operation.refuse_unread(self._service, path, error)
        if operation.park is not None:
            path["parked"] = await park(request, operation.park(self._service, fields, **path))
        if not operation.reply_bytes:
            return self._pack(operation, await operation.handler(self._service, fields, **path))
        room = self.broker.replies.try_take(operation.reply_bytes)
        if room is None:  # who leaves while it waits stands in front of nobody
            await park(request, self._wait_for_room(request, operation.reply_bytes))
            room = request.room.hand_over()
        try:
            answer = self._pack(operation, await operation.handler(self._service, fields, **path))
            more = max(len(answer.body) - operation.reply_bytes, 0)
            answer.room = room.plus(self.broker.replies.take_anyway(more))
        finally:
            room.give()
        return answer

    async def _wait_for_room(self, request: Request, size: int) -> None:
        """The request holds it: it is given back however the request ends."""
        request.hold(await self.broker.replies.take(size, timeout_s=limits.ADMISSION_WAIT_S))

    def _pack(self, operation: Operation, reply: Any) -> Answer:
        answer = Answer(operation.status_of(reply), self._encode(reply))
        if operation.undo is not None:
            answer.undo = partial(operation.undo, self._service, reply)
        return answer

    # --- pages

    def _page(self, request: Request) -> Page | None:
        page = self._pages.get(request.head.path.removeprefix(b"/v1"))
        if self._access.is_preflight(request.head):
            return None
        if page is not None and request.head.method != "GET":
            raise MethodNotAllowed(f"{request.head.method} is not possible here; possible: GET", allowed="GET")
        return page

    async def _metrics(self) -> Answer:
        """In pieces: a scrape of many topics must not hold up requests."""
        parts = []
        for part in self._exposition.parts():
            parts.append(part)
            await asyncio.sleep(0)
        return Answer(200, b"".join(parts), media=METRICS_TYPE.encode())


def _check_coding(coding: bytes) -> None:
    if coding.lower() not in (b"", b"identity"):
        name = coding[:_SHOWN_BYTES].decode("latin-1")
        raise InvalidRequest(
            f"the body is packed (Content-Encoding: {name}), which is not understood; send it as it is"
        )


async def _openapi() -> Answer:
    return Answer(200, openapi.document(), media=JSON)


async def _docs() -> Answer:
    return Answer(200, pages.docs(), media=b"text/html; charset=utf-8")


def _from_query(operation: Operation, query: bytes) -> Any:
    fields: dict[str, str] = {}
    if query:
        try:
            pairs = parse_qsl(
                query.decode(), keep_blank_values=True, errors="strict", max_num_fields=limits.MAX_QUERY_FIELDS
            )
        except ValueError:
            raise InvalidRequest("the query is not valid: use name=value, joined by &, percent-encoded UTF-8") from None
        fields = {name: value if value or name not in _SWITCHES else "true" for name, value in pairs}
        if len(fields) < len(pairs):
            raise InvalidRequest("the query names a field twice; name it once")
    try:
        return msgspec.convert(fields, operation.request, strict=False)
    except msgspec.ValidationError as error:
        raise refuse(error, operation.request) from None
