# Part of _compiled.pyx: records as columns laid out as Arrow's, and back. `codec.columns` is the one to read.

cdef object RECORD_COLUMNS = RecordColumns, HEADER_COLUMNS = HeaderColumns, PIECES = Pieces, NUMBERS = Numbers
cdef object PARTITION_BLOCK = PartitionBlock, FIELD_TYPE = _Field
cdef object REFUSE_KEY = Refusal.KEY, REFUSE_HEADERS = Refusal.HEADERS, REFUSE_RECORD = Refusal.RECORD
cdef array.array NO_RANGES = array.array("q")

cdef inline int32_t int_at(const uint8_t *p, Py_ssize_t i) noexcept nogil:
    cdef int32_t n
    memcpy(&n, p + 4 * i, 4)
    return n

cdef inline int64_t long_at(const uint8_t *p, Py_ssize_t i) noexcept nogil:
    cdef int64_t n
    memcpy(&n, p + 8 * i, 8)
    return n

cdef inline bint bit_at(const uint8_t *p, Py_ssize_t i) noexcept nogil:
    return (p[i >> 3] >> (i & 7)) & 1

cdef inline bytes room_for(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)

cdef inline uint8_t *in_bytes(bytes data) noexcept:
    return <uint8_t *>PyBytes_AS_STRING(data)


# --- From records

cdef class PieceColumn:
    """Pieces in the making, whose number and bytes are known."""
    cdef bytes present, bounds, data
    cdef uint8_t *bits
    cdef uint8_t *ends
    cdef uint8_t *to
    cdef Py_ssize_t row
    cdef int32_t at
    cdef bint is_whole

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t size):
        self.present = bytes((rows + 7) // 8)
        self.bounds = room_for(4 * (rows + 1))
        self.data = room_for(size)
        self.bits = in_bytes(self.present)
        self.ends = in_bytes(self.bounds)
        self.to = in_bytes(self.data)
        self.is_whole = True
        memcpy(self.ends, &self.at, 4)

    cdef inline void add(self, const uint8_t *piece, size_t size, bint is_there) noexcept:
        if is_there:
            memcpy(self.to + self.at, piece, size)
            self.at += <int32_t>size
            self.bits[self.row >> 3] |= <uint8_t>(1 << (self.row & 7))
        else:
            self.is_whole = False
        self.row += 1
        memcpy(self.ends + 4 * self.row, &self.at, 4)

    cdef object done(self):
        return PIECES(None if self.is_whole else self.present, self.bounds, self.data)

cdef object number_column(Bytes view, array.array positions, int field):
    cdef Py_ssize_t i, count = len(positions)
    cdef bytes present = bytes((count + 7) // 8), data = room_for(8 * count)
    cdef uint8_t *bits = in_bytes(present)
    cdef uint8_t *to = in_bytes(data)
    cdef const uint8_t *p
    cdef uint32_t mask
    cdef int64_t n
    cdef bint is_whole = True
    for i in range(count):
        p = view.data + positions.data.as_uints[i]
        mask = load16(p + MASK_AT) if p[FLAGS_AT] & EXTENSION else 0
        n = 0
        if (mask >> field) & 1:
            n = load64(p + field_at(mask, field))
            bits[i >> 3] |= <uint8_t>(1 << (i & 7))
        else:
            is_whole = False
        memcpy(to + 8 * i, &n, 8)
    return NUMBERS(None if is_whole else present, data)

cdef object header_columns(Bytes view, array.array positions, Py_ssize_t headers, size_t size):
    """`size` is that of all header sections together."""
    cdef Py_ssize_t i, count = len(positions)
    cdef bytes bounds = room_for(4 * (count + 1))
    cdef uint8_t *ends = in_bytes(bounds)
    cdef PieceColumn names, contents
    cdef size_t name_bytes = 0, content_bytes = 0, left, length
    cdef int32_t at = 0
    cdef const uint8_t *p
    cdef Shape s
    cdef int turn
    for turn in range(2):  # how many bytes there are, then the bytes
        if turn:
            names = PieceColumn(headers, name_bytes)
            contents = PieceColumn(headers, content_bytes)
            memcpy(ends, &at, 4)
        for i in range(count):
            p = view.data + positions.data.as_uints[i]
            locate(p, view.size - positions.data.as_uints[i], &s)
            left = 0
            if s.headers_bytes:
                p += s.size - s.headers_bytes
                left = load16(p)
                p += HEADER_COUNT_BYTES
            if turn:
                at += <int32_t>left
                memcpy(ends + 4 * (i + 1), &at, 4)
            while left:
                length = load16(p)
                p += HEADER_LENGTH_BYTES
                if turn:
                    names.add(p, length, True)
                name_bytes += length
                p += length
                length = load16(p)
                p += HEADER_LENGTH_BYTES
                if turn:
                    contents.add(p, length, True)
                content_bytes += length
                p += length
                left -= 1
    return HEADER_COLUMNS(bounds, names.done(), contents.done())

cdef class Hidden:
    """Ranges of offsets, held as long as this object lives; asked about offsets that ascend."""
    cdef Py_buffer buffer
    cdef Py_ssize_t count, at

    def __cinit__(self, offsets):
        cdef Py_ssize_t i
        PyObject_GetBuffer(offsets, &self.buffer, PyBUF_ND | PyBUF_FORMAT)
        if self.buffer.ndim != 1 or self.buffer.itemsize != 8 or not is_int64(self.buffer.format):
            raise ValueError(NOT_RANGES)
        self.count = self.buffer.shape[0]
        if self.count % 2:
            raise ValueError(NOT_RANGES)
        for i in range(1, self.count):
            if long_at(<const uint8_t *>self.buffer.buf, i) <= long_at(<const uint8_t *>self.buffer.buf, i - 1):
                raise ValueError(NOT_RANGES)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    cdef inline bint has(self, int64_t offset) noexcept:
        cdef const uint8_t *ranges = <const uint8_t *>self.buffer.buf
        while self.at < self.count and long_at(ranges, self.at + 1) <= offset:
            self.at += 2
        return self.at < self.count and long_at(ranges, self.at) <= offset

def to_columns(
    block, *, int64_t from_offset, int64_t to_offset, hidden=NO_RANGES, bint keys=True, bint values=True,
    bint headers=True, fields=()
):
    """The messages of a block from `from_offset` up to `to_offset` (not included), with the columns that are wanted.

    Control records are left out, and what lies in a range of `hidden`: a first offset and the one after the last, again
    and again. Every record of the block is looked at; raises `InvalidRecord` at the first problem.
    """
    cdef Bytes view = Bytes(block)
    cdef Hidden ranges = Hidden(hidden)
    cdef Shape s
    cdef const uint8_t *p
    cdef array.array positions
    cdef size_t position = 0, key_bytes = 0, value_bytes = 0, headers_bytes = 0
    cdef Py_ssize_t index = 0, count = 0, room = 1, header_count = 0, i
    cdef int64_t offset, last = -1
    cdef int problem
    if view.size and not locate(view.data, view.size, &s):
        room = max(1, <Py_ssize_t>min(<size_t>FIRST_ROOM, view.size // s.size))
    positions = array.clone(UINTS, room, False)
    while position < view.size:
        p = view.data + position
        problem = examine(p, view.size - position, True, &s)
        if problem:
            raise InvalidRecord(REASONS[PROBLEM_OF[problem]], index=index, position=position)
        offset = load64(p + OFFSET_AT)
        if index and offset <= last:
            raise ValueError(BLOCK_NOT_ASCENDING)
        if from_offset <= offset < to_offset and not s.flags & CONTROL and not ranges.has(offset):
            if count == room:
                room *= 2
                array.resize(positions, room)
            positions.data.as_uints[count] = <uint32_t>position
            key_bytes += s.key_bytes
            value_bytes += s.value_bytes
            if s.headers_bytes:
                headers_bytes += s.headers_bytes
                header_count += load16(p + s.size - s.headers_bytes)
            count += 1
        last = offset
        position += s.size
        index += 1
    array.resize(positions, count)
    if max(key_bytes, value_bytes, headers_bytes) > 0x7FFFFFFF:
        raise ValueError("the columns would be larger than 2 GiB: read less at once")

    cdef bytes offsets = room_for(8 * count), timestamps = room_for(8 * count), lanes = room_for(count)
    cdef PieceColumn key_column = PieceColumn(count, key_bytes) if keys else None
    cdef PieceColumn value_column = PieceColumn(count, value_bytes) if values else None
    for i in range(count):
        position = positions.data.as_uints[i]
        p = view.data + position
        locate(p, view.size - position, &s)
        offset = load64(p + OFFSET_AT)
        memcpy(in_bytes(offsets) + 8 * i, &offset, 8)
        offset = load64(p + TIMESTAMP_AT)
        memcpy(in_bytes(timestamps) + 8 * i, &offset, 8)
        in_bytes(lanes)[i] = p[PRIORITY_AT]
        p += HEADER_BYTES + s.extension_bytes
        if keys:
            key_column.add(p, s.key_bytes, not s.flags & NO_KEY)
        if values:
            value_column.add(p + s.key_bytes, s.value_bytes, not s.flags & NO_VALUE)
    return RECORD_COLUMNS(
        count, offsets, timestamps, lanes,
        key_column.done() if keys else None,
        value_column.done() if values else None,
        header_columns(view, positions, header_count, headers_bytes) if headers else None,
        {field: number_column(view, positions, field) for field in map(FIELD_TYPE, fields)},
    )


# --- To records

cdef class PieceRows:
    """Rows of pieces, checked once; `is_there` is False for all of them without a column."""
    cdef Bytes present, bounds, data
    cdef bint is_given

    def __cinit__(self, pieces, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef int32_t start, end
        self.is_given = pieces is not None
        if not self.is_given:
            return
        present, bounds, data = pieces
        self.present = present_bits(present, count)
        self.bounds = Bytes(bounds)
        self.data = Bytes(data)
        if self.bounds.size < 4 * (<size_t>count + 1):
            raise ValueError(NOT_COLUMNS)
        start = int_at(self.bounds.data, 0)
        if start < 0:
            raise ValueError(NOT_COLUMNS)
        for i in range(count):
            end = int_at(self.bounds.data, i + 1)
            if end < start:
                raise ValueError(NOT_COLUMNS)
            start = end
        if <size_t>start > self.data.size:
            raise ValueError(NOT_COLUMNS)

    cdef inline bint has(self, Py_ssize_t row) noexcept:
        return self.is_given and (self.present is None or bit_at(self.present.data, row))

    cdef inline const uint8_t *at(self, Py_ssize_t row) noexcept:
        return self.data.data + int_at(self.bounds.data, row)

    cdef inline size_t length(self, Py_ssize_t row) noexcept:
        if not self.has(row):
            return 0
        return <size_t>(int_at(self.bounds.data, row + 1) - int_at(self.bounds.data, row))

cdef Bytes present_bits(object present, Py_ssize_t count):
    if present is None:
        return None
    cdef Bytes bits = Bytes(present)
    if 8 * bits.size < <size_t>count:
        raise ValueError(NOT_COLUMNS)
    return bits

cdef class TimeRows:
    """Rows of one of the fields that can be packed."""
    cdef Bytes present, data

    def __cinit__(self, numbers, Py_ssize_t count):
        present, data = numbers
        self.present = present_bits(present, count)
        self.data = Bytes(data)
        if self.data.size < 8 * <size_t>count:
            raise ValueError(NOT_COLUMNS)

    cdef inline bint has(self, Py_ssize_t row) noexcept:
        return self.present is None or bit_at(self.present.data, row)

cdef class HeaderRows:
    """Rows of headers, checked once."""
    cdef Bytes bounds
    cdef PieceRows names, contents
    cdef bint is_given

    def __cinit__(self, headers, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef int32_t start, end
        self.is_given = headers is not None
        if not self.is_given:
            return
        bounds, names, contents = headers
        self.bounds = Bytes(bounds)
        if self.bounds.size < 4 * (<size_t>count + 1):
            raise ValueError(NOT_COLUMNS)
        start = int_at(self.bounds.data, 0)
        if start < 0:
            raise ValueError(NOT_COLUMNS)
        for i in range(count):
            end = int_at(self.bounds.data, i + 1)
            if end < start:
                raise ValueError(NOT_COLUMNS)
            start = end
        self.names = PieceRows(names, start)
        self.contents = PieceRows(contents, start)

    cdef int size(self, Py_ssize_t row, size_t *found) noexcept:
        """What the section takes; 0 without headers. -1 when it breaks a limit."""
        cdef Py_ssize_t first, end, i
        found[0] = 0
        if not self.is_given:
            return 0
        first = int_at(self.bounds.data, row)
        end = int_at(self.bounds.data, row + 1)
        if first == end:
            return 0
        found[0] = HEADER_COUNT_BYTES
        for i in range(first, end):
            found[0] += 2 * HEADER_LENGTH_BYTES + self.names.length(i) + self.contents.length(i)
            if found[0] > MAX_HEADERS_BYTES:
                return -1
        return 0

    cdef void put(self, Py_ssize_t row, uint8_t *p) noexcept:
        cdef Py_ssize_t first = int_at(self.bounds.data, row), end = int_at(self.bounds.data, row + 1), i
        store16(p, <uint16_t>(end - first))
        p += HEADER_COUNT_BYTES
        for i in range(first, end):
            p = put_part(p, self.names.at(i), self.names.length(i))
            p = put_part(p, self.contents.at(i), self.contents.length(i))

cdef inline uint8_t *put_part(uint8_t *p, const uint8_t *part, size_t size) noexcept:
    store16(p, <uint16_t>size)
    memcpy(p + HEADER_LENGTH_BYTES, part, size)
    return p + HEADER_LENGTH_BYTES + size

def from_columns(
    Py_ssize_t count, *, keys, values, headers, lanes, fields, partitions, int32_t partition_count, int32_t keyless,
    size_t max_bytes, transaction=None
):
    """So many messages as blocks of their partitions, in their order, with room for their producer's fields.

    `lanes` has a byte for each, `partitions` an int32: below 0 the key decides, and without a key it is `keyless`. A
    block has up to `max_bytes`, and one message at least. Raises `InvalidRecord` for the first that breaks a limit, with
    its row as `index`; ValueError when the columns are none.
    """
    cdef Packing packing = Packing(count, keys, values, headers, lanes, fields, transaction)
    cdef Bytes asked = Bytes(partitions)
    cdef array.array targets = array.clone(UINTS, count, False)  # which block a row goes to
    cdef array.array sizes = array.clone(UINTS, count, False)  # of blocks; there cannot be more than rows
    cdef array.array open_ones
    cdef list made = []
    cdef bytearray block
    cdef Py_ssize_t row, at
    cdef size_t size
    cdef int32_t partition
    if partition_count < 1 or not 0 <= keyless < partition_count or asked.size < 4 * <size_t>count:
        raise ValueError(NOT_COLUMNS)
    open_ones = array.clone(LONGS, partition_count, True)  # by partition: its last block, counted from 1
    for row in range(count):
        refusal = packing.measure(row, &size)
        if refusal is None:
            partition = int_at(asked.data, row)
            if partition < 0:
                partition = keyless
                if packing.keys.has(row):
                    partition = <int32_t>(
                        murmur(packing.keys.at(row), packing.keys.length(row)) % <uint32_t>partition_count
                    )
            elif partition >= partition_count:
                refusal = Refusal.PARTITION
        if refusal is not None:
            raise InvalidRecord(str(refusal), index=row, position=0)
        at = open_ones.data.as_longlongs[partition] - 1
        if at < 0 or sizes.data.as_uints[at] + size > max_bytes:
            at = len(made)
            open_ones.data.as_longlongs[partition] = at + 1
            sizes.data.as_uints[at] = 0
            made.append(partition)
        sizes.data.as_uints[at] += <uint32_t>size
        targets.data.as_uints[row] = <uint32_t>at
    cdef list blocks = [PyByteArray_FromStringAndSize(NULL, sizes.data.as_uints[at]) for at in range(len(made))]
    cdef array.array rows = array.clone(LONGS, len(made), True)
    for at in range(len(made)):
        sizes.data.as_uints[at] = 0
    for row in range(count):
        at = targets.data.as_uints[row]
        block = blocks[at]
        sizes.data.as_uints[at] += <uint32_t>packing.put(
            row, <uint8_t *>PyByteArray_AS_STRING(block) + sizes.data.as_uints[at]
        )
        rows.data.as_longlongs[at] += 1
    return [PARTITION_BLOCK(made[at], blocks[at], rows[at]) for at in range(len(made))]

cdef class Packing:
    """Rows that become records: how large each is, and its bytes."""
    cdef PieceRows keys, values
    cdef HeaderRows headers
    cdef TimeRows deliver_at, expires_at, event_time
    cdef Bytes lanes
    cdef bint is_in_transaction
    cdef int64_t transaction

    def __cinit__(self, Py_ssize_t count, keys, values, headers, lanes, fields, transaction):
        if count < 0:
            raise ValueError(NOT_COLUMNS)
        for field in fields:
            if not 0 <= <int>field <= EVENT_TIME:
                raise ValueError(NOT_FIELDS)
        self.keys = PieceRows(keys, count)
        self.values = PieceRows(values, count)
        self.headers = HeaderRows(headers, count)
        self.deliver_at = TimeRows(fields[DELIVER_AT], count) if DELIVER_AT in fields else None
        self.expires_at = TimeRows(fields[EXPIRES_AT], count) if EXPIRES_AT in fields else None
        self.event_time = TimeRows(fields[EVENT_TIME], count) if EVENT_TIME in fields else None
        self.lanes = Bytes(lanes)
        if self.lanes.size < <size_t>count:
            raise ValueError(NOT_COLUMNS)
        self.is_in_transaction = transaction is not None
        if self.is_in_transaction:
            self.transaction = number(transaction, -MAX_INT64 - 1, MAX_INT64, REFUSE_NUMBER)

    cdef inline size_t head_bytes(self, Py_ssize_t row) noexcept:
        cdef size_t numbers = 2 + self.is_in_transaction  # its producer's, and its transaction's
        numbers += self.deliver_at is not None and self.deliver_at.has(row)
        numbers += self.expires_at is not None and self.expires_at.has(row)
        numbers += self.event_time is not None and self.event_time.has(row)
        return FIELDS_AT + FIELD_BYTES * numbers

    cdef object measure(self, Py_ssize_t row, size_t *size):
        """Why it is no record, or None."""
        cdef size_t headers_bytes
        if self.lanes.data[row] >= LANES:
            return REFUSE_PRIORITY
        if self.keys.length(row) > MAX_KEY_BYTES:
            return REFUSE_KEY
        if self.headers.size(row, &headers_bytes):
            return REFUSE_HEADERS
        size[0] = self.head_bytes(row) + self.keys.length(row) + self.values.length(row) + headers_bytes
        return REFUSE_RECORD if size[0] > MAX_RECORD_BYTES else None

    cdef size_t put(self, Py_ssize_t row, uint8_t *p) noexcept:
        """A row that was measured; gives its size."""
        cdef size_t key_bytes = self.keys.length(row), value_bytes = self.values.length(row)
        cdef size_t headers_bytes = 0, size, head_bytes = self.head_bytes(row)
        cdef uint32_t mask = 0
        cdef uint8_t *to = p + FIELDS_AT
        cdef int flags = EXTENSION
        if not self.keys.has(row):
            flags |= NO_KEY
        if not self.values.has(row):
            flags |= NO_VALUE
        self.headers.size(row, &headers_bytes)
        size = head_bytes + key_bytes + value_bytes + headers_bytes
        put_head(p, flags, self.lanes.data[row], key_bytes, value_bytes, headers_bytes)
        store64(p + OFFSET_AT, 0)
        store64(p + TIMESTAMP_AT, 0)
        if self.deliver_at is not None and self.deliver_at.has(row):
            to = put_field(to, long_at(self.deliver_at.data.data, row), DELIVER_AT, &mask)
        if self.expires_at is not None and self.expires_at.has(row):
            to = put_field(to, long_at(self.expires_at.data.data, row), EXPIRES_AT, &mask)
        if self.event_time is not None and self.event_time.has(row):
            to = put_field(to, long_at(self.event_time.data.data, row), EVENT_TIME, &mask)
        to = put_field(to, 0, PRODUCER_ID, &mask)
        to = put_field(to, 0, PRODUCER_SEQUENCE, &mask)
        if self.is_in_transaction:
            to = put_field(to, self.transaction, TRANSACTION, &mask)
        store16(p + HEADER_BYTES, <uint16_t>(head_bytes - MASK_AT))
        store16(p + MASK_AT, <uint16_t>mask)
        if key_bytes:
            memcpy(to, self.keys.at(row), key_bytes)
        if value_bytes:
            memcpy(to + key_bytes, self.values.at(row), value_bytes)
        if headers_bytes:
            self.headers.put(row, to + key_bytes + value_bytes)
        store32(p + CRC_AT, checksum(p, size))
        return size
