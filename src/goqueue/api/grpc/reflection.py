"""What the services are, for clients that have no description of them: `grpcurl`, and whatever else asks.

Clients of today ask for v1 first. The library has v1alpha only, whose messages are the same: one servicer answers to
both names. Of itself it tells the older one, which is the one that is described.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection

_pb: Final[Any] = import_module("grpc_reflection.v1alpha.reflection_pb2")

NAMES: Final = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)


def handlers(services: Iterable[str]) -> list[grpc.GenericRpcHandler]:
    """Of the service under each of its names."""
    answer = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME)).ServerReflectionInfo,
        request_deserializer=_pb.ServerReflectionRequest.FromString,
        response_serializer=_serialise,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": answer}) for name in NAMES]


def _serialise(reply: Any) -> bytes:
    found: bytes = reply.SerializeToString()
    return found
