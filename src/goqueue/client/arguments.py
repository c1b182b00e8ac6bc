"""What arguments may be, beside what Python itself would say of them: each refusal names the argument, what it was and
what it is to be.

Only what cannot be right is refused here; what the broker knows better is for the broker, whose refusals name fields:
`rename` says them by the argument. `RULES` is one table: an argument of a name means the same in every call. Spans of
time are understood as the broker does it (`model.times`).
Nothing of this is asked per message that is published: `outgoing` comes here when something was wrong already.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from inspect import iscoroutinefunction
from reprlib import Repr
from typing import Any, Final, NamedTuple

import msgspec

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.groups import Mode
from goqueue.model.times import parse_span, show_duration
from goqueue.wire.failures import repeat
from goqueue.wire.settles import NO_ARGUMENT

Duration = float | str | timedelta
"""Seconds, text like "250ms", "30s" or "1h30m", or a timedelta."""

_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def wrong(name: str, value: object, wanted: str) -> InvalidRequest:
    """To be raised."""
    return InvalidRequest(f"{name} is {_SHORT.repr(value)}; it is {wanted}")


def rename(error: InvalidRequest, name: str, fields: Mapping[str, Any]) -> InvalidRequest:
    """The broker's refusal of a field, by the name that field has where it was given, and with what was given there."""
    field, said = error.field or "", str(error)
    begin, found, rest = said.partition(field) if field else ("", "", "")
    if not found or begin not in ("", "a key of ", "a value of "):
        said = f"{name}: {said}"
    elif not begin and rest.startswith(" is ") and (value := _look_up(fields, field)) is not None:
        said = f"{name} is {_SHORT.repr(value)}, which{rest}"
    else:
        said = f"{begin}{name}{rest}"
    renamed = repeat(error)
    renamed.args = (said,)
    renamed.field = name
    assert isinstance(renamed, InvalidRequest)
    return renamed


def _look_up(fields: Mapping[str, Any], path: str) -> Any:
    """What a field was, inside others. None if that is not known, or is said of something in it."""
    found: Any = fields
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return None if isinstance(found, Mapping | list | tuple) else found


# ---------------------------------------------------------------- what is right or wrong by itself


class Rule(NamedTuple):
    """What an argument has to be."""

    holds: Callable[[Any], bool]
    wanted: str


def is_number(value: object) -> bool:
    """A whole one."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_async(value: Any) -> bool:
    """Whether calling it does nothing yet."""
    return iscoroutinefunction(value) or iscoroutinefunction(type(value).__call__)


def _whole(least: int, most: int | None = None, *, or_none: bool = False) -> Rule:
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"

    def holds(value: Any) -> bool:
        if value is None:
            return or_none
        return is_number(value) and least <= value and (most is None or value <= most)

    return Rule(holds, f"a whole number, {bounds}{', or None' if or_none else ''}")


_TEXT: Final = Rule(lambda value: isinstance(value, str), "text")
_TEXT_OR_NONE: Final = Rule(lambda value: value is None or isinstance(value, str), "text, or None")
_NAME: Final = Rule(lambda value: isinstance(value, str) and value != "", "text that is not empty")
_NAME_OR_NONE: Final = Rule(lambda value: value is None or _NAME.holds(value), f"{_NAME.wanted}, or None")
_SWITCH: Final = Rule(lambda value: isinstance(value, int) and value in (0, 1), "True or False")
_CALLBACK: Final = Rule(lambda value: value is None or callable(value), "a function that is called, or None")
_PLAIN_CALLBACK: Final = Rule(
    lambda value: value is None or (callable(value) and not _is_async(value)),
    "a plain function, or None: it is called, not awaited",
)

RULES: Final[dict[str, Rule]] = {
    "acks": Rule(lambda value: value in ("none", "leader", "all"), "one of none, leader, all"),
    "address": Rule(lambda value: isinstance(value, str), "text: host:port, like 127.0.0.1:9001"),
    "assignor": _TEXT_OR_NONE,
    "auto_extend": _SWITCH,
    "batch_bytes": _whole(1, limits.APPENDED_AT_ONCE_BYTES),
    "batch_messages": _whole(1),
    "buffer_bytes": _whole(1),
    "client_id": _NAME,
    "exist_ok": _SWITCH,
    "fetch_bytes": _whole(1, limits.MAX_BLOCK_BYTES),
    "follow": _SWITCH,
    "from_offset": _whole(0, or_none=True),
    "group": _TEXT,
    "instance_id": _NAME_OR_NONE,
    "isolation": Rule(
        lambda value: value in ("read_committed", "read_uncommitted"), "one of read_committed, read_uncommitted"
    ),
    "max_messages": _whole(1),
    "max_unacked": _whole(1),
    "mode": Rule(lambda value: value in (None, *Mode), f"one of {', '.join(Mode)}, or None"),
    "name": _TEXT_OR_NONE,
    "offset": _whole(0, limits.MAX_OFFSET - 1),
    "on_ack_error": _PLAIN_CALLBACK,
    "on_assigned": _CALLBACK,
    "on_batch": _PLAIN_CALLBACK,
    "on_damage": Rule(lambda value: value in ("raise", "skip"), "one of raise, skip"),
    "on_missed": _PLAIN_CALLBACK,
    "on_revoked": _CALLBACK,
    "operation": _TEXT,
    "partition": _whole(0),
    "prefetch": _whole(1),
    "prefetch_bytes": _whole(1),
    "to": Rule(
        lambda value: value in ("earliest", "latest"), "earliest or latest; other places have arguments of their own"
    ),
    "topic": _TEXT,
    "transactional_id": _NAME_OR_NONE,
    "wait": _SWITCH,
}
"""By the name of the argument."""


def check(**arguments: object) -> None:
    """InvalidRequest for the first that cannot be right."""
    for name, value in arguments.items():
        rule = RULES[name]
        if not rule.holds(value):
            raise wrong(name, value, rule.wanted)


def to_list(
    name: str, values: Iterable[Any], each: Callable[[Any], bool], wanted: str, *, or_empty: bool = False
) -> list[Any]:
    """Several of a kind. Text is no list of letters."""
    try:
        found = None if isinstance(values, str | bytes) else [*values]
    except TypeError:
        found = None
    if found is None or not all(map(each, found)) or not (found or or_empty):
        raise wrong(name, values, wanted)
    return found


def to_json(fields: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except Exception:  # whatever it says, it does not say which one
        raise _unsendable(fields) from None


def _unsendable(fields: Mapping[str, Any]) -> InvalidRequest:
    for name, value in fields.items():
        try:
            msgspec.json.encode(value)
        except Exception:
            return wrong(name, value, "what JSON can carry: text, numbers, True, False, None, lists and dicts of these")
    return InvalidRequest(f"the names of fields are text, not {_SHORT.repr([*fields])}")


# ---------------------------------------------------------------- spans of time


def to_span_ms(name: str, span: Duration, *, least_ms: int = 0, most_ms: int = limits.MAX_DURATION_MS) -> int:
    try:
        if isinstance(span, bool):
            raise TypeError
        span_ms = parse_span(span.total_seconds() if isinstance(span, timedelta) else span)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error}") from None
    except (TypeError, ValueError, OverflowError):  # ValueError: not a number, as mathematicians say
        raise wrong(name, span, 'seconds, text like "30s" or "1h30m", or a timedelta') from None
    if not least_ms <= span_ms <= most_ms:
        raise wrong(name, span, f"from {show_duration(least_ms)} to {show_duration(most_ms)}")
    return span_ms


def to_seconds(name: str, span: Duration, *, least_ms: int = 0) -> float:
    """As exact as they were given."""
    span_ms = to_span_ms(name, span, least_ms=least_ms)
    return span_ms / 1000 if isinstance(span, str | timedelta) else span


def to_timeout(timeout: Duration | None) -> float | None:
    """How long somebody waits; None: as long as it takes. A time that is over is now."""
    return None if timeout is None else max(0.0, to_seconds("timeout", timeout, least_ms=-limits.MAX_DURATION_MS))


def to_transaction_ms(name: str, span: Duration) -> int:
    """How long a transaction may be open."""
    return to_span_ms(name, span, least_ms=limits.MIN_TRANSACTION_MS, most_ms=limits.MAX_TRANSACTION_MS)


# ---------------------------------------------------------------- of settlements


def to_delay(delay: Duration | None) -> int:
    """As a settlement says it. Out of bounds it would be refused, and those that are sent with it."""
    return NO_ARGUMENT if delay is None else to_span_ms("delay", delay, most_ms=limits.MAX_BACKOFF_MS)


def to_reason(reason: str) -> str:
    if not isinstance(reason, str):
        raise wrong("reason", reason, "text; write str(...) of it")
    if not reason.isascii():
        reason = reason.encode(errors="backslashreplace").decode()  # what is no UTF-8 would break those sent with it
    if len(reason) > limits.MAX_REJECT_CHARS:
        raise InvalidRequest(
            f"a reason has at most {limits.MAX_REJECT_CHARS} characters, not {len(reason)}; shorten it"
        )
    return reason


def to_extension(span: Duration) -> int:
    return to_visibility("seconds", span)


def to_visibility(name: str, span: Duration) -> int:
    """How long a message may be held."""
    return to_span_ms(name, span, least_ms=limits.MIN_VISIBILITY_MS, most_ms=limits.MAX_VISIBILITY_MS)
