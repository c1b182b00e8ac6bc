"""Records as Python sees them."""

import pytest

from goqueue.model.record import Extension, Lane, Record


def test_a_record_is_normal_and_absent_where_nothing_was_said() -> None:
    record = Record()
    assert (record.key, record.value, record.priority, record.headers) == (None, None, Lane.NORMAL, ())
    assert (record.extension, record.control, record.commit) == (None, False, False)


def test_lanes_run_from_critical_to_background() -> None:
    assert [(lane.name, lane.value) for lane in sorted(Lane)] == [
        ("CRITICAL", 0),
        ("HIGH", 1),
        ("NORMAL", 2),
        ("LOW", 3),
        ("BACKGROUND", 4),
    ]


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Record().offset = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Extension().deliver_at = 1  # type: ignore[misc]
