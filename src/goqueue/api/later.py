"""Lists of a request whose entries are read one by one, when whoever works on them comes to them.

Reading thousands of messages with all that is in them takes long, and is held by nobody: so the doors only look where
each of them begins and ends. What is wrong with an entry is said when it is read, in the words it would have had.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

import msgspec
from msgspec import NODEFAULT, Struct

from goqueue import codec
from goqueue.api.refusals import refuse, unreadable
from goqueue.model import limits
from goqueue.model.errors import TooLarge
from goqueue.wire.shapes import Request

T = TypeVar("T")


class Later(Sequence[T]):
    """The entries of a list that were not read yet. Each is made anew whenever it is asked for."""

    __slots__ = ("_items", "_read")

    def __init__(self, items: Sequence[Any], read: Callable[[int, Any], T]) -> None:
        self._items = items
        self._read = read

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self._read(number, self._items[number]) for number in range(*place.indices(len(self)))]
        return self._read(place, self._items[place])

    def __iter__(self) -> Iterator[T]:
        for number, item in enumerate(self._items):
            yield self._read(number, item)


def entry_of(request: type[Request], name: str) -> type[Struct]:
    """The struct type of the entries of the request's list field `name`."""
    kind = next(field.type for field in msgspec.inspect.type_info(request).fields if field.name == name)  # type: ignore[attr-defined]
    found: type[Struct] = kind.item_type.cls
    return found


def fields_of(request: type[Request], later: str | None, entry: type) -> list[Any]:
    """A request's fields, for `msgspec.defstruct`; those of the list that is read later are each an `entry`."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(request):
        kind = field.type if field.name != later else _list_of(field.type, entry)
        if field.required:
            fields.append((field.name, kind))
        elif field.default is not NODEFAULT:
            fields.append((field.name, kind, field.default))
        else:
            fields.append((field.name, kind, msgspec.field(default_factory=field.default_factory)))
    return fields


def _list_of(kind: Any, entry: type) -> Any:
    """A list with the same bounds."""
    return kind.copy_with((list[entry],))  # type: ignore[valid-type]


def check_values(count: int) -> None:
    """Refuse one message that has so many values that it has too many headers."""
    if count > limits.MAX_MESSAGE_VALUES:
        raise TooLarge(f"the message has too many headers; it may have {limits.MAX_HEADERS}")


class EntryReader:
    """Reads one entry, from JSON or from plain values."""

    def __init__(self, request: type[Request], name: str) -> None:
        self._request = request
        self._name = name
        self._entry = entry_of(request, name)
        self._decode = msgspec.json.Decoder(self._entry).decode

    def from_json(self, number: int, raw: msgspec.Raw) -> Any:
        if memoryview(raw).nbytes > limits.MAX_MESSAGE_VALUES:
            check_values(codec.count_json(memoryview(raw), limits.MAX_MESSAGE_VALUES))
        try:
            return self._decode(raw)
        except msgspec.ValidationError as error:
            raise self._refusal(number, error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise unreadable(f"{self._name}[{number}]", bytes(raw), error) from None

    def from_values(self, number: int, values: Any) -> Any:
        try:
            return msgspec.convert(values, self._entry)
        except msgspec.ValidationError as error:
            raise self._refusal(number, error) from None

    def _refusal(self, number: int, error: msgspec.ValidationError) -> Exception:
        place, text = f"`$.{self._name}[{number}]", str(error)
        at = text.rpartition(" - at ")
        if at[1] and "`$" in at[2]:
            text = f"{at[0]}{at[1]}{at[2].replace('`$', place, 1)}"
        else:
            text = f"{text} - at {place}`"
        return refuse(msgspec.ValidationError(text), self._request)
