"""Every test here types into its own empty data directory."""

from pathlib import Path

import pytest

from tests.unit.cli.typing_at import Person


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    monkeypatch.delenv("COLUMNS", raising=False)  # a worker of the suite has the width of somebody's terminal
    return Person(tmp_path / "data")
