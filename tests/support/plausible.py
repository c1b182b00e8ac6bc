"""A request of any operation, made from the table: fields of the right types, about things that may exist.

What a field means is known by its name; of a name that is not known here the type decides. So a new operation is asked
for as soon as it is in the table. `tests/unit/api/test_plausible.py` sees to it that no request is refused for its
form.
"""

import json
import random
from typing import Any, Final

import msgspec
from msgspec import inspect

from goqueue.api.grpc.schema import FREE, HEADER, PLACE, Label, Message, request_name
from goqueue.api.grpc.streams import SCHEMA
from goqueue.api.grpc.translating import pb
from goqueue.api.operations import Operation
from goqueue.model.limits import MIB

OFTEN, SELDOM = 0.5, 0.05
_REMEMBERED: Final = 40
"""Ids of each kind: those learned last."""
_SETTINGS: Final = ("add_partitions", "change_topic", "create_topic", "delete_topic")
"""Operations on topics that nobody else relies on."""
_LISTED: Final = frozenset(("receipt_handle", "receipt_handles"))


class World:
    """What may be named, and the dice that decide. Ids are learned from replies."""

    def __init__(self, dice: random.Random, *, topics: list[str], own: list[str], groups: list[str]) -> None:
        """`own` are topics and names that may come and go."""
        self.dice = dice
        self.topics, self.own, self.groups = topics, own, groups
        self._ids: dict[str, list[Any]] = {
            "member_id": ["c-0123456789abcdef"],
            "producer_id": [1],
            "transaction_id": ["txn-1"],
            "receipt_handle": ["orders:0:0:1:nonce"],
            "id": ["0123456789abcdef"],
        }

    def learn(self, reply: Any) -> None:
        """Remember the ids in a reply, wherever they stand in it."""
        if isinstance(reply, dict):
            for name, value in reply.items():
                if name in self._ids and value is not None:
                    self._ids[name] = [*self._ids[name], value][-_REMEMBERED:]
                self.learn(value)
        elif isinstance(reply, list):
            for each in reply:
                self.learn(each)

    def known(self, name: str) -> Any:
        return self.dice.choice(self._ids[name])

    def request(self, operation: Operation, *, waits: bool = True) -> dict[str, Any]:
        """Its fields as JSON has them, those of the path among them. `waits`: its answer may take a while."""
        fields = {name: self._named(operation, name) for name in operation.path_fields}
        chosen: set[str] = set()
        for field in msgspec.structs.fields(operation.request):
            needed = field.required or (field.name in _HELPFUL and not (chosen & _ONE_OF.get(field.name, frozenset())))
            if needed and (field.required or self.dice.random() < _HELPFUL[field.name]):
                named = self._named(operation, field.name)
                fields[field.name] = self._value(inspect.type_info(field.type)) if named is None else named
                chosen.add(field.name)
        if operation.park is not None and not waits:
            fields["timeout"] = "0s"
        return fields

    def _named(self, operation: Operation, name: str) -> Any:
        """By its meaning; None if it has none here."""
        dice = self.dice
        match name:
            case "topic" | "target":
                return dice.choice(self.own if operation.name in _SETTINGS else self.topics)
            case "name" | "transactional_id":
                return dice.choice(self.own)
            case "topics":
                return [dice.choice(self.topics)]
            case "group":
                return dice.choice(self.groups)
            case "member_id" | "producer_id" | "transaction_id" | "receipt_handle":
                return self.known(name)
            case "transaction":
                return self.known("transaction_id")
            case "transactions":
                return [self.known("transaction_id")]
            case "receipt_handles":
                return [self.known("receipt_handle") for _ in range(dice.randint(1, 5))]
            case "schedule" | "redrive":
                return self.known("id")
            case "partition":
                return dice.randrange(3)
            case "offset":
                return dice.randrange(60)
            case "offsets":
                return {dice.choice(self.topics): {"0": dice.randrange(60)}}
            case "ids":
                return [[dice.randrange(3), dice.randrange(60)]]
            case "client_id":
                return "c"
            case "epoch":
                return 0
            case "session_timeout":
                return "1s"
            case "timeout" if operation.park is not None:
                return dice.choice(("0s", "5ms", "50ms", "30s"))
            case "timeout" | "delay" | "visibility" | "visibility_timeout":
                return "1s"
            case "every":
                return "1h"
            case "limit" | "count":
                return dice.randint(1, 3)
            case "max_bytes":
                return dice.choice((1, 100_000, 2 * MIB))
            case "value":
                return "v" * dice.choice((1, 100, 20_000, 20_000, 300_000))
            case "messages" if operation.name == "publish_batch":
                return [{"value": "v" * dice.choice((1, 20_000))} for _ in range(dice.randint(1, 5))]
            case "token":
                return {"name": dice.choice(self.own), "number": dice.randrange(1000)}
            case "paused":
                return True
            case "rate":
                return 10
        return None

    def _value(self, kind: inspect.Type) -> Any:
        """Anything of this type."""
        match kind:
            case inspect.UnionType():
                return self._value(kind.types[0])
            case inspect.LiteralType():
                return self.dice.choice(kind.values)
            case inspect.EnumType():
                return self.dice.choice([each.value for each in kind.cls])
            case inspect.Metadata():
                examples = (kind.extra_json_schema or {}).get("examples")
                return examples[0] if examples else self._value(kind.type)
            case inspect.BoolType():
                return self.dice.random() < OFTEN
            case inspect.IntType():
                return kind.ge or 0
            case inspect.FloatType():
                return kind.ge or 0.0
            case inspect.StrType():
                return "x" * max(kind.min_length or 0, 1)
            case inspect.ListType() | inspect.VarTupleType():
                return [self._value(kind.item_type)]
            case inspect.TupleType():
                return [self._value(each) for each in kind.item_types]
            case inspect.DictType():
                return {self._value(kind.key_type): self._value(kind.value_type)}
            case inspect.StructType():
                return {each.encode_name: self._value(each.type) for each in kind.fields if each.required}
        raise AssertionError(f"teach this module about {kind}")


_HELPFUL: Final = {
    "acks": OFTEN, "delay": SELDOM, "epoch": SELDOM, "every": 1.0, "limit": OFTEN, "max_bytes": OFTEN, "offset": OFTEN,
    "partition": SELDOM, "paused": 1.0, "producer_id": SELDOM, "receipt_handle": 1.0, "session_timeout": 1.0,
    "timeout": 1.0, "transaction_id": SELDOM, "transactional_id": SELDOM, "num_partitions": OFTEN, "rate": 1.0,
    "verbose": OFTEN, "mode": OFTEN, "visibility_timeout": 1.0,
}  # fmt: skip
"""How often a field is there that need not be."""
_ONE_OF: Final[dict[str, frozenset[str]]] = {"receipt_handles": _LISTED, "offset": frozenset(("from_time",))}


def as_protobuf(operation: Operation, fields: dict[str, Any]) -> bytes:
    """The same request over gRPC."""
    body: bytes = _message(SCHEMA.messages[request_name(operation.name)], fields).SerializeToString()
    return body


def _message(message: Message, fields: dict[str, Any]) -> Any:
    if message.wraps:
        fields = {message.fields[0].name: fields}
    found: dict[str, Any] = {}
    for field in message.fields:
        if field.name not in fields or fields[field.name] is None:
            continue
        value = fields[field.name]
        if field.label is Label.MANY:
            found[field.name] = [_one(field.kind, each) for each in value]
        elif field.label is Label.MAP:
            found[field.name] = {key: _one(field.kind, each) for key, each in value.items()}
        else:
            found[field.name] = _one(field.kind, value)
    return getattr(pb, message.name)(**found)


def _one(kind: str, value: Any) -> Any:
    match kind:
        case "bytes":
            return value.encode()
        case "string":
            return value if isinstance(value, str) else json.dumps(value)
        case "bool" | "double" | "int32" | "int64":
            return value
    assert kind not in (FREE, HEADER), f"teach this module about {kind}"
    if kind == PLACE:
        return pb.PartitionOffset(partition=value[0], offset=value[1])
    return _message(SCHEMA.messages[kind], value)
