"""What a partition remembers of its producers, so that what comes again is recognised and a gap is refused.

A producer counts its messages; each record carries producer id, producer epoch and sequence. The table folds
the runs of records in offset order, the same live and when the log is read again, so both end in the same
state. `check` asks it before an append, `add` tells it after: constant time, nothing per message.

Invariants: a producer's runs follow each other in sequence without a gap, so a sequence has one offset; a record is
folded once, because what lies below the table's `end` is known already. Hence a table must be built anew when its
log is truncated. Clients' producers and the broker's own are kept apart, each in the order of their last record, the
longest idle first: work of the broker never makes it forget a client.

Records that are damaged tell nothing of their producers. The table knows where they lay (`lose`). A producer that goes
on behind a gap that has room in the damage after its last run is believed: what is missing may have been stored and
answered, and cannot be read any more. Damage is never taken for messages of a client: it may be another producer's, and
what the gap lacks may be on its way still. What comes again from before such a gap is refused. The broker's own
producers publish in order and have written down what they publish: of them whatever lies ahead is new, and whatever
lies behind was published, also when it is not known where. Where all that is damaged between two of their runs is
exactly what is missing, it was that.

It knows no clock, no disk and no message. To change the bytes: raise `VERSION`, read the old version too, add
golden bytes, `docs/internals/producers.md`.
"""

import struct
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, OutOfSequence, ProducerFenced, UnknownProducer
from goqueue.model.record import Producer

LAST_SEQUENCE: Final = 2**31 - 1
"""The sequence after it is 0."""
LONGEST_RUN: Final = 2**28
"""Of a run so long only its end is remembered, and none before it: that is far from a whole turn of the sequences."""
VERSION: Final = 2
UNDAMAGED_VERSION: Final = 1
"""Of a table that knows of no damage: it ends with its last producer."""

HEAD: Final = struct.Struct(">HqI")
"""version, end, count of producers."""
PRODUCER: Final = struct.Struct(">qhiqB")
"""producer id, producer epoch, sequence of the next message, last timestamp, count of runs."""
RUN: Final = struct.Struct(">qI")
"""first offset, count. Also for what is damaged."""
LOST: Final = struct.Struct(">H")
"""count of damaged ranges."""

_AHEAD: Final = 2**30
"""A sequence less than this after the expected one is ahead of it; any other is behind."""
_TABLE_BYTES: Final = 128
_PRODUCER_BYTES: Final = 240
_RUN_BYTES: Final = 120

_Runs = tuple[tuple[int, int], ...]
"""First offset and count of each, oldest first. The sequences of one go on where those of the one before end."""
_State = tuple[int, int, int, _Runs]
"""Producer epoch, sequence of the next message, last timestamp, runs. Never changed, so tables can share it."""


class Run(NamedTuple):
    """Records of one producer that follow each other both in sequence and in offset."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    last_timestamp: int


class Known(NamedTuple):
    """Messages that are in the log already, at `first_offset` and after."""

    first_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count


class Verdict(NamedTuple):
    """How many of the messages asked about are there already, from the first on, and where; the others are new."""

    known: tuple[Known, ...]
    missing: int = 0
    """How many sequences before the new messages are left out, because their records are damaged or forgotten."""


_ALL_NEW: Final = Verdict(())


class ProducerTable:
    """Not for several threads at once."""

    __slots__ = ("_clients", "_lost", "_own", "end")

    def __init__(self) -> None:
        self.end = 0
        """The offset after the last record folded in."""
        self._clients: dict[int, _State] = {}
        self._own: dict[int, _State] = {}
        """The broker's own producers: see `limits.OWN_PRODUCERS`."""
        self._lost: dict[int, int] = {}
        """Damaged ranges, in offset order: how many offsets each has, by its first."""

    # --- asking

    def check(self, producer: Producer, count: int) -> Verdict:
        """Which of `count` messages, the first with this sequence, are there already.

        Raises ProducerFenced, OutOfSequence or UnknownProducer when they may not be appended.
        """
        state = self._kind_of(producer.producer_id).get(producer.producer_id)
        if state is not None and state[1] == producer.sequence and state[0] == producer.producer_epoch:
            return _ALL_NEW
        try:
            return _look_back(producer, count, state)
        except OutOfSequence as refusal:
            missing = 0 if state is None else self._missing(producer, state)
            if missing:
                return Verdict((), missing)
            if state is not None and self._may_be_damaged(producer, state):
                raise OutOfSequence(
                    f"producer {producer.producer_id} repeats sequence {producer.sequence}, from before messages that "
                    "are damaged: nobody can tell any more whether it is stored; look before you publish it under "
                    f"another number; {refusal.expected} comes next",
                    expected=refusal.expected,
                ) from None
            raise

    def _missing(self, producer: Producer, state: _State) -> int:
        """How many sequences this producer left out, when damage behind its last run explains it; 0 when not."""
        epoch, following, _, runs = state
        gap = producer.sequence if producer.producer_epoch > epoch else (producer.sequence - following) & LAST_SEQUENCE
        return gap if 0 < gap <= _total(self._lost_behind(runs)) else 0

    def _may_be_damaged(self, producer: Producer, state: _State) -> bool:
        """Whether a sequence from before the runs that are remembered may lie in damage before them."""
        epoch, following, _, runs = state
        ahead = (producer.sequence - following) & LAST_SEQUENCE
        first_offset = runs[0][0]
        return producer.producer_epoch == epoch and ahead >= _AHEAD and any(lost < first_offset for lost in self._lost)

    def _lost_behind(self, runs: _Runs, before: int = limits.MAX_OFFSET) -> _Runs:
        """Where damage lies behind the last of these runs, before an offset."""
        last_offset, last_count = runs[-1]
        end = last_offset + last_count
        return tuple((first, count) for first, count in self._lost.items() if end <= first < before)

    # --- folding

    def add(self, run: tuple[int, int, int, int, int, int]) -> None:
        """Fold in a `Run`, or the same as a bare tuple. What lies below `end` is known already and is left out."""
        producer_id, epoch, sequence, offset, count, timestamp = run
        if sequence < 0:  # no broker wrote it
            return
        known = self.end - offset
        if known > 0:
            if known >= count:
                return
            sequence, offset, count = (sequence + known) & LAST_SEQUENCE, offset + known, count - known
        self.end = offset + count
        self._fold(producer_id, epoch, sequence, offset, count, timestamp)
        self._evict()

    def lose(self, first: int, next_offset: int) -> None:
        """The records at these offsets are damaged. Told in offset order, among the runs."""
        self._lost[first] = min(next_offset - first, LONGEST_RUN)
        while len(self._lost) > limits.REMEMBERED_DAMAGE:
            del self._lost[next(iter(self._lost))]

    def _fold(self, producer_id: int, epoch: int, sequence: int, offset: int, count: int, timestamp: int) -> None:
        producers = self._kind_of(producer_id)
        state = producers.get(producer_id)
        runs: _Runs = ()
        following = (sequence + count) & LAST_SEQUENCE
        if state is not None:
            if epoch < state[0]:
                return
            if epoch == state[0]:
                gap = (sequence - state[1]) & LAST_SEQUENCE
                if not gap:
                    runs = state[3]
                elif producer_id >= limits.OWN_PRODUCERS and _total(lost := self._lost_behind(state[3], offset)) == gap:
                    runs = state[3]
                    for run in lost:
                        runs = _extended(runs, run)
            del producers[producer_id]  # to come back as the last
        producers[producer_id] = epoch, following, timestamp, _extended(runs, (offset, count))

    def merge(self, other: "ProducerTable") -> None:
        """Fold in what another table learned from the same log, up to a later record."""
        end = self.end
        for first, count in other._lost.items():
            self.lose(first, first + count)
        for producer_id, (epoch, following, timestamp, runs) in other._items():
            sequence = (following - _total(runs)) & LAST_SEQUENCE
            for offset, count in runs:
                known = min(max(end - offset, 0), count)
                if known < count:
                    first = (sequence + known) & LAST_SEQUENCE
                    self._fold(producer_id, epoch, first, offset + known, count - known, timestamp)
                sequence = (sequence + count) & LAST_SEQUENCE
        self.end = max(end, other.end)
        self._evict()  # only now: who is idle here may have come back there

    def _evict(self) -> None:
        """Forget the longest idle of too many producers: of clients', and of the broker's own."""
        for producers in (self._clients, self._own):
            excess = len(producers) - limits.MAX_PRODUCERS_PER_PARTITION
            if excess > 0:
                for producer_id in list(islice(producers, excess)):
                    del producers[producer_id]

    def expire(self, before: int) -> None:
        """Forget the clients' producers whose last record is from before this time (Unix ms)."""
        for producer_id in [producer_id for producer_id, state in self._clients.items() if state[2] < before]:
            del self._clients[producer_id]

    # --- as a whole

    def copy(self) -> "ProducerTable":
        twin = ProducerTable()
        twin.end = self.end
        twin._clients = self._clients.copy()
        twin._own = self._own.copy()
        twin._lost = self._lost.copy()
        return twin

    @property
    def last_timestamp(self) -> int:
        """Of the newest record of any producer; 0 for an empty table."""
        newest = [next(reversed(producers.values())) for producers in (self._clients, self._own) if producers]
        return max([state[2] for state in newest], default=0)

    @property
    def size(self) -> int:
        """About how many bytes of memory it holds."""
        runs = sum(len(state[3]) for _, state in self._items())
        return _TABLE_BYTES + _PRODUCER_BYTES * len(self) + _RUN_BYTES * (runs + len(self._lost))

    def __len__(self) -> int:
        return len(self._clients) + len(self._own)

    def __eq__(self, other: object) -> bool:
        """The order counts: it says who is forgotten first."""
        if not isinstance(other, ProducerTable):
            return NotImplemented
        same = self.end == other.end and self._lost == other._lost
        return same and list(self._items()) == list(other._items())

    def _kind_of(self, producer_id: int) -> dict[int, _State]:
        return self._clients if producer_id < limits.OWN_PRODUCERS else self._own

    def _items(self) -> Iterator[tuple[int, _State]]:
        """Clients' producers, then the broker's own."""
        return chain(self._clients.items(), self._own.items())

    # --- as bytes

    def to_bytes(self) -> bytes:
        parts = [HEAD.pack(VERSION if self._lost else UNDAMAGED_VERSION, self.end, len(self))]
        for producer_id, (epoch, following, timestamp, runs) in self._items():
            parts.append(PRODUCER.pack(producer_id, epoch, following, timestamp, len(runs)))
            parts += [RUN.pack(*run) for run in runs]
        if self._lost:
            parts += [LOST.pack(len(self._lost)), *(RUN.pack(*lost) for lost in self._lost.items())]
        return b"".join(parts)

    def _read_lost(self, data: bytes, position: int) -> int:
        """Where it ends."""
        first = position + LOST.size
        if len(data) < first:
            raise ValueError("a producer table that ends before its damaged ranges do")
        (length,) = LOST.unpack_from(data, position)
        end: int = first + length * RUN.size
        if len(data) < end:
            raise ValueError("a producer table that ends before its last damaged range does")
        for offset, count in RUN.iter_unpack(data[first:end]):
            self.lose(offset, offset + count)
        return end

    @classmethod
    def from_bytes(cls, data: bytes) -> "ProducerTable":
        """ValueError when these are not the bytes of a table this version can read."""
        if len(data) < HEAD.size:
            raise ValueError("a producer table that ends before its head does")
        version, end, count = HEAD.unpack_from(data)
        if version not in (UNDAMAGED_VERSION, VERSION):
            raise ValueError(
                f"a producer table of version {version}; this GoQueue reads {UNDAMAGED_VERSION} and {VERSION}"
            )
        table = cls()
        table.end = end
        position = HEAD.size
        for _ in range(count):
            if len(data) < position + PRODUCER.size:
                raise ValueError("a producer table that ends before its last producer does")
            producer_id, epoch, following, timestamp, length = PRODUCER.unpack_from(data, position)
            first = position + PRODUCER.size
            position = first + length * RUN.size
            if len(data) < position:
                raise ValueError("a producer table that ends before its last run does")
            runs = tuple(RUN.iter_unpack(data[first:position]))
            producers = table._kind_of(producer_id)
            if following < 0 or producer_id in producers or not _is_history(runs, end):
                raise ValueError(f"a producer table whose entry for producer {producer_id} makes no sense")
            producers[producer_id] = epoch, following, timestamp, runs[-limits.REMEMBERED_RUNS :]
        if version == VERSION:
            position = table._read_lost(data, position)
        if position != len(data):
            raise ValueError("a producer table that goes on after its end")
        table._evict()
        return table


def _extended(runs: _Runs, run: tuple[int, int]) -> _Runs:
    """These and one that goes on where they end in sequence."""
    offset, count = run
    if runs:
        last_offset, last_count = runs[-1]
        if last_offset + last_count == offset:
            runs, offset, count = runs[:-1], last_offset, last_count + count
    if count >= LONGEST_RUN:
        return ((offset + count - LONGEST_RUN, LONGEST_RUN),)
    return (*runs[1 - limits.REMEMBERED_RUNS :], (offset, count))


def _total(runs: _Runs) -> int:
    return sum([count for _, count in runs])


def _is_history(runs: _Runs, end: int) -> bool:
    """Whether these can be the runs of a producer: there is one, they are in order, none is empty or too long."""
    position = 0
    for offset, count in runs:
        if offset < position or not 0 < count <= LONGEST_RUN:
            return False
        position = offset + count
    return 0 < position <= end


def _look_back(producer: Producer, count: int, state: _State | None) -> Verdict:
    """The verdict on messages that are not simply the next ones of a known producer."""
    name, sequence = f"producer {producer.producer_id}", producer.sequence
    if not 0 <= sequence <= LAST_SEQUENCE:
        raise InvalidRequest(f"{name} sends sequence {sequence}; a sequence is from 0 to {LAST_SEQUENCE}")
    if state is None:
        if sequence and producer.producer_id < limits.OWN_PRODUCERS:
            raise UnknownProducer(
                f"{name} is not known to this partition and begins at sequence {sequence}; initialise it again, "
                "then begin at 0"
            )
        return _ALL_NEW
    epoch, following, _, runs = state
    if producer.producer_epoch < epoch:
        raise ProducerFenced(f"{name} has been taken over by epoch {epoch}; epoch {producer.producer_epoch} must stop")
    if producer.producer_epoch > epoch:
        if sequence:
            raise OutOfSequence(
                f"{name} begins epoch {producer.producer_epoch} at sequence {sequence}; begin at 0", expected=0
            )
        return _ALL_NEW
    ahead = (sequence - following) & LAST_SEQUENCE
    skipped = _total(runs) - ((following - sequence) & LAST_SEQUENCE)
    if skipped < 0 and producer.producer_id >= limits.OWN_PRODUCERS:
        if ahead < _AHEAD:
            return Verdict((), ahead)
        forgotten = min(-skipped, count)
        earlier = Known(max(runs[0][0] - forgotten, 0), forgotten)  # somewhere there, or before
        return Verdict((earlier, *_pick(runs, 0, count - forgotten)))
    if skipped < 0:
        if ahead < _AHEAD:
            reason = f"{name} sends sequence {sequence} where {following} comes next; send what is missing first"
        else:
            reason = (
                f"{name} repeats sequence {sequence}, which is too long ago to be recognised; {following} comes next"
            )
        raise OutOfSequence(reason, expected=following)
    return Verdict(_pick(runs, skipped, count))


def _pick(runs: _Runs, skipped: int, wanted: int) -> tuple[Known, ...]:
    """Where up to `wanted` messages are, after the first `skipped` of these runs."""
    known = []
    for offset, count in runs:
        if not wanted:
            break
        if skipped >= count:
            skipped -= count
            continue
        taken = min(count - skipped, wanted)
        known.append(Known(offset + skipped, taken))
        wanted -= taken
        skipped = 0
    return tuple(known)
