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
        ("segment_age_ms", 0, "1 to 3153600000000"),
        ("index_interval_bytes", 0, "1 to 67108864"),
        ("index_interval_bytes", 64 * limits.MIB + 1, "1 to 67108864"),
        ("fsync_interval_ms", 0, "1 to 3153600000000"),
        ("retention_ms", -1, "0 to 3153600000000"),
        ("retention_bytes", -1, "0 to 4611686018427387904"),
        ("tombstone_retention_ms", -1, "0 to 3153600000000"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, bad: int, bounds: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        LogSettings(**{name: bad})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} is {bad}; it must be a whole number from {bounds}"


def test_the_ends_of_the_ranges_are_allowed() -> None:
    LogSettings(segment_bytes=limits.MIN_SEGMENT_BYTES, index_interval_bytes=1, retention_ms=0, retention_bytes=0)
    LogSettings(segment_bytes=limits.MAX_SEGMENT_BYTES, index_interval_bytes=limits.MAX_SEGMENT_BYTES)


@pytest.mark.parametrize("choice", Fsync)
def test_fsync_may_be_given_by_its_name(choice: Fsync) -> None:
    settings = LogSettings(fsync=choice.value)  # type: ignore[arg-type]
    assert settings.fsync is choice
    assert settings == LogSettings(fsync=choice)


@pytest.mark.parametrize("bad", ["sometimes", "", "EVERY", None, 1])
def test_any_other_fsync_is_refused_by_name(bad: object) -> None:
    with pytest.raises(InvalidSetting, match="fsync"):
        LogSettings(fsync=bad)  # type: ignore[arg-type]
