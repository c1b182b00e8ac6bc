"""Errors: one tree, frozen codes, messages that say where to go on."""

import re

import pytest

from goqueue.model import errors
from goqueue.model.errors import GoQueueError, OffsetOutOfRange, Quarantined

CLASSES = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, GoQueueError)]
# What is on the wire one day stays: a code may be added here, never changed.
CODES = {
    "GoQueueError": "internal",
    "InvalidRequest": "invalid_request",
    "InvalidRecord": "invalid_record",
    "InvalidSetting": "invalid_setting",
    "OffsetOutOfRange": "offset_out_of_range",
    "StaleEpoch": "stale_epoch",
    "Unavailable": "unavailable",
    "DiskFull": "disk_full",
    "DirectoryLocked": "directory_locked",
    "LogClosed": "log_closed",
    "DamagedData": "damaged_data",
    "Quarantined": "quarantined",
    "DamagedState": "damaged_state",
    "StorageFailed": "storage_failed",
}


def test_codes_are_frozen() -> None:
    found = {each.__name__: each.code for each in CLASSES}
    assert {name: found.get(name) for name in CODES} == CODES


def test_no_two_errors_share_a_code() -> None:
    codes = [each.code for each in CLASSES]
    assert len(set(codes)) == len(codes)


def test_every_error_is_drawn_in_the_tree() -> None:
    drawn = set(re.findall(r"[A-Z]\w+", errors.__doc__ or ""))
    assert {each.__name__ for each in CLASSES} <= drawn


@pytest.mark.parametrize("name", ["DiskFull", "DirectoryLocked", "LogClosed", "Unavailable"])
def test_what_is_unavailable_may_be_tried_again(name: str) -> None:
    assert getattr(errors, name).retriable


@pytest.mark.parametrize("name", ["InvalidRequest", "StaleEpoch", "Quarantined", "DamagedState", "StorageFailed"])
def test_what_stays_wrong_is_not_retriable(name: str) -> None:
    assert not getattr(errors, name).retriable


def test_an_offset_out_of_range_says_what_there_is() -> None:
    error = OffsetOutOfRange(9, start=2, end=7)
    assert str(error) == "offset 9 is outside this log, which holds 2 up to 7 (not included)"
    assert (error.offset, error.start, error.end) == (9, 2, 7)


def test_a_quarantined_range_says_where_reading_goes_on() -> None:
    error = Quarantined(3, 5, where="a.log", reason="its checksum does not match")
    assert str(error) == ("offsets 3 to 4 are damaged (its checksum does not match, a.log); reading goes on at 5")
    assert (error.first, error.next_offset) == (3, 5)
