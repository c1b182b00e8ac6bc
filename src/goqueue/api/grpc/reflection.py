"""What the services are, for clients that have no description of them: `grpcurl`, and whatever else asks.

Clients of today ask for v1 first. The library has v1alpha only, whose messages are the same: one servicer answers to
both names. Of itself it tells the older one, which is the one that is described.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pool import Default
from grpc_reflection.v1alpha import reflection

_pb: Final[Any] = import_module("grpc_reflection.v1alpha.reflection_pb2")

NAMES: Final = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)


def handlers(services: Iterable[str]) -> list[grpc.GenericRpcHandler]:
    """Of the service under each of its names."""
    answer = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME), pool=_Described()).ServerReflectionInfo,
        request_deserializer=_pb.ServerReflectionRequest.FromString,
        response_serializer=_serialise,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": answer}) for name in NAMES]


class _Described:
    """The descriptions of this process. Protobuf's own pool finds all by their names but the methods of services."""

    def __init__(self) -> None:
        self._pool: Any = Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, name: str) -> Any:  # noqa: N802  # the library calls it so
        try:
            return self._pool.FindFileContainingSymbol(name)
        except KeyError:
            service, _, method = name.rpartition(".")
            found = self._pool.FindServiceByName(service)
            if method not in found.methods_by_name:
                raise
            return found.file


def _serialise(reply: Any) -> bytes:
    found: bytes = reply.SerializeToString()
    return found
