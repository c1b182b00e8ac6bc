"""GoQueue: a message queue whose only truth is a log."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from goqueue.client.client import AsyncClient as AsyncClient
    from goqueue.client.consumer import AsyncBatch as AsyncBatch
    from goqueue.client.consumer import AsyncConsumer as AsyncConsumer
    from goqueue.client.consumer import AsyncMessage as AsyncMessage
    from goqueue.client.member import Missed as Missed
    from goqueue.client.messages import Message as Message
    from goqueue.client.producer import AsyncProducer as AsyncProducer
    from goqueue.client.reader import AsyncReader as AsyncReader
    from goqueue.client.receipts import Outcome as Outcome
    from goqueue.client.receipts import Receipt as Receipt
    from goqueue.client.settling import Refused as Refused
    from goqueue.client.sync.client import Client as Client
    from goqueue.client.sync.consumer import Consumer as Consumer
    from goqueue.client.sync.consumer import ConsumerBatch as ConsumerBatch
    from goqueue.client.sync.consumer import ConsumerMessage as ConsumerMessage
    from goqueue.client.sync.producer import Producer as Producer
    from goqueue.client.sync.reader import Reader as Reader
    from goqueue.client.sync.transaction import Transaction as Transaction
    from goqueue.client.transaction import AsyncTransaction as AsyncTransaction
    from goqueue.model import errors as errors
    from goqueue.model.errors import BufferFull as BufferFull
    from goqueue.model.errors import GoQueueError as GoQueueError
    from goqueue.server.embedded import EmbeddedBroker

__version__: Final = "0.1.0"

_PUBLIC: Final = {
    "AsyncBatch": "goqueue.client.consumer",
    "AsyncClient": "goqueue.client.client",
    "AsyncConsumer": "goqueue.client.consumer",
    "AsyncMessage": "goqueue.client.consumer",
    "AsyncProducer": "goqueue.client.producer",
    "AsyncReader": "goqueue.client.reader",
    "AsyncTransaction": "goqueue.client.transaction",
    "BufferFull": "goqueue.model.errors",
    "Client": "goqueue.client.sync.client",
    "Consumer": "goqueue.client.sync.consumer",
    "ConsumerBatch": "goqueue.client.sync.consumer",
    "ConsumerMessage": "goqueue.client.sync.consumer",
    "GoQueueError": "goqueue.model.errors",
    "Message": "goqueue.client.messages",
    "Missed": "goqueue.client.member",
    "Outcome": "goqueue.client.receipts",
    "Producer": "goqueue.client.sync.producer",
    "Reader": "goqueue.client.sync.reader",
    "Receipt": "goqueue.client.receipts",
    "Refused": "goqueue.client.settling",
    "Transaction": "goqueue.client.sync.transaction",
    "errors": "goqueue.model",
}
"""What users import, and where it is: loaded when it is first asked for."""


def embedded(path: str, **settings: Any) -> "EmbeddedBroker":
    """A broker inside this process, with its data at `path`: `with goqueue.embedded("data") as broker: ...`.

    Settings are the flags of `goqueue serve`, with underscores: `embedded("data", http="127.0.0.1:8080")`.
    """
    from goqueue.server.embedded import EmbeddedBroker  # only who asks for a broker waits for it to be loaded

    return EmbeddedBroker(path, **settings)


if not TYPE_CHECKING:  # else every name would be there, for who checks

    def __getattr__(name: str) -> Any:
        module = _PUBLIC.get(name)
        if module is None:
            raise AttributeError(f"module 'goqueue' has no attribute {name!r}")
        if name == "errors":
            return import_module("goqueue.model.errors")
        return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, "__version__", "embedded"})
