"""What a client's connection writes at once."""

from typing import Any, cast

from goqueue.client.connection import Connection


class _Watched:
    """A transport that remembers how much was written to it each time."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written: list[int] = []

    def writelines(self, parts: list[bytes]) -> None:
        self.written.append(sum(map(len, parts)))
        self._transport.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def watch(connection: Connection) -> list[int]:
    """The bytes of every write from now on."""
    watched = _Watched(connection._exchange._transport)
    connection._exchange._transport = cast(Any, watched)
    return watched.written
