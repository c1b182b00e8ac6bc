"""Bars on stderr: only where somebody is looking, and only for what takes long."""

import io
import sys

import pytest

from goqueue.cli import progress
from goqueue.cli.progress import Counter, Meter


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """In the test itself: between fixtures and test the streams change hands."""
    shown = Screen()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)
    with Counter("redriving", 10) as counter:
        counter.advance(10)
    assert screen.getvalue() == ""


def test_long_work_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watch(monkeypatch)
    monkeypatch.setattr(progress, "_PATIENCE_S", -1)
    with Counter("redriving", 10) as counter:
        counter.advance(4)
        counter.advance(6)
    assert "redriving" in screen.getvalue()
    assert "10/10" in screen.getvalue()


def test_where_nobody_looks_it_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    monkeypatch.setattr(progress, "_PATIENCE_S", -1)
    with Meter("publishing", None) as meter:
        meter.advance(4)
    assert shown.getvalue() == ""
