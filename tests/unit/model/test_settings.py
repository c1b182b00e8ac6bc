"""Settings: defaults that work, and a refusal that names the setting and its range."""

import pytest

from goqueue.model import limits
from goqueue.model.errors import InvalidSetting
from goqueue.model.settings import Fsync, LogSettings


def test_the_defaults_keep_everything() -> None:
    settings = LogSettings()
    assert (settings.retention_ms, settings.retention_bytes, settings.compact) == (None, None, False)
    assert settings.fsync is Fsync.INTERVAL


@pytest.mark.parametrize(
    ("name", "bad", "bounds"),
    [
        ("segment_bytes", limits.MIN_SEGMENT_BYTES - 1, "4096 to 1073741824"),
        ("segment_bytes", limits.MAX_SEGMENT_BYTES + 1, "4096 to 1073741824"),
        ("segment_age_ms", 0, "at least 1"),
        ("index_interval_bytes", 0, "1 to 67108864"),
        ("index_interval_bytes", 64 * limits.MIB + 1, "1 to 67108864"),
        ("fsync_interval_ms", 0, "at least 1"),
        ("retention_ms", -1, "at least 0"),
        ("retention_bytes", -1, "at least 0"),
        ("tombstone_retention_ms", -1, "at least 0"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, bad: int, bounds: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        LogSettings(**{name: bad})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} is {bad}; it must be {bounds}"


def test_the_ends_of_the_ranges_are_allowed() -> None:
    LogSettings(segment_bytes=limits.MIN_SEGMENT_BYTES, index_interval_bytes=1, retention_ms=0, retention_bytes=0)
    LogSettings(segment_bytes=limits.MAX_SEGMENT_BYTES, index_interval_bytes=limits.MAX_SEGMENT_BYTES)
