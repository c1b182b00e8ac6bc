"""The producer table against a model that keeps the offset of every message of every producer.

Producers publish, repeat, overlap, leave gaps, wrap around, take over from themselves and fall silent; segments
roll, are sealed, cleaned, cut, removed, lose their views; appends fail; the broker is killed, its log torn or not.
Whatever happens, the next message in order is taken, one that is remembered is answered with its first offset,
everything else is refused, and what is rebuilt from views and records equals what was kept.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from goqueue import codec
from goqueue.model import limits
from goqueue.model.errors import OutOfSequence, ProducerFenced, UnknownProducer
from goqueue.model.record import Extension, Producer, Record
from goqueue.producers import sequences
from goqueue.producers.sequences import LAST_SEQUENCE, ProducerTable, Run
from goqueue.producers.views import ProducerView, ProducerViews, restore

T0 = 1_700_000_000_000
IDS = 6
CAPACITY = 4
REMEMBERED = 3
LONGEST = 12
"""Small, so that all of them are reached; the product's own are in `limits`."""


class Stamp(NamedTuple):
    """What the log has at an offset: a producer's message, or somebody else's (no producer)."""

    producer: Producer | None
    timestamp: int


class History:
    """One producer as the model sees it: the offsets of its messages, in order, of one epoch and one beginning."""

    def __init__(self, epoch: int, sequence: int) -> None:
        self.epoch = epoch
        self.first = sequence
        self.offsets: list[int] = []
        self.timestamp = 0

    @property
    def following(self) -> int:
        return (self.first + len(self.offsets)) % (LAST_SEQUENCE + 1)

    def remembered(self) -> list[int]:
        """The offsets of the last runs; of one that is too long its end, and nothing before it."""
        kept: list[int] = []
        length, runs = 0, 0
        for offset in reversed(self.offsets):
            if kept and kept[-1] == offset + 1:
                length += 1
            else:
                length, runs = 1, runs + 1
                if runs > REMEMBERED:
                    break
            kept.append(offset)
            if length == LONGEST:
                break
        return kept[::-1]


class Model:
    """Record by record, nothing clever: a later record that does not go on is a new beginning."""

    def __init__(self) -> None:
        self.producers: dict[int, History] = {}

    def add(self, offset: int, stamp: Stamp) -> None:
        if stamp.producer is None:
            return
        producer_id, epoch, sequence = (
            stamp.producer.producer_id,
            stamp.producer.producer_epoch,
            stamp.producer.sequence,
        )
        history = self.producers.pop(producer_id, None)
        if history is None or epoch != history.epoch or sequence != history.following:
            history = History(epoch, sequence)
        history.offsets.append(offset)
        history.timestamp = stamp.timestamp
        self.producers[producer_id] = history
        if len(self.producers) > CAPACITY:
            del self.producers[next(iter(self.producers))]

    def expire(self, before: int) -> None:
        self.producers = {name: history for name, history in self.producers.items() if history.timestamp >= before}


class Part(NamedTuple):
    """One segment: its records by offset, its view, and what was saved of that (None: not sealed, or lost)."""

    base: int
    blocks: dict[int, bytes]
    view: ProducerView
    sealed: bool = False
    whole: bool = True
    """Nothing of it was cleaned."""
    saved: bytes | None = None


def fold(view: ProducerView, blocks: Iterable[bytes], sizes: Iterator[int]) -> ProducerView:
    """The records of a segment as a scan meets them: some at a time, whoever wrote them."""
    left = list(blocks)
    while left:
        size = next(sizes)
        joined = b"".join(left[:size])
        view.on_append(joined, codec.scan(joined))
        del left[:size]
    return view


def numbers(choices: list[int]) -> Iterator[int]:
    while True:
        yield from choices


chunks = st.lists(st.sampled_from([1, 2, 3, 5, 50]), min_size=1, max_size=4)
ids = st.integers(0, IDS - 1)


class ProducerMachine(RuleBasedStateMachine):
    """`log` is every record ever written and not torn off, by offset; `parts` what is still on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            patch.object(limits, "MAX_PRODUCERS_PER_PARTITION", CAPACITY),
            patch.object(limits, "REMEMBERED_RUNS", REMEMBERED),
            patch.object(sequences, "LONGEST_RUN", LONGEST),
        ]
        for one in self.patches:
            one.start()
        self.now = T0
        self.expired = 0
        self.log: list[Stamp] = []
        self.model = Model()
        self.table = ProducerTable()
        self.epochs = [0] * IDS
        """The newest epoch of each producer that anybody has used: what the registry knows."""
        self.near_the_last: set[tuple[int, int]] = set()
        """Producers and epochs that began near the last sequence."""
        self.parts = [Part(0, {}, ProducerViews().empty(0))]

    def epoch_to_begin(self, producer_id: int) -> int:
        """Of a producer that was forgotten. If it had come to the last sequence, 0 would look like going on."""
        newest = self.epochs[producer_id]
        return newest + ((producer_id, newest) in self.near_the_last)

    # --- publishing

    def encode(self, producer: Producer | None, count: int) -> tuple[bytearray, codec.Scan]:
        extension = Extension(producer=producer) if producer is not None else None
        block = codec.encode([Record(extension=extension)] * count)
        return block, codec.stamp(block, offset=len(self.log), timestamp=self.now, producer=producer)

    def append(self, producer: Producer | None, count: int) -> None:
        block, scan = self.encode(producer, count)
        active = self.parts[-1]
        active.view.on_append(block, scan)
        if producer is not None:
            first = (producer.producer_id, producer.producer_epoch, producer.sequence)
            self.table.add(Run(*first, len(self.log), count, self.now))
        ends = [*scan.positions[1:], scan.end]
        for number, (start, end) in enumerate(zip(scan.positions, ends, strict=True)):
            active.blocks[len(self.log)] = bytes(block[start:end])
            stamp = Stamp(None if producer is None else ahead(producer, number), self.now)
            self.model.add(len(self.log), stamp)
            self.log.append(stamp)

    def publish(self, producer: Producer, count: int) -> None:
        """Ask, and append what is new; the answer must be the model's."""
        history = self.model.producers.get(producer.producer_id)
        if history is None:
            if producer.sequence:
                with pytest.raises(UnknownProducer):
                    self.table.check(producer, count)
                return
            known = []
        elif producer.producer_epoch < history.epoch:
            with pytest.raises(ProducerFenced):
                self.table.check(producer, count)
            return
        else:
            newer = producer.producer_epoch > history.epoch
            following = 0 if newer else history.following
            there = [] if newer else history.remembered()
            back = (following - producer.sequence) % (LAST_SEQUENCE + 1)
            if back > len(there):
                with pytest.raises(OutOfSequence) as caught:
                    self.table.check(producer, count)
                assert caught.value.expected == following
                return
            known = there[len(there) - back :][:count]
        verdict = self.table.check(producer, count)
        assert [offset for first, held in verdict.known for offset in range(first, first + held)] == known
        assert all(held > 0 for _, held in verdict.known)
        if len(known) < count:
            self.epochs[producer.producer_id] = max(self.epochs[producer.producer_id], producer.producer_epoch)
            self.append(ahead(producer, len(known)), count - len(known))

    @rule(producer_id=ids, count=st.integers(1, 6))
    def publish_next(self, producer_id: int, count: int) -> None:
        history = self.model.producers.get(producer_id)
        if history is not None:
            self.publish(Producer(producer_id, history.epoch, history.following), count)
        else:
            self.publish(Producer(producer_id, self.epoch_to_begin(producer_id), 0), count)

    @rule(producer_id=ids, back=st.integers(-3, 30), count=st.integers(1, 30))
    def publish_something(self, producer_id: int, back: int, count: int) -> None:
        """A retry, an overlap, a gap, or something long forgotten."""
        history = self.model.producers.get(producer_id)
        if history is not None:
            sequence = (history.following - back) % (LAST_SEQUENCE + 1)
            self.publish(Producer(producer_id, history.epoch, sequence), count)
        else:
            self.publish(Producer(producer_id, self.epoch_to_begin(producer_id), max(back, 0)), count)

    @rule(producer_id=ids, step=st.sampled_from([-1, 1, 2]), anew=st.booleans())
    def take_over(self, producer_id: int, step: int, anew: bool) -> None:
        """Another epoch of the same producer, beginning or going on; one that was forgotten takes no older epoch."""
        history = self.model.producers.get(producer_id)
        if history is not None or step > 0:
            sequence = 0 if anew or history is None else history.following
            self.publish(Producer(producer_id, self.epochs[producer_id] + step, sequence), 2)

    @rule(producer_id=ids, before_the_last=st.integers(0, 12), count=st.integers(1, 6))
    def come_near_the_last_sequence(self, producer_id: int, before_the_last: int, count: int) -> None:
        """As if all the messages before had been published, and cleaned long ago."""
        self.epochs[producer_id] += 1
        self.near_the_last.add((producer_id, self.epochs[producer_id]))
        self.append(Producer(producer_id, self.epochs[producer_id], LAST_SEQUENCE - before_the_last), count)

    @rule(count=st.integers(1, 3))
    def publish_without_a_producer(self, count: int) -> None:
        self.append(None, count)

    @rule(part=st.sampled_from([0.001, 0.4, 0.7, 1.1, 2.5]))
    def pass_time(self, part: float) -> None:
        self.now += int(part * limits.PRODUCER_EXPIRY_MS)
        self.expired = self.now - limits.PRODUCER_EXPIRY_MS
        self.table.expire(self.expired)
        self.model.expire(self.expired)

    # --- the log's life

    @rule(sealing=st.booleans())
    def roll(self, sealing: bool) -> None:
        active = self.parts[-1]
        if active.blocks:
            view = ProducerViews().empty(len(self.log))
            view.inherit([active.view])
            self.parts.append(Part(len(self.log), {}, view))
        for at, part in enumerate(self.parts[:-1]):
            if sealing and not part.sealed:
                self.parts[at] = part._replace(sealed=True, saved=part.view.to_bytes())

    @precondition(lambda self: len(self.parts) > 1)
    @rule(producer_id=ids, count=st.integers(1, 3), sizes=chunks)
    def fail_to_append(self, producer_id: int, count: int, sizes: list[int]) -> None:
        """The view has seen records that were never published; it is built again."""
        history = self.model.producers.get(producer_id)
        sequence = history.following if history is not None else 0
        active = self.parts[-1]
        active.view.on_append(*self.encode(Producer(producer_id, self.epochs[producer_id], sequence), count))
        view = fold(active.view.anew(), active.blocks.values(), numbers(sizes))
        self.parts[-1] = active._replace(view=view)

    @precondition(lambda self: self.parts[0].sealed)
    @rule(first=st.integers(0, 5), length=st.integers(1, 3), keep=st.lists(st.booleans(), min_size=1), sizes=chunks)
    def clean(self, first: int, length: int, keep: list[bool], sizes: list[int]) -> None:
        sealed = [part for part in self.parts if part.sealed]
        at = first % len(sealed)
        group = sealed[at : at + length]
        view = ProducerViews().empty(group[0].base)
        view.inherit([self.opened(part, sizes) for part in group])
        blocks = [item for part in group for item in part.blocks.items()]
        kept = {offset: block for (offset, block), stays in zip(blocks, numbers_of(keep), strict=False) if stays}
        fold(view, kept.values(), numbers(sizes))
        new = Part(group[0].base, kept, view, True, False, view.to_bytes())
        self.parts[at : at + len(group)] = [new]

    @precondition(lambda self: len(self.parts) > 2)
    @rule(sizes=chunks)
    def remove_the_oldest(self, sizes: list[int]) -> None:
        """Unless the one after it has lost its view: then nobody else knows what was before."""
        if self.parts[1].sealed and self.opened(self.parts[1], sizes).complete:
            del self.parts[0]

    def rebuildable(self) -> list[int]:
        """Which segments still have all their records, and one before them or nothing before them."""
        return [at for at, part in enumerate(self.parts) if part.whole and (at or part.base == 0)]

    @rule(choice=st.integers(0, 5))
    def lose_a_view(self, choice: int) -> None:
        sealed = [at for at in self.rebuildable() if self.parts[at].sealed]
        if sealed:
            at = sealed[choice % len(sealed)]
            self.parts[at] = self.parts[at]._replace(saved=None)

    def opened(self, part: Part, sizes: list[int]) -> ProducerView:
        """The view of a sealed segment as a new process finds it."""
        if part.saved is not None:
            return ProducerViews().load(part.base, part.saved)
        return fold(ProducerViews().empty(part.base), part.blocks.values(), numbers(sizes))

    @rule(choice=st.integers(0, 5), keep=st.integers(0, 10), fresh=st.booleans(), sizes=chunks)
    def truncate(self, choice: int, keep: int, fresh: bool, sizes: list[int]) -> None:
        """The log ends earlier from now on; of the segment that is cut the view is built again."""
        candidates = self.rebuildable()
        if not candidates:
            return
        at = candidates[choice % len(candidates)]
        part = self.parts[at]
        blocks = dict(list(part.blocks.items())[:keep])
        view = self.opened(part, sizes) if fresh and part.sealed else part.view
        view = fold(view.anew(), blocks.values(), numbers(sizes))
        del self.parts[at:]
        del self.log[part.base + len(blocks) :]
        self.parts.append(Part(part.base, blocks, view, part.sealed, True, view.to_bytes() if part.sealed else None))
        if part.sealed:
            following = ProducerViews().empty(len(self.log))
            following.inherit([view])
            self.parts.append(Part(len(self.log), {}, following))
        self.restore()

    def restore(self) -> None:
        """The table from what the views say, the model from all that was ever written."""
        self.table = restore(part.view for part in reversed(self.parts))
        self.table.expire(self.expired)
        self.model = Model()
        for offset, stamp in enumerate(self.log):
            self.model.add(offset, stamp)
        self.model.expire(self.expired)

    @rule(torn=st.integers(0, 6), sizes=chunks)
    def kill(self, torn: int, sizes: list[int]) -> None:
        """Everything in memory is gone; of the active segment the last records too, after a power cut."""
        live = self.table
        for _ in range(min(torn, len(self.parts[-1].blocks))):
            del self.parts[-1].blocks[len(self.log) - 1]
            self.log.pop()
        before: ProducerView | None = None
        for at, part in enumerate(self.parts):
            if part.sealed:
                opened = self.opened(part, sizes)
                self.parts[at] = part._replace(view=opened, saved=opened.to_bytes())
                continue
            view = ProducerViews().empty(part.base)
            if before is not None:
                view.inherit([before])
            before = fold(view, part.blocks.values(), numbers(sizes))
            self.parts[at] = part._replace(view=before)
        self.restore()
        if not torn:
            assert self.table == live

    # --- what always holds

    @invariant()
    def the_table_holds_who_the_model_holds(self) -> None:
        assert len(self.table) == len(self.model.producers) <= CAPACITY
        for producer_id, history in self.model.producers.items():
            following = Producer(producer_id, history.epoch, history.following)
            assert self.table.check(following, 10).known == ()

    @invariant()
    def bytes_keep_it_all(self) -> None:
        assert ProducerTable.from_bytes(self.table.to_bytes()) == self.table

    def teardown(self) -> None:
        try:
            self.kill(torn=0, sizes=[3])
        finally:
            for one in self.patches:
                one.stop()


def ahead(producer: Producer, count: int) -> Producer:
    """The same producer, `count` messages later."""
    sequence = (producer.sequence + count) % (LAST_SEQUENCE + 1)
    return Producer(producer.producer_id, producer.producer_epoch, sequence)


def numbers_of(choices: list[bool]) -> Iterator[bool]:
    while True:
        yield from choices


ProducerMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
test_a_producer_table_does_what_keeping_everything_would = ProducerMachine.TestCase
