"""Lost answers and cancelled transactions: some rounds in the suite, half an hour on request."""

import os
from pathlib import Path

import pytest

from tests.chaos import lost_replies
from tests.chaos.lost_replies import lose_replies


def any_seed() -> int:
    return int.from_bytes(os.urandom(3), "big")


def test_only_another_program_fences_whatever_is_lost_or_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_replies, "_TAKEN_OVER", 0.1)
    outcome = lose_replies(tmp_path, lambda done: done < 80, seed=any_seed())
    assert outcome.counts["committed"]
    assert outcome.counts["cancelled"]
    assert outcome.lost


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_only_another_program_fences_after_a_thousand_rounds(tmp_path: Path) -> None:
    outcome = lose_replies(tmp_path, lambda done: done < 1000, seed=any_seed())
    assert outcome.counts["taken over"]
    assert outcome.counts["broker killed"]
