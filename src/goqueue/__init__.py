"""GoQueue: a message queue whose only truth is a log."""

from typing import Final

__version__: Final = "0.1.0"
