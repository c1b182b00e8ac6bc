"""The client of one call, for as long as the call lasts.

The library frees a call once its handler has returned and its client has gone. Asked for anything of that call from
then on, it crashes the process: grpcio 1.81 and all later ones up to 1.85.1, the newest that was tried. So only a
`Caller` touches the library's context, and only inside the handler, which does not return before its last write is
over. Work that outlives the handler uses the budget of the client's connection, which is looked up when the call
begins, and nothing else of the client.

That a client has left is heard in one way: its handler is cancelled. The context's `cancelled` does not say so, it
tells whether the handler itself answered with that status.
"""

import asyncio
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias

import grpc

from goqueue.broker.admission import Admission

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""What the library gives to a handler."""


class Caller:
    """Use it in `async with`, in the handler. Behind that it raises CancelledError, as for a client that has left."""

    __slots__ = ("_context", "_writing", "budget")

    def __init__(self, context: Context, budget: Admission) -> None:
        self._context: Context | None = context
        self._writing: asyncio.Task[None] | None = None
        self.budget = budget
        """Of its connection, for replies it has not read."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = False
        while self._writing is not None and not self._writing.done():
            try:
                await asyncio.wait((self._writing,))
            except asyncio.CancelledError:  # the client has left, which ends the write
                cancelled = True
        self._context = None
        if cancelled:
            raise asyncio.CancelledError

    async def read(self) -> Any:
        """The bytes of its next request, or the library's mark that there are no more."""
        return await self._there().read()

    async def write(self, data: bytes) -> None:
        """Until it was read. Whoever is cancelled leaves the write to itself."""
        await asyncio.shield(self.begin_writing(data))

    def begin_writing(self, data: bytes) -> "asyncio.Task[None]":
        """One write at a time. It is over when the client has read it, or has left, and not before."""
        self._writing = asyncio.get_running_loop().create_task(self._write(data))
        return self._writing

    async def abort(self, code: grpc.StatusCode, text: str, trailing: Any) -> NoReturn:
        """End the call, behind a reply that is not read yet. Raises what the library expects to see.

        If that cannot be told its client has left; the library, shown its own error, would log it as one.
        """
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        try:
            await self._there().abort(code, text, trailing)
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError from error

    async def _write(self, data: bytes) -> None:
        """A write that fails has no reader any more: it ends as if cancelled, whether or not anybody waits for it."""
        try:
            await self._there().write(data)
        except grpc.aio.BaseError as error:
            raise asyncio.CancelledError from error

    def _there(self) -> Context:
        if self._context is None:
            raise asyncio.CancelledError("the call is over")
        return self._context


def peer_of(context: Context) -> str:
    """Which connection a call came by, asked when it begins; empty if its deadline is over already."""
    return context.peer()
