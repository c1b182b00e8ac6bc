"""Requests as JSON, at the doors that have them. In a frame of the wire door the fields of the path are in it, too.

Decoded by their shape: a client cannot make the broker build what no operation asks for. A large one has its values
counted before that, and has turns for both.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from goqueue import codec
from goqueue.api.later import EntryReader, Later, fields_of
from goqueue.api.operations import PATH_FIELDS, Operation
from goqueue.api.refusals import refuse, unreadable
from goqueue.api.service import Service
from goqueue.model import limits
from goqueue.wire.shapes import Request

_NO_BODY: Final = b"{}"

Body = bytes | bytearray


class Bodies:
    """Reads the bodies of the requests for one operation."""

    def __init__(self, operation: Operation, *, what: str, has_path: bool = False) -> None:
        """`what` a body is called in a refusal. It `has_path` if the fields of the path are in it, too."""
        self._operation = operation
        self._what = what
        self._path = operation.path_fields if has_path else ()
        self._whole: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            self._shape(None) if self._path else operation.request
        )
        self._entries = None if operation.later is None else EntryReader(operation.request, operation.later)
        self._large = self._whole if operation.later is None else msgspec.json.Decoder(self._shape(operation.later))

    def _shape(self, later: str | None) -> type[Struct]:
        """The request with the fields of its path; `later` is a list that stays as it lies in the body."""
        fields: list[Any] = [(name, PATH_FIELDS[name]) for name in self._path]
        fields += fields_of(self._operation.request, later, msgspec.Raw)
        return msgspec.defstruct(f"{self._operation.name}_body", fields, kw_only=True, forbid_unknown_fields=True)

    async def read(self, service: Service, body: Body, count: Callable[[int], None]) -> tuple[Request, dict[str, Any]]:
        """The request, and the fields of its path.

        Calls `count` with the bytes to charge for the values of a large body.
        """
        if len(body) <= limits.SMALL_JSON_BYTES:
            return self.decode(body)
        operation, turns = self._operation, service.turns
        operation.check_size(body)
        async with turns.turn():
            weight = operation.weigh(codec.count_json(body, operation.request_values))
        count(weight)
        async with turns.turn():
            return self.decode(body)

    def decode(self, body: Body) -> tuple[Request, dict[str, Any]]:
        """Read a body without a pause. The entries of a long list are read later if the body is large."""
        operation = self._operation
        operation.check_size(body)
        is_large = len(body) > limits.SMALL_JSON_BYTES and self._entries is not None
        found: Any
        try:
            found = (self._large if is_large else self._whole).decode(body or _NO_BODY)
        except msgspec.ValidationError as error:
            raise refuse(error, operation.request) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unreadable(self._what, body, error) from None
        if not is_large and not self._path:
            return found, {}
        path = operation.path_of({name: getattr(found, name) for name in self._path}) if self._path else {}
        own = {name: getattr(found, name) for name in operation.request.__struct_fields__}
        if is_large and self._entries is not None and operation.later is not None:
            own[operation.later] = Later(own[operation.later], self._entries.from_json)
        return operation.request(**own), path
