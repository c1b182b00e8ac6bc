"""One bit flips somewhere on the disk. It is noticed, or it changes nothing; it is never believed.

Noticed means: opening refuses or reports it, reading names the range that is gone, or `verify` finds it. Harmless
means that every record still reads back as it was written.
"""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue import codec
from goqueue.io.disk import LocalDisk
from goqueue.model.errors import DamagedData
from goqueue.model.limits import KIB
from goqueue.model.record import Record
from goqueue.model.settings import Fsync, LogSettings
from goqueue.storage.cleaner import clean
from goqueue.storage.log import Log
from goqueue.storage.verify import Severity, verify
from tests.support.reading import Contents, read_all
from tests.support.records import Shape, make_block

SETTINGS = LogSettings(segment_bytes=6 * KIB, index_interval_bytes=512, fsync=Fsync.NONE, compact=True)
SEED = 41
FLIPS = 1000 if codec.COMPILED else 300
"""The Python twin of the codec is several times slower; it gets fewer."""
DISK = LocalDisk()


@pytest.fixture(scope="module")
def original() -> Iterator[str]:
    """A closed log: cleaned segments, sealed ones as they were written, an active one, all small files."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        directory = f"{path}/original"
        log = Log.open(directory, disk=DISK, settings=SETTINGS)
        shape = Shape(0, keys=40, max_value_bytes=300, delayed_one_in=20)
        rng = random.Random(SEED)
        for block in range(60):
            if block == 25:
                log.sync()
                assert clean(log, 100).rewritten_segments
            if block % 20 == 0:
                log.begin_epoch(block + 1)
            log.append(make_block(shape, 1, block, rng.randint(1, 12)), now=1000 + block)
        log.close()
        yield directory


def judge(directory: str, expected: list[Record], flipped: str) -> str:
    """How the flip was met; AssertionError when it was believed."""
    found = [finding for finding in verify(directory, DISK) if finding.severity is not Severity.NOTE]
    try:
        log = Log.open(directory, disk=DISK, settings=SETTINGS)
    except DamagedData:
        return "refused"
    reported = bool(log.recovery)
    try:
        contents = read_all(log)
        small = read_all(log, max_bytes=300)
        check_times(log, expected, flipped)
    finally:
        log.files.close()
    check_nothing_wrong(contents, expected, flipped)
    check_nothing_wrong(small, expected, flipped)
    if contents.damaged:
        assert any(finding.severity is Severity.DAMAGE for finding in found), f"{flipped}: verify did not see it"
        return "quarantined"
    if flipped.endswith(".log"):
        assert found, f"{flipped}: nothing saw it"
    return "reported" if reported or found else "harmless"


def check_times(log: Log, expected: list[Record], flipped: str) -> None:
    """Looking a time up never leads past a record of that time: not past a damaged one either."""
    for at in range(0, len(expected), 7):
        timestamp = expected[at].timestamp
        first = next(record.offset for record in expected if record.timestamp >= timestamp)
        assert log.offset_at(timestamp) <= first, f"{flipped}: offset_at({timestamp}) leads past {first}"


def check_nothing_wrong(contents: Contents, expected: list[Record], flipped: str) -> None:
    """Every record read is a right one; every other is in a range that was named."""
    by_offset = {record.offset: record for record in expected}
    read = {record.offset for record in contents.records}
    for record in contents.records:
        assert by_offset.get(record.offset) == record, f"{flipped}: read a wrong record: {record}"
    for offset in by_offset.keys() - read:
        assert any(first <= offset < end for first, end in contents.damaged), f"{flipped}: {offset} vanished silently"
    for first, end in contents.damaged:
        assert not [offset for offset in read if first <= offset < end], f"{flipped}: read inside a damaged range"


def flip(path: str, bit: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << (bit % 8))]))


def test_a_flipped_bit_is_noticed_or_harmless_wherever_it_is(original: str) -> None:
    log = Log.open(original, disk=DISK, settings=SETTINGS)
    expected = read_all(log).records
    log.files.close()
    names = sorted(os.listdir(original))
    assert {Path(name).suffix for name in names} == {".log", ".index", ".timeindex", ".view", ".state", ""}
    sizes = [os.path.getsize(f"{original}/{name}") for name in names]
    copy = f"{original}-copy"
    shutil.copytree(original, copy)
    rng = random.Random(SEED)
    verdicts: Counter[tuple[str, str]] = Counter()
    for number in range(FLIPS):
        # Half by size, so mostly in records; half by file, so that small files get their share.
        name = rng.choices(names, sizes)[0] if number % 2 else rng.choice(names)
        bit = rng.randrange(8 * os.path.getsize(f"{original}/{name}"))
        flip(f"{copy}/{name}", bit)
        verdict = judge(copy, expected, f"flip {number} of seed {SEED}: bit {bit} of {name}")
        verdicts[Path(name).suffix, verdict] += 1
        restore(original, copy, names)
    print(sorted(verdicts.items()))
    assert verdicts[".log", "harmless"] == 0
    assert verdicts[".log", "quarantined"] > FLIPS // 5
    assert verdicts[".state", "refused"] > 0
    assert {verdict for (suffix, verdict) in verdicts if suffix == ".state"} == {"refused"}
    assert {verdict for (suffix, verdict) in verdicts if suffix in (".index", ".timeindex", ".view")} == {"reported"}


def restore(original: str, copy: str, names: list[str]) -> None:
    """Undo everything that was done to the copy."""
    for name in os.listdir(copy):
        if name not in names:
            os.unlink(f"{copy}/{name}")
    for name in names:
        with open(f"{original}/{name}", "rb") as source:
            data = source.read()
        with open(f"{copy}/{name}", "r+b" if os.path.exists(f"{copy}/{name}") else "wb", buffering=0) as target:
            if target.seek(0, os.SEEK_END) == len(data):
                target.seek(0)
                if target.read() == data:
                    continue
            target.seek(0)
            target.truncate(0)
            target.write(data)


def test_the_judge_would_notice_a_record_that_is_believed_though_it_is_wrong(original: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(original, copy)
    log = Log.open(copy, disk=DISK, settings=SETTINGS)
    expected = read_all(log).records
    end = log.end_offset
    log.append(codec.encode([Record(value=b"phantom")]), now=5000)
    log.close()
    with pytest.raises(AssertionError, match="a wrong record"):
        judge(copy, expected, "nothing flipped")
    log = Log.open(copy, disk=DISK, settings=SETTINGS)
    log.truncate(end - 1)
    log.close()
    with pytest.raises(AssertionError, match="vanished silently"):
        judge(copy, expected, "nothing flipped")
