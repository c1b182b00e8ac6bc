"""GoQueue: a message queue whose only truth is a log."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from goqueue.server.embedded import EmbeddedBroker

__version__: Final = "0.1.0"


def embedded(path: str, **settings: Any) -> "EmbeddedBroker":
    """A broker inside this process, with its data at `path`: `with goqueue.embedded("data") as broker: ...`.

    Settings are the flags of `goqueue serve`, with underscores: `embedded("data", http="127.0.0.1:8080")`.
    """
    from goqueue.server.embedded import EmbeddedBroker  # only who asks for a broker waits for it to be loaded

    return EmbeddedBroker(path, **settings)
