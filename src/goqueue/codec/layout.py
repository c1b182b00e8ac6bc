"""The record's byte layout: the only place that names a position, a flag or a field.

`docs/internals/record.md` is the prose of this file and a test holds the two together. The Python
reference reads these constants; the compiled twin repeats them and a test compares.
"""

import struct
from array import array
from enum import IntEnum, IntFlag, StrEnum
from typing import Final, NamedTuple

from goqueue.model.limits import MAX_BLOB_BYTES, MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES, MIB

MAGIC: Final = b"GQ"
VERSION: Final = 1

HEADER: Final = struct.Struct(">2sBBIqqBBHIH")
"""magic, version, flags, crc32c, offset, timestamp, priority, reserved, key / value / headers length."""
LENGTHS: Final = struct.Struct(">HIH")
"""The last three of them: key, value and headers length."""
HEADER_BYTES: Final = HEADER.size
VERSION_AT: Final = 2
FLAGS_AT: Final = 3
CRC_AT: Final = 4
OFFSET_AT: Final = 8
TIMESTAMP_AT: Final = 16
PRIORITY_AT: Final = 24
RESERVED_AT: Final = 25
KEY_LENGTH_AT: Final = 26
VALUE_LENGTH_AT: Final = 28
HEADERS_LENGTH_AT: Final = 32

LANES: Final = 5


class Flag(IntFlag):
    """The flags byte; any other bit is refused."""

    EXTENSION = 1
    NO_KEY = 2
    NO_VALUE = 4
    CONTROL = 8
    COMMIT = 16


class Field(IntEnum):
    """Fixed-width extension fields by mask bit. All are eight bytes, so unknown ones can be skipped."""

    DELIVER_AT = 0
    EXPIRES_AT = 1
    EVENT_TIME = 2
    PRODUCER_ID = 3
    PRODUCER_SEQUENCE = 4
    """Two bytes epoch (signed), two bytes zero, four bytes sequence (signed)."""
    TRANSACTION = 5


EXTENSION_LENGTH_BYTES: Final = 2
"""The extension's length field; it counts what follows it."""
MASK_BYTES: Final = 2
FIELD_BYTES: Final = 8
BLOB_BIT: Final = 15
BLOB_LENGTH_BYTES: Final = 2
MAX_EXTENSION_BYTES: Final = MASK_BYTES + BLOB_BIT * FIELD_BYTES + BLOB_LENGTH_BYTES + MAX_BLOB_BYTES
"""What an extension's length field may say; more is refused before anything waits for it."""
HEADER_COUNT_BYTES: Final = 2
HEADER_LENGTH_BYTES: Final = 2


class Problem(IntEnum):
    """Why bytes are not a record. INCOMPLETE: they could be the beginning of one."""

    NONE = 0
    INCOMPLETE = 1
    MAGIC = 2
    VERSION = 3
    FLAGS = 4
    RESERVED = 5
    PRIORITY = 6
    TOO_LARGE = 7
    LENGTHS = 8
    EXTENSION = 9
    HEADERS = 10
    CHECKSUM = 11
    PRODUCER = 12


REASONS: Final = {
    Problem.INCOMPLETE: "the bytes end before the record does",
    Problem.MAGIC: "it does not begin with the magic bytes",
    Problem.VERSION: "its format version is unknown",
    Problem.FLAGS: "it has unknown or contradictory flags",
    Problem.RESERVED: "its reserved byte is not zero",
    Problem.PRIORITY: "its priority is not 0 to 4",
    Problem.TOO_LARGE: "its lengths promise more than a record may hold",
    Problem.LENGTHS: "it has a length for a key or value that its flags say is absent",
    Problem.EXTENSION: "its extension does not add up",
    Problem.HEADERS: "its headers do not add up",
    Problem.CHECKSUM: "its checksum does not match",
    Problem.PRODUCER: "it has no producer fields to stamp",
}


class Refusal(StrEnum):
    """Why `encode` refuses a record, in the order in which it looks."""

    PRIORITY = "its priority is not 0 to 4"
    COMMIT = "it is a commit without being a control record"
    KEY = f"its key is longer than {MAX_KEY_BYTES} bytes"
    HEADER_NAME = "a header name is not text that UTF-8 can carry"
    HEADERS = f"its headers take more than {MAX_HEADERS_BYTES} bytes"
    NUMBER = "a number in it does not fit its field"
    BLOB = f"its blob is longer than {MAX_BLOB_BYTES} bytes"
    RECORD = f"it is larger than {MAX_RECORD_BYTES // MIB} MiB"
    PARTITION = "its partition is not one of its topic's"


EMPTY_BLOCK: Final = "the block is empty"
NOT_INT64: Final = "the offsets to pick must be one row of int64, as in an array of 'q'"
NOT_ASCENDING: Final = "the offsets to pick must ascend"
BLOCK_NOT_ASCENDING: Final = "the offsets in the block do not ascend"
NOT_RANGES: Final = (
    "what is hidden must be ranges of int64 that ascend: a first offset and the one after the last, again and again"
)
NOT_COLUMNS: Final = "the columns are shorter than their count, or their bounds do not add up"
NOT_FIELDS: Final = "only DELIVER_AT, EXPIRES_AT and EVENT_TIME can be columns of what is packed"


class Scan:
    """What a pass over a block found, one array entry per valid record; `end` is where the valid prefix ends."""

    __slots__ = ("end", "flags", "key_hashes", "lanes", "offsets", "positions", "problem", "timestamps")

    def __init__(
        self,
        positions: "array[int]",
        offsets: "array[int]",
        timestamps: "array[int]",
        flags: "array[int]",
        lanes: "array[int]",
        key_hashes: "array[int]",
        end: int,
        problem: Problem,
    ) -> None:
        self.positions = positions
        """'I': byte position of each record in the block."""
        self.offsets = offsets
        """'q'"""
        self.timestamps = timestamps
        """'q'"""
        self.flags = flags
        """'B': `Flag` bits."""
        self.lanes = lanes
        """'B'"""
        self.key_hashes = key_hashes
        """'I': murmur3 (x86, 32 bit, seed 0) of the key; 0 without a key."""
        self.end = end
        self.problem = problem
        """Why the record at `end` is not valid; NONE when the block ends there."""

    def __len__(self) -> int:
        return len(self.positions)


class Selection:
    """A run of valid records inside a block that a read may hand out as it is."""

    __slots__ = ("count", "end", "last_offset", "problem", "start")

    def __init__(self, start: int, end: int, count: int, last_offset: int, problem: Problem) -> None:
        self.start = start
        self.end = end
        self.count = count
        self.last_offset = last_offset
        """Offset of the last record selected; -1 when none was."""
        self.problem = problem
        """Why the walk ended at a record it could not accept; NONE when a bound or the block's end ended it."""


class Picked:
    """The records of a block that were asked for by their offsets, and what became of the others asked for.

    Every offset asked for below `next_offset` is in exactly one of `offsets`, `expired`, `missing` and `controls`.
    """

    __slots__ = (
        "controls",
        "data",
        "expired",
        "flags",
        "key_hashes",
        "lanes",
        "missing",
        "next_offset",
        "offsets",
    )

    def __init__(
        self,
        data: memoryview,
        offsets: "array[int]",
        key_hashes: "array[int]",
        flags: "array[int]",
        lanes: "array[int]",
        expired: "array[int]",
        missing: "array[int]",
        controls: "array[int]",
        next_offset: int,
    ) -> None:
        self.data = data
        """The picked records back to back: a part of the block if they lie so in it, else a copy."""
        self.offsets = offsets
        """'q': of the picked records, as in the next three."""
        self.key_hashes = key_hashes
        """'I': as in a `Scan`."""
        self.flags = flags
        """'B': `Flag` bits."""
        self.lanes = lanes
        """'B'"""
        self.expired = expired
        """'q': records that are there and are past their time."""
        self.missing = missing
        """'q': no record of the block has these."""
        self.controls = controls
        """'q': markers of the broker's, not messages."""
        self.next_offset = next_offset
        """Nothing asked for from here on was decided."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_whole(self) -> bool:
        """Whether everything that was decided is among the picked records."""
        return not (self.expired or self.missing or self.controls)


class Survey:
    """What a walk over a block's headers found, without a look at checksums or content."""

    __slots__ = ("count", "end", "fields", "flags", "headers", "largest", "problem")

    def __init__(
        self, count: int, flags: int, fields: int, largest: int, headers: int, end: int, problem: Problem
    ) -> None:
        self.count = count
        self.flags = flags
        """`Flag` bits that any record has."""
        self.fields = fields
        """Extension mask bits that any record has: `Field` bits, unknown ones, and the blob's."""
        self.largest = largest
        """Bytes of key, value and headers of the largest message; 0 when there is none."""
        self.headers = headers
        """How many headers the message has that has the most of them, by its own word."""
        self.end = end
        """Where the walk stopped."""
        self.problem = problem
        """Why the record at `end` could not be walked; NONE when the block ends there."""


class Pieces(NamedTuple):
    """A column of bytes, laid out as Arrow does it."""

    present: bytes | None
    """A bit for each row, the lowest first, set if there is something; None: there is in all of them."""
    bounds: bytes
    """int32: where each row's bytes begin, and at the end where the last one's end."""
    data: bytes


class Numbers(NamedTuple):
    """A column of int64, laid out as Arrow does it."""

    present: bytes | None
    data: bytes


class HeaderColumns(NamedTuple):
    """A column of headers: `bounds` (int32) says which of the names and contents are a row's."""

    bounds: bytes
    names: Pieces
    contents: Pieces


class RecordColumns(NamedTuple):
    """Messages of a block, column by column."""

    rows: int
    offsets: bytes
    """int64"""
    timestamps: bytes
    """int64"""
    lanes: bytes
    """uint8"""
    keys: Pieces | None
    values: Pieces | None
    headers: HeaderColumns | None
    fields: dict[Field, Numbers]


class PartitionBlock(NamedTuple):
    """Messages for one partition."""

    partition: int
    block: bytearray
    messages: int


class SortedBlock(NamedTuple):
    """Messages for one partition, and which of their frame they are."""

    partition: int
    ordinals: "array[int]"
    block: bytearray
