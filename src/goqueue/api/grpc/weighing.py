"""How many values a request has in protobuf, counted by the codec: it is told which fields have others in them."""

from array import array
from functools import cache

from goqueue import codec
from goqueue.api.grpc.translating import pb
from goqueue.codec.counting import FIELD_NUMBERS, NOT_NESTED, PACKED


def count_values(name: str, body: bytes, most: int) -> int:
    """Those of a message of that name, before anything is made of it; no more than one above `most`."""
    return codec.count_protobuf(body, most, _nested_in(name))


@cache
def _nested_in(name: str) -> "array[int]":
    kinds: dict[str, int] = {}
    waiting = [getattr(pb, name).DESCRIPTOR]
    table = array("h")
    while waiting:
        kind = waiting.pop(0)
        kinds.setdefault(kind.full_name, len(kinds))
        row = array("h", [NOT_NESTED]) * FIELD_NUMBERS
        for field in kind.fields:
            if field.number >= FIELD_NUMBERS:
                continue
            if field.message_type is not None:
                within = field.message_type
                if within.full_name not in kinds:
                    kinds[within.full_name] = len(kinds)
                    waiting.append(within)
                row[field.number] = kinds[within.full_name]
            elif field.is_packed:
                row[field.number] = PACKED
        table += row
    return table
