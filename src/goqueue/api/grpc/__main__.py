"""Print the description of the gRPC door, for those who have the package and not the repository.

python -m goqueue.api.grpc > goqueue.proto
"""

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from goqueue.api.grpc.proto import Numbers, write
from goqueue.api.grpc.streams import SCHEMA
from goqueue.api.grpc.translating import pb


def description() -> str:
    """The same text as in `proto/`, with the numbers that the code has."""
    numbers = {}
    for message in FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb).message_type:
        gone = {number for found in message.reserved_range for number in range(found.start, found.end)}
        numbers[message.name] = Numbers({field.name: field.number for field in message.field}, frozenset(gone))
    return write(SCHEMA, numbers)


if __name__ == "__main__":
    print(description(), end="")
