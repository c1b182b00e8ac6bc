"""PublishFrame as most clients use it: messages with a value, and perhaps a key and a partition.

The bytes are the same. In this reading a message has only these fields, and whatever else was said of it is unknown:
one look tells plain messages from the others, where asking for each field would cost more than all the rest. It is
made from the real thing, in a pool of its own, and nobody outside ever sees it.
"""

from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from goqueue.api.grpc.translating import pb

_PACKAGE: Final = "goqueue.plain"
_KEPT: Final = frozenset(("value", "key", "partition"))


def _make() -> Any:
    file = FileDescriptorProto(name="goqueue/plain.proto", package=_PACKAGE, syntax="proto3")
    frame, message = file.message_type.add(), DescriptorProto()
    pb.PublishFrame.DESCRIPTOR.CopyToProto(frame)
    for field in frame.field:
        if field.name == "messages":
            field.type_name = f".{_PACKAGE}.Message"
    pb.Message.DESCRIPTOR.CopyToProto(message)
    plain = file.message_type.add(name=message.name)
    for field in message.field:
        if field.name in _KEPT:
            field.oneof_index = len(plain.oneof_decl)  # presence, which protobuf makes of a group of one
            plain.oneof_decl.add(name=f"_{field.name}")
            plain.field.append(field)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{frame.name}"))


PlainFrame: Final = _make()
