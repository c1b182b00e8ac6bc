"""Records as columns and back: what Arrow is given, and what it gives."""

import struct
from array import array
from itertools import pairwise
from types import ModuleType

import pytest

from goqueue.codec.layout import Field, HeaderColumns, Numbers, Pieces, RecordColumns, Refusal
from goqueue.model.errors import InvalidRecord
from goqueue.model.limits import MAX_KEY_BYTES
from goqueue.model.record import Extension, Producer, Record
from tests.unit.codec.samples import SAMPLES

ALL = {"from_offset": 0, "to_offset": 2**62}
MESSAGES = [record for record in SAMPLES if not record.control]


def longs(data: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack("=q", data)]


def ints(data: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack("=i", data)]


def is_there(present: bytes | None, row: int) -> bool:
    return present is None or bool(present[row // 8] >> row % 8 & 1)


def pieces(column: Pieces | None) -> list[bytes | None]:
    assert column is not None
    bounds = ints(column.bounds)
    assert bounds[-1] == len(column.data)
    return [
        column.data[start:end] if is_there(column.present, row) else None
        for row, (start, end) in enumerate(pairwise(bounds))
    ]


def numbers(column: Numbers) -> list[int | None]:
    return [number if is_there(column.present, row) else None for row, number in enumerate(longs(column.data))]


def headers(column: HeaderColumns | None) -> list[list[tuple[bytes | None, bytes | None]]]:
    assert column is not None
    pairs = [*zip(pieces(column.names), pieces(column.contents), strict=True)]
    bounds = ints(column.bounds)
    return [pairs[start:end] for start, end in pairwise(bounds)]


def offsets(columns: RecordColumns) -> list[int]:
    return longs(columns.offsets)


def to_pieces(rows: list[bytes | None]) -> Pieces:
    bounds, data = array("i", [0]), b""
    present = bytearray(len(rows) // 8 + 1)
    for row, piece in enumerate(rows):
        data += piece or b""
        bounds.append(len(data))
        present[row // 8] |= (piece is not None) << row % 8
    return Pieces(bytes(present), bounds.tobytes(), data)


def packed(codec: ModuleType, count: int, **columns: object) -> list[tuple[int, int, list[Record]]]:
    given: dict[str, object] = {
        "keys": None,
        "values": None,
        "headers": None,
        "lanes": bytes([2] * count),
        "fields": {},
        "partitions": array("i", [-1] * count).tobytes(),
        "partition_count": 3,
        "keyless": 1,
        "max_bytes": 1 << 20,
        **columns,
    }
    made = codec.from_columns(count, **given)
    return [(each.partition, each.messages, codec.decode(each.block)) for each in made]


def test_every_message_is_a_row(codec: ModuleType) -> None:
    found = codec.to_columns(codec.encode(SAMPLES), **ALL, fields=[*Field])
    assert found.rows == len(MESSAGES)
    assert offsets(found) == [record.offset for record in MESSAGES]
    assert longs(found.timestamps) == [record.timestamp for record in MESSAGES]
    assert [*found.lanes] == [record.priority for record in MESSAGES]
    assert pieces(found.keys) == [record.key for record in MESSAGES]
    assert pieces(found.values) == [record.value for record in MESSAGES]
    wanted = [[(name.encode(), content) for name, content in record.headers] for record in MESSAGES]
    assert headers(found.headers) == wanted
    extensions = [record.extension or Extension() for record in MESSAGES]
    assert numbers(found.fields[Field.DELIVER_AT]) == [each.deliver_at for each in extensions]
    assert numbers(found.fields[Field.EXPIRES_AT]) == [each.expires_at for each in extensions]
    assert numbers(found.fields[Field.EVENT_TIME]) == [each.event_time for each in extensions]
    assert numbers(found.fields[Field.TRANSACTION]) == [each.transaction for each in extensions]
    ids = [None if each.producer is None else each.producer.producer_id for each in extensions]
    assert numbers(found.fields[Field.PRODUCER_ID]) == ids
    sequences = [
        None if number is None else number & 0xFFFFFFFF for number in numbers(found.fields[Field.PRODUCER_SEQUENCE])
    ]
    assert sequences == [None if each.producer is None else each.producer.sequence & 0xFFFFFFFF for each in extensions]


def test_a_column_in_which_nothing_is_absent_has_no_bits(codec: ModuleType) -> None:
    found = codec.to_columns(codec.encode([Record(0, 0, b"a", b"b"), Record(1, 0, b"c", b"d")]), **ALL)
    assert found.keys == (None, array("i", [0, 1, 2]).tobytes(), b"ac")
    assert found.values == (None, array("i", [0, 1, 2]).tobytes(), b"bd")
    assert found.headers == HeaderColumns(
        array("i", [0, 0, 0]).tobytes(), Pieces(None, bytes(4), b""), Pieces(None, bytes(4), b"")
    )


def test_columns_that_nobody_wants_are_left_out(codec: ModuleType) -> None:
    found = codec.to_columns(codec.encode(SAMPLES), **ALL, keys=False, values=False, headers=False)
    assert (found.keys, found.values, found.headers, found.fields) == (None, None, None, {})
    assert offsets(found) == [record.offset for record in MESSAGES]


def test_only_the_range_that_is_asked_for(codec: ModuleType) -> None:
    block = codec.encode([Record(offset, 0) for offset in range(10, 20)])
    assert offsets(codec.to_columns(block, from_offset=12, to_offset=15)) == [12, 13, 14]
    assert offsets(codec.to_columns(block, from_offset=0, to_offset=10)) == []
    assert offsets(codec.to_columns(b"", from_offset=0, to_offset=10)) == []


def test_hidden_ranges_are_left_out(codec: ModuleType) -> None:
    block = codec.encode([Record(offset, 0) for offset in range(10, 20)])
    hidden = array("q", [0, 5, 9, 11, 13, 15, 19, 30])
    assert offsets(codec.to_columns(block, **ALL, hidden=hidden)) == [11, 12, 15, 16, 17, 18]


@pytest.mark.parametrize("hidden", [array("q", [1]), array("q", [3, 2]), array("q", [1, 2, 2, 3]), array("i", [1, 2])])
def test_hidden_ranges_must_be_ranges(codec: ModuleType, hidden: "array[int]") -> None:
    with pytest.raises(ValueError, match="what is hidden must be ranges"):
        codec.to_columns(b"", **ALL, hidden=hidden)


def test_a_flipped_bit_is_found_also_in_what_is_left_out(codec: ModuleType) -> None:
    block = bytearray(codec.encode([Record(offset, 0, b"key", b"value") for offset in range(3)]))
    block[-1] ^= 1
    with pytest.raises(InvalidRecord, match="checksum") as caught:
        codec.to_columns(block, from_offset=0, to_offset=1)
    assert (caught.value.index, caught.value.position) == (2, len(block) // 3 * 2)


def test_offsets_must_ascend(codec: ModuleType) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        codec.to_columns(codec.encode([Record(1, 0), Record(1, 0)]), **ALL)


def test_there_is_no_field_past_the_last(codec: ModuleType) -> None:
    with pytest.raises(ValueError, match="15 is not a valid Field"):
        codec.to_columns(codec.encode([Record()]), **ALL, fields=[15])


# --- back


def test_rows_become_messages_of_their_partitions(codec: ModuleType) -> None:
    keys = [b"a", b"b", None, b"a", b""]
    made = packed(
        codec,
        5,
        keys=to_pieces(keys),
        values=to_pieces([b"1", None, b"3", b"", b"5"]),
        lanes=bytes([0, 1, 2, 3, 4]),
        headers=HeaderColumns(
            array("i", [0, 0, 2, 2, 3, 3]).tobytes(), to_pieces([b"n", b"m", b"o"]), to_pieces([b"x", b"", b"yz"])
        ),
        fields={
            Field.DELIVER_AT: Numbers(bytes([0b00010]), array("q", [9, -5, 9, 9, 9]).tobytes()),
            Field.EVENT_TIME: Numbers(None, array("q", range(5)).tobytes()),
        },
        transaction=77,
    )
    rows = {}
    for partition, count, records in made:
        assert count == len(records)
        for record in records:
            assert record.extension is not None
            assert record.extension.event_time is not None
            rows[record.extension.event_time] = (partition, record)
    assert [*sorted(rows)] == [0, 1, 2, 3, 4]
    for row, key in enumerate(keys):
        partition, record = rows[row]
        assert partition == (1 if key is None else codec.murmur3(key) % 3)
        assert record.key == key
        assert record.priority == row
        assert record.extension == Extension(
            deliver_at=-5 if row == 1 else None, event_time=row, producer=Producer(0, 0, 0), transaction=77
        )
    assert [rows[row][1].value for row in range(5)] == [b"1", None, b"3", b"", b"5"]
    assert [rows[row][1].headers for row in range(5)] == [(), (("n", b"x"), ("m", b"")), (), (("o", b"yz"),), ()]


def test_rows_keep_their_order_and_blocks_their_bound(codec: ModuleType) -> None:
    values = [b"%03d" % row for row in range(100)]
    size = len(codec.from_columns(
        1, keys=None, values=to_pieces([b"000"]), headers=None, lanes=b"\2", fields={}, partitions=bytes(4),
        partition_count=1, keyless=0, max_bytes=1,
    )[0].block)  # fmt: skip
    partitions = array("i", [row % 2 for row in range(100)]).tobytes()
    made = packed(codec, 100, values=to_pieces([*values]), partitions=partitions, max_bytes=7 * size)
    assert all(count <= 7 for _, count, _ in made)
    for partition in range(2):
        records = [record for at, _, records in made for record in records if at == partition]
        assert [record.value for record in records] == values[partition::2]


def test_a_message_larger_than_a_block_has_one_to_itself(codec: ModuleType) -> None:
    made = packed(codec, 3, values=to_pieces([b"a", b"b" * 100, b"c"]), max_bytes=60)
    assert [(partition, count) for partition, count, _ in made] == [(1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("columns", "refusal"),
    [
        ({"lanes": bytes([2, 5])}, Refusal.PRIORITY),
        ({"keys": to_pieces([b"", b"k" * (MAX_KEY_BYTES + 1)])}, Refusal.KEY),
        ({"partitions": array("i", [0, 3]).tobytes()}, Refusal.PARTITION),
        (
            {
                "headers": HeaderColumns(
                    array("i", [0, 0, 2]).tobytes(), to_pieces([b"n"] * 2), to_pieces([b"v" * 40_000] * 2)
                )
            },
            Refusal.HEADERS,
        ),
        ({"values": to_pieces([b"", bytes(1 << 24)])}, Refusal.RECORD),
    ],
)
def test_a_row_that_breaks_a_limit_is_named(codec: ModuleType, columns: dict[str, object], refusal: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        packed(codec, 2, **columns)
    assert (caught.value.reason, caught.value.index) == (refusal, 1)


@pytest.mark.parametrize(
    "columns",
    [
        {"lanes": b"\2"},
        {"partitions": bytes(7)},
        {"keys": Pieces(None, bytes(8), b"")},
        {"keys": Pieces(b"", bytes(12), b"")},
        {"keys": Pieces(None, array("i", [0, 2, 1]).tobytes(), b"abc")},
        {"keys": Pieces(None, array("i", [-1, 0, 0]).tobytes(), b"")},
        {"values": Pieces(None, array("i", [0, 1, 4]).tobytes(), b"abc")},
        {"headers": HeaderColumns(bytes(8), to_pieces([]), to_pieces([]))},
        {"headers": HeaderColumns(array("i", [0, 0, 1]).tobytes(), to_pieces([]), to_pieces([b""]))},
        {"fields": {Field.DELIVER_AT: Numbers(None, bytes(8))}},
        {"keyless": 3},
        {"partition_count": 0},
    ],
)
def test_columns_that_do_not_add_up_are_refused(codec: ModuleType, columns: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the columns are shorter"):
        packed(codec, 2, **columns)


def test_only_times_can_be_packed(codec: ModuleType) -> None:
    with pytest.raises(ValueError, match="only DELIVER_AT"):
        packed(codec, 1, fields={Field.TRANSACTION: Numbers(None, bytes(8))})


def test_there_and_back_is_the_same(codec: ModuleType) -> None:
    plain = [
        Record(at, 5, record.key, record.value, record.priority, record.headers) for at, record in enumerate(SAMPLES)
    ]
    found = codec.to_columns(codec.encode(plain), **ALL)
    made = packed(
        codec, found.rows, keys=found.keys, values=found.values, headers=found.headers, lanes=found.lanes,
        partition_count=1, keyless=0,
    )  # fmt: skip
    ((_, count, records),) = made
    assert count == len(plain)
    for before, after in zip(plain, records, strict=True):
        assert (after.key, after.value, after.priority, after.headers) == (
            before.key, before.value, before.priority, before.headers,
        )  # fmt: skip
