"""Records as bytes. This is the one place that chooses between the compiled codec and the Python reference.

`GOQUEUE_CODEC` says which: `auto` (compiled if it was built, else Python), `compiled` (or fail), `python`.
Everyone imports from here; nobody imports a twin directly.
"""

import importlib
import os
from typing import Final

from goqueue.codec.layout import Field, Flag, Picked, Problem, Scan, Selection, Survey
from goqueue.model.errors import InvalidSetting

__all__ = [
    "COMPILED",
    "Field",
    "Flag",
    "Picked",
    "Problem",
    "Scan",
    "Selection",
    "Survey",
    "count_json",
    "count_protobuf",
    "crc32c",
    "decode",
    "encode",
    "field_values",
    "from_columns",
    "from_protobuf",
    "milestones",
    "murmur3",
    "pack_into",
    "pick",
    "producer_runs",
    "scan",
    "select",
    "stamp",
    "survey",
    "to_columns",
    "transaction_runs",
    "values",
]


def _choose(choice: str) -> bool:
    """Whether to use the compiled twin."""
    if choice not in ("auto", "compiled", "python"):
        raise InvalidSetting(f"GOQUEUE_CODEC is {choice!r}; it must be auto, compiled or python")
    if choice == "python":
        return False
    try:
        importlib.import_module("goqueue.codec._compiled")
    except ImportError as error:
        if choice == "compiled":
            raise InvalidSetting(
                f"GOQUEUE_CODEC asks for the compiled codec, which cannot be loaded ({error}); build it or use auto"
            ) from error
        return False
    return True


COMPILED: Final = _choose(os.environ.get("GOQUEUE_CODEC", "auto"))

if COMPILED:
    from goqueue.codec._compiled import (
        count_json,
        count_protobuf,
        crc32c,
        decode,
        encode,
        field_values,
        from_columns,
        from_protobuf,
        milestones,
        murmur3,
        pack_into,
        pick,
        producer_runs,
        scan,
        select,
        stamp,
        survey,
        to_columns,
        transaction_runs,
        values,
    )
else:
    from goqueue.codec.reference import (
        count_json,
        count_protobuf,
        crc32c,
        decode,
        encode,
        field_values,
        from_columns,
        from_protobuf,
        milestones,
        murmur3,
        pack_into,
        pick,
        producer_runs,
        scan,
        select,
        stamp,
        survey,
        to_columns,
        transaction_runs,
        values,
    )
