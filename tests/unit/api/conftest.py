"""Housekeeping of a broker comes when a test calls it, not on its own."""

import pytest

from goqueue.model import limits


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for interval in ("TICK_INTERVAL_S", "CLEAN_INTERVAL_S"):
        monkeypatch.setattr(limits, interval, 3600.0)
