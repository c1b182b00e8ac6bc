# Part of _compiled.pyx: how many values a request has. `codec.counting` is the one to read.

cdef enum:
    FIELD_NUMBERS = 64
    PACKED = -2
    MAX_DEPTH = 16

def count_json(data, Py_ssize_t most):
    """The values of a JSON text: texts, numbers, lists and objects, but not the names in an object.

    More than `most` are not counted on: then it is `most` and one.
    """
    cdef Bytes text = Bytes(data)
    cdef const uint8_t *p = text.data
    cdef const uint8_t *end = p + text.size
    cdef const uint8_t *from_here
    cdef const uint8_t *slash
    cdef Py_ssize_t count = 0
    with nogil:
        while p < end and p[0] in (c' ', c'\t', c'\r', c'\n'):
            p += 1
        if p < end:
            count = 1
        while p < end and count <= most:
            if p[0] in (c',', c'[', c'{'):
                count += 1
            elif p[0] == c'"':
                from_here = p + 1
                while True:
                    p = <const uint8_t *>memchr(p + 1, c'"', end - p - 1)
                    if p == NULL:
                        break
                    slash = p - 1
                    while slash >= from_here and slash[0] == c'\\':
                        slash -= 1
                    if (p - slash) & 1:
                        break
                    from_here = p + 1
                if p == NULL:
                    break
            p += 1
    return count

def count_protobuf(data, Py_ssize_t most, array.array nested):
    """The fields of a message of protobuf, and those of the messages in it.

    `nested` has `FIELD_NUMBERS` entries for each kind of message, the outermost first: by the number of a field, the
    kind of message that is in it, `NOT_NESTED`, or `PACKED`. More than `most` are not counted on.
    """
    cdef Bytes body = Bytes(data)
    cdef Py_ssize_t count
    with nogil:
        count = count_fields(body.data, 0, body.size, most, <const int16_t *>nested.data.as_shorts, 0, 0)
    return count

cdef Py_ssize_t count_fields(
    const uint8_t *body, size_t at, size_t end, Py_ssize_t most, const int16_t *nested, Py_ssize_t kind, int depth
) noexcept nogil:
    cdef Py_ssize_t count = 0
    cdef int64_t tag, length, within
    while at < end and count <= most:
        tag = varint(body, &at, end)
        if tag < 0:
            break
        count += 1
        if tag & 7 == START_GROUP or tag & 7 == END_GROUP:
            continue
        length = skip(body, &at, end, tag)
        if length < 0:
            break
        if tag & 7 == PIECE and tag >> 3 < FIELD_NUMBERS:
            within = nested[kind * FIELD_NUMBERS + (tag >> 3)]
            if within == PACKED:
                count += length
            elif within >= 0 and depth < MAX_DEPTH:
                count += count_fields(body, at - <size_t>length, at, most - count, nested, within, depth + 1)
    return min(count, most + 1)
