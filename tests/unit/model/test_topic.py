"""A topic's settings: ranges, and what they mean for a partition's log."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.model import limits
from goqueue.model.errors import InvalidSetting
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import DEFAULT_PARTITIONS, MAX_MESSAGE_BYTES, CleanupPolicy, TopicSettings

HOUR_MS = 3600 * 1000
BASE = LogSettings(fsync_interval_ms=77, index_interval_bytes=8192, segment_age_ms=100 * HOUR_MS)


def changed(name: str, value: float | None) -> TopicSettings:
    return msgspec.structs.replace(TopicSettings(), **{name: value})


def test_the_defaults_are_those_of_the_product() -> None:
    assert TopicSettings() == TopicSettings(
        retention_hours=168,
        retention_bytes=None,
        cleanup_policy=CleanupPolicy.DELETE,
        segment_bytes=64 * 2**20,
        fsync=Fsync.INTERVAL,
        max_message_bytes=2**20,
    )
    assert DEFAULT_PARTITIONS == 3
    TopicSettings().check()


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("retention_hours", 0, 876_000),
        ("retention_bytes", 0, limits.MAX_OFFSET),
        ("segment_bytes", limits.MIN_SEGMENT_BYTES, limits.MAX_SEGMENT_BYTES),
        ("max_message_bytes", 1, MAX_MESSAGE_BYTES),
    ],
)
def test_a_setting_out_of_its_range_is_refused(name: str, lowest: int, highest: int) -> None:
    for good in (lowest, highest):
        changed(name, good).check()
    for bad in (lowest - 1, highest + 1):
        with pytest.raises(InvalidSetting, match=f"{name} is {bad}; it must be from {lowest} to {highest}"):
            changed(name, bad).check()


@pytest.mark.parametrize("name", ["retention_hours", "retention_bytes"])
def test_a_retention_may_be_without_limit(name: str) -> None:
    changed(name, None).check()


@pytest.mark.parametrize("hours", [math.nan, math.inf, -math.inf])
def test_a_retention_that_is_no_number_is_refused(hours: float) -> None:
    with pytest.raises(InvalidSetting):
        TopicSettings(retention_hours=hours).check()


def test_the_largest_message_fits_into_a_record() -> None:
    assert MAX_MESSAGE_BYTES < limits.MAX_RECORD_BYTES
    assert MAX_MESSAGE_BYTES + limits.MAX_BLOB_BYTES + 200 < limits.MAX_RECORD_BYTES


def test_the_log_gets_what_the_topic_decides_and_the_rest_from_the_broker() -> None:
    found = TopicSettings(retention_hours=0.5, retention_bytes=9, segment_bytes=10**6, fsync=Fsync.EVERY).log_settings(
        BASE
    )
    assert found == LogSettings(
        segment_bytes=10**6,
        segment_age_ms=HOUR_MS // 2,
        index_interval_bytes=8192,
        fsync=Fsync.EVERY,
        fsync_interval_ms=77,
        retention_ms=HOUR_MS // 2,
        retention_bytes=9,
        compact=False,
    )


def test_segments_roll_before_their_retention_is_over() -> None:
    """Otherwise a quiet topic would keep its messages for as long as a segment may be old."""
    assert TopicSettings(retention_hours=1).log_settings(BASE).segment_age_ms == HOUR_MS
    assert TopicSettings(retention_hours=1000).log_settings(BASE).segment_age_ms == 100 * HOUR_MS
    assert TopicSettings(retention_hours=None).log_settings(BASE).segment_age_ms == 100 * HOUR_MS
    assert TopicSettings(retention_hours=0).log_settings(BASE).segment_age_ms == 1


@pytest.mark.parametrize(
    ("policy", "retains", "compacts"),
    [(CleanupPolicy.DELETE, True, False), (CleanupPolicy.COMPACT, False, True), (CleanupPolicy.BOTH, True, True)],
)
def test_the_policy_says_whether_old_ones_go_and_whether_keys_are_compacted(
    policy: CleanupPolicy, retains: bool, compacts: bool
) -> None:
    found = TopicSettings(retention_hours=1, retention_bytes=9, cleanup_policy=policy).log_settings(BASE)
    assert found.compact is compacts
    assert (found.retention_ms, found.retention_bytes) == ((HOUR_MS, 9) if retains else (None, None))


def test_the_index_of_a_small_segment_is_not_wider_than_the_segment() -> None:
    assert TopicSettings(segment_bytes=4096).log_settings(BASE).index_interval_bytes == 4096


@given(
    st.builds(
        TopicSettings,
        retention_hours=st.none() | st.floats(0, 876_000),
        retention_bytes=st.none() | st.integers(0, limits.MAX_OFFSET),
        cleanup_policy=st.sampled_from(CleanupPolicy),
        segment_bytes=st.integers(limits.MIN_SEGMENT_BYTES, limits.MAX_SEGMENT_BYTES),
        fsync=st.sampled_from(Fsync),
        max_message_bytes=st.integers(1, MAX_MESSAGE_BYTES),
    )
)
def test_whatever_passes_the_check_is_good_for_a_log(settings: TopicSettings) -> None:
    """A topic that was created must be able to be opened: the log checks its settings itself, and must not refuse."""
    settings.check()
    settings.log_settings(LogSettings())
