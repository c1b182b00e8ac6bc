"""Bytes written out by hand: the format as it is on disks already. Never change one of these; add a version."""

from types import ModuleType

import pytest

from goqueue.model.record import Extension, Producer, Record

# magic version flags | crc | offset | timestamp | priority reserved | key, value, headers length | the rest
GOLDEN = {
    "tombstone_without_key": (
        Record(offset=1, timestamp=2),
        "4751 01 06 0aafbe7a 0000000000000001 0000000000000002 02 00 0000 00000000 0000",
    ),
    "key_and_value": (
        Record(offset=7, timestamp=1_700_000_000_000, key=b"key", value=b"value", priority=0),
        "4751 01 00 f3565282 0000000000000007 0000018bcfe56800 00 00 0003 00000005 0000 6b6579 76616c7565",
    ),
    "empty_is_not_absent_and_headers_are_any_bytes": (
        Record(offset=8, timestamp=0, key=b"", value=b"", priority=4, headers=(("a", b"1"), ("\udcff", b""))),
        "4751 01 00 4bbe4650 0000000000000008 0000000000000000 04 00 0000 00000000 000d"
        "0002 0001 61 0001 31 0001 ff 0000",
    ),
    "everything": (
        Record(
            offset=11,
            timestamp=5,
            key=b"k",
            value=b"v",
            priority=1,
            headers=(("h", b"x"),),
            extension=Extension(
                deliver_at=1,
                expires_at=-2,
                event_time=3,
                producer=Producer(producer_id=4, producer_epoch=-5, sequence=6),
                transaction=7,
                blob=b"blob",
            ),
        ),
        "4751 01 01 76fddff2 000000000000000b 0000000000000005 01 00 0001 00000001 0008"
        "0038 803f 0000000000000001 fffffffffffffffe 0000000000000003 0000000000000004 fffb 0000 00000006"
        "0000000000000007 0004 626c6f62 6b 76 0001 0001 68 0001 78",
    ),
    "commit_marker": (
        Record(offset=12, timestamp=6, control=True, commit=True, extension=Extension(transaction=9)),
        "4751 01 1f e1110b63 000000000000000c 0000000000000006 02 00 0000 00000000 0000 000a 0020 0000000000000009",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_record_encodes_to_its_golden_bytes(codec: ModuleType, name: str) -> None:
    record, golden = GOLDEN[name]
    assert codec.encode([record]).hex() == golden.replace(" ", "")


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_decode_to_their_record(codec: ModuleType, name: str) -> None:
    record, golden = GOLDEN[name]
    assert codec.decode(bytes.fromhex(golden)) == [record]


def test_a_block_is_its_records_back_to_back(codec: ModuleType) -> None:
    block = codec.encode(record for record, _ in GOLDEN.values())
    assert isinstance(block, bytearray)
    assert block == bytes.fromhex("".join(golden for _, golden in GOLDEN.values()))
    assert codec.decode(block) == [record for record, _ in GOLDEN.values()]
