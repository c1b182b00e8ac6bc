# Part of _compiled.pyx: plain messages of protobuf become blocks. `codec.protobuf` is the one to read.

cdef object SORTED_BLOCK = SortedBlock
cdef array.array SHORTS = array.array("H")
assert SHORTS.itemsize == 2

cdef enum:  # what follows a tag
    VARINT = 0
    FIXED_64 = 1
    PIECE = 2
    START_GROUP = 3
    END_GROUP = 4
    FIXED_32 = 5

cdef int64_t varint(const uint8_t *body, size_t *at, size_t end) noexcept nogil:
    """The number at a place, which moves behind it; -1 if it is cut short, or none of ours is that large."""
    cdef int64_t n = 0
    cdef int shift = 0
    while at[0] < end and shift < 35:
        n |= <int64_t>(body[at[0]] & 0x7F) << shift
        at[0] += 1
        if not body[at[0] - 1] & 0x80:
            return n
        shift += 7
    return -1

cdef int64_t skip(const uint8_t *body, size_t *at, size_t end, int64_t tag) noexcept nogil:
    """Move behind the content of a field, and give its length without what tells it; -1 if that is not all there."""
    cdef int64_t length
    if tag & 7 == VARINT:
        length = 0
        while at[0] < end:
            at[0] += 1
            length += 1
            if not body[at[0] - 1] & 0x80:
                return length
        return -1
    if tag & 7 == PIECE:
        length = varint(body, at, end)
    elif tag & 7 == FIXED_64:
        length = 8
    elif tag & 7 == FIXED_32:
        length = 4
    else:
        return -1
    if length < 0 or <size_t>length > end - at[0]:
        return -1
    at[0] += <size_t>length
    return length

cdef struct Plain:
    size_t key_at
    size_t value_at
    int64_t key_bytes  # below 0 without a key
    int64_t value_bytes
    int64_t partition  # below 0 if it names none

cdef bint read_plain(
    const uint8_t *body, size_t at, size_t end, int64_t value, int64_t key, int64_t partition, Plain *found
) noexcept nogil:
    """Whether a message has these fields only."""
    cdef int64_t tag, length
    found.key_bytes = -1
    found.value_bytes = 0
    found.partition = -1
    while at < end:
        tag = varint(body, &at, end)
        if tag == (partition << 3 | VARINT):
            found.partition = varint(body, &at, end)
            if found.partition < 0:
                return False
        elif tag == (key << 3 | PIECE) or tag == (value << 3 | PIECE):
            length = skip(body, &at, end, tag)
            if length < 0:
                return False
            if tag >> 3 == key:
                found.key_at = at - <size_t>length
                found.key_bytes = length
            else:
                found.value_at = at - <size_t>length
                found.value_bytes = length
        else:
            return False
    return True

def from_protobuf(
    body, *, int64_t messages, int64_t value, int64_t key, int64_t partition, Py_ssize_t count, int32_t partition_count,
    given, keyless, size_t max_bytes, bint numbered
):
    """The messages of a frame as blocks of their partitions; None if one of them is not plain.

    `messages` is the number of the frame's field they are in, and there are `count` of them; `value`, `key` and
    `partition` are fields of a message. Plain is a message that has no others, a value that is not empty, no more than
    `max_bytes` of key and value, and a partition there is. One that names none goes to the one that is `given`, or its
    key decides; all that have no key go to the one that `keyless` is asked for, once. If they are `numbered` they have
    room for their producer's fields, no key decides, and all are for one partition.
    """
    cdef Bytes frame = Bytes(body)
    cdef const uint8_t *p = frame.data
    cdef size_t at = 0, end = frame.size
    cdef int64_t tag, length, target, turn = -1, default = -1 if given is None else given
    cdef Py_ssize_t row = 0
    cdef size_t extra = FIELDS_AT - HEADER_BYTES + 2 * FIELD_BYTES if numbered else 0, size
    cdef Plain *plain
    cdef bytearray rows, block
    cdef Plain *all_rows
    cdef array.array sizes, counts, ordinals
    cdef list order = [], blocks
    cdef bint is_any_keyless = False
    if partition_count < 1 or not 0 <= count <= 0xFFFF or max_bytes > MAX_KEY_BYTES:
        return None
    if default >= partition_count or (given is not None and default < 0):
        return None
    rows = PyByteArray_FromStringAndSize(NULL, count * <Py_ssize_t>sizeof(Plain))
    all_rows = <Plain *>PyByteArray_AS_STRING(rows)
    while at < end:
        tag = varint(p, &at, end)
        length = skip(p, &at, end, tag) if tag >= 0 else -1
        if length < 0:
            return None
        if tag >> 3 != messages:
            continue
        plain = &all_rows[row]
        if (
            tag & 7 != PIECE or row == count
            or not read_plain(p, at - <size_t>length, at, value, key, partition, plain)
            or not plain.value_bytes or <size_t>(plain.value_bytes + max(plain.key_bytes, 0)) > max_bytes
        ):
            return None
        if plain.partition >= partition_count:
            return None
        if plain.partition < 0:
            plain.partition = default
            if default < 0 and numbered:
                return None
            if default < 0 and plain.key_bytes >= 0:
                plain.partition = murmur(p + plain.key_at, <size_t>plain.key_bytes) % <uint32_t>partition_count
            elif default < 0:
                is_any_keyless = True
        if numbered and row and plain.partition != all_rows[0].partition:
            return None
        row += 1
    if row != count:
        return None
    if is_any_keyless:  # whoever is asked has a turn less
        turn = keyless()
        if not 0 <= turn < partition_count:
            raise ValueError("messages without a key were given a partition that is not there")
    sizes = array.clone(LONGS, partition_count, True)
    counts = array.clone(LONGS, partition_count, True)
    blocks = [None] * partition_count
    for row in range(count):
        plain = &all_rows[row]
        if plain.partition < 0:
            plain.partition = turn
        target = plain.partition
        if not counts.data.as_longlongs[target]:
            order.append(target)
        counts.data.as_longlongs[target] += 1
        sizes.data.as_longlongs[target] += HEADER_BYTES + extra + max(plain.key_bytes, 0) + plain.value_bytes
    for target in order:
        blocks[target] = SORTED_BLOCK(
            target,
            array.clone(SHORTS, counts.data.as_longlongs[target], False),
            PyByteArray_FromStringAndSize(NULL, sizes.data.as_longlongs[target]),
        )
        counts.data.as_longlongs[target] = sizes.data.as_longlongs[target] = 0
    for row in range(count):
        plain = &all_rows[row]
        target = plain.partition
        _, ordinals, block = blocks[target]
        ordinals.data.as_ushorts[counts.data.as_longlongs[target]] = <uint16_t>row
        counts.data.as_longlongs[target] += 1
        size = put_plain(
            <uint8_t *>PyByteArray_AS_STRING(block) + sizes.data.as_longlongs[target], p, plain, numbered
        )
        sizes.data.as_longlongs[target] += size
    return [blocks[target] for target in order]

cdef size_t put_plain(uint8_t *p, const uint8_t *body, const Plain *plain, bint numbered) noexcept nogil:
    """Gives its size."""
    cdef size_t key_bytes = <size_t>max(plain.key_bytes, 0), value_bytes = <size_t>plain.value_bytes
    cdef uint8_t *to = p + HEADER_BYTES
    cdef int flags = 0
    cdef uint32_t mask = 0
    if plain.key_bytes < 0:
        flags |= NO_KEY
    if numbered:
        flags |= EXTENSION
        to = put_field(put_field(p + FIELDS_AT, 0, PRODUCER_ID, &mask), 0, PRODUCER_SEQUENCE, &mask)
        store16(p + HEADER_BYTES, <uint16_t>(to - p - MASK_AT))
        store16(p + MASK_AT, <uint16_t>mask)
    put_head(p, flags, NORMAL_LANE, key_bytes, value_bytes, 0)
    store64(p + OFFSET_AT, 0)
    store64(p + TIMESTAMP_AT, 0)
    if key_bytes:
        memcpy(to, body + plain.key_at, key_bytes)
    memcpy(to + key_bytes, body + plain.value_at, value_bytes)
    to += key_bytes + value_bytes
    store32(p + CRC_AT, checksum(p, <size_t>(to - p)))
    return <size_t>(to - p)
