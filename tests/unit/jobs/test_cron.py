"""What a cron expression says, and what is said about one that is wrong."""

from datetime import date

import pytest

from goqueue.jobs.cron import MACROS, parse
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

EVERY_MONTH = frozenset(range(1, 13))
EVERY_DAY = frozenset(range(1, 32))
EVERY_WEEKDAY = frozenset(range(7))


@pytest.mark.parametrize(
    ("minute_and_hour", "minutes"),
    [
        ("0 0", (0,)),
        ("59 23", (24 * 60 - 1,)),
        ("5,35 1", (65, 95)),
        ("35,5,5 1", (65, 95)),
        ("0 9-11", (540, 600, 660)),
        ("*/20 3", (180, 200, 220)),
        ("10-30/10 0", (10, 20, 30)),
        ("0 20-23/2,1", (60, 1200, 1320)),
        ("0,30 1,2", (60, 90, 120, 150)),
        ("*/60 0", (0,)),
        ("00 03", (180,)),
    ],
)
def test_minutes_and_hours_make_minutes_of_a_day_in_order(minute_and_hour: str, minutes: tuple[int, ...]) -> None:
    assert parse(f"{minute_and_hour} * * *").minutes == minutes


def test_stars_are_everything() -> None:
    found = parse("* * * * *")
    assert found.minutes == tuple(range(24 * 60))
    assert (found.days, found.months, found.weekdays) == (EVERY_DAY, EVERY_MONTH, EVERY_WEEKDAY)


def test_months_and_days_of_the_week_have_names_in_any_case() -> None:
    found = parse("0 0 * jan,Mar-MAY,12 mon-WED,sat")
    assert found.months == {1, 3, 4, 5, 12}
    assert found.weekdays == {1, 2, 3, 6}


@pytest.mark.parametrize(
    ("text", "weekdays"),
    [("0", {0}), ("7", {0}), ("SUN", {0}), ("5-7", {5, 6, 0}), ("*/2", {0, 2, 4, 6}), ("0-7", set(range(7)))],
)
def test_sunday_is_0_and_7(text: str, weekdays: set[int]) -> None:
    assert parse(f"0 0 * * {text}").weekdays == weekdays


@pytest.mark.parametrize(
    ("macro", "first_days"),
    [
        ("@daily", ["2026-01-01", "2026-01-02"]),
        ("@weekly", ["2026-01-04", "2026-01-11"]),
        ("@monthly", ["2026-01-01", "2026-02-01"]),
        ("@yearly", ["2026-01-01", "2027-01-01"]),
    ],
)
def test_a_macro_is_what_its_name_says(macro: str, first_days: list[str]) -> None:
    found = parse(macro)
    assert found.minutes == (0,)
    days = [date.fromordinal(date(2026, 1, 1).toordinal() + later) for later in range(400)]
    assert [str(day) for day in days if found.falls_on(day)][:2] == first_days


def test_hourly_is_every_full_hour() -> None:
    assert parse("@hourly").minutes == tuple(range(0, 24 * 60, 60))
    assert parse(" @HOURLY ") == parse(MACROS["@hourly"])


def test_days_must_match_both_fields_if_one_begins_with_a_star_and_either_if_none_does() -> None:
    either, both = parse("0 0 13 * FRI"), parse("0 0 */13 * FRI")
    days = [date(2026, 3, day) for day in range(1, 32)]
    assert [day.day for day in days if either.falls_on(day)] == [6, 13, 20, 27]
    assert [day.day for day in days if both.falls_on(day)] == [27]
    assert [day.day for day in days if parse("0 0 14 * FRI").falls_on(day)] == [6, 13, 14, 20, 27]
    assert [day.day for day in days if parse("0 0 14 * */7").falls_on(day)] == []


@pytest.mark.parametrize("expression", ["0 0 * * *", "0 0 29 2 *", "0 0 13 * FRI", "0 0 */5 JAN-JUN 1-5", "0 0 1 * 0"])
def test_the_days_of_a_month_are_those_it_falls_on(expression: str) -> None:
    found = parse(expression)
    for year in (2024, 2026):
        for month in range(1, 13):
            first = date(year, month, 1).toordinal()
            days = map(date.fromordinal, range(first, first + 31))
            expected = [day.toordinal() for day in days if day.month == month and found.falls_on(day)]
            assert found.days_of(year, month) == expected


@pytest.mark.parametrize(
    ("expression", "by_elapsed_time"),
    [
        ("30 2 * * *", False),
        ("0,30 1-5 * * *", False),
        ("*/15 2 * * *", True),
        ("0 * * * *", True),
        ("0 */6 * * *", True),
        ("@daily", False),
        ("@hourly", True),
    ],
)
def test_a_star_for_minutes_or_hours_means_every_so_often(expression: str, by_elapsed_time: bool) -> None:
    assert parse(expression).by_elapsed_time is by_elapsed_time


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("60 * * * *", "cron, minute: '60' is out of range; use numbers from 0 to 59, as in"),
        ("a * * * *", "cron, minute: 'a' is not understood; use numbers from 0 to 59"),
        ("5,,6 * * * *", "cron, minute: '' is not understood"),
        ("-1 * * * *", "cron, minute: '-1' is not understood"),
        ("1-2-3 * * * *", "cron, minute: '1-2-3' is not understood"),
        ("*/0 * * * *", "cron, minute: '*/0' has a step of 0, which must be from 1 to 60"),
        ("*/90 * * * *", "cron, minute: '*/90' has a step of 90, which must be from 1 to 60"),
        ("5/15 * * * *", "cron, minute: '5/15' has a step and no range: write 5-59/15; use"),
        ("30-10 * * * *", "cron, minute: '30-10' runs backwards; use"),
        ("\N{ARABIC-INDIC DIGIT THREE} * * * *", "cron, minute: '\N{ARABIC-INDIC DIGIT THREE}' is not understood"),
        ("0 24 * * *", "cron, hour: '24' is out of range; use numbers from 0 to 23"),
        ("0 0 0 * *", "cron, day of the month: '0' is out of range; use numbers from 1 to 31"),
        ("0 0 L * *", "cron, day of the month: 'L' is not understood"),
        ("0 0 * 13 *", "cron, month: '13' is out of range; use numbers from 1 to 12, as in 1, 6-8 or */3, or names"),
        ("0 0 * MON *", "cron, month: 'MON' is not understood"),
        ("0 0 * * 8", "cron, day of the week: '8' is out of range; use numbers from 0 to 7"),
        (
            "0 0 * * FRI-SUN",
            "'FRI-SUN' runs backwards; use numbers from 0 to 7, as in 0, 1-5 or 6,7, or names from SUN",
        ),
        ("0 0 * * MONDAY", "cron, day of the week: 'MONDAY' is not understood"),
        ("0 0 * * MON#2", "cron, day of the week: 'MON#2' is not understood"),
        ("", "cron has 0 fields; it must have five: minute, hour, day of the month, month, day of the week, like"),
        ("0 0 * *", "cron has 4 fields"),
        ("0 0 0 * * *", "cron has 6 fields"),
        ("@reboot", "cron is '@reboot'; use @hourly, @daily, @weekly, @monthly, @yearly, or five fields like"),
        ("@daily 5", "cron is '@daily 5'; use"),
        ("x" * 60 + " * * * *", f"cron, minute: '{'x' * 40}' is not understood"),
        ("0 " * 200, f"cron has more than {limits.MAX_CRON_EXPRESSION} characters"),
    ],
)
def test_a_mistake_is_named_with_its_field_and_what_would_be_right(expression: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(expression)
    assert said in str(refusal.value)
