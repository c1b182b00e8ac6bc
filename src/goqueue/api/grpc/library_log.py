"""What the library logs as an error, with a traceback, although a client has only left.

When a client leaves while its answer is on its way out, the library may learn that the answer cannot be sent before it
learns why. Every busy door has such clients. Lines about calls of other servers in the process are left alone.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

LOGGER: Final = "grpc._cython.cygrpc"
UNSENT: Final = "ExecuteBatchError raised in core by servicer method"


def leave_out_unsent(services: Iterable[str]) -> Callable[[], None]:
    """From now on, of calls of these services; until what is returned is called."""
    unsent = tuple(f"{UNSENT} [/{name}/" for name in services)

    def is_news(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(unsent)

    logger = logging.getLogger(LOGGER)
    logger.addFilter(is_news)
    return lambda: logger.removeFilter(is_news)
