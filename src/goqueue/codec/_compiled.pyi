"""What mypy sees of `_compiled.pyx`: the functions of its twin, and what the tests compare."""

from goqueue.codec.reference import count_json as count_json
from goqueue.codec.reference import count_protobuf as count_protobuf
from goqueue.codec.reference import crc32c as crc32c
from goqueue.codec.reference import decode as decode
from goqueue.codec.reference import encode as encode
from goqueue.codec.reference import field_values as field_values
from goqueue.codec.reference import from_columns as from_columns
from goqueue.codec.reference import from_protobuf as from_protobuf
from goqueue.codec.reference import milestones as milestones
from goqueue.codec.reference import murmur3 as murmur3
from goqueue.codec.reference import pack_into as pack_into
from goqueue.codec.reference import pick as pick
from goqueue.codec.reference import producer_runs as producer_runs
from goqueue.codec.reference import scan as scan
from goqueue.codec.reference import select as select
from goqueue.codec.reference import stamp as stamp
from goqueue.codec.reference import survey as survey
from goqueue.codec.reference import to_columns as to_columns
from goqueue.codec.reference import transaction_runs as transaction_runs
from goqueue.codec.reference import values as values

CONSTANTS: dict[str, int | bytes]
FLAGS: dict[str, int]
FIELDS: dict[str, int]
PROBLEMS: dict[str, int]

def choose_crc(allow_hardware: bool) -> str: ...
