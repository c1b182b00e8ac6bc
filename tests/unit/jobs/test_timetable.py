"""When schedules run: through changes of the clocks both ways, leap days, and across years."""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from goqueue.jobs.timetable import Cron, Every, Timetable, find_zone
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
DAY_MS = 86_400_000


def at(text: str) -> int:
    """Unix milliseconds of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def show(time_ms: int, zone: str) -> str:
    """As the clocks there show it, with the offset."""
    return f"{datetime.fromtimestamp(time_ms / 1000, ZoneInfo(zone)):%m-%d %H:%M %z}"


def runs(timetable: Timetable, after: str, count: int) -> list[int]:
    found, time_ms = [], at(after)
    for _ in range(count):
        following = timetable.next_after(time_ms)
        assert following is not None
        assert following > time_ms
        found.append(time_ms := following)
    return found


def shown(expression: str, zone: str, after: str, count: int) -> list[str]:
    return [show(time_ms, zone) for time_ms in runs(Cron(expression, zone), after, count)]


# --- every so often, without clocks


def test_every_runs_one_interval_after_its_anchor_and_so_on() -> None:
    timetable = Every(10_000, 5)
    assert timetable.next_after(5) == 10_005
    assert timetable.next_after(10_004) == 10_005
    assert timetable.next_after(10_005) == 20_005
    assert timetable.next_after(999_999_999) == 1_000_000_005


def test_every_does_not_run_before_its_anchor() -> None:
    timetable = Every(10_000, 50_000)
    assert timetable.next_after(0) == 60_000
    assert timetable.count(0, 59_999) == 0
    assert timetable.newest(0, 59_999, 5) == []


def test_runs_of_every_are_counted_without_visiting_them() -> None:
    timetable = Every(1000, 0)
    assert timetable.count(500, 10**13 + 1) == 10**10
    assert timetable.newest(0, 10**13 + 999, 2) == [10**13 - 1000, 10**13]
    assert timetable.newest(8000, 10_500, 5) == [9000, 10_000]
    assert timetable.count(10_000, 9000) == 0


def test_every_ends_with_the_calendar() -> None:
    assert Every(1000, 0).next_after(limits.LAST_TIME_MS) is None


@pytest.mark.parametrize("interval_ms", [999, 0, -1000, 366 * DAY_MS + 1])
def test_an_interval_out_of_range_is_refused(interval_ms: int) -> None:
    with pytest.raises(InvalidRequest, match="it must be from 1 s to 366 days"):
        Every(interval_ms, 0).check()


@pytest.mark.parametrize("interval_ms", [1000, 366 * DAY_MS])
def test_the_shortest_and_the_longest_interval_are_allowed(interval_ms: int) -> None:
    Every(interval_ms, 0).check()


# --- the calendar


def test_a_run_is_strictly_after_the_time_asked_about() -> None:
    cron = Cron("30 3 * * *")
    due = at("2026-05-01 03:30")
    assert cron.next_after(due - 1) == due
    assert cron.next_after(due) == due + DAY_MS
    assert cron.next_after(due + 1) == due + DAY_MS


def test_without_a_zone_it_is_utc() -> None:
    assert Cron("30 3 * * *") == Cron("30 3 * * *", "UTC")


def test_29_february_comes_every_four_years_and_not_in_2100() -> None:
    found = runs(Cron("0 12 29 2 *"), "2088-03-01 00:00", 4)
    assert found == [
        at("2092-02-29 12:00"),
        at("2096-02-29 12:00"),
        at("2104-02-29 12:00"),
        at("2108-02-29 12:00"),
    ]


def test_29_february_on_a_sunday_is_found_though_it_takes_40_years() -> None:
    assert runs(Cron("0 0 29 2 */7"), "2088-01-01 00:00", 2) == [at("2088-02-29 00:00"), at("2128-02-29 00:00")]


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2 */2"])
def test_a_day_that_never_comes_is_never(expression: str) -> None:
    cron = Cron(expression, BERLIN)
    cron.check()
    assert cron.next_after(at("2026-01-01 00:00")) is None
    assert cron.count(0, at("2026-01-01 00:00")) == 0


def test_the_31st_leaves_short_months_out() -> None:
    assert shown("0 0 31 * *", "UTC", "2026-01-31 00:00", 3) == [
        "03-31 00:00 +0000",
        "05-31 00:00 +0000",
        "07-31 00:00 +0000",
    ]


def test_it_ends_with_the_calendar() -> None:
    assert Cron("0 0 1 1 *").next_after(at("9998-06-01 00:00")) is None


# --- the clocks go forward: Berlin on 29 March 2026 from 2 to 3, New York on 8 March 2026 from 2 to 3


@pytest.mark.parametrize(
    ("zone", "after", "day", "offsets"),
    [
        (BERLIN, "2026-03-28 12:00", ("03-29", "03-30"), ("+0200", "+0200")),
        (NEW_YORK, "2026-03-07 12:00", ("03-08", "03-09"), ("-0400", "-0400")),
    ],
)
def test_a_time_that_is_left_out_runs_once_right_after_the_gap(
    zone: str, after: str, day: tuple[str, str], offsets: tuple[str, str]
) -> None:
    expected = [f"{day[0]} 03:00 {offsets[0]}", f"{day[1]} 02:30 {offsets[1]}"]
    assert shown("30 2 * * *", zone, after, 2) == expected


def test_several_times_that_are_left_out_are_one_run() -> None:
    found = shown("0,20,40 2 * * *", BERLIN, "2026-03-28 12:00", 4)
    assert found == ["03-29 03:00 +0200", "03-30 02:00 +0200", "03-30 02:20 +0200", "03-30 02:40 +0200"]


def test_a_time_left_out_and_one_right_after_the_gap_are_one_run() -> None:
    found = shown("0,30 2,3 * * *", BERLIN, "2026-03-28 12:00", 3)
    assert found == ["03-29 03:00 +0200", "03-29 03:30 +0200", "03-30 02:00 +0200"]


@pytest.mark.parametrize(("zone", "after"), [(BERLIN, "2026-03-29 00:10"), (NEW_YORK, "2026-03-08 06:10")])
def test_every_quarter_of_an_hour_goes_on_by_elapsed_time_when_the_clocks_go_forward(zone: str, after: str) -> None:
    found = runs(Cron("*/15 * * * *", zone), after, 12)
    assert {later - earlier for earlier, later in pairwise(found)} == {15 * 60_000}
    hours = [show(time_ms, zone)[6:8] for time_ms in found]
    assert "02" not in hours
    assert hours.count("01") == 3
    assert hours.count("03") == 4


def test_every_so_often_within_hours_that_are_left_out_does_not_run() -> None:
    assert shown("*/30 2 * * *", BERLIN, "2026-03-28 12:00", 2) == ["03-30 02:00 +0200", "03-30 02:30 +0200"]
    assert shown("30 */2 * * *", BERLIN, "2026-03-28 23:00", 2) == ["03-29 00:30 +0100", "03-29 04:30 +0200"]


# --- the clocks go back: Berlin on 25 October 2026 from 3 to 2, New York on 1 November 2026 from 2 to 1


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        (BERLIN, "30 2 * * *", "2026-10-24 12:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31 12:00", ["11-01 01:30 -0400", "11-02 01:30 -0500"]),
    ],
)
def test_a_time_that_comes_twice_runs_the_first_time(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    assert shown(expression, zone, after, 2) == expected


def test_a_schedule_made_between_the_two_times_runs_the_next_day() -> None:
    second_pass = "2026-10-25 01:15"  # 02:15 in Berlin, for the second time
    assert show(at(second_pass), BERLIN) == "10-25 02:15 +0100"
    assert shown("30 2 * * *", BERLIN, second_pass, 1) == ["10-26 02:30 +0100"]


@pytest.mark.parametrize(
    ("zone", "after", "twice"), [(BERLIN, "2026-10-24 23:10", "02"), (NEW_YORK, "2026-11-01 04:10", "01")]
)
def test_every_quarter_of_an_hour_goes_on_by_elapsed_time_when_the_clocks_go_back(
    zone: str, after: str, twice: str
) -> None:
    found = runs(Cron("*/15 * * * *", zone), after, 16)
    assert {later - earlier for earlier, later in pairwise(found)} == {15 * 60_000}
    assert [show(time_ms, zone)[6:8] for time_ms in found].count(twice) == 8


def test_hourly_runs_25_times_on_the_long_day_and_23_times_on_the_short_one() -> None:
    hourly = Cron("@hourly", BERLIN)
    for day, length in (("2026-10-24 22:00", 25), ("2026-03-28 23:00", 23)):
        begins = at(day) - 1
        assert hourly.count(begins, begins + length * 3_600_000) == length
        assert show(begins + length * 3_600_000 + 1, BERLIN)[6:11] == "00:00"


# --- stranger clocks


def test_half_an_hour_that_comes_twice() -> None:
    """Lord Howe: from 2:00 back to 1:30."""
    found = shown("*/10 1,2 * * *", "Australia/Lord_Howe", "2026-04-04 14:15", 10)
    assert found == [
        "04-05 01:20 +1100",
        "04-05 01:30 +1100",
        "04-05 01:40 +1100",
        "04-05 01:50 +1100",
        "04-05 01:30 +1030",
        "04-05 01:40 +1030",
        "04-05 01:50 +1030",
        "04-05 02:00 +1030",
        "04-05 02:10 +1030",
        "04-05 02:20 +1030",
    ]


def test_a_day_whose_first_hour_is_left_out() -> None:
    """Beirut: from midnight to 1."""
    assert shown("0 0 * * *", "Asia/Beirut", "2028-03-24 23:00", 2) == ["03-26 01:00 +0300", "03-27 00:00 +0300"]
    assert shown("*/30 0,1 26 * *", "Asia/Beirut", "2028-03-24 23:00", 2) == ["03-26 01:00 +0300", "03-26 01:30 +0300"]


def test_a_day_whose_last_hour_is_left_out() -> None:
    """Nuuk: from 23 to midnight, so that what is left out runs on the next day, once with what runs then."""
    found = shown("0,30 0,23 * * *", "America/Nuuk", "2026-03-28 12:00", 3)
    assert found == ["03-29 00:00 -0100", "03-29 00:30 -0100", "03-29 23:00 -0100"]
    found = shown("30 23 28 3 *", "America/Nuuk", "2026-03-28 12:00", 2)
    assert found == ["03-29 00:00 -0100", "03-28 23:30 -0100"], "a year later the clocks change a day earlier"


def test_a_day_that_is_left_out_altogether() -> None:
    """Apia went from 29 to 31 December 2011."""
    assert shown("30 2 30 * *", "Pacific/Apia", "2011-12-01 12:00", 2) == ["12-31 00:00 +1400", "01-30 02:30 +1400"]
    assert shown("0 12 * * *", "Pacific/Apia", "2011-12-29 12:00", 3) == [
        "12-29 12:00 -1000",
        "12-31 00:00 +1400",
        "12-31 12:00 +1400",
    ]
    assert shown("0 */12 * * *", "Pacific/Apia", "2011-12-29 12:00", 2) == ["12-29 12:00 -1000", "12-31 00:00 +1400"]


def test_clocks_that_go_back_over_midnight_show_an_hour_of_the_day_before() -> None:
    """St John's in 2010: one minute past midnight it was 23:01 again."""
    found = shown("*/30 * 6,7 11 *", "America/St_Johns", "2010-11-07 01:45", 7)
    assert found == [
        "11-06 23:30 -0230",
        "11-07 00:00 -0230",
        "11-06 23:30 -0330",
        "11-07 00:00 -0330",
        "11-07 00:30 -0330",
        "11-07 01:00 -0330",
        "11-07 01:30 -0330",
    ]
    assert shown("30 23 6 11 *", "America/St_Johns", "2010-11-06 12:00", 2)[0] == "11-06 23:30 -0230"


# --- counting


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, "UTC", "Australia/Lord_Howe", "America/Nuuk"])
@pytest.mark.parametrize("expression", ["*/20 * * * *", "30 2 * * *", "0,30 1-3,23 * * 0,6", "0 0 1 * *"])
def test_a_year_of_runs_is_counted_as_if_visited(expression: str, zone: str) -> None:
    cron = Cron(expression, zone)
    after, until = at("2026-01-15 10:11"), at("2027-01-15 12:13")
    visited, time_ms = [], cron.next_after(after)
    while time_ms is not None and time_ms <= until:
        visited.append(time_ms)
        time_ms = cron.next_after(time_ms)
    assert cron.count(after, until) == len(visited)
    assert cron.count(visited[0], visited[-1]) == len(visited) - 1
    assert cron.count(until, after) == 0
    for limit in (1, 2, 100, 10**6):
        assert cron.newest(after, until, limit) == visited[-limit:]
    assert cron.newest(after, visited[0], 5) == visited[:1]
    assert cron.newest(after, visited[0] - 1, 5) == []


# --- zones


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Berlin",
        "europe/berlin",
        "Europe",
        "Europe/",
        "/etc/passwd",
        "../UTC",
        "Europe/../UTC",
        "Europe/Berlin\n",
        "localtime",
        "posixrules",
        "right/UTC",
        "tzdata.zi",
        "zone.tab",
        "A" * 1000,
        "Ä",
    ],
)
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"there is no time zone .* use an IANA name like Europe/Berlin"):
        Cron("0 0 * * *", name).check()


@pytest.mark.parametrize(
    "name", ["UTC", "Etc/GMT+12", "America/Argentina/Buenos_Aires", "America/Port-au-Prince", "CET"]
)
def test_names_of_every_shape_are_zones(name: str) -> None:
    Cron("0 0 * * *", name).check()


@pytest.fixture
def no_zones_on_this_machine() -> Iterator[None]:
    ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(to=())
    yield
    zoneinfo.reset_tzpath()
    ZoneInfo.clear_cache()


def test_zones_are_found_on_a_machine_without_a_zone_database(no_zones_on_this_machine: None) -> None:
    assert zoneinfo.TZPATH == ()
    assert find_zone(BERLIN).utcoffset(datetime(2026, 7, 1)) is not None
    assert shown("30 2 * * *", BERLIN, "2026-10-24 12:00", 1) == ["10-25 02:30 +0200"]
    with pytest.raises(InvalidRequest, match="no time zone"):
        find_zone("Europe/Nowhere")


def test_a_wrong_expression_is_refused_by_check() -> None:
    with pytest.raises(InvalidRequest, match="cron, minute"):
        Cron("61 * * * *").check()
