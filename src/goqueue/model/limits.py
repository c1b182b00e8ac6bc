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
LAST_TIME_MS: Final = 253_402_300_799_999
"""The end of the year 9999: later times have no RFC 3339."""
MAX_NAME_PART: Final = 255
REMEMBERED_KEY_BYTES: Final = 128
"""What remembering a key costs the cleaner beside the key's own bytes, about."""
MAX_CLEANER_BYTES: Final = 128 * MIB
"""What one compaction pass spends on remembering keys; a log with more is compacted in several passes."""

# Producers
REMEMBERED_RUNS: Final = 5
"""Rows of consecutive messages remembered per producer and partition, to recognise what comes again."""
MAX_PRODUCERS_PER_PARTITION: Final = 10_000
PRODUCER_EXPIRY_MS: Final = 24 * 3600 * 1000
PRODUCER_IDS_RESERVED: Final = 1000
"""Producer ids made durable at a time, so that handing one out costs no fsync."""

# Topics
MAX_TOPIC_NAME: Final = 241
"""Leaves room for the ending of a dead-letter topic in a file name."""
MAX_PARTITIONS_PER_TOPIC: Final = 1000
MAX_TOPICS: Final = 10_000
MAX_PARTITIONS: Final = 20_000
MAX_MESSAGES_PER_REQUEST: Final = 10_000
MAX_READ_MESSAGES: Final = 1000
"""Messages one JSON reply may carry."""

# Groups
MAX_GROUP_NAME: Final = 255
MAX_GROUPS: Final = 10_000
MAX_MEMBERS: Final = 1000
"""Of one group."""
MAX_SUBSCRIBED_TOPICS: Final = 1000
"""Of one member."""
MAX_CLIENT_ID: Final = 64
MIN_SESSION_MS: Final = 1000
MAX_SESSION_MS: Final = 3600 * 1000
MAX_POLL_MESSAGES: Final = 10_000
MAX_POLL_BLOCKS: Final = 1000
"""Rows of messages one reply to a poll may have."""

SIDECAR_SEGMENT_BYTES: Final = 16 * MIB

# Wire
MAX_FRAME_BYTES: Final = MAX_BLOCK_BYTES + 4 * KIB
MAX_WAIT_MS: Final = 60_000
"""How long a fetch may wait for records."""

# Connections
MAX_CONNECTIONS: Final = 5_000
MAX_CONNECTION_BYTES: Final = 64 * MIB
"""Bytes of requests not yet answered, and of replies not yet taken, that one connection may hold."""
MAX_IN_FLIGHT_BYTES: Final = 512 * MIB
"""The same for all connections together."""
MAX_HTTP_HEADER_BYTES: Final = 64 * KIB
MAX_SMALL_BODY_BYTES: Final = 1 * MIB
"""A request as JSON that carries no messages."""
MAX_BODY_BYTES: Final = 31 * MIB
"""An HTTP body: its messages always fit into a block."""

# Machines
RECORDS_PER_SNAPSHOT: Final = 10_000

# Housekeeping
TICK_INTERVAL_S: Final = 1.0
CLEAN_INTERVAL_S: Final = 30.0
HOUSEKEEPING_SLICE: Final = 256
"""Partitions looked at before others get a turn."""
COLD_READ_THREADS: Final = 4
FULL_SHOWN_S: Final = 10.0
"""How long after the last refusal for want of space the disk is still called full."""
FULL_SAID_EVERY_S: Final = 60.0
SMALL_JSON_BYTES: Final = 64 * KIB
"""What a JSON request may have without a ticket, and what a reply counts for unless its operation needs more."""
MAX_LIST_BYTES: Final = 4 * MIB
"""A JSON reply that names every topic."""
MAX_JSON_READ_BYTES: Final = 8 * MIB
"""Bytes of records one JSON reply may carry, unless a single message is larger."""
ADMISSION_WAIT_S: Final = 5.0
"""How long a request waits for room before it is told that the broker is busy."""
BODY_GRACE_S: Final = 30.0
BODY_BYTES_PER_S: Final = 64 * KIB
"""A body, or a frame, must arrive in the grace time plus its size at this speed."""
REPLY_TIMEOUT_S: Final = 60.0
"""How long a client may take to read a reply before it is cut off."""
MAX_QUERY_FIELDS: Final = 32
MAX_PENDING_REQUESTS: Final = 1024
"""Requests of one connection that wait for their answers."""
SWEEP_INTERVAL_S: Final = 5.0
"""How often connections are looked at for those that do not get on."""
DRAIN_POLL_S: Final = 0.02
DRAIN_GRACE_S: Final = 10.0
"""How long a broker that stops waits for requests under way."""
