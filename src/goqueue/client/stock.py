"""What was delivered and not handed out yet: a bounded number of rows, and the one that is being handed out.

More is wanted for as long as the stock is at or below half of its bounds, in messages and in bytes, so a consumer that
stops reading stops the broker's sending. The row that is being handed out comes on top of that, so that the next one
comes meanwhile. What is not wanted any more is given back as if it had never been delivered: also all of it when nobody
has come for it for long; then nothing more is taken in until somebody does.

It does nothing by itself, knows no broker and no event loop, and does not wait: `on_stored` and `on_room` say that
waiting may have an end.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from goqueue.client.messages import Row

Part = tuple[Row, int, int]
"""Some of a row: from where to where."""


class Stock:
    """`row` and `next` are what is being handed out, and how far; whoever hands out single messages moves `next` on."""

    __slots__ = (
        "_comings", "_is_shut", "_keep_handed_out", "_kept", "_max_bytes", "_max_messages", "_on_room", "_on_stored",
        "_paused", "_return", "_rows", "_sought", "bytes", "is_asleep", "lock", "messages", "next", "row", "seeks",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        *,
        max_messages: int,
        max_bytes: int,
        keep_handed_out: bool,
        give_back: Callable[[Row, Sequence[int]], None],
        on_stored: Callable[[], object],
        on_room: Callable[[], object],
    ) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._keep_handed_out = keep_handed_out
        self._return = give_back
        self._on_stored = on_stored
        self._on_room = on_room
        self._rows: deque[Row] = deque()
        self.messages = 0
        self.bytes = 0
        self.row: Row | None = None
        self.next = 0
        self._kept: dict[Row, None] = {}
        """Those of which something was handed out and is not settled, if they are to be looked after too."""
        self.seeks = 0
        self._sought: dict[tuple[str, int | None], int] = {}
        """By topic, and partition unless all were moved: by which seek. What polls of before bring is not wanted."""
        self._paused = False
        self._is_shut = False
        self._comings = 0
        """Counts how often somebody came who had to wait, or was handed out another row."""
        self.waiting = 0
        """How many wait for a message."""
        self.is_asleep = False
        """Nobody has come for messages for long."""
        self.lock: AbstractContextManager[object] = nullcontext()
        """Held while the row that is being handed out is taken away, for who hands out in another thread."""

    # ------------------------------------------------------------------ coming in

    @property
    def wants_more(self) -> bool:
        if self._paused or self.is_asleep:
            return False
        return self.messages * 2 <= self._max_messages and self.bytes * 2 <= self._max_bytes

    @property
    def is_low(self) -> bool:
        """Whether there is so little that whoever reads keeps up with what comes."""
        return self.messages * 8 <= self._max_messages and self.bytes * 8 <= self._max_bytes

    @property
    def room(self) -> tuple[int, int]:
        """For how many messages, and how many bytes."""
        return self._max_messages - self.messages, max(1, self._max_bytes - self.bytes)

    def store(self, rows: list[Row], seeks: int) -> None:
        """What was asked for after so many seeks."""
        for row in rows:
            if self._paused or self.is_asleep or self._was_sought(row, seeks):
                self.give_back(row)
                continue
            self._rows.append(row)
            self.messages += len(row)
            self.bytes += len(row.delivered.block)
        if self._rows:
            self._on_stored()

    def _was_sought(self, row: Row, seeks: int) -> bool:
        """Whether its partition was moved after so many seeks."""
        topic = row.delivered.topic
        last = max(self._sought.get((topic, None), 0), self._sought.get((topic, row.delivered.partition), 0))
        return last > seeks

    # ------------------------------------------------------------------ handing out

    @property
    def has_rest(self) -> bool:
        """Whether the row that is being handed out has more."""
        return self.row is not None and self.next < len(self.row)

    def step(self) -> tuple[Row, int] | None:
        """The next message of that row, from any thread; None when there is none."""
        with self.lock:
            row, at = self.row, self.next
            if row is None or at >= len(row):
                return None
            self.next = at + 1
            return row, at

    def advance(self) -> Row | None:
        """The next row is handed out from now on, if there is one. Nothing may be left of the one before."""
        assert not self.has_rest
        while self._rows and not self._paused and not self._is_shut:
            row = self._rows.popleft()
            self.messages -= len(row)
            self.bytes -= len(row.delivered.block)
            if self.wants_more:
                self._on_room()
            if len(row.settled) < len(row):  # else all of it was lost while it was in stock
                if self._keep_handed_out:
                    self._kept[row] = None
                self._comings += 1
                with self.lock:
                    self.row, self.next = row, 0
                return row
        return None

    def take(self, max_messages: int) -> list[Part]:
        """Up to so many messages; fewer if there are no more now."""
        parts: list[Part] = []
        left = max_messages
        while left and (self.has_rest or self.advance() is not None):
            with self.lock:
                if self.row is None:
                    continue
                end = min(len(self.row), self.next + left)
                if end > self.next:  # else another thread was faster
                    parts.append((self.row, self.next, end))
                    left -= end - self.next
                    self.next = end
        return parts

    # ------------------------------------------------------------------ going back

    def drop(self, unwanted: Callable[[Row], bool], *, give_back: bool = True) -> None:
        """Take rows out, untried, and what is left of the one that is being handed out."""
        with self.lock:
            current, begin = self.row, self.next
            if current is not None and unwanted(current):
                self.row = None
                if give_back:
                    self.give_back(current, begin)
        kept: deque[Row] = deque()
        for row in self._rows:
            if not unwanted(row):
                kept.append(row)
                continue
            self.messages -= len(row)
            self.bytes -= len(row.delivered.block)
            if give_back:
                self.give_back(row)
        self._rows = kept
        self._on_room()

    def clear(self, *, give_back: bool = True) -> None:
        self.drop(lambda _: True, give_back=give_back)

    def give_back(self, row: Row, begin: int = 0) -> None:
        """What a row has from this place on."""
        offsets = row.offsets[begin:]
        if offsets:
            self._return(row, offsets)

    @property
    def progress(self) -> tuple[int, int]:
        """Another one whenever somebody has come for messages, whether there were any or not."""
        return self._comings, self.next

    @property
    def left(self) -> int:
        """How many messages are here that others could have."""
        return self.messages + (len(self.row) - self.next if self.row is not None else 0)

    def sleep(self) -> None:
        """Give everything back, and take nothing in until somebody comes."""
        self.is_asleep = True
        self.clear()

    def wake(self) -> None:
        """Somebody came."""
        self._comings += 1
        if self.is_asleep:
            self.is_asleep = False
            self._on_room()

    def seek(self, topic: str, partition: int | None) -> None:
        """The group was moved, in one partition or in all of a topic: what came from where it was is not wanted."""
        self.seeks += 1
        self._sought[topic, partition] = self.seeks
        self.drop(lambda row: row.delivered.topic == topic and partition in (None, row.delivered.partition))

    def pause(self) -> None:
        """Hand out nothing more, and take nothing in."""
        self._paused = True
        self.wake()
        self.clear()

    def resume(self) -> None:
        self._paused = False
        self.wake()  # who resumes means to come
        self._on_room()
        self._on_stored()

    def shut(self) -> None:
        """No further row is handed out, whatever is still here."""
        self._is_shut = True

    # ------------------------------------------------------------------ what is to be looked after

    def held(self) -> Iterator[tuple[Row, list[int]]]:
        """What a consumer has to keep for itself: what is in stock, and what was handed out if that is wanted."""
        for row in self._rows:
            yield row, row.unsettled
        for row in self._kept:
            yield row, row.unsettled
        if self.row is not None and self.row not in self._kept:
            yield self.row, [*self.row.offsets[self.next :]]

    def see_settled(self, row: Row) -> None:
        """Something of it was settled."""
        if len(row.settled) >= len(row):
            self._kept.pop(row, None)
