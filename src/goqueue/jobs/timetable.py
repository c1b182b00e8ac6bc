"""When a schedule runs: by a cron expression in a time zone, or every so often. Pure: the time comes in as an argument.

All times are Unix milliseconds; the next run is strictly after the time asked about. A `Cron` runs at whole minutes of
the clocks in its zone. When those change:

- *Fixed times*, where neither minute nor hour begins with `*` (`30 2 * * *`), run once on every day that matches. A
  time that the clocks leave out runs at the first minute after the gap; if several are left out, or another falls on
  that minute, that is one run. A time that comes twice runs the first time.
- *Every so often*, where minute or hour begins with `*` (`*/15 * * * *`, `0 * * * *`, `0 */6 * * *`), runs by elapsed
  time: whenever the clocks show a time that matches. What they leave out does not run, what they show twice runs twice,
  so that every quarter of an hour remains every quarter of an hour.

It makes no difference why they change: daylight saving, another offset for good, a day that an island leaves out. A new
zone database counts for the runs to come. An `Every` knows no zone: it runs each `interval_ms`, from its anchor on.

The unit of a search is a zone's day: the time from one midnight to the next, with the minutes after the first at which
there is a run. On most days these are the pattern's minutes as they are; only a day on which an offset changes is
looked at minute by minute. So runs are counted by the day, not one by one: a broker that was away for a year finds out
in milliseconds what it missed.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

import msgspec

from goqueue.jobs.cron import Pattern, parse
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

_MINUTE_MS: Final = 60_000
_MINUTE_S: Final = 60
_DAY_S: Final = 86_400
_DAY_MS: Final = _DAY_S * 1000
_MINUTE: Final = timedelta(minutes=1)
_SEARCH_YEARS: Final = 50
"""Longer than it ever takes to come again: 29 February on a certain day of the week takes up to 40."""
_LAST_YEAR: Final = 9998
_ZONE_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
"""Other files in a zone database begin with a small letter."""


class Timetable(Protocol):
    """Runs are in order, and never two at one time."""

    def check(self) -> None:
        """InvalidRequest when it cannot be right."""

    def next_after(self, time_ms: int) -> int | None:
        """None: never again."""

    def count(self, after_ms: int, until_ms: int) -> int:
        """How many runs are after the one time and not after the other."""

    def newest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """The last of them, at most so many, oldest first."""


class Every(msgspec.Struct, frozen=True, tag_field="type", tag="every"):
    """One interval after the anchor, and so on."""

    interval_ms: int
    anchor_ms: int

    def check(self) -> None:
        if not limits.MIN_EVERY_MS <= self.interval_ms <= limits.MAX_EVERY_MS:
            raise InvalidRequest(
                f"every is {self.interval_ms} ms; it must be from {limits.MIN_EVERY_MS // 1000} s to "
                f"{limits.MAX_EVERY_MS // _DAY_MS} days"
            )

    def next_after(self, time_ms: int) -> int | None:
        due = self.anchor_ms + (self._number(time_ms) + 1) * self.interval_ms
        return due if due <= limits.LAST_TIME_MS else None

    def count(self, after_ms: int, until_ms: int) -> int:
        return max(self._number(until_ms) - self._number(after_ms), 0)

    def newest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        last = self._number(until_ms)
        first = last - min(self.count(after_ms, until_ms), limit) + 1
        return [self.anchor_ms + number * self.interval_ms for number in range(first, last + 1)]

    def _number(self, time_ms: int) -> int:
        """Of the last run up to that time; 0 for the anchor, which is none."""
        return max((time_ms - self.anchor_ms) // self.interval_ms, 0)


class Cron(msgspec.Struct, frozen=True, tag_field="type", tag="cron"):
    """By the clocks of an IANA time zone."""

    expression: str
    zone: str = "UTC"

    def check(self) -> None:
        parse(self.expression)
        find_zone(self.zone)

    def next_after(self, time_ms: int) -> int | None:
        return _next_after(self, time_ms)

    def count(self, after_ms: int, until_ms: int) -> int:
        found = 0
        for day in _days(self, after_ms):
            if day.begins_ms > until_ms:
                break
            found += max(day.place(until_ms) - day.place(after_ms), 0)
        return found

    def newest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        span_ms = _DAY_MS
        while until_ms - span_ms > after_ms and self.count(until_ms - span_ms, until_ms) < limit:
            span_ms *= 2
        after_ms = max(after_ms, until_ms - span_ms)
        found: list[int] = []
        for day in _days(self, after_ms):
            if day.begins_ms > until_ms:
                break
            minutes = day.minutes[day.place(after_ms) : day.place(until_ms)]
            found += [day.begins_ms + minute * _MINUTE_MS for minute in minutes]
        return found[-limit:]


def find_zone(name: str) -> ZoneInfo:
    """InvalidRequest when there is none of that name."""
    if len(name) <= limits.MAX_TIME_ZONE and _ZONE_NAME.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # not there; no zone in it; a directory
            pass
    raise InvalidRequest(
        f"there is no time zone {name[: limits.MAX_TIME_ZONE]!r}; use an IANA name like Europe/Berlin, "
        "America/New_York or UTC, written exactly so"
    )


# --- days of a zone


class _Day(NamedTuple):
    """From a zone's midnight to its next one."""

    begins_ms: int
    minutes: tuple[int, ...]
    """When there is a run, in minutes of elapsed time from there."""

    def place(self, time_ms: int) -> int:
        """How many of the runs are not after that time."""
        return bisect_right(self.minutes, (time_ms - self.begins_ms) // _MINUTE_MS)


class _Shown(NamedTuple):
    """What the clocks of a zone show, or leave out, at a minute."""

    minute: int
    """Of elapsed time since the day began; for a time left out, when it is over."""
    ordinal: int
    """The date."""
    of_day: int
    """Minutes since midnight, as the clocks show them."""
    again: bool
    left_out: bool


@lru_cache(maxsize=4096)
def _next_after(cron: Cron, time_ms: int) -> int | None:
    """Kept, because it is asked twice for each run: when it is decided, and when that is applied."""
    for day in _days(cron, time_ms):
        place = day.place(time_ms)
        if place < len(day.minutes):
            return day.begins_ms + day.minutes[place] * _MINUTE_MS
    return None


def _days(cron: Cron, after_ms: int) -> Iterator[_Day]:
    """In order, those on which it may run: all that have a run after that time, and perhaps some that have not."""
    pattern, zone = parse(cron.expression), find_zone(cron.zone)
    today = datetime.fromtimestamp(after_ms // 1000, zone).toordinal()
    for ordinal in _candidates(pattern, today - 1):
        yield _day(pattern, zone, ordinal)


def _candidates(pattern: Pattern, first: int) -> Iterator[int]:
    """Days, as ordinals, that match or are beside one that does: an hour may be shown before or after its day."""
    start = date.fromordinal(first - 1)
    months = range(start.year * 12 + start.month - 1, min(start.year + _SEARCH_YEARS, _LAST_YEAR) * 12)
    last = first - 1
    for year, month in (divmod(number, 12) for number in months):
        for matching in pattern.days_of(year, month + 1):
            for ordinal in range(max(matching - 1, last + 1), matching + 2):
                yield ordinal
                last = ordinal


def _day(pattern: Pattern, zone: ZoneInfo, ordinal: int) -> _Day:
    begins, ends = _midnight(zone, ordinal), _midnight(zone, ordinal + 1)
    if ends - begins == _DAY_S and _offset_before(zone, begins) == _offset_before(zone, ends):
        return _Day(begins * 1000, pattern.minutes if pattern.falls_on(date.fromordinal(ordinal)) else ())
    wanted, on = set(pattern.minutes), {}
    for day in range(ordinal - 2, ordinal + 3):
        on[day] = pattern.falls_on(date.fromordinal(day))
    found = {
        shown.minute
        for shown in _changing_day(zone, begins, ends)
        if shown.of_day in wanted
        and on[shown.ordinal]
        and not (shown.left_out if pattern.by_elapsed_time else shown.again)
    }
    return _Day(begins * 1000, tuple(sorted(found)))


def _midnight(zone: ZoneInfo, ordinal: int) -> int:
    """Unix seconds. Of two the first; where there is none, what it would be had the clocks not changed."""
    day = date.fromordinal(ordinal)
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())


def _offset_before(zone: ZoneInfo, time_s: int) -> timedelta | None:
    return datetime.fromtimestamp(time_s - _MINUTE_S, zone).utcoffset()


@lru_cache(maxsize=64)
def _changing_day(zone: ZoneInfo, begins: int, ends: int) -> tuple[_Shown, ...]:
    """All that the clocks show on a day on which they change."""
    shown = []
    expected = _wall(zone, begins - _MINUTE_S)[0] + _MINUTE
    for minute, time_s in enumerate(range(begins, ends, _MINUTE_S)):
        wall, again = _wall(zone, time_s)
        while expected < wall:
            shown.append(_show(minute, expected, left_out=True))
            expected += _MINUTE
        shown.append(_show(minute, wall, again=again))
        expected = wall + _MINUTE
    return tuple(shown)


def _wall(zone: ZoneInfo, time_s: int) -> tuple[datetime, bool]:
    """What the clocks show, and whether they do so for the second time."""
    local = datetime.fromtimestamp(time_s, zone)
    return local.replace(tzinfo=None, fold=0), bool(local.fold)


def _show(minute: int, wall: datetime, *, again: bool = False, left_out: bool = False) -> _Shown:
    return _Shown(minute, wall.toordinal(), wall.hour * 60 + wall.minute, again, left_out)
