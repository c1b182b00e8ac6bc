"""What a cron expression says: which minutes of a day, on which days. Time zones are not its business.

Five fields, in this order: minute, hour, day of the month, month, day of the week. Each is a list of terms with commas
between them. A term is `*`, a value, or a range `a-b`; `*` and a range may have a step: `*/15`, `9-17/2`. Months and
days of the week also have names, the first three letters in English. Sunday is 0 and 7. Instead of the fields there may
be one of the `MACROS`.

As in Debian's cron, a day must match both fields of days if one of them begins with `*`, and either of them if neither
does: `0 0 13 * FRI` is every 13th and every Friday.
"""

import re
from calendar import monthrange
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_TERM: Final = re.compile(r"(?:\*|(\w{1,3})(?:-(\w{1,3}))?)(?:/(\d{1,3}))?", re.ASCII)
_SHOWN: Final = 40
"""Characters of a mistake that are repeated to whoever made it."""


class Pattern(NamedTuple):
    """What an expression comes to."""

    minutes: tuple[int, ...]
    """Of a day, in order, counted from midnight."""
    months: frozenset[int]
    days: frozenset[int]
    """Of the month."""
    weekdays: frozenset[int]
    """Sunday is 0."""
    needs_both: bool
    """A day must match `days` and `weekdays`, not only one of them."""
    by_elapsed_time: bool
    """Minute or hour begin with `*`: it runs every so often, not at fixed times of the day."""

    def falls_on(self, day: date) -> bool:
        return day.month in self.months and self._matches(day.day, day.isoweekday() % 7)

    def days_of(self, year: int, month: int) -> list[int]:
        """The days of a month on which it runs, as ordinals."""
        if month not in self.months:
            return []
        first = date(year, month, 1).toordinal()  # an ordinal modulo 7 is 0 on Sundays
        length = monthrange(year, month)[1]
        return [first + ago for ago in range(length) if self._matches(ago + 1, (first + ago) % 7)]

    def _matches(self, day: int, weekday: int) -> bool:
        if self.needs_both:
            return day in self.days and weekday in self.weekdays
        return day in self.days or weekday in self.weekdays


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    values: int
    """How many different ones there are."""
    names: tuple[str, ...]
    """The first one is `low`."""
    right: str


_NUMBERS: Final = "use numbers from {} to {}, as in {}"
_FIELDS: Final = (
    _Field("minute", 0, 59, 60, (), _NUMBERS.format(0, 59, "0, 5,35, 0-30 or */15")),
    _Field("hour", 0, 23, 24, (), _NUMBERS.format(0, 23, "3, 8,20, 9-17 or */2")),
    _Field("day of the month", 1, 31, 31, (), _NUMBERS.format(1, 31, "1, 1,15, 1-7 or */2")),
    _Field("month", 1, 12, 12, _MONTHS, _NUMBERS.format(1, 12, "1, 6-8 or */3, or names from JAN to DEC")),
    _Field(
        "day of the week",
        0,
        7,
        7,
        _DAYS,
        _NUMBERS.format(0, 7, "0, 1-5 or 6,7, or names from SUN to SAT; Sunday is 0, and 7 at the end of a range"),
    ),
)


@lru_cache(maxsize=1024)
def parse(expression: str) -> Pattern:
    """InvalidRequest says which field is wrong and what would be right."""
    if len(expression) > limits.MAX_CRON_EXPRESSION:
        raise InvalidRequest(
            f"cron has more than {limits.MAX_CRON_EXPRESSION} characters; make several schedules of it"
        )
    text = expression.strip()
    if text.startswith("@"):
        known = MACROS.get(text.lower())
        if known is None:
            raise InvalidRequest(
                f"cron is {text[:_SHOWN]!r}; use {', '.join(MACROS)}, or five fields like '30 3 * * MON-FRI'"
            )
        text = known
    parts = text.split()
    if len(parts) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise InvalidRequest(
            f"cron has {len(parts)} fields; it must have five: {names}, like '30 3 * * MON-FRI', or be one of "
            f"{', '.join(MACROS)}"
        )
    minutes, hours, days, months, weekdays = map(_read, _FIELDS, parts)
    return Pattern(
        minutes=tuple(hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)),
        months=frozenset(months),
        days=frozenset(days),
        weekdays=frozenset(day % 7 for day in weekdays),
        needs_both=parts[2].startswith("*") or parts[4].startswith("*"),
        by_elapsed_time=parts[0].startswith("*") or parts[1].startswith("*"),
    )


def _read(field: _Field, text: str) -> set[int]:
    """The values that a field allows."""
    allowed: set[int] = set()
    for term in text.split(","):
        found = _TERM.fullmatch(term)
        if found is None:
            raise _wrong(field, term, "is not understood")
        first, last, step = found.groups()
        low = field.low if first is None else _value(field, term, first)
        high = field.high if first is None else low if last is None else _value(field, term, last)
        if low > high:
            raise _wrong(field, term, "runs backwards")
        if step is not None and first is not None and last is None:
            raise _wrong(field, term, f"has a step and no range: write {first}-{field.high}/{step}")
        if step is not None and not 1 <= int(step) <= field.values:
            raise _wrong(field, term, f"has a step of {step}, which must be from 1 to {field.values}")
        allowed.update(range(low, high + 1, int(step or 1)))
    return allowed


def _value(field: _Field, term: str, text: str) -> int:
    if text.upper() in field.names:
        return field.low + field.names.index(text.upper())
    if text.isdecimal() and field.low <= int(text) <= field.high:
        return int(text)
    raise _wrong(field, term, "is not understood" if not text.isdecimal() else "is out of range")


def _wrong(field: _Field, term: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"cron, {field.name}: {term[:_SHOWN]!r} {what}; {field.right}")
