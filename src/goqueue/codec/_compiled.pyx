# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=True
"""The record codec, compiled. `codec.reference` is its twin and the one to read: same functions, same checks,
same order; the tests run over both. Constants repeat `codec.layout` and a test compares them.

No byte is touched before the lengths that lead to it were compared with the bytes there are. The GIL is held
throughout and a block must not change during a call: what was checked once is not checked again.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from goqueue.codec.layout import (
    BLOCK_NOT_ASCENDING, EMPTY_BLOCK, NOT_ASCENDING, NOT_COLUMNS, NOT_FIELDS, NOT_INT64, NOT_RANGES, REASONS,
    Field as _Field, HeaderColumns, Numbers, PartitionBlock, Picked, Pieces, Problem as _Problem, RecordColumns, Refusal, Scan,
    Selection, SortedBlock, Survey,
)
from goqueue.model.errors import InvalidRecord
from goqueue.model.record import Extension, Producer, Record

cdef extern from "crc32c.h" nogil:
    const uint32_t GQ_CRC_START
    void gq_crc_init()
    const char *gq_crc_choose(int allow_hardware)
    uint32_t gq_crc(uint32_t crc, const uint8_t *p, size_t n)
    void gq_crc_pair(uint32_t *first, uint32_t *other, const uint8_t *p, size_t n)

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

include "_constants.pxi"

cdef tuple PROBLEM_OF = tuple(sorted(_Problem))
cdef object RECORD = Record
cdef object EXTENSION_TYPE = Extension
cdef object PRODUCER_TYPE = Producer
cdef object REFUSE_NUMBER = Refusal.NUMBER
cdef object REFUSE_PRIORITY = Refusal.PRIORITY
cdef array.array UINTS = array.array("I")
cdef array.array LONGS = array.array("q")
cdef array.array BYTES = array.array("B")
assert UINTS.itemsize == 4 and LONGS.itemsize == 8

gq_crc_init()


# --- Numbers in bytes

cdef inline uint16_t load16(const uint8_t *p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])

cdef inline uint32_t load32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]

cdef inline int64_t load64(const uint8_t *p) noexcept nogil:
    return <int64_t>((<uint64_t>load32(p) << 32) | load32(p + 4))

cdef inline void store16(uint8_t *p, uint16_t n) noexcept nogil:
    p[0] = <uint8_t>(n >> 8)
    p[1] = <uint8_t>n

cdef inline void store32(uint8_t *p, uint32_t n) noexcept nogil:
    store16(p, <uint16_t>(n >> 16))
    store16(p + 2, <uint16_t>n)

cdef inline void store64(uint8_t *p, int64_t n) noexcept nogil:
    store32(p, <uint32_t>(<uint64_t>n >> 32))
    store32(p + 4, <uint32_t>n)

cdef inline int count_bits(uint32_t bits) noexcept nogil:
    cdef int count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count

cdef inline int field_at(uint32_t mask, int field) noexcept nogil:
    """Where a field lies in a record whose mask has it."""
    return FIELDS_AT + FIELD_BYTES * count_bits(mask & ((<uint32_t>1 << field) - 1))

cdef inline uint32_t rotate(uint32_t n, int by) noexcept nogil:
    return (n << by) | (n >> (32 - by))

cdef uint32_t murmur(const uint8_t *p, size_t n) noexcept nogil:
    cdef uint32_t h = 0, k
    cdef size_t left = n
    while left >= 4:
        k = p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)
        h = rotate(h ^ (rotate(k * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593), 13) * 5 + <uint32_t>0xE6546B64
        p += 4
        left -= 4
    if left:
        k = p[0]
        if left > 1:
            k |= <uint32_t>p[1] << 8
        if left > 2:
            k |= <uint32_t>p[2] << 16
        h ^= rotate(k * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593
    h ^= <uint32_t>n
    h = (h ^ (h >> 16)) * <uint32_t>0x85EBCA6B
    h = (h ^ (h >> 13)) * <uint32_t>0xC2B2AE35
    return h ^ (h >> 16)


# --- Looking at one record

cdef struct Shape:
    size_t size
    size_t extension_bytes  # with its length field; 0 without an extension
    size_t key_bytes
    size_t value_bytes
    size_t headers_bytes
    uint32_t mask  # set by read_mask
    uint8_t flags

cdef int locate(const uint8_t *p, size_t available, Shape *s) noexcept nogil:
    """The fixed header and the total length: after this every part lies inside the block."""
    cdef size_t length
    if p[0] != MAGIC_0 or (available > 1 and p[1] != MAGIC_1):
        return BAD_MAGIC
    if available > VERSION_AT and p[VERSION_AT] != VERSION:
        return BAD_VERSION
    if available < HEADER_BYTES:
        return INCOMPLETE
    s.flags = p[FLAGS_AT]
    if s.flags & ~ALL_FLAGS or (s.flags & (CONTROL | COMMIT)) == COMMIT:
        return BAD_FLAGS
    if p[RESERVED_AT]:
        return BAD_RESERVED
    if p[PRIORITY_AT] >= LANES:
        return BAD_PRIORITY
    s.key_bytes = load16(p + KEY_LENGTH_AT)
    s.value_bytes = load32(p + VALUE_LENGTH_AT)
    s.headers_bytes = load16(p + HEADERS_LENGTH_AT)
    if (s.flags & NO_KEY and s.key_bytes) or (s.flags & NO_VALUE and s.value_bytes):
        return BAD_LENGTHS
    s.mask = 0
    s.extension_bytes = EXTENSION_LENGTH_BYTES if s.flags & EXTENSION else 0
    if s.value_bytes > MAX_RECORD_BYTES:  # so that a size_t of 32 bits cannot overflow below
        return TOO_LARGE
    s.size = HEADER_BYTES + s.extension_bytes + s.key_bytes + s.value_bytes + s.headers_bytes
    if s.size > MAX_RECORD_BYTES:
        return TOO_LARGE
    if s.flags & EXTENSION:
        if available < MASK_AT:
            return INCOMPLETE
        length = load16(p + HEADER_BYTES)
        if length > MAX_EXTENSION_BYTES:
            return TOO_LARGE
        s.extension_bytes += length
        s.size += length
        if s.size > MAX_RECORD_BYTES:
            return TOO_LARGE
    return INCOMPLETE if available < s.size else OK

cdef inline size_t read_mask(const uint8_t *p, Shape *s) noexcept nogil:
    """Set the mask; gives the bytes it needs for itself, its fields and a blob's length, 0 if they are not there."""
    cdef size_t there = s.extension_bytes - EXTENSION_LENGTH_BYTES, needed
    if there < MASK_BYTES:
        return 0
    s.mask = load16(p + MASK_AT)
    needed = MASK_BYTES + FIELD_BYTES * count_bits(s.mask & FIELDS_MASK)
    if s.mask >> BLOB_BIT:
        needed += BLOB_LENGTH_BYTES
    return 0 if needed > there else needed

cdef int check_extension(const uint8_t *p, Shape *s) noexcept nogil:
    cdef size_t expected = read_mask(p, s), length
    cdef uint32_t mask = s.mask
    if not expected or not mask or ((mask >> PRODUCER_ID) ^ (mask >> PRODUCER_SEQUENCE)) & 1:
        return BAD_EXTENSION
    if (mask >> PRODUCER_SEQUENCE) & 1 and load16(p + field_at(mask, PRODUCER_SEQUENCE) + 2):
        return BAD_EXTENSION
    if mask >> BLOB_BIT:
        length = load16(p + MASK_AT + expected - BLOB_LENGTH_BYTES)
        if length > MAX_BLOB_BYTES:
            return BAD_EXTENSION
        expected += length
    return OK if expected == s.extension_bytes - EXTENSION_LENGTH_BYTES else BAD_EXTENSION

cdef int check_headers(const uint8_t *p, size_t there) noexcept nogil:
    cdef size_t at = HEADER_COUNT_BYTES, pieces
    if there < HEADER_COUNT_BYTES:
        return BAD_HEADERS
    pieces = 2 * <size_t>load16(p)
    if not pieces:
        return BAD_HEADERS
    while pieces:
        if at + HEADER_LENGTH_BYTES > there:
            return BAD_HEADERS
        at += HEADER_LENGTH_BYTES + load16(p + at)
        pieces -= 1
    return OK if at == there else BAD_HEADERS

cdef inline uint32_t checksum(const uint8_t *p, size_t size) noexcept nogil:
    return ~gq_crc(gq_crc(GQ_CRC_START, p, CRC_AT), p + OFFSET_AT, size - OFFSET_AT)

cdef int examine(const uint8_t *p, size_t available, bint verify, Shape *s) noexcept nogil:
    """Check everything about the record at `p`."""
    cdef int problem = locate(p, available, s)
    if problem:
        return problem
    if verify and checksum(p, s.size) != load32(p + CRC_AT):
        return BAD_CHECKSUM
    if s.flags & EXTENSION:
        problem = check_extension(p, s)
        if problem:
            return problem
    if s.headers_bytes:
        return check_headers(p + s.size - s.headers_bytes, s.headers_bytes)
    return OK


# --- Blocks and columns

cdef class Bytes:
    """A block's buffer, held as long as this object lives."""
    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef size_t size

    def __cinit__(self, block, bint writable=False):
        PyObject_GetBuffer(block, &self.buffer, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        if <uint64_t>self.buffer.len > <uint64_t>0xFFFFFFFF:
            raise ValueError("a block must be smaller than 4 GiB: positions in it have four bytes")
        self.data = <const uint8_t *>self.buffer.buf
        self.size = <size_t>self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef class Columns:
    """A `Scan` in the making."""
    cdef array.array positions, offsets, timestamps, flags, lanes, key_hashes
    cdef Py_ssize_t count, room

    def __cinit__(self, Py_ssize_t room):
        self.room = room
        self.positions = array.clone(UINTS, room, False)
        self.offsets = array.clone(LONGS, room, False)
        self.timestamps = array.clone(LONGS, room, False)
        self.flags = array.clone(BYTES, room, False)
        self.lanes = array.clone(BYTES, room, False)
        self.key_hashes = array.clone(UINTS, room, False)

    cdef int resize(self, Py_ssize_t room) except -1:
        array.resize(self.positions, room)
        array.resize(self.offsets, room)
        array.resize(self.timestamps, room)
        array.resize(self.flags, room)
        array.resize(self.lanes, room)
        array.resize(self.key_hashes, room)
        self.room = room
        return 0

    cdef inline int add(self, const uint8_t *p, Shape *s, size_t position, int64_t offset, int64_t time) except -1:
        cdef Py_ssize_t i = self.count
        if i == self.room:
            self.resize(2 * i)
        self.positions.data.as_uints[i] = <uint32_t>position
        self.offsets.data.as_longlongs[i] = offset
        self.timestamps.data.as_longlongs[i] = time
        self.flags.data.as_uchars[i] = s.flags
        self.lanes.data.as_uchars[i] = p[PRIORITY_AT]
        self.key_hashes.data.as_uints[i] = (
            0 if s.flags & NO_KEY else murmur(p + HEADER_BYTES + s.extension_bytes, s.key_bytes)
        )
        self.count = i + 1
        return 0

    cdef object scan(self, size_t end, int problem):
        if self.count != self.room:
            self.resize(self.count)
        return Scan(self.positions, self.offsets, self.timestamps, self.flags, self.lanes, self.key_hashes,
                    end, PROBLEM_OF[problem])


cdef Columns columns_for(Bytes block):
    """Room for the block's records if all are as large as the first; bounded, as the first may mislead."""
    cdef Shape s
    if not block.size or locate(block.data, block.size, &s):
        return Columns(1)
    return Columns(min(<size_t>FIRST_ROOM, block.size // s.size))


cdef int64_t number(object value, int64_t low, int64_t high, object refusal) except? -1:
    """`value` if it lies in the range, else ValueError(refusal)."""
    cdef int overflow
    cdef int64_t n = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or not low <= n <= high:
        raise ValueError(refusal)
    return n

include "_encode.pxi"


# --- Stamping

cdef struct Stamp:
    int64_t offset
    int64_t timestamp
    int64_t now
    bint with_producer
    int64_t producer_id
    int64_t producer_epoch
    int64_t sequence

cdef inline int64_t resolve(uint8_t *p, int64_t base) noexcept nogil:
    """The time at `p`; a negative one, "that long after `base`", is made absolute first."""
    cdef int64_t time = load64(p)
    if time < 0:
        time = MAX_INT64 if base > MAX_INT64 + time else base - time
        store64(p, time)
    return time

cdef void stamp_head(uint8_t *head, uint32_t mask, Py_ssize_t index, const Stamp *stamp) noexcept nogil:
    """Stamp a record's header and fixed-width fields; `mask` is 0 without an extension."""
    cdef int64_t due = stamp.now, time
    store64(head + OFFSET_AT, stamp.offset + index)
    store64(head + TIMESTAMP_AT, stamp.timestamp)
    if (mask >> DELIVER_AT) & 1:
        time = resolve(head + field_at(mask, DELIVER_AT), stamp.now)
        due = time if time > due else due
    if (mask >> EXPIRES_AT) & 1:
        resolve(head + field_at(mask, EXPIRES_AT), due)
    if stamp.with_producer:
        store64(head + field_at(mask, PRODUCER_ID), stamp.producer_id)
        store64(
            head + field_at(mask, PRODUCER_SEQUENCE),
            sequence_field(stamp.producer_epoch, (stamp.sequence + index) & SEQUENCE_MASK),
        )

cdef int examine_and_stamp(
    const uint8_t *p, size_t available, Py_ssize_t index, const Stamp *stamp, Shape *s, uint32_t *new_checksum
) noexcept nogil:
    """`examine`, and in the same pass over the bytes the checksum the record will have once stamped."""
    cdef uint8_t head[MAX_HEAD_BYTES]
    cdef size_t head_bytes = PRIORITY_AT  # past the timestamp, and a whole number of words past the checksum
    cdef uint32_t old, new
    cdef int problem = locate(p, available, s), extension_problem = OK
    if problem:
        return problem
    if s.flags & EXTENSION:
        extension_problem = check_extension(p, s)
        if not extension_problem and stamp.with_producer and not (s.mask >> PRODUCER_ID) & 1:
            extension_problem = BAD_PRODUCER
        head_bytes = FIELDS_AT + 2 + FIELD_BYTES * count_bits(s.mask & FIELDS_MASK)
        if head_bytes > s.size:
            head_bytes = s.size
    elif stamp.with_producer:
        extension_problem = BAD_PRODUCER
    if extension_problem:  # the order of the checks: what else is wrong with the record comes first
        problem = examine(p, available, True, s)
        return problem if problem else extension_problem
    memcpy(head, p, head_bytes)
    stamp_head(head, s.mask, index, stamp)
    old = gq_crc(GQ_CRC_START, p, CRC_AT)
    new = gq_crc(old, head + OFFSET_AT, head_bytes - OFFSET_AT)
    old = gq_crc(old, p + OFFSET_AT, head_bytes - OFFSET_AT)
    gq_crc_pair(&old, &new, p + head_bytes, s.size - head_bytes)
    if ~old != load32(p + CRC_AT):
        return BAD_CHECKSUM
    new_checksum[0] = ~new
    if s.headers_bytes:
        return check_headers(p + s.size - s.headers_bytes, s.headers_bytes)
    return OK

def stamp(block, *, offset, timestamp, now=None, producer=None):
    """Give every record its offset, the append time and, if asked, its producer's fields; resolve relative times.

    Those count from `now`, or from the append time without it. The whole block is validated first: on any problem `InvalidRecord` is raised and no byte has changed.
    """
    cdef Bytes view = Bytes(block, True)
    cdef Stamp what
    cdef Shape s
    cdef Columns columns
    cdef array.array checksums
    cdef size_t position = 0
    cdef Py_ssize_t index
    cdef uint32_t new_checksum = 0
    cdef int problem
    cdef const uint8_t *p
    cdef uint8_t *written
    cdef object reason = "an offset and a timestamp to stamp must be at least 0 and below 2**62"
    what.offset = number(offset, 0, MAX_STAMP - 1, reason)
    what.timestamp = number(timestamp, 0, MAX_STAMP - 1, reason)
    what.now = what.timestamp if now is None else number(now, 0, MAX_STAMP - 1, reason)
    what.with_producer = producer is not None
    if what.with_producer:
        reason = "a producer to stamp must have an int64 id, an int16 epoch and a sequence from 0 to 2**31 - 1"
        what.producer_id = number(producer.producer_id, -MAX_INT64 - 1, MAX_INT64, reason)
        what.producer_epoch = number(producer.producer_epoch, -0x8000, 0x7FFF, reason)
        what.sequence = number(producer.sequence, 0, SEQUENCE_MASK, reason)
    if not view.size:
        raise InvalidRecord(EMPTY_BLOCK, index=0, position=0)
    columns = columns_for(view)
    checksums = array.clone(UINTS, columns.room, False)
    while position < view.size:
        p = view.data + position
        index = columns.count
        problem = examine_and_stamp(p, view.size - position, index, &what, &s, &new_checksum)
        if problem:
            raise InvalidRecord(REASONS[PROBLEM_OF[problem]], index=index, position=position)
        columns.add(p, &s, position, what.offset + index, what.timestamp)
        if len(checksums) != columns.room:
            array.resize(checksums, columns.room)
        checksums.data.as_uints[index] = new_checksum
        position += s.size
    for index in range(columns.count):
        written = <uint8_t *>view.data + columns.positions.data.as_uints[index]
        stamp_head(written, load16(written + MASK_AT) if written[FLAGS_AT] & EXTENSION else 0, index, &what)
        store32(written + CRC_AT, checksums.data.as_uints[index])
    return columns.scan(position, OK)


# --- Reading

def scan(block):
    """The block's valid prefix; never raises for what the bytes are."""
    cdef Bytes view = Bytes(block)
    cdef Columns columns = columns_for(view)
    cdef Shape s
    cdef size_t position = 0
    cdef const uint8_t *p
    cdef int problem = OK
    while position < view.size:
        p = view.data + position
        problem = examine(p, view.size - position, True, &s)
        if problem:
            break
        columns.add(p, &s, position, load64(p + OFFSET_AT), load64(p + TIMESTAMP_AT))
        position += s.size
    return columns.scan(position, problem)

def select(block, *, int64_t from_offset, int64_t to_offset, int64_t max_count, int64_t max_bytes):
    """The run of records from `from_offset` up to `to_offset` (not included), within the bounds.

    The first record is taken even if it is larger than `max_bytes`. The walk ends at `Selection.end`, and
    that is where `problem` is; a block that the caller cut short ends with INCOMPLETE like any other.
    """
    cdef Bytes view = Bytes(block)
    cdef Shape s
    cdef size_t start = 0, end = 0
    cdef int64_t count = 0, last_offset = -1, offset
    cdef int problem = OK
    while end < view.size and count < max_count:
        problem = examine(view.data + end, view.size - end, True, &s)
        if problem:
            break
        offset = load64(view.data + end + OFFSET_AT)
        if not count and offset < from_offset:
            end += s.size
            start = end
            continue
        if offset >= to_offset or (count and <int64_t>(end + s.size - start) > max_bytes):
            break
        end += s.size
        count += 1
        last_offset = offset
    return Selection(start, end, count, last_offset, PROBLEM_OF[problem])

def survey(block):
    """What the block's records have and how large they are, from headers and masks alone; no checksum is looked at.

    Never raises for what the bytes are. A record that `scan` accepts can be walked; not the other way round.
    """
    cdef Bytes view = Bytes(block)
    cdef Shape s
    cdef size_t count = 0, largest = 0, end = 0, message
    cdef uint32_t flags = 0, fields = 0, headers = 0
    cdef int problem = OK
    while end < view.size:
        problem = locate(view.data + end, view.size - end, &s)
        if not problem and s.flags & EXTENSION and not read_mask(view.data + end, &s):
            problem = BAD_EXTENSION
        if problem:
            break
        count += 1
        flags |= s.flags
        fields |= s.mask
        message = s.key_bytes + s.value_bytes + s.headers_bytes
        if message > largest:
            largest = message
        end += s.size
        if s.headers_bytes >= HEADER_COUNT_BYTES:
            headers = max(headers, load16(view.data + end - s.headers_bytes))
    return Survey(count, flags, fields, largest, headers, end, PROBLEM_OF[problem])

def decode(block, *, bint verified=False):
    """Every record of the block; raises `InvalidRecord` at the first problem.

    `verified` leaves out the checksums, for bytes whose checksums were just looked at; nothing else.
    """
    cdef Bytes view = Bytes(block)
    cdef list records = []
    cdef Shape s
    cdef size_t position = 0
    cdef int problem
    while position < view.size:
        problem = examine(view.data + position, view.size - position, not verified, &s)
        if problem:
            raise InvalidRecord(REASONS[PROBLEM_OF[problem]], index=len(records), position=position)
        records.append(decode_one(view.data + position, &s))
        position += s.size
    return records

def values(block):
    """The value of every record of the block; raises `InvalidRecord` at the first problem."""
    cdef Bytes view = Bytes(block)
    cdef list found = []
    cdef Shape s
    cdef size_t position = 0
    cdef int problem
    while position < view.size:
        problem = examine(view.data + position, view.size - position, True, &s)
        if problem:
            raise InvalidRecord(REASONS[PROBLEM_OF[problem]], index=len(found), position=position)
        found.append(
            None if s.flags & NO_VALUE else PyBytes_FromStringAndSize(
                <const char *>view.data + position + HEADER_BYTES + s.extension_bytes + s.key_bytes, s.value_bytes
            )
        )
        position += s.size
    return found

cdef object decode_one(const uint8_t *p, Shape *s):
    cdef const uint8_t *key = p + HEADER_BYTES + s.extension_bytes
    cdef const uint8_t *value = key + s.key_bytes
    return RECORD(
        load64(p + OFFSET_AT),
        load64(p + TIMESTAMP_AT),
        None if s.flags & NO_KEY else PyBytes_FromStringAndSize(<const char *>key, s.key_bytes),
        None if s.flags & NO_VALUE else PyBytes_FromStringAndSize(<const char *>value, s.value_bytes),
        <int>p[PRIORITY_AT],
        decode_headers(value + s.value_bytes) if s.headers_bytes else (),
        decode_extension(p, s) if s.flags & EXTENSION else None,
        True if s.flags & CONTROL else False,
        True if s.flags & COMMIT else False,
    )

cdef tuple decode_headers(const uint8_t *p):
    """The section at `p`, which check_headers accepted."""
    cdef Py_ssize_t count = load16(p), i, length
    cdef tuple headers = PyTuple_New(count)
    cdef object name, header
    p += HEADER_COUNT_BYTES
    for i in range(count):
        length = load16(p)
        p += HEADER_LENGTH_BYTES
        name = PyUnicode_DecodeUTF8(<const char *>p, length, "surrogateescape")
        p += length
        length = load16(p)
        p += HEADER_LENGTH_BYTES
        header = (name, PyBytes_FromStringAndSize(<const char *>p, length))
        p += length
        Py_INCREF(header)
        PyTuple_SET_ITEM(headers, i, header)
    return headers

cdef inline object decode_field(const uint8_t *p, uint32_t mask, int field):
    return load64(p + field_at(mask, field)) if (mask >> field) & 1 else None

cdef object decode_extension(const uint8_t *p, Shape *s):
    """None when all that is set is unknown to this version."""
    cdef uint32_t mask = s.mask
    cdef int64_t packed
    cdef const uint8_t *blob_at
    cdef object producer = None, blob = None
    if not mask & (((1 << (TRANSACTION + 1)) - 1) | (1 << BLOB_BIT)):
        return None
    if (mask >> PRODUCER_ID) & 1:
        packed = load64(p + field_at(mask, PRODUCER_SEQUENCE))
        producer = PRODUCER_TYPE(decode_field(p, mask, PRODUCER_ID), epoch_of(packed), sequence_of(packed))
    if mask >> BLOB_BIT:
        blob_at = p + field_at(mask, BLOB_BIT)
        blob = PyBytes_FromStringAndSize(<const char *>blob_at + BLOB_LENGTH_BYTES, load16(blob_at))
    return EXTENSION_TYPE(
        deliver_at=decode_field(p, mask, DELIVER_AT),
        expires_at=decode_field(p, mask, EXPIRES_AT),
        event_time=decode_field(p, mask, EVENT_TIME),
        producer=producer,
        transaction=decode_field(p, mask, TRANSACTION),
        blob=blob,
    )

include "_picking.pxi"
include "_columns.pxi"
include "_protobuf.pxi"
include "_counting.pxi"

def field_values(block, scan, int field):
    """Ordinals ('I') and values ('q') of one fixed-width field over the records that `scan` found in `block`."""
    cdef Bytes view = Bytes(block)
    cdef array.array flags = scan.flags
    cdef array.array positions = scan.positions
    cdef array.array ordinals = array.clone(UINTS, 0, False)
    cdef array.array values = array.clone(LONGS, 0, False)
    cdef Py_ssize_t i, found = 0
    cdef size_t at
    cdef uint32_t mask
    if not 0 <= field < BLOB_BIT or len(positions) != len(flags):
        raise ValueError("no such field, or a scan with columns of different lengths")
    for i in range(len(flags)):
        if not flags.data.as_uchars[i] & EXTENSION:
            continue
        at = positions.data.as_uints[i]
        if at + FIELDS_AT > view.size:
            raise ValueError("the scan is not of this block")
        mask = load16(view.data + at + MASK_AT)
        if not (mask >> field) & 1:
            continue
        at += field_at(mask, field)
        if at + FIELD_BYTES > view.size:
            raise ValueError("the scan is not of this block")
        array.resize_smart(ordinals, found + 1)
        array.resize_smart(values, found + 1)
        ordinals.data.as_uints[found] = <uint32_t>i
        values.data.as_longlongs[found] = load64(view.data + at)
        found += 1
    return ordinals, values

def producer_runs(block, scan):
    """The records with producer fields that `scan` found in `block`, in order, neighbours folded into runs.

    A run is (producer id, producer epoch, first sequence, first offset, count, last timestamp). A record extends
    the run of the record before it when it has the same id and epoch, and the next sequence and offset.
    """
    cdef Bytes view = Bytes(block)
    cdef array.array flags = scan.flags
    cdef array.array positions = scan.positions
    cdef array.array offsets = scan.offsets
    cdef array.array timestamps = scan.timestamps
    cdef list runs = []
    cdef Py_ssize_t i, count = 0  # 0: the record before this one is in no run
    cdef size_t at
    cdef uint32_t mask
    cdef int64_t producer_id, packed, offset
    cdef int64_t last_id = 0, last_packed = 0, last_offset = 0, first_packed = 0, first_offset = 0
    if not len(positions) == len(offsets) == len(timestamps) == len(flags):
        raise ValueError("a scan with columns of different lengths")
    for i in range(len(flags)):
        mask = 0
        if flags.data.as_uchars[i] & EXTENSION:
            at = positions.data.as_uints[i]
            if at + FIELDS_AT > view.size:
                raise ValueError("the scan is not of this block")
            mask = load16(view.data + at + MASK_AT)
        if not (mask >> PRODUCER_ID) & (mask >> PRODUCER_SEQUENCE) & 1:
            if count:
                runs.append(run_of(last_id, first_packed, first_offset, count, timestamps.data.as_longlongs[i - 1]))
                count = 0
            continue
        at += field_at(mask, PRODUCER_ID)
        if at + 2 * FIELD_BYTES > view.size:
            raise ValueError("the scan is not of this block")
        producer_id = load64(view.data + at)
        packed = load64(view.data + at + FIELD_BYTES)
        offset = offsets.data.as_longlongs[i]
        if (
            count and producer_id == last_id and epoch_of(packed) == epoch_of(last_packed)
            and sequence_of(packed) == ((sequence_of(last_packed) + 1) & SEQUENCE_MASK)
            and offset > last_offset and offset - 1 == last_offset  # in this order nothing can overflow
        ):
            count += 1
        else:
            if count:
                runs.append(run_of(last_id, first_packed, first_offset, count, timestamps.data.as_longlongs[i - 1]))
            count = 1
            first_packed = packed
            first_offset = offset
        last_id = producer_id
        last_packed = packed
        last_offset = offset
    if count:
        runs.append(run_of(last_id, first_packed, first_offset, count, timestamps.data.as_longlongs[len(flags) - 1]))
    return runs

cdef inline int64_t epoch_of(int64_t packed) noexcept nogil:
    """Of a PRODUCER_SEQUENCE field, signed."""
    return packed >> 48

cdef inline int64_t sequence_of(int64_t packed) noexcept nogil:
    """Of a PRODUCER_SEQUENCE field, signed."""
    return <int32_t><uint32_t>packed

cdef inline tuple run_of(int64_t producer_id, int64_t packed, int64_t offset, Py_ssize_t count, int64_t timestamp):
    return producer_id, epoch_of(packed), sequence_of(packed), offset, count, timestamp

def transaction_runs(block, scan):
    """The records with a transaction that `scan` found in `block`, in order, neighbours folded into runs.

    A run is (transaction, first offset, count, flags), of which flags only CONTROL and COMMIT. A record extends the run
    of the record before it when it has the same transaction and flags, and the next offset.
    """
    cdef Bytes view = Bytes(block)
    cdef array.array flags = scan.flags
    cdef array.array positions = scan.positions
    cdef array.array offsets = scan.offsets
    cdef list runs = []
    cdef Py_ssize_t i, count = 0  # 0: the record before this one is in no run
    cdef size_t at
    cdef uint32_t mask, kind, last_kind = 0
    cdef int64_t transaction, offset, last_transaction = 0, last_offset = 0, first_offset = 0
    if not len(positions) == len(offsets) == len(flags):
        raise ValueError("a scan with columns of different lengths")
    for i in range(len(flags)):
        mask = 0
        if flags.data.as_uchars[i] & EXTENSION:
            at = positions.data.as_uints[i]
            if at + FIELDS_AT > view.size:
                raise ValueError("the scan is not of this block")
            mask = load16(view.data + at + MASK_AT)
        if not (mask >> TRANSACTION) & 1:
            if count:
                runs.append((last_transaction, first_offset, count, last_kind))
                count = 0
            continue
        at += field_at(mask, TRANSACTION)
        if at + FIELD_BYTES > view.size:
            raise ValueError("the scan is not of this block")
        transaction = load64(view.data + at)
        offset = offsets.data.as_longlongs[i]
        kind = flags.data.as_uchars[i] & (CONTROL | COMMIT)
        if (
            count and transaction == last_transaction and kind == last_kind
            and offset > last_offset and offset - 1 == last_offset  # in this order nothing can overflow
        ):
            count += 1
        else:
            if count:
                runs.append((last_transaction, first_offset, count, last_kind))
            count = 1
            first_offset = offset
        last_transaction = transaction
        last_kind = kind
        last_offset = offset
    if count:
        runs.append((last_transaction, first_offset, count, last_kind))
    return runs

def milestones(scan, *, int64_t base, int64_t start, int64_t since, int64_t interval):
    """Index points: relative offsets ('I'), file positions ('I') and timestamps ('q') of some of the records.

    Record i lies at file position `start + positions[i]`. A record is a point when it lies at least `interval`
    bytes after the last one, which is at `since` to begin with. Offsets are relative to `base`.
    """
    cdef array.array positions = scan.positions
    cdef array.array offsets = scan.offsets
    cdef array.array timestamps = scan.timestamps
    cdef array.array points = array.clone(UINTS, 0, False)
    cdef array.array places = array.clone(UINTS, 0, False)
    cdef array.array times = array.clone(LONGS, 0, False)
    cdef Py_ssize_t i, found = 0
    cdef int64_t place
    if not len(positions) == len(offsets) == len(timestamps):
        raise ValueError("a scan with columns of different lengths")
    for i in range(len(positions)):
        place = start + <int64_t>positions.data.as_uints[i]
        if place - since >= interval:
            if not 0 <= offsets.data.as_longlongs[i] - base <= 0xFFFFFFFF or not 0 <= place <= 0xFFFFFFFF:
                raise OverflowError("an index point does not fit in four bytes")
            array.resize_smart(points, found + 1)
            array.resize_smart(places, found + 1)
            array.resize_smart(times, found + 1)
            points.data.as_uints[found] = <uint32_t>(offsets.data.as_longlongs[i] - base)
            places.data.as_uints[found] = <uint32_t>place
            times.data.as_longlongs[found] = timestamps.data.as_longlongs[i]
            found += 1
            since = place
    return points, places, times

def murmur3(data):
    """MurmurHash3, x86, 32 bit, seed 0, unsigned."""
    cdef Bytes view = Bytes(data)
    return murmur(view.data, view.size)

def crc32c(data, uint32_t crc=0):
    """CRC-32C of `data`, going on from `crc`."""
    cdef Bytes view = Bytes(data)
    return <uint32_t>~gq_crc(~crc, view.data, view.size)

def choose_crc(bint allow_hardware):
    """For tests: allow or forbid the processor's CRC instruction. Gives the path taken from now on."""
    return gq_crc_choose(allow_hardware).decode()
