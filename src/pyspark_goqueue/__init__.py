"""Where Spark looks for sources by itself: `format("goqueue")` works wherever this package is installed."""

from goqueue.spark.source import GoQueueSource as DefaultSource

__all__ = ["DefaultSource"]
