"""Requests as JSON in a frame: the fields of the path and those of the request, together in one object.

Decoded by their shape, like over HTTP: a client cannot make the broker build what no operation asks for.
"""

from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct

from goqueue.api.operations import OPERATIONS, PATH_FIELDS, Operation
from goqueue.api.refusals import refuse, unreadable
from goqueue.wire.shapes import Request


def decode(operation: Operation, body: bytes) -> tuple[Request, dict[str, Any]]:
    """The request, and the fields that would stand in its path."""
    operation.check_size(body)
    try:
        whole = _DECODERS[operation.name].decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise refuse(error, operation.request) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable("the request", body, error) from None
    path = operation.path_of({name: getattr(whole, name) for name in operation.path_fields})
    own = {name: getattr(whole, name) for name in operation.request.__struct_fields__}
    return operation.request(**own), path


def _whole(operation: Operation) -> type[Struct]:
    """The operation's request with the fields of its path."""
    fields: list[Any] = [(name, PATH_FIELDS[name]) for name in operation.path_fields]
    for field in msgspec.structs.fields(operation.request):
        if field.required:
            fields.append((field.name, field.type))
        elif field.default is not NODEFAULT:
            fields.append((field.name, field.type, field.default))
        else:
            fields.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
    return msgspec.defstruct(f"{operation.name}_whole", fields, kw_only=True, forbid_unknown_fields=True)


_DECODERS: Final = {operation.name: msgspec.json.Decoder(_whole(operation)) for operation in OPERATIONS}
