# Part of _compiled.pyx: single records out of a block by their offsets.

cdef class Wanted:
    """A buffer of ascending int64, held as long as this object lives."""
    cdef Py_buffer buffer
    cdef Py_ssize_t count

    def __cinit__(self, offsets):
        cdef Py_ssize_t i
        PyObject_GetBuffer(offsets, &self.buffer, PyBUF_ND | PyBUF_FORMAT)
        if self.buffer.ndim != 1 or self.buffer.itemsize != 8 or not is_int64(self.buffer.format):
            raise ValueError(NOT_INT64)
        self.count = self.buffer.shape[0]
        for i in range(1, self.count):
            if self.at(i) <= self.at(i - 1):
                raise ValueError(NOT_ASCENDING)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    cdef inline int64_t at(self, Py_ssize_t i) noexcept:
        cdef int64_t n
        memcpy(&n, <const char *>self.buffer.buf + 8 * i, 8)  # wherever it begins: a slice of bytes may be odd
        return n

cdef inline bint is_int64(const char *format) noexcept:
    return format != NULL and (format[0] == c"q" or format[0] == c"l") and format[1] == 0

cdef inline bint has_expired(const uint8_t *p, Shape *s, int64_t now, int64_t ttl_ms) noexcept nogil:
    """`now` is above 0, so that nothing can overflow here."""
    cdef int64_t due, time
    if (s.mask >> EXPIRES_AT) & 1:
        time = load64(p + field_at(s.mask, EXPIRES_AT))
        return 0 < time <= now
    if ttl_ms < 0:
        return False
    due = load64(p + TIMESTAMP_AT)
    if (s.mask >> DELIVER_AT) & 1:
        time = load64(p + field_at(s.mask, DELIVER_AT))
        due = time if time > due else due
    return due <= now - ttl_ms

cdef inline int append_long(array.array numbers, int64_t n) except -1:
    cdef Py_ssize_t count = len(numbers)
    array.resize_smart(numbers, count + 1)
    numbers.data.as_longlongs[count] = n
    return 0

def pick(block, offsets, *, int64_t max_bytes, int64_t now=0, int64_t ttl_ms=-1):
    """The records at `offsets`, up to `max_bytes` of them; raises `InvalidRecord` at the first problem on the way.

    One record is picked even if it is larger than `max_bytes`. Control records are not picked, nor records that
    have expired at `now`: those with an EXPIRES_AT above 0 and not after it, and of those without one, if `ttl_ms`
    is not negative, those that have been due for that long. With a `now` of 0 nothing has expired. `next_offset` is
    that of the first record there was no room for; else, if all offsets were decided, the one after the last of
    them; else the one after the block's last record. In an empty block it is the first offset, or 0 without any.
    """
    cdef Bytes view = Bytes(block)
    cdef Wanted wanted = Wanted(offsets)
    # There is room for as many as there can be, so that it need not be looked at again.
    cdef Py_ssize_t room = min(<size_t>wanted.count, view.size // HEADER_BYTES)
    cdef array.array picked = array.clone(LONGS, room, False)
    cdef array.array key_hashes = array.clone(UINTS, room, False)
    cdef array.array flags = array.clone(BYTES, room, False)
    cdef array.array lanes = array.clone(BYTES, room, False)
    cdef array.array runs = array.clone(UINTS, 2 * room, False)  # of picked records: where each begins and ends
    cdef array.array expired = array.clone(LONGS, 0, False)
    cdef array.array missing = array.clone(LONGS, 0, False)
    cdef array.array controls = array.clone(LONGS, 0, False)
    cdef Shape s
    cdef const uint8_t *p
    cdef Py_ssize_t index = 0, decided = 0, count = 0, run_count = 0
    cdef size_t position = 0, size = 0
    cdef int64_t offset = 0, last_offset = 0
    cdef bint is_full = False
    cdef int problem
    while decided < wanted.count and position < view.size:
        p = view.data + position
        problem = examine(p, view.size - position, False, &s)
        if problem:
            raise InvalidRecord(REASONS[PROBLEM_OF[problem]], index=index, position=position)
        offset = load64(p + OFFSET_AT)
        if index and offset <= last_offset:
            raise ValueError(BLOCK_NOT_ASCENDING)
        while decided < wanted.count and wanted.at(decided) < offset:
            append_long(missing, wanted.at(decided))
            decided += 1
        if decided < wanted.count and wanted.at(decided) == offset:
            if s.flags & CONTROL:
                append_long(controls, offset)
            elif now > 0 and has_expired(p, &s, now, ttl_ms):
                append_long(expired, offset)
            else:
                if count and <int64_t>(size + s.size) > max_bytes:
                    is_full = True
                    break
                picked.data.as_longlongs[count] = offset
                key_hashes.data.as_uints[count] = (
                    0 if s.flags & NO_KEY else murmur(p + HEADER_BYTES + s.extension_bytes, s.key_bytes)
                )
                flags.data.as_uchars[count] = s.flags
                lanes.data.as_uchars[count] = p[PRIORITY_AT]
                if not run_count or runs.data.as_uints[2 * run_count - 1] != position:
                    runs.data.as_uints[2 * run_count] = <uint32_t>position
                    run_count += 1
                runs.data.as_uints[2 * run_count - 1] = <uint32_t>(position + s.size)
                count += 1
                size += s.size
            decided += 1
        last_offset = offset
        position += s.size
        index += 1
    if count != room:
        array.resize(picked, count)
        array.resize(key_hashes, count)
        array.resize(flags, count)
        array.resize(lanes, count)
    cdef object next_offset = 0
    if is_full:
        next_offset = offset
    elif wanted.count and decided == wanted.count:
        next_offset = <object>wanted.at(decided - 1) + 1
    elif index:
        next_offset = <object>last_offset + 1
    elif wanted.count:
        next_offset = wanted.at(0)
    cdef object data = picked_bytes(block, view, runs, run_count, size)
    return Picked(data, picked, key_hashes, flags, lanes, expired, missing, controls, next_offset)

cdef object picked_bytes(object block, Bytes view, array.array runs, Py_ssize_t run_count, size_t size):
    """Copied only where records between the picked ones are left out."""
    cdef bytes copied
    cdef char *to
    cdef Py_ssize_t i
    cdef size_t start, length
    if run_count == 1:
        return memoryview(block).cast("B")[runs.data.as_uints[0]:runs.data.as_uints[1]]
    copied = PyBytes_FromStringAndSize(NULL, size)
    to = PyBytes_AS_STRING(copied)
    for i in range(run_count):
        start = runs.data.as_uints[2 * i]
        length = runs.data.as_uints[2 * i + 1] - start
        memcpy(to, view.data + start, length)
        to += length
    return memoryview(copied)
