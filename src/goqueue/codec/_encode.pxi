# Part of _compiled.pyx: records to bytes.

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
    cdef size_t position = len(block), headers_bytes = 0, fixed_bytes = 0, extension_bytes = 0, size
    cdef size_t key_bytes = 0, value_bytes = 0, blob_bytes = 0
    cdef uint32_t mask = 0
    cdef int flags = 0, overflow
    cdef int64_t offset, timestamp, priority
    cdef bytes key = record.key, value = record.value, blob = None, piece
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
    headers = record.headers
    if headers:
        pieces = []
        headers_bytes = HEADER_COUNT_BYTES
        for name, content in headers:
            try:
                piece = (<str?>name).encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                return Refusal.HEADER_NAME
            pieces.append(piece)
            pieces.append(<bytes?>content)
            headers_bytes += 2 * HEADER_LENGTH_BYTES + PyBytes_GET_SIZE(piece) + PyBytes_GET_SIZE(content)
        if headers_bytes > MAX_HEADERS_BYTES:
            return Refusal.HEADERS
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

    PyByteArray_Resize(block, position + size)
    start = p = <uint8_t *>PyByteArray_AS_STRING(block) + position
    p[0] = MAGIC_0
    p[1] = MAGIC_1
    p[VERSION_AT] = VERSION
    p[FLAGS_AT] = <uint8_t>flags
    store64(p + OFFSET_AT, offset)
    store64(p + TIMESTAMP_AT, timestamp)
    p[PRIORITY_AT] = <uint8_t>priority
    p[RESERVED_AT] = 0
    store16(p + KEY_LENGTH_AT, <uint16_t>key_bytes)
    store32(p + VALUE_LENGTH_AT, <uint32_t>value_bytes)
    store16(p + HEADERS_LENGTH_AT, <uint16_t>headers_bytes)
    p += HEADER_BYTES
    if mask:
        store16(p, <uint16_t>(extension_bytes - EXTENSION_LENGTH_BYTES))
        store16(p + EXTENSION_LENGTH_BYTES, <uint16_t>mask)
        p += EXTENSION_LENGTH_BYTES + MASK_BYTES
        memcpy(p, fields, fixed_bytes)
        p += fixed_bytes
        if blob is not None:
            p = put_piece(p, blob)
    if key_bytes:
        memcpy(p, PyBytes_AS_STRING(key), key_bytes)
        p += key_bytes
    if value_bytes:
        memcpy(p, PyBytes_AS_STRING(value), value_bytes)
        p += value_bytes
    if pieces is not None:
        store16(p, <uint16_t>(len(pieces) // 2))
        p += HEADER_COUNT_BYTES
        for piece in pieces:
            p = put_piece(p, piece)
    store32(start + CRC_AT, checksum(start, size))
    return None

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
