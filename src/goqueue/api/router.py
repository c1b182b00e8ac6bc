"""From a method and a path to an operation: a tree of path segments, built once from the table."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from goqueue.api.operations import PATH_FIELDS, Operation
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, MethodNotAllowed, UnknownOperation

PREFIX: Final = b"v1"
_MOST_DIGITS: Final = len(str(limits.MAX_OFFSET))


class _Node:
    """`fixed` segments first; otherwise whatever stands there is a value, of the kind that `field` has.

    Paths that go on differently may call it differently: an operation's own name for it is beside the operation.
    """

    __slots__ = ("field", "fixed", "operations", "variable")

    def __init__(self) -> None:
        self.fixed: dict[bytes, _Node] = {}
        self.variable: _Node | None = None
        self.field = ""
        self.operations: dict[str, tuple[Operation, tuple[str, ...]]] = {}
        """By method, with the names of the values on the way."""


class Match(NamedTuple):
    operation: Operation
    path: dict[str, Any]


class Router:
    """Every path exists as it is and behind `/v1`."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        for operation in operations:
            for path in operation.paths:
                self._add(path, operation)

    def _add(self, path: str, operation: Operation) -> None:
        node = self._root
        for segment in path.strip("/").split("/"):
            if segment.startswith("{"):
                if node.variable is None:
                    node.variable, node.field = _Node(), segment[1:-1]
                node = node.variable
            else:
                node = node.fixed.setdefault(segment.encode(), _Node())
        node.operations[operation.method] = operation, operation.path_fields

    def match(self, method: str, raw_path: bytes) -> Match:
        node = self._root
        values: list[Any] = []
        segments = raw_path.split(b"/")[1:]
        if segments and segments[0] == PREFIX:
            del segments[0]
        for segment in segments:
            following = node.fixed.get(segment)
            if following is None:
                following = node.variable
                if following is None or not segment:
                    raise UnknownOperation(f"there is nothing at {_show(raw_path)}; see /docs for what there is")
                values.append(_value(node.field, segment))
            node = following
        found = node.operations.get(method)
        if found is not None:
            operation, fields = found
            return Match(operation, dict(zip(fields, values, strict=True)))
        if not node.operations:
            raise UnknownOperation(f"there is nothing at {_show(raw_path)}; see /docs for what there is")
        allowed = ", ".join(sorted(node.operations))
        raise MethodNotAllowed(
            f"{method[:16]} is not possible at {_show(raw_path)}; possible: {allowed}", allowed=allowed
        )


def _value(field: str, segment: bytes) -> Any:
    try:
        text = (unquote_to_bytes(segment) if b"%" in segment else segment).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the {field} in the path is not UTF-8") from None
    if PATH_FIELDS[field] is str:
        return text
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS or int(text) >= limits.MAX_OFFSET:
        raise InvalidRequest(
            f"the {field} in the path is {text[:32]!r}; it must be a whole number below {limits.MAX_OFFSET}"
        )
    return int(text)


def _show(raw_path: bytes) -> str:
    return raw_path[:80].decode("utf-8", "backslashreplace")
