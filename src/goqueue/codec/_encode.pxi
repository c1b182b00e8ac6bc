# Part of _compiled.pyx: records to bytes.

class Unfit(Exception):
    """A record breaks a limit; its argument is the `Refusal`. No error of the caller's looks like it."""


def encode(records):
    """The records as one block; raises `InvalidRecord` for the first one that breaks a limit."""
    cdef bytearray block = bytearray()
    cdef Py_ssize_t index = 0
    cdef object refusal
    for record in records:
        refusal = encode_one(block, record)
        if refusal is not None:
            raise InvalidRecord(str(refusal), index=index, position=len(block))
        index += 1
    return block

cdef object encode_one(bytearray block, object record):
    """Append the record to the block; gives back why not if it is refused."""
    cdef uint8_t fields[MAX_HEAD_BYTES]
    cdef size_t headers_bytes = 0, fixed_bytes = 0, extension_bytes = 0, size
    cdef size_t key_bytes = 0, value_bytes = 0, blob_bytes = 0
    cdef uint32_t mask = 0
    cdef int flags = 0, overflow
    cdef int64_t offset, timestamp, priority
    cdef bytes key = record.key, value = record.value, blob = None
    cdef list pieces = None
    cdef uint8_t *start
    cdef uint8_t *p
    priority = PyLong_AsLongLongAndOverflow(record.priority, &overflow)
    if overflow or not 0 <= priority < LANES:
        return Refusal.PRIORITY
    if record.control:
        flags = CONTROL
    if record.commit:
        if not flags:
            return Refusal.COMMIT
        flags |= COMMIT
    if key is None:
        flags |= NO_KEY
    else:
        key_bytes = PyBytes_GET_SIZE(key)
        if key_bytes > MAX_KEY_BYTES:
            return Refusal.KEY
    if value is None:
        flags |= NO_VALUE
    else:
        value_bytes = PyBytes_GET_SIZE(value)
    try:
        headers = record.headers
        if headers:
            pieces = header_pieces(headers, &headers_bytes)
    except Unfit as refused:
        return refused.args[0]
    try:
        offset = number(record.offset, -MAX_INT64 - 1, MAX_INT64, REFUSE_NUMBER)
        timestamp = number(record.timestamp, -MAX_INT64 - 1, MAX_INT64, REFUSE_NUMBER)
        extension = record.extension
        if extension is not None:
            mask = encode_fields(extension, fields)
            fixed_bytes = FIELD_BYTES * count_bits(mask)
            blob = extension.blob
    except ValueError as refused:
        return refused.args[0]
    if blob is not None:
        blob_bytes = PyBytes_GET_SIZE(blob)
        if blob_bytes > MAX_BLOB_BYTES:
            return Refusal.BLOB
        mask |= 1 << BLOB_BIT
        blob_bytes += BLOB_LENGTH_BYTES
    if mask:
        flags |= EXTENSION
        extension_bytes = EXTENSION_LENGTH_BYTES + MASK_BYTES + fixed_bytes + blob_bytes
    size = HEADER_BYTES + extension_bytes + key_bytes + value_bytes + headers_bytes
    if size > MAX_RECORD_BYTES:
        return Refusal.RECORD

    PyByteArray_Resize(block, len(block) + size)
    p = start = <uint8_t *>PyByteArray_AS_STRING(block) + len(block) - size
    put_head(p, flags, <int>priority, key_bytes, value_bytes, headers_bytes)
    store64(p + OFFSET_AT, offset)
    store64(p + TIMESTAMP_AT, timestamp)
    p += HEADER_BYTES
    if mask:
        store16(p, <uint16_t>(extension_bytes - EXTENSION_LENGTH_BYTES))
        store16(p + EXTENSION_LENGTH_BYTES, <uint16_t>mask)
        p += EXTENSION_LENGTH_BYTES + MASK_BYTES
        memcpy(p, fields, fixed_bytes)
        p += fixed_bytes
        if blob is not None:
            p = put_piece(p, blob)
    put_content(p, key, value, pieces)
    store32(start + CRC_AT, checksum(start, size))
    return None

def pack_into(
    buffer, Py_ssize_t position, bytes value, bytes key, priority, headers=(), deliver_at=None, expires_at=None,
    event_time=None, bint numbered=True, transaction=None
):
    """Write a message to `position`; gives where it ends. One that is `numbered` has room for its producer's fields.

    When it does not fit, gives minus the bytes it needs, and nothing is written; `InvalidRecord` if it breaks a limit.
    """
    cdef uint8_t fields[MAX_HEAD_BYTES]
    cdef uint8_t *last = fields
    cdef size_t key_bytes = 0, value_bytes = 0, headers_bytes = 0, fixed_bytes, head_bytes = HEADER_BYTES, size
    cdef uint32_t mask = 0
    cdef int flags = 0, lane
    cdef list pieces = None
    cdef Py_buffer into
    cdef uint8_t *p
    headers = tuple(headers)
    try:
        lane = <int>number(priority, 0, LANES - 1, REFUSE_PRIORITY)
        if key is None:
            flags |= NO_KEY
        else:
            key_bytes = PyBytes_GET_SIZE(key)
            if key_bytes > MAX_KEY_BYTES:
                raise Unfit(Refusal.KEY)
        if value is None:
            flags |= NO_VALUE
        else:
            value_bytes = PyBytes_GET_SIZE(value)
    except (Unfit, ValueError) as refused:
        raise InvalidRecord(str(refused.args[0]), index=0, position=max(0, position)) from None
    try:
        if headers:
            pieces = header_pieces(headers, &headers_bytes)
    except Unfit as refused:
        raise InvalidRecord(str(refused.args[0]), index=0, position=max(0, position)) from None
    try:
        if deliver_at is not None:
            last = put_field(last, number(deliver_at, -MAX_INT64 - 1, MAX_INT64, REFUSE_NUMBER), DELIVER_AT, &mask)
        if expires_at is not None:
            last = put_field(last, number(expires_at, -MAX_INT64 - 1, MAX_INT64, REFUSE_NUMBER), EXPIRES_AT, &mask)
        if event_time is not None:
            last = put_field(last, number(event_time, -MAX_INT64 - 1, MAX_INT64, REFUSE_NUMBER), EVENT_TIME, &mask)
        if numbered:
            last = put_field(last, 0, PRODUCER_ID, &mask)
            last = put_field(last, 0, PRODUCER_SEQUENCE, &mask)
        if transaction is not None:
            last = put_field(last, number(transaction, -MAX_INT64 - 1, MAX_INT64, REFUSE_NUMBER), TRANSACTION, &mask)
        fixed_bytes = last - fields
        if mask:
            flags |= EXTENSION
            head_bytes = FIELDS_AT + fixed_bytes
        size = head_bytes + key_bytes + value_bytes + headers_bytes
        if size > MAX_RECORD_BYTES:
            raise Unfit(Refusal.RECORD)
    except (Unfit, ValueError) as refused:
        raise InvalidRecord(str(refused.args[0]), index=0, position=max(0, position)) from None
    PyObject_GetBuffer(buffer, &into, PyBUF_WRITABLE)
    try:
        if position < 0 or <Py_ssize_t>size > into.len - position:
            return -<Py_ssize_t>size
        p = <uint8_t *>into.buf + position
        put_head(p, flags, lane, key_bytes, value_bytes, headers_bytes)
        store64(p + OFFSET_AT, 0)
        store64(p + TIMESTAMP_AT, 0)
        if mask:
            store16(p + HEADER_BYTES, <uint16_t>(MASK_BYTES + fixed_bytes))
            store16(p + MASK_AT, <uint16_t>mask)
            memcpy(p + FIELDS_AT, fields, fixed_bytes)
        put_content(p + head_bytes, key, value, pieces)
        store32(p + CRC_AT, checksum(p, size))
        return position + <Py_ssize_t>size
    finally:
        PyBuffer_Release(&into)

cdef list header_pieces(object headers, size_t *size):
    """Names and contents in turn, as bytes, and what they take; Unfit when they break a limit."""
    cdef list pieces = []
    cdef bytes piece
    size[0] = HEADER_COUNT_BYTES
    for name, content in headers:
        try:
            piece = (<str?>name).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise Unfit(Refusal.HEADER_NAME) from None
        pieces.append(piece)
        pieces.append(<bytes?>content)
        size[0] += 2 * HEADER_LENGTH_BYTES + PyBytes_GET_SIZE(piece) + PyBytes_GET_SIZE(content)
    if size[0] > MAX_HEADERS_BYTES:
        raise Unfit(Refusal.HEADERS)
    return pieces

cdef inline void put_head(
    uint8_t *p, int flags, int priority, size_t key_bytes, size_t value_bytes, size_t headers_bytes
) noexcept nogil:
    """The fixed header without checksum, offset and timestamp."""
    p[0] = MAGIC_0
    p[1] = MAGIC_1
    p[VERSION_AT] = VERSION
    p[FLAGS_AT] = <uint8_t>flags
    p[PRIORITY_AT] = <uint8_t>priority
    p[RESERVED_AT] = 0
    store16(p + KEY_LENGTH_AT, <uint16_t>key_bytes)
    store32(p + VALUE_LENGTH_AT, <uint32_t>value_bytes)
    store16(p + HEADERS_LENGTH_AT, <uint16_t>headers_bytes)

cdef void put_content(uint8_t *p, bytes key, bytes value, list pieces):
    """Key, value and headers."""
    cdef bytes piece
    if key is not None:
        memcpy(p, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        p += PyBytes_GET_SIZE(key)
    if value is not None:
        memcpy(p, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        p += PyBytes_GET_SIZE(value)
    if pieces is not None:
        store16(p, <uint16_t>(len(pieces) // 2))
        p += HEADER_COUNT_BYTES
        for piece in pieces:
            p = put_piece(p, piece)

cdef uint8_t *put_piece(uint8_t *p, bytes piece) noexcept:
    """Two bytes of length, then the bytes."""
    cdef size_t n = PyBytes_GET_SIZE(piece)
    store16(p, <uint16_t>n)
    memcpy(p + 2, PyBytes_AS_STRING(piece), n)
    return p + 2 + n

cdef uint32_t encode_fields(object extension, uint8_t *p) except? 0xFFFFFFFF:
    """Write the fixed-width fields to `p` in bit order; gives the mask."""
    cdef uint32_t mask = 0
    cdef int64_t low = -MAX_INT64 - 1
    value = extension.deliver_at
    if value is not None:
        p = put_field(p, number(value, low, MAX_INT64, REFUSE_NUMBER), DELIVER_AT, &mask)
    value = extension.expires_at
    if value is not None:
        p = put_field(p, number(value, low, MAX_INT64, REFUSE_NUMBER), EXPIRES_AT, &mask)
    value = extension.event_time
    if value is not None:
        p = put_field(p, number(value, low, MAX_INT64, REFUSE_NUMBER), EVENT_TIME, &mask)
    value = extension.producer
    if value is not None:
        p = put_field(p, number(value.producer_id, low, MAX_INT64, REFUSE_NUMBER), PRODUCER_ID, &mask)
        p = put_field(p, sequence_field(
            number(value.producer_epoch, -0x8000, 0x7FFF, REFUSE_NUMBER),
            number(value.sequence, -SEQUENCE_MASK - 1, SEQUENCE_MASK, REFUSE_NUMBER),
        ), PRODUCER_SEQUENCE, &mask)
    value = extension.transaction
    if value is not None:
        p = put_field(p, number(value, low, MAX_INT64, REFUSE_NUMBER), TRANSACTION, &mask)
    return mask

cdef inline uint8_t *put_field(uint8_t *p, int64_t value, int field, uint32_t *mask) noexcept nogil:
    store64(p, value)
    mask[0] |= <uint32_t>1 << field
    return p + FIELD_BYTES

cdef inline int64_t sequence_field(int64_t epoch, int64_t sequence) noexcept nogil:
    """The PRODUCER_SEQUENCE field: epoch (2 bytes), zero (2), sequence (4)."""
    return <int64_t>((<uint64_t><uint16_t>epoch << 48) | <uint32_t>sequence)
