"""What happened, in order: a running hash always, the lines themselves when somebody wants to read them."""

from collections.abc import Callable
from hashlib import blake2b


class Trace:
    """Two runs with the same digest did the same things in the same order."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._hash = blake2b(digest_size=8)
        self._show = show
        self.events = 0

    def event(self, kind: str, *about: object) -> None:
        self._hash.update(repr((kind, about)).encode())
        self.events += 1
        if self._show is not None:
            self._show(f"{self.events:6} {kind:14} {' '.join(map(str, about))}")

    def digest(self) -> str:
        return self._hash.hexdigest()
