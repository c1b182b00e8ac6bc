"""A hold: offsets that are not delivered until a time has come. A lease is one, and so is the wait before a retry.

How long it lasts is counted on a clock that never steps, as long as the process lives; `until` is the same
moment on the wall's clock, for the next life.
"""

from pyroaring import BitMap64


class Hold:
    """Of one group. It is over when it is empty."""

    __slots__ = ("offsets", "span_ms", "until")

    def __init__(self, offsets: BitMap64, until: int, span_ms: int) -> None:
        self.offsets = offsets
        self.until = until
        self.span_ms = span_ms

    def end(self, now: int) -> int:
        """When it is over, if it was made just now."""
        return now + self.span_ms

    def end_again(self, now: int, wall: int) -> int:
        """The same, if it was made in an earlier life: never longer than it was to last."""
        return now + min(max(self.until - wall, 0), self.span_ms)


class Lease(Hold):
    """What one poll was given and has not settled."""

    __slots__ = ("holder", "poll")

    def __init__(self, poll: int, holder: str, offsets: BitMap64, until: int, span_ms: int) -> None:
        super().__init__(offsets, until, span_ms)
        self.poll = poll
        self.holder = holder


class Wait(Hold):
    """What failed and is tried again later."""

    __slots__ = ()
