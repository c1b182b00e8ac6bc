"""Every bound in the product, in one place. Sizes in bytes unless the name says otherwise.

A limit here is a ceiling nobody may raise by configuration; defaults that users may change live in
`model.settings`.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Records
MAX_KEY_BYTES: Final = 0xFFFF
MAX_HEADERS_BYTES: Final = 0xFFFF
MAX_BLOB_BYTES: Final = 4 * KIB
MAX_RECORD_BYTES: Final = 16 * MIB
"""A length field that promises more than this is refused before anything is allocated for it."""

MAX_OFFSET: Final = 2**62
"""No offset and no timestamp reaches this, so that adding to one cannot overflow."""

# Blocks and segments
MAX_BLOCK_BYTES: Final = 32 * MIB
"""What one append may carry; a block never spans two segments."""
MAX_SEGMENT_BYTES: Final = 1024 * MIB
MIN_SEGMENT_BYTES: Final = 4 * KIB
MAX_UNSEALED_SEGMENTS: Final = 8
"""Rolled segments that may wait for their fsync before the writer has to."""
MAX_SEGMENT_SPAN: Final = 0xFFFF_FFFF
"""Offsets one segment may cover: indexes store offsets relative to the base in four bytes."""

# Reading
MAX_READ_BYTES: Final = 64 * MIB
MAX_READ_COUNT: Final = 1_000_000
RESYNC_BYTES: Final = 256 * MIB
"""How many bytes may be checked in search of the next record behind a damaged one, before the rest is given up."""
UNREADABLE_BYTES: Final = 4 * KIB
"""A part of a file this large that the disk cannot read counts as damaged as a whole."""
SCAN_CHUNK_BYTES: Final = 1 * MIB
"""What a scan holds in memory at a time, unless one record is larger."""

# Files and memory
MAX_OPEN_FILES: Final = 1024
"""Open segment files a store keeps, active ones included, unless more than that are in use at once."""
MAX_CACHED_INDEX_BYTES: Final = 32 * MIB
"""Sealed segments' indexes and views kept in memory by a store."""
DISK_RESERVE_BYTES: Final = 1 * MIB
"""Kept back in each data directory, so that retention can free space on a full disk."""
SYNC_THREADS: Final = 2
SYNCED_MARK_INTERVAL_BYTES: Final = 4 * MIB
SYNCED_MARK_INTERVAL_SYNCS: Final = 32
"""How much, and how often, may be synced before the synced mark itself is made durable again."""
MAX_DURATION_MS: Final = 100 * 365 * 24 * 3600 * 1000
MAX_NAME_PART: Final = 255
REMEMBERED_KEY_BYTES: Final = 128
"""What remembering a key costs the cleaner beside the key's own bytes, about."""
MAX_CLEANER_BYTES: Final = 128 * MIB
"""What one compaction pass spends on remembering keys; a log with more is compacted in several passes."""
