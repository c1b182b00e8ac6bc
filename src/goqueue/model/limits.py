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
MAX_HEADERS: Final = 1000
"""Of one message that is published. Logs written before there was this bound may have messages with more."""
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
FRESH_BLOCK_BYTES: Final = 32 * KIB
"""A block of at most this size is kept in memory until the next one, or the next sync, if somebody waits for it: one a
log."""
BEGIN_SYNC_BYTES: Final = 1 * MIB
"""What is appended to a log between two syncs goes to the disk in pieces of this size. Left to the sync, all of it goes
at once, and appends wait behind it."""
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

APPEND_CLOCK_POINTS: Final = 512
"""What a partition remembers of when records were appended while append times were ahead of the clock."""
APPEND_CLOCK_MS: Final = 1000
"""No two of these are closer together."""

# Producers
REMEMBERED_RUNS: Final = 5
"""Rows of consecutive messages remembered per producer and partition, to recognise what comes again."""
REMEMBERED_DAMAGE: Final = 64
"""Damaged ranges of a partition that are remembered, the newest: gaps in its producers' sequences are explained by
them."""
MAX_PRODUCERS_PER_PARTITION: Final = 10_000
"""Of clients; the broker's own are counted apart, up to as many."""
PRODUCER_EXPIRY_MS: Final = 24 * 3600 * 1000
OWN_PRODUCERS: Final = 2**61
"""Producer ids from here on are the broker's own: never given out, not forgotten for being idle, and free to begin at
any sequence. `producers.own` says which is whose."""
PRODUCER_IDS_RESERVED: Final = 1000
"""Producer ids made durable at a time, so that handing one out costs no fsync."""

DAMAGE_REMEMBERED: Final = 1000
"""Damaged ranges of a partition, and of a group, that are told from new ones."""
DAMAGE_TOLD: Final = 100
"""Damaged ranges that wait to be told to a member; the log and health name the others."""
HEALTH_NAMES: Final = 10
"""Of what is wrong, so many are named one by one."""

# Transactions
DEFAULT_TRANSACTION_MS: Final = 60_000
MIN_TRANSACTION_MS: Final = 1000
MAX_TRANSACTION_MS: Final = 24 * 3600 * 1000
"""How long a transaction may be open."""
MAX_TRANSACTIONAL_ID: Final = 255
MAX_TRANSACTIONAL_IDS: Final = 100_000
TRANSACTIONAL_ID_EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""A transactional id that was not used for so long is forgotten."""
MAX_INCARNATION: Final = 64
FENCED_REMEMBERED: Final = 4
"""Incarnations of programs that were fenced off, per transactional id: what one of them asked arrives too late."""
MAX_OPEN_TRANSACTIONS: Final = 50_000
MAX_COMMITTED_TOGETHER: Final = 10_000
"""Transactions that one token commits."""
MAX_TOKENS: Final = 100_000
"""Names under which transactions are committed together whose last number is remembered: those used last."""
TRANSACTIONS_REMEMBERED: Final = 10_000
"""Of those that have ended, for who asks again."""
TRANSACTION_NUMBERS_RESERVED: Final = 1000
"""Made durable at a time, so that beginning a transaction costs no fsync."""
TOLD_AT_ONCE: Final = 25
"""Transactions whose partitions are told what was decided before others get a turn."""
PRODUCER_SESSION_MS: Final = 30_000
"""A producer that was silent for so long is shown as gone. Its transaction goes on until its timeout."""

# Topics
MAX_TOPIC_NAME: Final = 241
"""Leaves room for the ending of a dead-letter topic in a file name."""
MAX_DLQ_NAME: Final = MAX_TOPIC_NAME + 4
"""A dead-letter topic is called like its topic, with `.dlq` behind."""
MAX_PARTITIONS_PER_TOPIC: Final = 1000
MAX_TOPICS: Final = 10_000
MAX_PARTITIONS: Final = 20_000
MAX_MESSAGES_PER_REQUEST: Final = 10_000
MAX_READ_MESSAGES: Final = 1000
"""Messages one JSON reply may carry."""

# Named readers
MAX_READERS: Final = 10_000
MAX_READER_TOPICS: Final = 1000
"""Of one reader."""
MAX_READER_OFFSETS: Final = 200_000
"""Of all readers together; one for each topic and partition a reader has."""
MAX_LISTED_READERS: Final = 1000

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

# Delivery: selection
SORTED_AT_ONCE: Final = 20_000
"""Offsets whose lanes are looked up in one go, when many become ready at once."""
STAGED_AT_ONCE: Final = 65_536
"""Offsets of a lane looked at in one go, when many of them are settled or held."""
FIRED_AT_ONCE: Final = 5_000
"""Delayed messages of a partition that become ready before others get a turn."""
GATHERED_AT_ONCE: Final = 256
"""Offsets far apart that are read in one go."""
TURN_S: Final = 0.002
"""How long what is due, or a poll, may keep the loop before others get a turn."""
STARVING_MS: Final = 30_000
"""A lane that has something and was not served for so long is served next."""
MAX_IN_LINE: Final = 50_000
"""Messages behind others of the same key that a group in key mode remembers of a partition."""
MAX_UNSETTLED: Final = 100_000
"""Messages of a partition that a group was delivered and has not settled; beyond that nothing new is delivered."""
DEFAULT_UNACKED: Final = 1000
MAX_UNACKED: Final = 50_000
"""Messages one consumer may hold."""

DEAD_LETTER_LINGER_S: Final = 0.05
"""Dead letters wait so long for others: each batch costs two fsyncs."""
MAX_HANDLES: Final = 10_000
"""Handles in one request."""
MAX_CANCELLED: Final = 50_000
"""Delayed messages cancelled by one request."""
MAX_REJECT_CHARS: Final = 1000
"""What a consumer may say when it rejects a message."""

SIDECAR_SEGMENT_BYTES: Final = 16 * MIB

# Delivery
MIN_VISIBILITY_MS: Final = 1
MAX_VISIBILITY_MS: Final = 12 * 3600 * 1000
MAX_RETRIES: Final = 1000
MAX_BACKOFF_MS: Final = 7 * 24 * 3600 * 1000
"""How long a retry may have to wait."""
MAX_BACKOFF_FACTOR: Final = 100
MIN_TTL_MS: Final = 1
MAX_LANE_WEIGHT: Final = 1000

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
MAX_VALUES: Final = 500_000
"""What a request that carries many messages may have in values: texts, numbers, lists, objects. They are counted before
anything is made of them: each takes its client a byte or two, and the broker a hundred."""
MAX_SMALL_VALUES: Final = 100_000
"""Values that a request without messages may have."""
MAX_MESSAGE_VALUES: Final = 4 * MAX_HEADERS
"""Values that one message of a request may have: a header is a list of two texts, or a message of two fields."""
VALUE_BYTES: Final = 100
"""What a value of a large request counts for among the bytes in flight, beside its own."""
APPENDED_AT_ONCE_BYTES: Final = 4 * MIB
"""What the messages of one block that is published may have together; one message alone may have more. A request with
more is appended as several blocks, between which others get a turn."""
RECEIVED_AT_ONCE_BYTES: Final = 1 * MIB
"""Of a body over HTTP, before others get a turn."""
FRAMES_AT_ONCE_S: Final = 0.004
"""How long frames of one connection are handled before others get a turn."""
READ_AT_ONCE_BYTES: Final = 256 * KIB
"""Of records that are translated for a reply, before others get a turn."""
MAX_READ_HEADERS: Final = 100_000
"""A page of a simple read, of dead letters or of schedules ends where its messages have so many."""

# gRPC
GRPC_CONNECTIONS: Final = 1000
"""Those beyond it are hung up on at once."""
GRPC_STREAMS_PER_CONNECTION: Final = 100
"""Calls and streams of one connection at a time; a client keeps those beyond it back."""
GRPC_CALLS: Final = 1500
"""Calls and streams of all connections; those beyond it are refused before anything of their requests is read. Each may
be in the middle of one, which the library holds and nobody can count before all of it is here. So this many times
`MAX_FRAME_BYTES` is what clients can make it hold, if they mean harm."""
GRPC_PLACES: Final = 1000
"""Streams, and polls that wait, among them: the rest is left to calls that take a moment."""
GRPC_WINDOW_BYTES: Final = MIB
"""What a client may send on a call that nobody reads from. Left alone, the library lets it grow with the speed of the
line, to 16 MiB and more."""
GRPC_HTTP2_FRAME_BYTES: Final = 256 * KIB
"""What a client may send in one piece: in those of 16 KiB that HTTP/2 begins with, large batches cost more."""
GRPC_KEEPALIVE_MS: Final = 60_000
GRPC_KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""Finds who has vanished without a word."""
GRPC_LEAST_PING_MS: Final = 5_000
"""A client that asks more often whether we are there is sent away."""
GRPC_LAST_WORDS_S: Final = 0.5
"""How long a door that closes, or ends a call, waits for a client to take what it was told."""
GRPC_MOMENT_S: Final = 0.05
"""A client that has vanished looks like one that has no more to say; a moment later its call is cancelled."""
GRPC_PENDING_FRAMES: Final = 256
"""Frames of one stream that may wait for their answers; each may have many messages."""
GRPC_PENDING_BYTES: Final = 1 * MIB
"""What those answers may hold before no more frames are read: of frames whose messages are refused that is much."""
REFUSAL_BYTES: Final = 500
"""What is kept of a refusal until it is answered, beside its text, about."""
GRPC_READ_BYTES: Final = 2 * MIB
"""Records in the reply to a read or a poll that does not say how much: clients take 4 MiB unless they are told
otherwise."""
GRPC_READ_MESSAGES: Final = 1500
"""Messages in it: beside its record each has up to a thousand bytes, of which three names of a topic are the most."""
GRPC_BATCH_BYTES: Final = MIB
"""Records of one batch of a subscription, unless its client wants others: large enough to be cheap, small enough to be
many."""
GRPC_HEARTBEATS: Final = 3
"""Of a subscription without credit, in the time of a session."""
GRPC_ERROR_BYTES: Final = 500
"""Of a text in an error: all of it must fit into the metadata a client takes, which is 8 KiB, and it is there twice,
once with three bytes for each that is not ASCII."""

# Jobs
MAX_SCHEDULES: Final = 10_000
MAX_SCHEDULED_MESSAGE_BYTES: Final = 64 * KIB
"""As JSON."""
MAX_SCHEDULED_BYTES: Final = 64 * MIB
"""The messages of all schedules together."""
MAX_CRON_EXPRESSION: Final = 256
MAX_TIME_ZONE: Final = 64
MIN_EVERY_MS: Final = 1000
MAX_EVERY_MS: Final = 366 * 24 * 3600 * 1000
RUN_GRACE_MS: Final = 60_000
"""A run that is later than this was missed."""
MAX_RUNS_MADE_UP: Final = 1000
"""Of one schedule that wants all the runs it missed; those before them are left out."""
RUNS_AT_ONCE: Final = 100
"""Runs of one schedule that are intended before the first of them is done."""
MAX_PENDING_RUNS: Final = 10_000
"""The same for all schedules together."""
RUNS_UNDER_WAY: Final = 32
"""Runs of all schedules that are published at the same time: many may be due at once, and others want a turn."""
MAX_JOB_ERROR: Final = 500
"""Characters that are kept of why a run, or a redrive, failed."""
MAX_LISTED_SCHEDULES: Final = 1000
MAX_RUNNING_REDRIVES: Final = 100
REDRIVES_REMEMBERED: Final = 100
"""Those that have ended; of more, the oldest are forgotten."""
REDRIVEN_AT_ONCE: Final = 100
"""Dead letters that are published before it is written down that they are."""
REDRIVEN_AT_ONCE_BYTES: Final = 4 * MIB
"""The same, unless one is larger."""
MAX_REDRIVE_RATE: Final = 1_000_000
REDRIVE_CANCEL_S: Final = 5.0
"""How long whoever cancels a redrive waits for what is under way."""
LETTERS_AT_ONCE: Final = 256
"""Dead letters that are looked at before others get a turn."""
MAX_LETTERS_LOOKED_AT: Final = 10_000
"""Of which one reply tells those that match."""
MAX_PAGE_BYTES: Final = 3 * MIB
"""A page of schedules, readers or dead letters, as JSON, unless it has only one: over gRPC it is smaller, and clients
there take 4 MiB unless they are told otherwise."""
MAX_FILTER_OFFSETS: Final = 1000
MAX_FILTER_HEADERS: Final = 16

# Machines
RECORDS_PER_SNAPSHOT: Final = 10_000

# Housekeeping
CLOCK_STEP_MS: Final = 500
"""A change of the wall's clock against one that never steps that is worth a word."""
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
MAX_STAT_ROWS: Final = 1000
"""Of one answer about lanes, delays or deliveries."""
HANDLE_NONCE_CHARS: Final = 32
MAX_HANDLE_CHARS: Final = MAX_NAME_PART + 3 * len(":9223372036854775807") + 1 + HANDLE_NONCE_CHARS
"""Of a receipt handle: a topic's name, three numbers, a nonce."""
MAX_LIST_BYTES: Final = 4 * MIB
"""A JSON reply that names every topic."""
MAX_JSON_READ_BYTES: Final = 8 * MIB
"""Bytes of records one JSON reply may carry, unless a single message is larger."""
ADMISSION_WAIT_S: Final = 5.0
"""How long a request waits for room before it is told that the broker is busy."""
BODY_GRACE_S: Final = 30.0
BODY_BYTES_PER_S: Final = 64 * KIB
"""A body, or a frame, must arrive in the grace time plus its size at this speed."""
SILENCE_S: Final = 30.0
"""A request, or a frame, that has begun is given up when nothing at all arrived of it for so long."""
LINGER_S: Final = 5.0
LINGER_BYTES: Final = 64 * MIB
"""A client that is refused in the middle of its body may go on sending for so long, and so much. It is read and thrown
away: many clients read no answer before they have sent everything."""
REPLY_TIMEOUT_S: Final = 60.0
"""How long a client may take to read a reply before it is cut off."""
REMEMBERED_HOSTS: Final = 64
"""Values of the header Host that were allowed and need not be looked at again."""
MAX_ALLOWED_NAMES: Final = 1000
"""Hosts, or origins, that a configuration lists."""
MAX_QUERY_FIELDS: Final = 32
MAX_PENDING_REQUESTS: Final = 1024
"""Requests of one connection that wait for their answers."""
SWEEP_INTERVAL_S: Final = 5.0
"""How often connections are looked at for those that do not get on."""
DRAIN_POLL_S: Final = 0.02
DRAIN_GRACE_S: Final = 10.0
"""How long a broker that stops waits for requests under way."""
