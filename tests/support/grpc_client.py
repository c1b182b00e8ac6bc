"""A client of the gRPC door for tests: calls by name with fields by name, and streams one can push and pull."""

import queue
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.message_factory import GetMessageClass

from goqueue.api.grpc.door import NAME
from goqueue.api.grpc.translating import pb
from tests.support.broker import RunningBroker
from tests.support.patience import PATIENCE_S

_SERVICE = pb.DESCRIPTOR.services_by_name["GoQueue"]


class Stream:
    """Both sides of a stream. What is not asked for is not read."""

    def __init__(self, method: Any, kind: Any) -> None:
        self._kind = kind
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = method(iter(self._requests.get, None), timeout=PATIENCE_S)

    def send(self, **fields: Any) -> None:
        self._requests.put(self._kind(**fields))

    def receive(self) -> Any:
        return next(self.call)

    def finish(self) -> list[Any]:
        """Say no more; the rest of what comes back."""
        self._requests.put(None)
        return list(self.call)

    def until(self, field: str) -> Any:
        """The next reply that has this field, which is returned; others are passed over."""
        while True:
            reply = self.receive()
            if reply.HasField(field):
                return getattr(reply, field)

    def refusal(self) -> Any:
        """How it ended."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error
        raise AssertionError("the stream ended well")


class GrpcClient:
    """Use it in `with`."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def call(self, rpc: str, *, timeout_s: float = PATIENCE_S, **fields: Any) -> Any:
        return self.begin(rpc, timeout_s=timeout_s, **fields).result()

    def begin(self, rpc: str, *, timeout_s: float = PATIENCE_S, **fields: Any) -> Any:
        """The same without waiting."""
        method = _SERVICE.methods_by_name[rpc]
        request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = self.channel.unary_unary(f"/{NAME}/{rpc}", request.SerializeToString, reply.FromString)
        return call.future(request(**fields), timeout=timeout_s)

    def raw(self, rpc: str, body: bytes) -> Any:
        """A call with any bytes, and without waiting."""
        call: Any = self.channel.unary_unary(f"/{NAME}/{rpc}")
        return call.future(body, timeout=PATIENCE_S)

    def refused(self, rpc: str, **fields: Any) -> Any:
        """The error of a call that must not succeed."""
        error = self.begin(rpc, **fields).exception()
        assert error is not None, "it was not refused"
        return error

    def stream(self, rpc: str) -> Stream:
        method = _SERVICE.methods_by_name[rpc]
        request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = self.channel.stream_stream(f"/{NAME}/{rpc}", request.SerializeToString, reply.FromString)
        return Stream(call, request)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()


def publish(client: GrpcClient, topic: str, *values: bytes, **fields: Any) -> None:
    client.call("PublishBatch", topic=topic, messages=[{"value": value, **fields} for value in values])


def batches(stream: Stream, count: int) -> Iterator[Any]:
    """Messages until there are so many."""
    while count > 0:
        batch = stream.until("batch")
        yield from batch.messages
        count -= len(batch.messages)


def check_log(broker: RunningBroker) -> None:
    """Whatever clients did, nothing went wrong that nobody thought of."""
    for word in ("a stream broke", "a request broke", "Traceback", " error "):
        assert word not in broker.stderr, broker.stderr
