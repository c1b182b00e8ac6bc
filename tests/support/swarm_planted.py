"""`goqueue` with a bug planted in it that clients who leave bring to light: the client swarm must notice each.

Run as a program its first argument names what is planted; the rest is for `goqueue`. Reads are cold, as for the swarm.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

from goqueue.api.grpc.caller import Caller, Context
from goqueue.api.grpc.calls import Call
from goqueue.api.grpc.held import Held, forget
from goqueue.api.listening import Connection, Listener
from goqueue.broker.alarms import Alarms
from goqueue.broker.coordination import Coordination
from goqueue.cli.main import main
from goqueue.io.disk import LocalFile

_LATE_S: Final = 0.1


def program(planted: str) -> list[str]:
    """What to run instead of `goqueue`."""
    return [sys.executable, "-m", "tests.support.swarm_planted", planted]


def _plant_late_question() -> None:
    """Who the client of a call is, is asked when the call is over."""
    caller = Held.caller

    def planted(self: Held, context: Context) -> Caller:
        asyncio.get_running_loop().call_later(_LATE_S, context.peer)
        return caller(self, context)

    Held.caller = planted  # type: ignore[method-assign]


def _plant_kept_room() -> None:
    """What was reserved for the reply to a client that leaves is kept."""
    kept: list[Call] = []
    _plant_lost_room(kept.append)


def _plant_lost_room(keep: Callable[[Call], None] = lambda _: None) -> None:
    """What was reserved for the reply to a client that leaves goes with it."""

    def planted(self: Call, task: "asyncio.Task[Any]") -> None:
        keep(self)
        task.add_done_callback(forget)

    Call.leave = planted  # type: ignore[method-assign]


def _plant_kept_connection() -> None:
    """A connection that ends stays among those that are there."""

    def planted(self: Listener, connection: Connection) -> None:
        pass

    Listener.leave = planted  # type: ignore[method-assign]


def _plant_kept_messages() -> None:
    """Who vanishes keeps what it has."""
    Alarms._lapse = lambda *_: None  # type: ignore[method-assign]
    Coordination._abandon = lambda *_: None  # type: ignore[method-assign]


def _plant_broken_reply() -> None:
    """Replies to clients that are late break something."""
    take = Held.take

    async def planted(self: Held, budget: Any, size: int) -> Any:
        if budget is self._budgets.get(""):
            raise KeyError("")
        return await take(self, budget, size)

    Held.take = planted  # type: ignore[method-assign]


PLANTS: Final = {
    "asks-late": _plant_late_question,
    "keeps-room": _plant_kept_room,
    "loses-room": _plant_lost_room,
    "keeps-connections": _plant_kept_connection,
    "keeps-messages": _plant_kept_messages,
    "breaks": _plant_broken_reply,
}

if __name__ == "__main__":
    LocalFile.is_cached = lambda *_: False  # type: ignore[method-assign]
    PLANTS[sys.argv.pop(1)]()
    main()
