"""Where Spark looks for sources by itself: `format("goqueue-log")` works wherever this package is installed."""

from goqueue.spark.log_source import GoQueueLogSource as DefaultSource

__all__ = ["DefaultSource"]
