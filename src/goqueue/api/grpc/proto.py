"""The schema as a .proto file, and the field numbers of one that exists.

A number is frozen once given: fields keep theirs, new ones get the next that was never used, and those of fields that
are gone stay reserved. So the file is read before it is written.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from goqueue.api.grpc.schema import FREE, Field, Label, Message, Rpc, Schema

PACKAGE: Final = "goqueue.v1"
GO_PACKAGE: Final = "goqueue/v1;goqueuev1"
"""Where Go's compiler puts what it makes, below the directory it is told, and what the package is called there."""
SERVICE: Final = "GoQueue"
FILE: Final = "goqueue/v1/goqueue.proto"
"""As protobuf knows it."""
NUMBERS: Final = "goqueue/v1/numbers.txt"
"""Every field there ever was. Lines are added, never changed: so nobody changes a number by mistake."""

_WIDTH: Final = 116
_MESSAGE: Final = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD: Final = re.compile(r"^  [\w.<>, ]+? (\w+) = (\d+);", re.MULTILINE)
_RESERVED: Final = re.compile(r"^  reserved ([\d, ]+);", re.MULTILINE)


class Numbers(NamedTuple):
    """Of one message."""

    fields: dict[str, int]
    gone: frozenset[int] = frozenset()

    def extended(self, names: Iterable[str]) -> "Numbers":
        """The same for these fields: each with the number it had, or a new one."""
        wanted = list(names)
        last = max((*self.fields.values(), *self.gone), default=0)
        numbers = {}
        for name in wanted:
            if name in self.fields:
                numbers[name] = self.fields[name]
            else:
                last += 1
                numbers[name] = last
        lost = {number for name, number in self.fields.items() if name not in numbers}
        return Numbers(numbers, self.gone | lost)


def read_numbers(text: str) -> dict[str, Numbers]:
    """By message, from a file that `write` made."""
    found = {}
    for name, body in _MESSAGE.findall(text):
        gone = {int(number) for row in _RESERVED.findall(body) for number in row.split(",")}
        found[name] = Numbers({field: int(number) for field, number in _FIELD.findall(body)}, frozenset(gone))
    return found


def write(schema: Schema, numbers: dict[str, Numbers]) -> str:
    parts = [
        "// Made from the table of operations by `python -m goqueue.api.grpc.generate`; not to be edited.\n"
        "// Numbers are frozen: fields are added, never changed or used again.\n"
        f'syntax = "proto3";\n\npackage {PACKAGE};\n\nimport "google/protobuf/struct.proto";\n\n'
        f'option go_package = "{GO_PACKAGE}";\n',
        _service(schema.rpcs),
        *(_message(message, numbers.get(message.name, Numbers({}))) for message in schema.messages.values()),
    ]
    return "\n".join(parts)


def list_numbers(schema: Schema, numbers: dict[str, Numbers]) -> list[str]:
    """A line for each field: what a message that was written once must always be read as."""
    return [
        f"{message.name}.{field.name} = {numbers[message.name].fields[field.name]}: {_typed(field)}"
        for message in schema.messages.values()
        for field in message.fields
    ]


def _service(rpcs: Iterable[Rpc]) -> str:
    lines = ["// One call for each operation, and two streams made of them."]
    lines.append(f"service {SERVICE} {{")
    for rpc in rpcs:
        stream = "stream " if rpc.streams else ""
        lines += _comment(f"{rpc.about}.", "  ")
        lines.append(f"  rpc {rpc.name}({stream}{rpc.request}) returns ({stream}{rpc.reply});")
    return "\n".join((*lines, "}", ""))


def _message(message: Message, before: Numbers) -> str:
    numbers = before.extended(field.name for field in message.fields)
    described = _described(message.shape)
    lines = [*_comment(message.about, ""), f"message {message.name} {{"]
    if numbers.gone:
        lines.append(f"  reserved {', '.join(map(str, sorted(numbers.gone)))};")
    for field in message.fields:
        lines += _comment(field.about or described.get(field.name, ""), "  ")
        lines.append(f"  {_typed(field)} {field.name} = {numbers.fields[field.name]};")
    return "\n".join((*lines, "}", ""))


def _typed(field: Field) -> str:
    if field.label is Label.MAP:
        return f"map<string, {field.kind}>"
    return f"{field.label.value} {field.kind}".strip()


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(" ".join(text.split()), _WIDTH - len(indent)):
        yield f"{indent}// {line}"


def _described(shape: type[Struct] | None) -> dict[str, str]:
    """What stands below the fields of a shape, and of those it is made from."""
    found: dict[str, str] = {}
    for kind in reversed(shape.__mro__ if shape is not None else ()):
        if not issubclass(kind, Struct) or kind.__module__.startswith("msgspec"):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                if isinstance(after.value, ast.Constant):
                    found[field.target.id] = str(after.value.value)
    return found


assert FREE == "google.protobuf.Struct", "its file is imported"
