"""What is derived from a segment: saved, loaded, rebuilt, always the same; foreign files refused."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue import codec
from goqueue.codec import Scan
from goqueue.io.disk import Buffer
from goqueue.model.record import Extension, Record
from goqueue.storage.derived import BUILT_IN, Derived, companions, load, save
from goqueue.storage.views import View
from tests.unit.storage.disks import WatchedDisk
from tests.unit.storage.logs import T0, flip, stamped

INTERVAL = 200


def sample(number: int) -> Record:
    extension = Extension(deliver_at=T0 + number) if number % 7 == 0 else None
    return Record(key=b"k", value=b"x" * (number * 13 % 90), priority=number % 5, extension=extension)


def derive(blocks: list[int], *, base: int = 50, interval: int = INTERVAL) -> Derived:
    derived = Derived(base, interval, BUILT_IN)
    offset, position = base, 0
    for number, count in enumerate(blocks):
        records = [sample(offset + each) for each in range(count)]
        block, scan = stamped(*records, offset=offset, timestamp=T0 + number)
        derived.add(position, block, scan)
        offset, position = offset + count, position + len(block)
    return derived


def stem_in(directory: Path) -> str:
    return f"{directory}/00000000000000000050"


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    derived = derive([5, 1, 9, 30])
    disk = WatchedDisk()
    save(disk, stem_in(tmp_path), derived, base=50, seal=3)
    found = load(disk, stem_in(tmp_path), base=50, seal=3, kinds=BUILT_IN)
    assert found is not None
    assert found.agrees(derived)
    assert (found.interval, set(found.views)) == (INTERVAL, {"delays", "lanes", "transactions"})
    assert found.views == derived.views
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".index", ".timeindex", ".view"]
    assert disk.open_count == 0


def test_every_companion_has_its_ending() -> None:
    assert list(companions("a").values()) == ["a.index", "a.timeindex", "a.view"]


@pytest.mark.parametrize(("base", "seal"), [(50, 4), (51, 3)])
def test_files_of_another_life_are_refused(tmp_path: Path, base: int, seal: int) -> None:
    save(WatchedDisk(), stem_in(tmp_path), derive([5]), base=50, seal=3)
    assert load(WatchedDisk(), stem_in(tmp_path), base=base, seal=seal, kinds=BUILT_IN) is None


@pytest.mark.parametrize("ending", [".index", ".timeindex", ".view"])
def test_a_missing_or_damaged_file_is_refused(tmp_path: Path, ending: str) -> None:
    disk = WatchedDisk()
    save(disk, stem_in(tmp_path), derive([5, 6]), base=50, seal=3)
    path = Path(stem_in(tmp_path) + ending)
    for position in range(path.stat().st_size):
        flip(path, position)
        assert load(disk, stem_in(tmp_path), base=50, seal=3, kinds=BUILT_IN) is None
        flip(path, position)
    assert load(disk, stem_in(tmp_path), base=50, seal=3, kinds=BUILT_IN) is not None
    path.unlink()
    assert load(disk, stem_in(tmp_path), base=50, seal=3, kinds=BUILT_IN) is None
    assert disk.open_count == 0


def test_the_files_of_two_endings_do_not_stand_in_for_each_other(tmp_path: Path) -> None:
    save(WatchedDisk(), stem_in(tmp_path), derive([5]), base=50, seal=3)
    (tmp_path / "00000000000000000050.index").write_bytes((tmp_path / "00000000000000000050.timeindex").read_bytes())
    assert load(WatchedDisk(), stem_in(tmp_path), base=50, seal=3, kinds=BUILT_IN) is None


class Count:
    """A view that counts; its bytes are the count."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def on_damage(self, first: int, next_offset: int) -> None:
        pass

    def on_append(self, block: Buffer, scan: Scan) -> None:
        self.count += len(scan)

    def inherit(self, older: Sequence[View]) -> None: ...

    def anew(self) -> View:
        return Count()

    @property
    def carries(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        return self.count.to_bytes(4, "big")

    @property
    def size(self) -> int:
        return 4


class Counts:
    name = "counts"

    def empty(self, base: int) -> View:
        return Count()

    def load(self, base: int, data: bytes) -> View:
        if len(data) != 4:
            raise ValueError("not a count")
        return Count(int.from_bytes(data, "big"))


def test_a_view_that_was_not_registered_then_makes_the_files_unfit(tmp_path: Path) -> None:
    save(WatchedDisk(), stem_in(tmp_path), derive([5]), base=50, seal=3)
    assert load(WatchedDisk(), stem_in(tmp_path), base=50, seal=3, kinds=(*BUILT_IN, Counts())) is None


def test_a_registered_view_is_saved_and_loaded(tmp_path: Path) -> None:
    derived = Derived(0, INTERVAL, (*BUILT_IN, Counts()))
    derived.add(0, *stamped(*map(sample, range(9))))
    save(WatchedDisk(), stem_in(tmp_path), derived, base=0, seal=1)
    found = load(WatchedDisk(), stem_in(tmp_path), base=0, seal=1, kinds=(Counts(),))
    assert found is not None
    assert isinstance(found.views["counts"], Count)
    assert found.views["counts"].count == 9


def test_different_records_do_not_agree() -> None:
    assert derive([5, 6]).agrees(derive([5, 6]))
    assert not derive([5, 6]).agrees(derive([5, 7]))
    assert not derive([5, 6]).agrees(derive([5, 6], interval=INTERVAL // 4))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=25))
def test_one_walk_over_the_whole_rebuilds_what_the_blocks_made(blocks: list[int]) -> None:
    """Rebuilt equals kept: the same points and views whether the records came in blocks or in one run."""
    data = b""
    offset = 50
    for number, count in enumerate(blocks):
        records = [sample(offset + each) for each in range(count)]
        data += stamped(*records, offset=offset, timestamp=T0 + number)[0]
        offset += count
    rebuilt = Derived(50, INTERVAL, BUILT_IN)
    rebuilt.add(0, data, codec.scan(data))
    kept = derive(blocks)
    assert rebuilt.agrees(kept)
    assert rebuilt.index.positions[0] == 0
    starts = rebuilt.index.positions
    assert all(later - earlier >= INTERVAL for earlier, later in pairwise(starts))
    largest = max(
        end - start
        for start, end in zip(codec.scan(data).positions, [*codec.scan(data).positions[1:], len(data)], strict=True)
    )
    ends = [*starts[1:], len(data)]
    assert all(end - start < INTERVAL + largest for start, end in zip(starts, ends, strict=True))


def test_its_size_grows_with_its_points() -> None:
    assert derive([20] * 50).size > derive([20] * 5).size > 0
