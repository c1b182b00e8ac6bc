"""A topic's settings: ranges, and what they mean for a partition's log."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.model import limits
from goqueue.model.errors import InvalidSetting
from goqueue.model.record import Lane
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import (
    DEFAULT_PARTITIONS,
    MAX_MESSAGE_BYTES,
    Backoff,
    CleanupPolicy,
    LanePolicy,
    OnExpiry,
    TopicSettings,
)

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
        visibility_ms=30_000,
        max_retries=3,
        backoff=Backoff(base_ms=1000, factor=2.0, max_ms=60_000),
        dlq_enabled=True,
        message_ttl_ms=None,
        on_expiry=OnExpiry.DROP,
        lane_weights=(50, 25, 15, 7, 3),
        lane_policy=LanePolicy.WEIGHTED,
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
        ("max_retries", 0, 1000),
    ],
)
def test_a_setting_out_of_its_range_is_refused(name: str, lowest: int, highest: int) -> None:
    for good in (lowest, highest):
        changed(name, good).check()
    for bad in (lowest - 1, highest + 1):
        with pytest.raises(InvalidSetting, match=f"{name} is {bad}; it must be from {lowest} to {highest}"):
            changed(name, bad).check()


@pytest.mark.parametrize(
    ("field", "name", "lowest", "highest", "bounds"),
    [
        ("visibility_ms", "visibility_timeout", 1, 12 * HOUR_MS, "from 1ms to 12h"),
        ("message_ttl_ms", "message_ttl", 1, limits.MAX_DURATION_MS, "from 1ms to 36500d"),
    ],
)
def test_a_duration_out_of_its_range_is_refused_as_users_write_it(
    field: str, name: str, lowest: int, highest: int, bounds: str
) -> None:
    for good in (lowest, highest):
        changed(field, good).check()
    for bad, shown in ((lowest - 1, "0s"), (-1, "-1ms"), (highest + 1, r"\w+1ms")):
        with pytest.raises(InvalidSetting, match=rf"^{name} is {shown}; it must be {bounds}$"):
            changed(field, bad).check()


@pytest.mark.parametrize(
    "weights", [(0, 1, 1, 1, 1), (1, 1, 1, 1, 1001), (1, 1, -1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1, 1, 1), ()]
)
def test_every_lane_has_a_weight_in_range(weights: tuple[int, ...]) -> None:
    with pytest.raises(InvalidSetting, match=r"^lane_weights is \[.*\]; it must be 5 whole numbers from 1 to 1000"):
        msgspec.structs.replace(TopicSettings(), lane_weights=weights).check()


def test_the_lightest_and_the_heaviest_lanes_are_allowed() -> None:
    assert len(TopicSettings().lane_weights) == len(Lane)
    TopicSettings(lane_weights=(1, 1, 1, 1, 1)).check()
    TopicSettings(lane_weights=(1000, 1000, 1000, 1000, 1000)).check()


@pytest.mark.parametrize(
    ("backoff", "refusal"),
    [
        (Backoff(base_ms=-1), "backoff.base is -1ms; it must be from 0s to 7d"),
        (Backoff(base_ms=limits.MAX_BACKOFF_MS + 1), "backoff.base is 7d1ms; it must be from 0s to 7d"),
        (Backoff(max_ms=limits.MAX_BACKOFF_MS + 1), "backoff.max is 7d1ms; it must be from 0s to 7d"),
        (Backoff(base_ms=60_001), "backoff.max is 1m; it must be at least backoff.base, which is 1m1ms"),
        (Backoff(factor=0.99), "backoff.factor is 0.99; it must be from 1 to 100"),
        (Backoff(factor=100.5), "backoff.factor is 100.5; it must be from 1 to 100"),
        (Backoff(factor=math.nan), "backoff.factor is nan; it must be from 1 to 100"),
    ],
)
def test_a_backoff_out_of_range_is_refused_by_its_part(backoff: Backoff, refusal: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        TopicSettings(backoff=backoff).check()
    assert str(caught.value) == refusal


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff(base_ms=0, factor=1, max_ms=0),
        Backoff(base_ms=0, factor=100, max_ms=limits.MAX_BACKOFF_MS),
        Backoff(base_ms=limits.MAX_BACKOFF_MS, max_ms=limits.MAX_BACKOFF_MS),
    ],
)
def test_a_backoff_at_its_bounds_is_allowed(backoff: Backoff) -> None:
    TopicSettings(backoff=backoff).check()


def test_each_retry_waits_longer_up_to_the_maximum() -> None:
    assert [Backoff().delay_ms(retry) for retry in range(1, 9)] == [
        1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip
    assert [Backoff(base_ms=100, factor=1.5, max_ms=300).delay_ms(retry) for retry in range(1, 6)] == [
        100, 150, 225, 300, 300,
    ]  # fmt: skip


def test_without_a_factor_every_retry_waits_as_long() -> None:
    assert {Backoff(base_ms=700, factor=1).delay_ms(retry) for retry in (1, 2, 10, 1000)} == {700}


def test_without_a_base_no_retry_waits() -> None:
    assert {Backoff(base_ms=0, factor=100).delay_ms(retry) for retry in (1, 2, 155, 156, 1000, 10**6)} == {0}


@given(
    base_ms=st.integers(0, limits.MAX_BACKOFF_MS),
    factor=st.floats(1, limits.MAX_BACKOFF_FACTOR),
    more_ms=st.integers(0, limits.MAX_BACKOFF_MS),
    retry=st.integers(1, limits.MAX_RETRIES) | st.integers(1, 10**9),
)
def test_a_delay_has_bounds_and_never_shrinks(base_ms: int, factor: float, more_ms: int, retry: int) -> None:
    backoff = Backoff(base_ms=base_ms, factor=factor, max_ms=min(base_ms + more_ms, limits.MAX_BACKOFF_MS))
    delay_ms = backoff.delay_ms(retry)
    assert type(delay_ms) is int
    assert backoff.base_ms <= delay_ms <= backoff.max_ms
    assert delay_ms <= backoff.delay_ms(retry + 1)
    assert backoff.delay_ms(1) == backoff.base_ms


@pytest.mark.parametrize("name", ["retention_hours", "retention_bytes", "message_ttl_ms"])
def test_a_retention_and_a_ttl_may_be_without_limit(name: str) -> None:
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
