"""The producer view: what is known of producers outlives their records, a restart and a lost file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Buffer
from goqueue.model import limits
from goqueue.model.errors import OutOfSequence, UnknownProducer
from goqueue.model.record import Extension, Producer, Record
from goqueue.model.settings import LogSettings
from goqueue.producers.sequences import ProducerTable, Run
from goqueue.producers.views import KEPT_IDLE_MS, ProducerView, ProducerViews, restore
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import T0, drop_companions, read_all, segment_path

GOLDEN = bytes.fromhex(
    "01"  # complete
    "0001 000000000000000a 00000001"
    "0000000000000007 0003 00000004 0000018bcfe56800 01"
    "0000000000000006 00000004".replace(" ", "")
)
COMPACT = LogSettings(segment_bytes=4096, index_interval_bytes=256, compact=True)


def block(producer: Producer | None, count: int, offset: int, time: int = T0, key: bytes = b"k") -> tuple[bytes, Scan]:
    """Stamped records of one producer, or of none."""
    extension = Extension(producer=producer) if producer is not None else None
    encoded = codec.encode([Record(key=key, value=b"v", extension=extension)] * count)
    scan = codec.stamp(encoded, offset=offset, timestamp=time, producer=producer)
    return bytes(encoded), scan


def view(base: int, *producers: tuple[Producer, int, int], complete: bool = True) -> ProducerView:
    """Of a segment that holds (first message, count, offset)s."""
    found = ProducerView(base, complete=complete)
    for producer, count, offset in producers:
        found.on_append(*block(producer, count, offset))
    return found


# --- one view


def test_the_bytes_are_the_golden_ones() -> None:
    found = view(5, (Producer(7, 3, 0), 4, 6))
    assert found.to_bytes() == GOLDEN
    assert ProducerViews().load(5, GOLDEN) == found


def test_records_without_a_producer_tell_nothing() -> None:
    found = ProducerViews().empty(0)
    found.on_append(*block(None, 10, 0))
    assert found.current() == ProducerTable()


def test_a_block_of_several_producers_is_folded_run_by_run() -> None:
    parts = [block(Producer(1, 0, 0), 3, 0), block(None, 2, 3), block(Producer(2, 0, 0), 3, 5)]
    parts += [block(Producer(1, 0, 3), 3, 8)]
    joined = b"".join(data for data, _ in parts)
    whole = ProducerViews().empty(0)
    whole.on_append(joined, codec.scan(joined))
    single = ProducerViews().empty(0)
    for part in parts:
        single.on_append(*part)
    assert whole == single
    assert [*whole.current().check(Producer(1, 0, 0), 6).known] == [(0, 3), (8, 3)]


@pytest.mark.parametrize("complete", [True, False])
def test_a_view_that_was_saved_equals_one_that_was_kept(complete: bool) -> None:
    found = view(10, (Producer(1, 0, 0), 3, 10), (Producer(2, 0, 0), 3, 13), complete=complete)
    read = ProducerViews().load(10, found.to_bytes())
    assert read == found
    assert read.complete is complete
    assert read != view(10, (Producer(1, 0, 0), 3, 10), complete=complete)
    assert found != view(10, (Producer(1, 0, 0), 3, 10), (Producer(2, 0, 0), 3, 13), complete=not complete)
    assert found != object()


@pytest.mark.parametrize("data", [b"", b"\2" + GOLDEN[1:], GOLDEN[:-1], GOLDEN[1:], b"\1"])
def test_bytes_that_are_no_view_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"a producer (view|table)"):
        ProducerViews().load(0, data)


def test_before_offset_zero_there_is_nothing_to_know() -> None:
    assert ProducerViews().empty(0).complete
    assert not ProducerViews().empty(1).complete
    other = ProducerViews().empty(1)
    other.begin_complete()
    assert other.complete


def test_current_is_a_table_of_its_own() -> None:
    found = view(0, (Producer(1, 0, 0), 3, 0))
    found.current().add(Run(1, 0, 3, 3, 3, T0))
    assert found == view(0, (Producer(1, 0, 0), 3, 0))


def test_its_size_counts_both_tables() -> None:
    found = ProducerView(10)
    empty = found.size
    found.inherit([view(0, (Producer(1, 0, 0), 3, 0))])
    inherited = found.size
    found.on_append(*block(Producer(1, 0, 3), 3, 10))
    assert empty < inherited < found.size


# --- inheriting


def test_a_view_takes_over_what_the_one_before_knows() -> None:
    later = ProducerView(6)
    later.inherit([view(0, (Producer(1, 0, 0), 3, 0), (Producer(2, 0, 0), 3, 3))])
    later.on_append(*block(Producer(1, 0, 3), 2, 6))
    assert later.complete
    assert len(later.own) == 1
    assert [*later.current().check(Producer(1, 0, 0), 5).known] == [(0, 3), (6, 2)]
    assert [*later.current().check(Producer(2, 0, 0), 3).known] == [(3, 3)]


def test_what_an_incomplete_view_knows_is_taken_over_as_incomplete() -> None:
    later = ProducerView(8)
    later.inherit([view(5, (Producer(1, 0, 0), 3, 5), complete=False)])
    assert not later.complete
    assert len(later.current()) == 1


def test_nobody_to_inherit_from_leaves_nothing_known() -> None:
    for base in (0, 5):
        found = ProducerViews().empty(base)
        found.inherit([])
        assert found.complete is (base == 0)
        assert len(found.current()) == 0


def test_one_complete_view_of_those_replaced_makes_the_new_one_complete() -> None:
    first = view(0, (Producer(1, 0, 0), 3, 0))
    second = view(3, (Producer(1, 0, 3), 3, 3), (Producer(2, 0, 0), 1, 6), complete=False)
    third = view(7, (Producer(2, 0, 1), 1, 7), complete=False)
    new = ProducerView(0)
    new.inherit([first, second, third])
    assert new.complete
    assert [*new.current().check(Producer(1, 0, 0), 6).known] == [(0, 6)]
    assert [*new.current().check(Producer(2, 0, 0), 2).known] == [(6, 2)]


def test_what_survives_cleaning_adds_nothing_to_what_was_known() -> None:
    old = view(0, (Producer(1, 0, 0), 3, 0), (Producer(2, 0, 0), 3, 3), (Producer(1, 0, 3), 3, 6))
    for replaced in (old, ProducerViews().load(0, old.to_bytes())):
        new = ProducerView(0)
        new.inherit([replaced])
        new.on_append(*block(Producer(1, 0, 1), 1, 1))
        new.on_append(*block(Producer(2, 0, 2), 1, 5))
        assert new == old


def test_a_producer_idle_for_long_is_not_handed_on() -> None:
    first = ProducerViews().empty(0)
    first.on_append(*block(Producer(1, 0, 0), 1, 0, T0))
    first.on_append(*block(Producer(2, 0, 0), 1, 1, T0 + 1))
    first.on_append(*block(Producer(3, 0, 0), 1, 2, T0 + 1 + KEPT_IDLE_MS))
    later = ProducerView(3)
    later.inherit([first])
    assert len(first.current()) == 3
    assert len(later.current()) == 2
    with pytest.raises(UnknownProducer):
        later.current().check(Producer(1, 0, 1), 1)
    assert KEPT_IDLE_MS > limits.PRODUCER_EXPIRY_MS


# --- beginning anew


def test_a_view_begun_anew_has_what_was_inherited_and_nothing_else() -> None:
    found = ProducerView(3)
    found.inherit([view(0, (Producer(1, 0, 0), 3, 0))])
    before = found.current()
    found.on_append(*block(Producer(1, 0, 3), 3, 3))
    anew = found.anew()
    assert anew.complete
    assert anew.current() == before
    assert found.current() != before


@pytest.mark.parametrize("base", [0, 3])
def test_a_saved_view_begun_anew_does_not_claim_the_records_that_are_gone(base: int) -> None:
    """A truncation cuts a sealed segment: what its view says of the end of the segment is no longer so."""
    saved = ProducerViews().load(base, view(base, (Producer(1, 0, 0), 3, base)).to_bytes())
    anew = saved.anew()
    assert len(anew.current()) == 0
    assert anew.current().end == 0
    assert anew.complete is (base == 0)


# --- restoring


def test_restoring_nothing_gives_an_empty_table() -> None:
    assert restore([]) == ProducerTable()


def test_restoring_looks_no_further_than_the_newest_complete_view() -> None:
    def views() -> Iterator[ProducerView]:
        yield view(9, (Producer(2, 0, 2), 2, 9), complete=False)
        yield view(5, (Producer(2, 0, 0), 2, 7), complete=False)
        yield view(3, (Producer(1, 0, 0), 1, 4))
        raise AssertionError("too far")

    found = restore(views())
    assert [*found.check(Producer(1, 0, 0), 1).known] == [(4, 1)]
    assert [*found.check(Producer(2, 0, 0), 4).known] == [(7, 4)]


def test_what_was_restored_is_complete_and_stays_so() -> None:
    """Otherwise each restart would have to look further back than the one before."""
    sealed = view(0, (Producer(1, 0, 0), 1, 0))
    tail = [view(1, (Producer(1, 0, 1), 1, 1), complete=False), view(2, (Producer(1, 0, 2), 1, 2), complete=False)]
    found = restore([*reversed(tail), sealed])
    assert all(view.complete for view in tail)
    assert tail[-1].current() == found
    following = ProducerView(3)
    following.inherit([tail[-1]])
    assert restore([following]) == found


@pytest.mark.parametrize("saved", [True, False])
def test_a_rewritten_view_is_completed_without_losing_what_was_cleaned(saved: bool) -> None:
    first = view(0, (Producer(1, 0, 0), 3, 0))
    rewritten = ProducerView(3)
    rewritten.inherit([view(3, (Producer(1, 0, 3), 3, 3), (Producer(2, 0, 0), 2, 6), complete=False)])
    if saved:
        rewritten = ProducerViews().load(3, rewritten.to_bytes())
    found = restore([rewritten, first])
    assert [*found.check(Producer(1, 0, 0), 6).known] == [(0, 6)]
    assert [*found.check(Producer(2, 0, 0), 2).known] == [(6, 2)]
    assert rewritten.anew().current() == first.current()


def test_without_a_complete_view_the_oldest_is_all_there_is() -> None:
    views = [view(7, (Producer(1, 0, 1), 1, 7), complete=False), view(5, (Producer(1, 0, 0), 1, 6), complete=False)]
    found = restore(views)
    assert [*found.check(Producer(1, 0, 0), 2).known] == [(6, 2)]
    assert all(view.complete for view in views)


# --- with a log


class Partition:
    """A log and the table that its owner keeps beside it."""

    def __init__(self, path: Path, settings: LogSettings = COMPACT) -> None:
        self.disk = WatchedDisk()
        self.log = Log.open(str(path), disk=self.disk, settings=settings, views=[ProducerViews()])
        self.looked_at = 0
        self.table = restore(self.views())

    def views(self) -> Iterator[ProducerView]:
        for segment in reversed(self.log.segments):
            self.looked_at += 1
            found = self.log.derived(segment).views["producers"]
            assert isinstance(found, ProducerView)
            yield found

    def publish(self, producer: Producer, count: int, *, key: bytes = b"k", now: int = T0) -> None:
        assert self.table.check(producer, count).known == ()
        records = [Record(key=key, value=b"v" * 50, extension=Extension(producer=producer))] * count
        appended = self.log.append(codec.encode(records), now=now, producer=producer)
        self.table.add(Run(*_of(producer), appended.first_offset, count, appended.timestamp))

    def fill(self, segments: int, producers: int = 3, times: int = 3, *, key: bytes = b"k") -> None:
        """Sealed segments with several turns of each producer, an active one after them."""
        for _ in range(segments):
            for number in range(times * producers):
                producer = number % producers
                self.publish(Producer(producer, 0, self.following(producer)), 2, key=key)
            self.log.roll()
            self.log.sync()

    def following(self, producer: int) -> int:
        if producer not in self.table._clients:
            return 0
        with pytest.raises(OutOfSequence) as caught:
            self.table.check(Producer(producer, 0, 2**30), 1)
        return caught.value.expected


def _of(producer: Producer) -> tuple[int, int, int]:
    return producer.producer_id, producer.producer_epoch, producer.sequence


def test_after_a_kill_the_table_is_the_same_and_one_saved_view_was_read(tmp_path: Path) -> None:
    before = Partition(tmp_path)
    before.fill(4)
    before.publish(Producer(9, 0, 0), 5)
    after = Partition(tmp_path)
    assert after.table == before.table
    assert after.looked_at == 2
    after.fill(1)
    again = Partition(tmp_path)
    assert again.table == after.table
    assert again.looked_at == 2


def test_after_a_kill_with_unsealed_segments_the_table_is_the_same(tmp_path: Path) -> None:
    before = Partition(tmp_path)
    before.fill(2)
    for _ in range(3):
        before.publish(Producer(1, 0, before.following(1)), 5)
        before.log.roll()
    after = Partition(tmp_path)
    assert after.table == before.table


def test_a_torn_batch_is_finished_by_its_retry(tmp_path: Path) -> None:
    before = Partition(tmp_path)
    before.publish(Producer(1, 0, 0), 4)
    before.log.sync()
    before.publish(Producer(1, 0, 4), 10)
    path = segment_path(tmp_path, 0)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 9 // 14)
    after = Partition(tmp_path)
    (known,) = after.table.check(Producer(1, 0, 4), 10).known
    assert known == (4, after.log.end_offset - 4)
    assert 0 < known.count < 10
    after.publish(Producer(1, 0, 4 + known.count), 10 - known.count)
    assert [*after.table.check(Producer(1, 0, 0), 14).known] == [(0, 14)]


def test_cleaning_takes_records_and_not_what_was_learned_from_them(tmp_path: Path) -> None:
    before = Partition(tmp_path)
    before.fill(4)
    before.fill(1, producers=1)
    report = clean(before.log, T0)
    assert report.removed_records > 50
    assert restore(before.views()) == before.table
    before.log.close()
    after = Partition(tmp_path)
    assert after.table == before.table
    assert after.looked_at == 2


def test_retention_takes_segments_and_not_what_was_learned_from_them(tmp_path: Path) -> None:
    before = Partition(tmp_path)
    before.fill(3)
    before.fill(1, producers=1)
    before.log.truncate_prefix(before.log.segments[-2].base)
    assert len(before.log.segments) == 2
    assert restore(before.views()) == before.table
    assert Partition(tmp_path).table == before.table


def test_views_that_are_lost_are_rebuilt_from_the_records(tmp_path: Path) -> None:
    before = Partition(tmp_path)
    before.fill(4)
    before.publish(Producer(1, 0, before.following(1)), 5)
    before.log.close()
    assert drop_companions(tmp_path) == 12
    after = Partition(tmp_path)
    assert after.table == before.table
    assert after.looked_at == 5


def test_one_lost_view_costs_one_segment_more(tmp_path: Path) -> None:
    before = Partition(tmp_path)
    before.fill(4)
    newest = before.log.segments[-2].base
    before.log.close()
    segment_path(tmp_path, newest, ".view").unlink()
    after = Partition(tmp_path)
    assert after.table == before.table
    assert after.looked_at == 3


def test_an_append_that_failed_is_no_duplicate_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = Partition(tmp_path)
    partition.fill(2)
    partition.publish(Producer(1, 0, partition.following(1)), 3)
    before = partition.table.copy()

    on_append = ProducerView.on_append

    def interrupted(self: ProducerView, data: Buffer, scan: Scan) -> None:
        on_append(self, data, scan)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(ProducerView, "on_append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        partition.publish(Producer(1, 0, partition.following(1)), 3)
    assert restore(partition.views()) == before
    partition.publish(Producer(1, 0, partition.following(1)), 3)
    assert restore(partition.views()) == partition.table


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("offset", [3, 18, 25, 40, 59, 63])
def test_after_a_truncation_nothing_is_known_of_what_is_gone(tmp_path: Path, offset: int, saved: bool) -> None:
    partition = Partition(tmp_path)
    partition.fill(3)
    partition.publish(Producer(1, 0, partition.following(1)), 10)
    if saved:
        partition.log.close()
        partition = Partition(tmp_path)
    partition.log.truncate(offset)
    expected = ProducerTable()
    for record in read_all(partition.log):
        assert record.extension is not None
        assert record.extension.producer is not None
        expected.add(Run(*_of(record.extension.producer), record.offset, 1, record.timestamp))
    assert restore(partition.views()) == expected
    assert Partition(tmp_path).table == expected
