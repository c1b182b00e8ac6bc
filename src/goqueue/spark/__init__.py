"""GoQueue for Spark: `session()` makes a session that knows `format("goqueue")`, `register()` tells one that exists."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goqueue.spark.sessions import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    """Spark is loaded when it is used: parts of this room do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from goqueue.spark import sessions
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; what Spark needs comes with: pip install 'goqueue[spark]'") from error
    return getattr(sessions, name)
