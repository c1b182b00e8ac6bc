"""Calls with one argument that is probably wrong: whatever comes of them, it is an answer or an error of our tree."""

import inspect
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import Any

from goqueue.model.errors import GoQueueError

JUNK: tuple[Any, ...] = (
    None, object(), 5, -1, 1.5, 1 << 70, float("nan"), float("inf"), "x", "\ud800", b"x", [], [object()], {5: object()},
    print, timedelta(-1), ValueError("no"), datetime(2026, 1, 1),
)  # fmt: skip


def misuses(
    call: Callable[..., Any], *arguments: Any, leave: tuple[str, ...] = (), **named: Any
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """For every argument that it has, but those to leave as they are, and for all junk: what it is, and the call."""
    signature = inspect.signature(call)
    kinds = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    names = [each.name for each in kinds if each.name not in leave]
    for name, junk in product(names, JUNK):
        bound = signature.bind(*arguments, **named)
        bound.arguments[name] = junk
        yield f"{call.__qualname__} with {name}={junk!r}", partial(call, *bound.args, **bound.kwargs)


class Refusals:
    """`with refusals.of(what): ...` for each of them."""

    def __init__(self) -> None:
        self.seen: list[GoQueueError] = []
        self._what = ""

    def of(self, what: str) -> "Refusals":
        self._what = what
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, GoQueueError):
            assert not error.retriable, f"{self._what}: {error}"
            assert error.code != GoQueueError.code, f"{self._what}: {error}"
            self.seen.append(error)
            return True
        if isinstance(error, Exception):
            raise AssertionError(self._what) from error
        return False
