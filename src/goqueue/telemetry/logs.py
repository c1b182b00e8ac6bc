"""Events for whoever runs the broker: a short sentence and named fields, one line each, as text or as JSON.

    log = logs.get("broker")
    log.info("topic created", topic="orders", partitions=3)
    log.error("append failed", topic="orders", error=failure)

The sentence is a constant of ours; whatever a client sent goes into a field, where it cannot look like anything else.
On the standard library's logging, so that events of libraries appear in the same form. Logging never raises: what
cannot be shown is shown as such, what cannot be written is lost. How an event becomes a line is in `lines`.
"""

import logging
from time import monotonic
from typing import Final, TextIO, TypeGuard

from goqueue.model.errors import InvalidSetting
from goqueue.telemetry import lines

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_FORMS: Final = {"json": lines.as_json, "text": lines.as_text}
SELDOM_PER_S: Final = 10
"""Lines of one part of the broker about what strangers do."""
_OURS: Final = "goqueue"
_FIELDS: Final = "goqueue_fields"
"""The attribute of a LogRecord that carries the fields."""


class Log:
    """One part of the broker speaking. An exception given as `error` brings its traceback along."""

    __slots__ = ("_left_out", "_logger", "_second", "_told")

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{_OURS}.{name}")
        self._second = 0
        self._told = 0
        self._left_out = 0

    def debug(self, message: str, /, *, error: object = None, **fields: object) -> None:
        self._log(logging.DEBUG, message, error, fields)

    def info(self, message: str, /, *, error: object = None, **fields: object) -> None:
        self._log(logging.INFO, message, error, fields)

    def warning(self, message: str, /, *, error: object = None, **fields: object) -> None:
        self._log(logging.WARNING, message, error, fields)

    def warning_seldom(self, message: str, /, **fields: object) -> None:
        """For what strangers can cause as often as they like: a few lines a second, then how many were left out."""
        second = int(monotonic())
        if second != self._second:
            self._second, self._told = second, 0
        if self._told >= SELDOM_PER_S:
            self._left_out += 1
            return
        self._told += 1
        if self._left_out:
            fields["left_out"], self._left_out = self._left_out, 0
        self._log(logging.WARNING, message, None, fields)

    def error(self, message: str, /, *, error: object = None, **fields: object) -> None:
        self._log(logging.ERROR, message, error, fields)

    def _log(self, level: int, message: str, error: object, fields: dict[str, object]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        raised = None
        if _is_exception(error):
            raised = type(error), error, error.__traceback__
        elif error is not None:
            fields["error"] = error
        # The level of the stack is that of the caller of `info` and its like, for handlers that show it.
        self._logger.log(level, message, exc_info=raised, extra={_FIELDS: fields}, stacklevel=3)


def _is_exception(error: object) -> TypeGuard[BaseException]:
    """By its type alone: `isinstance` would ask the object, which may be a proxy that raises."""
    return issubclass(type(error), BaseException)


def get(name: str) -> Log:
    return Log(name)


def configure(level: str, form: str, stream: TextIO) -> None:
    """From now on events of at least that level go to `stream`; of libraries, warnings and errors only."""
    if level not in LEVELS:
        raise InvalidSetting(f"the log level is {level!r}; it must be one of {', '.join(LEVELS)}")
    if form not in _FORMS:
        raise InvalidSetting(f"the log format is {form!r}; it must be one of {', '.join(_FORMS)}")
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _Handler):
            root.removeHandler(handler)
            handler.close()
    root.addHandler(_Handler(form, stream))
    root.setLevel(max(LEVELS[level], logging.WARNING))
    logging.getLogger(_OURS).setLevel(LEVELS[level])


class _Handler(logging.StreamHandler[TextIO]):
    """Writes each event in one call, so that lines of several threads do not mix."""

    def __init__(self, form: str, stream: TextIO) -> None:
        super().__init__(stream)
        self._render = _FORMS[form]
        self._encoding = stream.encoding or "utf-8"

    def format(self, record: logging.LogRecord) -> str:
        text = self._render(_event(record))
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Nobody is left to tell: the stream is closed or full, and the broker goes on without it."""


def _event(record: logging.LogRecord) -> lines.Event:
    try:
        message = record.getMessage()
    except Exception:
        message = lines.show(record.msg)  # a library's arguments do not fit its own format
    return lines.Event(
        unix_s=record.created,
        level=next((name for name, number in reversed(LEVELS.items()) if record.levelno >= number), "debug"),
        logger=record.name.removeprefix(f"{_OURS}."),
        message=message,
        fields=getattr(record, _FIELDS, {}),
        error=record.exc_info[1] if record.exc_info else None,
    )
